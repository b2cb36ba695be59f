// Phases of a step as spans (base/spans.h), on the host and, where a GPU does the work later, on
// the device: events are recorded with the work and read after the next synchronisation, so that
// measuring adds none.
//
// One thread, on one stream. Costs nothing while spans are off.
#pragma once

#include <optional>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include "aerie/base/spans.h"

namespace aerie::train {

class DeviceSpans {
 public:
  explicit DeviceSpans(at::Device device) : device_(device) {}

  // The span of a block, on both.
  class Scope {
   public:
    Scope(DeviceSpans& spans, const char* name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    DeviceSpans& spans_;
    SpanScope host_;
    size_t index_;  // of the device's span; none: no device
  };

  // While it lives the device's spans are left out: what is being captured cannot be timed.
  class Pause {
   public:
    explicit Pause(DeviceSpans& spans) : spans_(spans) { ++spans_.paused_; }
    ~Pause() { --spans_.paused_; }
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    DeviceSpans& spans_;
  };

  // Hands over what the device has finished; not inside a Scope.
  void flush();

 private:
  struct Pending {
    const char* name;
    c10::Event start, end;
    bool ended = false;
  };
  static constexpr size_t kNone = static_cast<size_t>(-1);
  size_t begin(const char* name);
  void end(size_t index);
  c10::Event mark();

  at::Device device_;
  int paused_ = 0;
  std::vector<Pending> pending_;
  std::optional<c10::Event> base_;  // a mark whose time on the host is known
  int64_t base_ns_ = 0;
};

}  // namespace aerie::train
