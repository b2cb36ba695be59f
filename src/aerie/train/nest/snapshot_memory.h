// How a state on a GPU gets to the host while training goes on: it is copied on the device, in
// order with the steps, and drained from there through page-locked memory by whoever needs it
// first. The device's copy is reserved before training, so that a save neither allocates nor runs
// out of memory; a device that cannot spare it (an eighth of its memory at most) is read directly,
// and training waits for that.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

namespace aerie::train {

// Tensors of a device on their way to host tensors of the same sizes. Thread-safe.
class Drain {
 public:
  Drain(std::vector<at::Tensor> from, std::vector<at::Tensor> to, std::vector<at::Tensor> pinned,
        at::Device device);
  // Brings everything to the host, once; a second caller waits for the first. Throws torch's
  // errors.
  void run();
  // Nobody wants it any more.
  void cancel();

 private:
  std::mutex mutex_;
  bool done_ = false;
  std::vector<at::Tensor> from_, to_, pinned_;
  at::Device device_;
  std::optional<c10::Event> ready_;
};

// Host memory of the same sizes; large ones on huge pages, whose first use costs little.
at::Tensor snapshot_host_tensor(const at::Tensor& like);

// Thread-safe, except that one thread starts snapshots.
class SnapshotMemory {
 public:
  // Host memory of snapshots that are done, for the next one: touching fresh pages costs more than
  // copying.
  std::vector<at::Tensor> take();
  void give_back(std::vector<at::Tensor> buffers);

  // Device memory for a copy of `bytes`, where the device can spare it. Never throws.
  void reserve(at::Device device, int64_t bytes);
  // Gives it back, for something that needs it more. False: there was none.
  bool drop_stage();

  // Starts to bring tensors to the host: by way of the device's copy, or at once.
  std::shared_ptr<Drain> start(const std::vector<at::Tensor>& from, std::vector<at::Tensor> to,
                               at::Device device);

 private:
  std::vector<at::Tensor> pinned();

  std::mutex mutex_;
  std::vector<at::Tensor> spare_;
  at::Tensor stage_;                // undefined: none
  std::vector<at::Tensor> pinned_;  // one drain at a time uses it
  std::shared_ptr<Drain> last_;
};

}  // namespace aerie::train
