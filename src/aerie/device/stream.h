// An in-order stream of device work, as engines use it: kernels, copies, graphs, events.
// On a GPU it is a CUDA stream (GpuModule::make_stream); host_stream() does everything at once on
// the CPU with the reference kernels, so that an engine is tested without a GPU.
//
// One thread uses a stream. Streams outlive their events and graphs.
#pragma once

#include <functional>
#include <memory>

#include "aerie/base/status.h"

namespace aerie::kernels {
struct KernelTable;
}  // namespace aerie::kernels

namespace aerie::device {

// A point in a stream.
class Event {
 public:
  virtual ~Event() = default;
  // Moves it to the stream's present end. Before the first record() it counts as passed.
  virtual Status record() = 0;
  virtual bool passed() = 0;
  virtual Status wait() = 0;
};

// Work that was captured once and can be launched again as a whole.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual Status launch() = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual const kernels::KernelTable& kernels() const = 0;
  virtual void* handle() const = 0;  // what kernels take
  // Host memory on either side must be page-locked or the call may wait.
  virtual Status copy(void* to, const void* from, size_t bytes) = 0;
  virtual Result<std::unique_ptr<Event>> make_event() = 0;
  // Work launched from now on starts behind an event of another stream.
  virtual Status wait_for(Event& event) = 0;
  // Calls `work` once with the stream to launch on. Nothing of it runs before Graph::launch(),
  // which repeats the same calls with the same arguments. `work` returns 0 or a kernel's error.
  virtual Result<std::unique_ptr<Graph>> capture(std::function<int(void* stream)> work) = 0;
  virtual Status synchronize() = 0;
  // What a kernel returned, as a status.
  virtual Status status_of(int code, const char* what) const = 0;
};

std::unique_ptr<Stream> host_stream(const kernels::KernelTable& kernels);

}  // namespace aerie::device
