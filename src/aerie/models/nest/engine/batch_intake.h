// Brings batches from host memory to the device while the device computes: raw arrays go to a slot
// on a stream of their own, then become the (2B,N) float rows that NestStep reads, widened and
// mixed on the device where the loader left that to it. A slot is free again as soon as its step
// begins, so that one is enough.
//
// One thread. The streams must outlive it.
#pragma once

#include <memory>
#include <utility>

#include <ATen/core/Tensor.h>

#include "aerie/base/status.h"
#include "aerie/data/speech/speech_batch.h"
#include "aerie/device/arena.h"
#include "aerie/device/stream.h"

namespace aerie::train {

class BatchIntake {
 public:
  static Result<std::unique_ptr<BatchIntake>> create(device::Stream& compute, device::Stream& copy,
                                                     std::unique_ptr<device::Arena> slot,
                                                     at::Device device);
  // Waits for the device: the slot may still be in use.
  ~BatchIntake();

  // Device memory that load() of such a batch takes, if it is not there yet. kOutOfMemory: nothing
  // has changed.
  Status reserve(const data::SpeechBatch& batch);
  // Launches the copy and what makes rows of it: clean rows to out, noisy ones behind them.
  Status load(const data::SpeechBatch& batch, float* out);
  size_t device_bytes() const { return slot_->size(); }
  // Waits until nothing reads the memory of batches any more.
  Status release();

 private:
  BatchIntake(device::Stream& compute, device::Stream& copy, std::unique_ptr<device::Arena> slot,
              at::Device device)
      : compute_(compute), copy_(copy), slot_(std::move(slot)), device_(device) {}

  device::Stream& compute_;
  device::Stream& copy_;
  std::unique_ptr<device::Arena> slot_;
  at::Device device_;
  at::Tensor host_plan_;
  std::unique_ptr<device::Event> copied_, consumed_;
};

// Memory that copies to and from the device need not wait for.
at::Tensor host_memory(int64_t bytes, at::Device device);

}  // namespace aerie::train
