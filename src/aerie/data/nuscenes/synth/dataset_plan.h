// How many rows of what a data set has, and what belongs to which scene.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "aerie/data/nuscenes/synth/rig.h"
#include "aerie/data/nuscenes/synth/synth_nuscenes.h"

namespace aerie::nuscenes::synth {

struct SceneQuota {
  std::string name;
  int location = 0;
  int log = 0;
  int samples = 0;
  int64_t first_sample = 0;  // number in the data set
  int actors = 0;
  int annotations = 0;  // 0: one wherever an actor is near enough
};

struct DatasetPlan {
  std::vector<SceneQuota> scenes;
  std::vector<int> log_locations;
  // Rows between two key frames, for each sensor; the first `extra_sweeps` samples have one more of
  // the lidar.
  std::array<int, kNumSensors> sweeps{};
  int64_t extra_sweeps = 0;
  bool tables_only = false;
  int64_t samples = 0;
};

// The scenes of the version in the order of their names.
std::vector<std::string> scene_names(const std::string& version);

Result<DatasetPlan> plan_dataset(const SynthOptions& options);

}  // namespace aerie::nuscenes::synth
