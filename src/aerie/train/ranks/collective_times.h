// How long all-reduces between the ranks of a group take, for predictions. No torch here.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/dist/process_group.h"

namespace aerie::train {

struct CollectiveTime {
  int64_t bytes = 0;
  double seconds = 0.0;  // median of the calls, of the slowest rank
};

// All-reduces of float32 tensors, one after another, each behind a barrier of the host.
// `gpu_index`: where the tensors lie, -1: on the CPU. All ranks; all have the answer.
Result<std::vector<CollectiveTime>> time_all_reduces(dist::ProcessGroup& group, int gpu_index,
                                                     const std::vector<int64_t>& bytes, int calls);

// Seconds to copy so many bytes on the CPU, all ranks at once: median, of the slowest rank.
Result<double> time_copies(dist::ProcessGroup& group, int64_t bytes, int calls);

// All-reduces on the CPU without a pause, on a thread of its own, beside whatever else the ranks
// do: what reducing and computing cost each other where they share processors and memory.
class ReductionLoad {
 public:
  // Of `bytes` again and again, `piece` by piece. All ranks. The group outlives it.
  static Result<std::unique_ptr<ReductionLoad>> start(dist::ProcessGroup& group, int64_t bytes,
                                                      int64_t piece);
  virtual ~ReductionLoad() = default;
  // Ends it, on all ranks; median of the seconds of a piece, of the slowest rank. Once.
  virtual Result<double> stop() = 0;
};

}  // namespace aerie::train
