// A side stream beside a main one, for work that need not be in order with it. The main stream
// outlives it; all calls come from the thread that launches the step's work.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "aerie/device/stream.h"
#include "aerie/kernels/kernel_table.h"

namespace aerie::kernels {

// What a step of kernels sees of it.
struct SideWork {
  void* stream = nullptr;
  std::function<int()> begin;  // what follows on it waits for what was launched on the main one
  std::function<int()> end;    // and the other way round
};

inline int code_of(const Status& status) {
  return status.ok() ? kOk : kUnsupported;
}
// A stream waits for what was launched on another so far, whose event this is.
inline int waits_for(device::Stream& stream, device::Event& other) {
  const Status recorded = other.record();
  return code_of(recorded.ok() ? stream.wait_for(other) : recorded);
}

class SideStream {
 public:
  static Result<std::unique_ptr<SideStream>> make(device::Stream* main,
                                                  std::unique_ptr<device::Stream> side) {
    std::unique_ptr<SideStream> out(new SideStream);
    out->main_ = main;
    out->side_ = std::move(side);
    AERIE_ASSIGN_OR_RETURN(out->begin_, main->make_event());
    AERIE_ASSIGN_OR_RETURN(out->end_, out->side_->make_event());
    return out;
  }

  // Valid as long as this.
  SideWork as_side() {
    return {side_->handle(), [this] { return waits_for(*side_, *begin_); },
            [this] { return waits_for(*main_, *end_); }};
  }

 private:
  SideStream() = default;

  device::Stream* main_ = nullptr;
  std::unique_ptr<device::Stream> side_;
  std::unique_ptr<device::Event> begin_, end_;
};

}  // namespace aerie::kernels
