// The rows of the 13 tables.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "aerie/data/nuscenes/synth/json_rows.h"
#include "aerie/data/nuscenes/synth/scene.h"

namespace aerie::nuscenes::synth {

// Tables whose rows come scene by scene.
enum SceneTable {
  kSceneRows,
  kCalibratedSensorRows,
  kEgoPoseRows,
  kSampleRows,
  kSampleDataRows,
  kInstanceRows,
  kAnnotationRows,
  kNumSceneTables
};
constexpr std::array<std::string_view, kNumSceneTables> kSceneTableNames = {
    "scene",       "calibrated_sensor", "ego_pose",         "sample",
    "sample_data", "instance",          "sample_annotation"};

struct SceneRows {
  std::array<std::string, kNumSceneTables> text;  // objects, separated by commas
  uint64_t num_instances = 0, num_annotations = 0, num_sample_data = 0;
};
SceneRows scene_rows(const SynthOptions& options, const Scene& scene, const TokenMaker& tokens);

// Whole files: {"category", "[...]"}, ...
struct TableFile {
  std::string name, text;
};
std::vector<TableFile> common_tables(const DatasetPlan& plan, const TokenMaker& tokens);

// Of the mask of a location, relative to the root.
std::string mask_file_name(const TokenMaker& tokens, int location);

}  // namespace aerie::nuscenes::synth
