// Reads the 13 tables of a version and joins them into what the index holds.
#pragma once

#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/nuscenes/tables/index_format.h"

namespace aerie::nuscenes {

inline constexpr std::array<std::string_view, 13> kTableNames = {
    "attribute", "calibrated_sensor", "category",    "ego_pose", "instance", "log",       "map",
    "sample",    "sample_annotation", "sample_data", "scene",    "sensor",   "visibility"};

struct IndexContent {
  std::vector<index_format::SceneRecord> scenes;
  std::vector<index_format::SampleRecord> samples;
  std::vector<index_format::FrameRecord> frames;
  std::vector<index_format::CalibrationRecord> calibrations;
  std::vector<index_format::BoxRecord> boxes;
  std::vector<index_format::StringRef> categories;
  std::string strings;
  std::vector<std::string> warnings;  // what was tolerated, with counts
};

// What must hold, else an error with file, row and key: every table is there and an array of
// objects whose needed keys have their types; tokens are unique in their table; foreign keys that
// are followed resolve; a sample's prev and next name each other within one scene, in one chain
// without a circle from first_sample_token to last_sample_token; a sample has one key frame a
// channel. Tolerated with a warning, as the devkit does: a wrong nbr_samples.
// Not looked at: foreign keys of frames between key frames and of sensors other than ours.
// `progress` is called from several threads with bytes that were read.
Result<IndexContent> read_tables(Env& env, const std::string& tables_dir, unsigned threads,
                                 const std::function<void(uint64_t bytes)>& progress = {});

// "<tables_dir>/sample.json"
std::string table_path(const std::string& tables_dir, std::string_view table);

}  // namespace aerie::nuscenes
