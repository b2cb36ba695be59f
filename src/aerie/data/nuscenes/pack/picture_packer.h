// Puts the JPEG files of key frames into a pack (data/pack), as they are and in the order of the
// samples: what `aerie data pack --kind nuscenes` does. Thousands of small files become a few large
// ones that are read front to back.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/nuscenes/tables/nuscenes_index.h"

namespace aerie::nuscenes {

struct PicturePackOptions {
  std::shared_ptr<const NuscenesIndex> index;
  std::vector<uint32_t> samples;  // in the order they will lie
  std::string out_dir;            // made when absent
  uint64_t shard_bytes = uint64_t{1} << 30;
  bool decode = false;  // read every picture, not only its header
  // More unreadable pictures than this share end the run, as in training.
  double max_bad_fraction = 0.01;
  int workers = 1;
  Env* env = nullptr;
};

struct PicturePackReport {
  uint64_t num_packed = 0;
  uint64_t num_reused = 0;  // were in the folder already
  uint64_t num_bad = 0;
  std::vector<std::string> bad;  // the first 100, with their reasons
  uint64_t bytes = 0;
};

struct PicturePackHooks {
  std::function<void(uint64_t total)> on_start;
  std::function<void(uint64_t count)> on_pictures;
  std::function<bool()> stop;  // true: complete the shard being written and return kCancelled
};

// Pictures that the folder already holds, of the same size and time, are left alone, so that an
// interrupted run can be repeated; others are packed again, and the later shard counts. The result
// does not depend on `workers`.
Result<PicturePackReport> pack_pictures(const PicturePackOptions& options,
                                        const PicturePackHooks& hooks = {});

}  // namespace aerie::nuscenes
