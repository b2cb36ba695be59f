// Where a device is in its step, told by the device itself as it gets there: also inside graphs,
// which are launched long before, and without anybody waiting for it. The group tells other ranks.
//
// mark() comes from the thread that launches the computation. Stream and group outlive it.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "aerie/base/status.h"
#include "aerie/device/stream.h"
#include "aerie/dist/process_group.h"
#include "aerie/train/graph/upload_ring.h"

namespace aerie::train {

class DevicePhase {
 public:
  // `make`: host memory that the device writes.
  DevicePhase(device::Stream& stream, at::Device device, const MakeHostMemory& make);
  ~DevicePhase();
  DevicePhase(const DevicePhase&) = delete;
  DevicePhase& operator=(const DevicePhase&) = delete;

  // While its host only launches steps, the group's phase is the device's. Null: nobody listens.
  void tell(dist::ProcessGroup* group);
  bool is_told() const { return group_ != nullptr; }
  // Launches a note of the phase behind what is on the stream, which may be captured; nothing where
  // nobody listens. Returns 0 or a kernel's error.
  int mark(dist::Phase phase) const;

 private:
  device::Stream& stream_;
  at::Tensor numbers_;             // of the phases, on the device
  std::shared_ptr<uint8_t> word_;  // the present one, an int32_t
  dist::ProcessGroup* group_ = nullptr;
};

}  // namespace aerie::train
