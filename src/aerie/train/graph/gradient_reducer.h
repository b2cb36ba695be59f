// Adding up gradients over the ranks of a run, as engines see it. An engine says when the gradients
// of a part (flat_parts.h) are written, which is while the backward pass goes on; norm, decision
// and update follow behind finish(), on what was added up.
//
// All calls but unite() only queue work behind what is on `stream` and may come while it is being
// recorded: nothing waits, and what is done beside `stream` ends before finish() does. They return
// 0 or an error. Every rank makes the same calls in the same order. Calls come from the thread that
// queues the step, or from autograd's during its backward pass.
#pragma once

#include <cstdint>
#include <span>

#include "aerie/base/status.h"
#include "aerie/train/graph/flat_parts.h"

namespace aerie::train {

class GradientReducer {
 public:
  virtual ~GradientReducer() = default;

  // Where gradients lie, float32 in the engine's device memory; before the first step.
  virtual Status attach(float* grads, const FlatParts& parts) = 0;

  // The gradients of a part are complete; from the last part to the first, each once a step.
  virtual int begin(int part, void* stream) = 0;
  // Behind all parts: what is queued on `stream` from now on finds the sums.
  virtual int finish(void* stream) = 0;
  // Replaces a few values in device memory by their sums over the ranks.
  virtual int add_up(float* values, int64_t count, void* stream) = 0;
  // Sets flags that any rank has set; in host memory.
  virtual Status unite(std::span<uint8_t> flags) = 0;

  // Whether begin() and finish() may be recorded as part of a CUDA graph. Otherwise they come
  // behind the backward pass.
  virtual bool recordable() const { return true; }
};

}  // namespace aerie::train
