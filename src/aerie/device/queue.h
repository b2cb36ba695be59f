// An in-order queue of device work, as engines use it: kernels, copies, recorded sequences, fences.
// On a GPU it is a CUDA stream (GpuModule::make_queue); host_queue() does everything at once on the
// CPU with the reference kernels, so that an engine is tested without a GPU.
//
// One thread uses a queue. Queues outlive their fences and recordings.
#pragma once

#include <functional>
#include <memory>

#include "aerie/base/status.h"

namespace aerie::kernels {
struct KernelTable;
}  // namespace aerie::kernels

namespace aerie::device {

// A point in a queue.
class Fence {
 public:
  virtual ~Fence() = default;
  // Moves the fence to the queue's present end. Before the first set() it counts as passed.
  virtual Status set() = 0;
  virtual bool passed() = 0;
  virtual Status wait() = 0;
};

// Work that was recorded once and can be queued again as a whole.
class Recording {
 public:
  virtual ~Recording() = default;
  virtual Status queue() = 0;
};

class Queue {
 public:
  virtual ~Queue() = default;
  virtual const kernels::KernelTable& kernels() const = 0;
  virtual void* stream() const = 0;  // what kernels take
  // Host memory on either side must be page-locked or the call may wait.
  virtual Status copy(void* to, const void* from, size_t bytes) = 0;
  virtual Result<std::unique_ptr<Fence>> make_fence() = 0;
  // Work queued from now on starts behind a fence of another queue.
  virtual Status wait_for(Fence& fence) = 0;
  // Calls `work` once with the stream to queue on. Nothing of it runs before Recording::queue(),
  // which repeats the same calls with the same arguments. `work` returns 0 or a kernel's error.
  virtual Result<std::unique_ptr<Recording>> record(std::function<int(void* stream)> work) = 0;
  virtual Status synchronize() = 0;
  // What a kernel returned, as a status.
  virtual Status status_of(int code, const char* what) const = 0;
};

std::unique_ptr<Queue> host_queue(const kernels::KernelTable& kernels);

}  // namespace aerie::device
