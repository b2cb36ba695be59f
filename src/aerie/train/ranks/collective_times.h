// How long all-reduces between the ranks of a group take, for predictions. No torch here.
#pragma once

#include <cstdint>
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

}  // namespace aerie::train
