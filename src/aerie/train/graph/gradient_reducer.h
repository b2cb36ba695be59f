// Adding up gradients over the ranks of a run, as engines see it. An engine says when the gradients
// of a part (flat_parts.h) are written, which is while the backward pass goes on; norm, decision
// and update follow behind finish(), on what was added up.
//
// All calls but unite() only launch work behind what is on `stream` and may come while it is being
// captured: nothing waits, and what is done beside `stream` ends before finish() does. They return
// 0 or an error. Every rank makes the same calls in the same order. Calls come from the thread that
// launches the step, or from autograd's during its backward pass.
#pragma once

#include <cstdint>
#include <span>

#include "aerie/base/status.h"
#include "aerie/train/graph/flat_parts.h"

namespace aerie::train {

// What adding up has cost since the start. Of work that is captured in graphs only the capture is
// counted.
struct ReducerCounters {
  int64_t steps = 0;
  int64_t buckets = 0;       // of one step
  int64_t bytes = 0;         // of one step, as one rank hands them over
  double waited_s = 0.0;     // the host has waited for the other ranks behind its backward passes
  double under_way_s = 0.0;  // from the first bucket of a step to the end of its last
  // Of the time under way, what overlapped the backward pass.
  double overlap() const { return under_way_s > 0.0 ? 1.0 - waited_s / under_way_s : 0.0; }
};

class GradientReducer {
 public:
  virtual ~GradientReducer() = default;

  virtual int world() const { return 1; }  // the number of ranks

  // Where gradients lie, float32 in the engine's device memory; before the first step.
  virtual Status attach(float* grads, const FlatParts& parts) = 0;

  // The gradients of a part are complete; from the last part to the first, each once a step.
  virtual int begin(int part, void* stream) = 0;
  // Behind all parts: what is launched on `stream` from now on finds the sums.
  virtual int finish(void* stream) = 0;
  // Replaces a few values in device memory by their sums over the ranks.
  virtual int add_up(float* values, int64_t count, void* stream) = 0;
  // Sets flags that any rank has set; in host memory.
  virtual Status unite(std::span<uint8_t> flags) = 0;

  // Replaces a few values in host memory by their sums over the ranks.
  virtual Status add_up_on_host(std::span<double> values);

  // Whether begin() and finish() may be recorded as part of a CUDA graph. Otherwise they come
  // behind the backward pass.
  virtual bool recordable() const { return true; }
  // What went wrong, after a call that returned `code`.
  virtual Status error(int code) const;
  virtual ReducerCounters counters() const { return {}; }

  // A reducer that watches the parameters' gradients itself while autograd writes them: begin() is
  // not called then, but these around the last backward pass of a step. A pass without samples has
  // an undefined loss.
  virtual bool watches_backward() const { return false; }
  virtual Status before_backward(const at::Tensor& loss);
  virtual Status after_backward() { return ok_status(); }

  // A reducer that gives every rank a range of the flat buffers of its own: the rank updates these,
  // and hands them to the others.
  virtual bool shards() const { return false; }
  virtual FlatRange owned() const { return {}; }
  // Whether ranks have the sums of all gradients behind finish(), or those of their own range
  // alone.
  virtual bool sums_everywhere() const { return !shards(); }
  // Whether every gradient is to the bit what it was before: one rank adds up nothing, and what the
  // backward pass knows of its gradients holds for the sums.
  virtual bool keeps_gradients() const { return false; }
  // Everybody's own range of a flat buffer, in all ranks' buffers.
  virtual int gather(const at::Tensor& flat, void* stream);
  // As add_up().
  virtual int add_up_wide(double* values, int64_t count, void* stream);
};

}  // namespace aerie::train
