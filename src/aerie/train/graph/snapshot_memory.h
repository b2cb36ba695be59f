// Host memory of snapshots. A state on a GPU is read while training waits, into page-locked memory
// that is reserved before the first save: a copy at the speed of the bus (1.4 GB take 30 ms), and
// nothing on the device. A second snapshot, taken while the first is still being written, goes
// through small page-locked chunks to ordinary memory, which takes ten times as long.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <ATen/core/Tensor.h>

namespace aerie::train {

// Thread-safe, except that one thread reserves and takes snapshots.
class SnapshotMemory {
 public:
  SnapshotMemory();
  ~SnapshotMemory();
  SnapshotMemory(const SnapshotMemory&) = delete;
  SnapshotMemory& operator=(const SnapshotMemory&) = delete;

  // Page-locked memory for a state of `bytes` on `device`, in a thread of its own. Without it, or
  // where there is too little, snapshots take ordinary memory.
  void reserve(at::Device device, int64_t bytes);

  // Host tensors with the sizes of `buffers`, until they are given back.
  std::vector<at::Tensor> take(const std::vector<at::Tensor>& buffers);
  void give_back(std::vector<at::Tensor> tensors);

  // Copies what lies on a device and waits for it. Throws torch's errors.
  void read(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to);

 private:
  class Pinned;
  bool is_pinned(const at::Tensor& tensor) const;

  std::thread reserving_;
  std::mutex mutex_;
  std::unique_ptr<Pinned> pinned_;
  bool pinned_in_use_ = false;
  std::vector<at::Tensor> spare_;   // ordinary memory of an earlier snapshot
  std::vector<at::Tensor> chunks_;  // page-locked
};

}  // namespace aerie::train
