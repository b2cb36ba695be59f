// A queue beside a main one, for work that need not be in line with it. The main queue outlives it;
// all calls come from the thread that queues the step's work.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "aerie/device/queue.h"
#include "aerie/kernels/kernel_table.h"

namespace aerie::kernels {

// What a step of kernels sees of it.
struct SideWork {
  void* stream = nullptr;
  std::function<int()> begin;  // what follows on it waits for what is queued on the main one
  std::function<int()> end;    // and the other way round
};

inline int code_of(const Status& status) {
  return status.ok() ? kOk : kUnsupported;
}
// A queue waits for what is queued on another now, whose fence this is.
inline int waits_for(device::Queue& queue, device::Fence& other) {
  const Status set = other.set();
  return code_of(set.ok() ? queue.wait_for(other) : set);
}

class SideQueue {
 public:
  static Result<std::unique_ptr<SideQueue>> make(device::Queue* main,
                                                 std::unique_ptr<device::Queue> side) {
    std::unique_ptr<SideQueue> out(new SideQueue);
    out->main_ = main;
    out->side_ = std::move(side);
    AERIE_ASSIGN_OR_RETURN(out->begin_, main->make_fence());
    AERIE_ASSIGN_OR_RETURN(out->end_, out->side_->make_fence());
    return out;
  }

  // Valid as long as this queue.
  SideWork as_side() {
    return {side_->stream(), [this] { return waits_for(*side_, *begin_); },
            [this] { return waits_for(*main_, *end_); }};
  }

 private:
  SideQueue() = default;

  device::Queue* main_ = nullptr;
  std::unique_ptr<device::Queue> side_;
  std::unique_ptr<device::Fence> begin_, end_;
};

}  // namespace aerie::kernels
