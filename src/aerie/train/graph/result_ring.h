// Results of steps on their way to the host: a step ends with a copy of its results into one of a
// few blocks of host memory, and somebody looks when the event behind it has passed.
//
// One thread, the one that launches the computation. The stream outlives it.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/device/stream.h"
#include "aerie/train/graph/upload_ring.h"

namespace aerie::train {

// Pending: what the host knows of a step until its results come.
template <typename Pending>
class ResultRing {
 public:
  static constexpr size_t kSlots = 4;

  // `bytes`: of the results of a step.
  static Result<std::unique_ptr<ResultRing>> create(device::Stream& stream,
                                                    const MakeHostMemory& make, size_t bytes) {
    std::unique_ptr<ResultRing> out(new ResultRing(stream, bytes));
    out->slots_.resize(kSlots);
    for (Slot& slot : out->slots_) {
      slot.host = make(bytes);
      AERIE_ASSIGN_OR_RETURN(slot.done, stream.make_event());
    }
    return out;
  }

  size_t size() const { return pending_.size(); }
  bool empty() const { return pending_.empty(); }
  // No slot is free: the oldest step must be taken first.
  bool full() const { return pending_.size() >= slots_.size(); }

  // Queues the copy of a step's results; not while full().
  Status push(Pending pending, const void* results) {
    Slot& slot = slots_[next_ % slots_.size()];
    AERIE_RETURN_IF_ERROR(stream_.copy(slot.host.get(), results, bytes_));
    AERIE_RETURN_IF_ERROR(slot.done->record());
    pending_.push_back({std::move(pending), next_++ % slots_.size()});
    return ok_status();
  }

  // The oldest step has ended. There must be one.
  bool ready() { return slots_[pending_.front().slot].done->passed(); }

  struct Taken {
    Pending pending;
    const uint8_t* results;  // until the next push() or read()
  };
  // Waits for the oldest step.
  Result<Taken> take() {
    Waiting oldest = std::move(pending_.front());
    pending_.pop_front();
    Slot& slot = slots_[oldest.slot];
    AERIE_RETURN_IF_ERROR(slot.done->wait());
    return Taken{std::move(oldest.pending), slot.host.get()};
  }

  // Copies results and waits for them; not while full(). Valid until the next push() or read().
  Result<const uint8_t*> read(const void* results, size_t bytes) {
    Slot& slot = slots_[next_ % slots_.size()];
    AERIE_RETURN_IF_ERROR(stream_.copy(slot.host.get(), results, bytes));
    AERIE_RETURN_IF_ERROR(slot.done->record());
    AERIE_RETURN_IF_ERROR(slot.done->wait());
    return static_cast<const uint8_t*>(slot.host.get());
  }

 private:
  struct Slot {
    std::shared_ptr<uint8_t> host;
    std::unique_ptr<device::Event> done;
  };
  struct Waiting {
    Pending pending;
    size_t slot;
  };
  ResultRing(device::Stream& stream, size_t bytes) : stream_(stream), bytes_(bytes) {}

  device::Stream& stream_;
  size_t bytes_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
  std::deque<Waiting> pending_;
};

}  // namespace aerie::train
