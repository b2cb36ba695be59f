// Which samples belong to a split, and in which order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/nuscenes/tables/nuscenes_index.h"

namespace aerie::nuscenes {

enum class SampleOrder {
  kTimestamp,  // of the sample (BEVFusion)
  kScene,      // token of the scene, then timestamp (Lift-Splat-Shoot)
};

struct SplitOptions {
  // train, val, test, train_detect, train_track, mini_train, mini_val as nuScenes defines them;
  // all; or a name in splits.json beside the tables. In a version called ...mini, train and val
  // mean mini_train and mini_val.
  std::string split = "train";
  // Own split: a text file with a scene name a line ("#" begins a comment); replaces `split`, which
  // is then only its name in messages.
  std::string file;
  SampleOrder order = SampleOrder::kTimestamp;
  bool need_files = true;  // false: samples whose pictures are missing stay
  bool quiet = false;      // no log lines
};

struct SplitSamples {
  std::vector<uint32_t> samples;
  std::string name;                   // the list that was used: "mini_train"
  uint32_t num_scenes = 0;            // that are in the tables
  uint32_t num_missing_scenes = 0;    // named by the split, not in the tables
  uint32_t num_incomplete = 0;        // samples left out: a camera or the lidar has no row
  uint32_t num_without_files = 0;     // samples left out: a picture is missing
  std::vector<std::string> examples;  // of missing scenes, then of missing pictures
};

// What is left out is counted and named in one warning. No sample left is an error that says why.
Result<SplitSamples> samples_of_split(Env& env, const NuscenesIndex& index,
                                      const SplitOptions& options);

// The scene names of an official split, sorted; empty: there is no such split.
std::vector<std::string> official_split(std::string_view name);
// "mini_train", "mini_val", "test", ...
std::vector<std::string> official_split_names();
// A split file: scene names in their order, each once.
Result<std::vector<std::string>> read_split_file(Env& env, const std::string& path);

}  // namespace aerie::nuscenes
