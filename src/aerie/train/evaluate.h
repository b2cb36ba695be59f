// One pass over evaluation sets: what the loop does when it validates, and `aerie eval`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/schema/aerie_config.h"
#include "aerie/train/batch_source.h"
#include "aerie/train/engine.h"

namespace aerie::train {

struct ValidationSet {
  std::string name;  // "" with one set, else NeMo's "<stem>_"
  BatchSource* source = nullptr;
  int64_t batches = 0;  // after limit_val_batches
};

struct EvaluateOptions {
  uint64_t seed = 0;                  // aerie.seed
  uint64_t round = 0;                 // 0: the fixed one; else the number of the pass
  int64_t max_batches = -1;           // of each set, below its own limit; -1: no bound
  std::function<void()> after_batch;  // may be empty
  std::function<bool()> stop;         // may be empty; ends it with kCancelled
};

struct SetResult {
  double loss = 0.0;  // mean over the batches that have one; NaN when none has
  int64_t batches = 0, counted = 0;
  int64_t masked_frames = 0;
  double audio_s = 0.0;
};

// One result per set. Masks and mixing depend on seed and round alone.
Result<std::vector<SetResult>> evaluate_sets(Engine& engine, const std::vector<ValidationSet>& sets,
                                             const EvaluateOptions& options);

}  // namespace aerie::train
