// The settings of a loader that come from a configuration; what its owner decides is in
// LoaderOptions (loader.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "aerie/base/status.h"
#include "aerie/data/sampling_config.h"

namespace aerie::data {

struct LoaderConfig {
  static constexpr int64_t kAutoWorkers = -1;

  int64_t num_workers = 0;
  std::optional<int64_t> prefetch_factor;  // null: 2, or nothing without workers
  bool persistent_workers = false;
  std::optional<int64_t> virtual_ranks;     // fixes the global order for any number of ranks
  std::optional<double> memory_budget_gib;  // null: printed, not limited
  double max_bad_fraction = 0.01;
  std::string max_bad_key = "aerie.max_bad_fraction";  // what its configuration calls it
  ShuffleLevel shuffle_level = ShuffleLevel::kSample;  // of sharded data
  bool compat_nemo = false;                            // NeMo 2.6's order of shards and buckets

  // num_workers, prefetch_factor and persistent_workers as torch's DataLoader checks them.
  Status validate() const;
};

}  // namespace aerie::data
