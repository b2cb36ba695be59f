// One pass over evaluation sets: what the loop does when it validates, and `aerie eval`.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/schema/aerie_config.h"
#include "aerie/dist/process_group.h"
#include "aerie/train/batch_source.h"
#include "aerie/train/engine.h"
#include "aerie/train/eval_accumulator.h"

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
  EvalAccumulator all;
  double amount = 0.0;  // of input, as TaskInfo::amount counts it
};

// Results of all ranks, the same on each: ranks have different batches of the sets.
Status merge_over_ranks(dist::ProcessGroup& ranks, std::vector<SetResult>& results);

// One result per set. Masks and mixing depend on seed and round alone.
Result<std::vector<SetResult>> evaluate_sets(Engine& engine, const std::vector<ValidationSet>& sets,
                                             const EvaluateOptions& options);

}  // namespace aerie::train
