// A queue beside a main one, as a NEST step takes it (NestStepInputs::side). The main queue
// outlives it; all calls come from the thread that queues the step's work.
#pragma once

#include <memory>
#include <utility>

#include "aerie/device/queue.h"
#include "aerie/models/nest/step/nest_step.h"

namespace aerie::device {

inline int code_of(const Status& status) {
  return status.ok() ? kernels::kOk : kernels::kUnsupported;
}
// A queue waits for what is queued on another now, whose fence this is.
inline int waits_for(Queue& queue, Fence& other) {
  const Status set = other.set();
  return code_of(set.ok() ? queue.wait_for(other) : set);
}

class SideQueue {
 public:
  static Result<std::unique_ptr<SideQueue>> make(Queue* main, std::unique_ptr<Queue> side) {
    std::unique_ptr<SideQueue> out(new SideQueue);
    out->main_ = main;
    out->side_ = std::move(side);
    AERIE_ASSIGN_OR_RETURN(out->begin_, main->make_fence());
    AERIE_ASSIGN_OR_RETURN(out->end_, out->side_->make_fence());
    return out;
  }

  // Valid as long as this queue.
  kernels::NestSide as_side() {
    return {side_->stream(), [this] { return waits_for(*side_, *begin_); },
            [this] { return waits_for(*main_, *end_); }};
  }

 private:
  SideQueue() = default;

  Queue* main_ = nullptr;
  std::unique_ptr<Queue> side_;
  std::unique_ptr<Fence> begin_, end_;
};

}  // namespace aerie::device
