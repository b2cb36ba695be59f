// Small host values on their way to the device, in order with the computation and without waiting
// for it: each is copied aside first, into one of a few blocks of host memory. A block that is
// still being read is waited for.
//
// One thread, the one that launches the computation. The stream outlives it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/device/stream.h"

namespace aerie::train {

// Host memory that copies to and from the device need not wait for. May throw.
using MakeHostMemory = std::function<std::shared_ptr<uint8_t>(size_t bytes)>;

class UploadRing {
 public:
  static constexpr size_t kSlots = 6;
  static Result<std::unique_ptr<UploadRing>> create(device::Stream& stream, MakeHostMemory make);

  // `from` may change when this returns.
  Status upload(void* to, const void* from, size_t bytes);

 private:
  struct Slot {
    std::shared_ptr<uint8_t> host;
    size_t bytes = 0;
    std::unique_ptr<device::Event> sent;
  };
  UploadRing(device::Stream& stream, MakeHostMemory make)
      : stream_(stream), make_(std::move(make)) {}

  device::Stream& stream_;
  MakeHostMemory make_;
  std::vector<Slot> slots_;
  size_t next_ = 0;
};

}  // namespace aerie::train
