// What torch launches on a device, captured as a CUDA graph: forward and backward of plain ATen
// without a launch for every operation. The same bits as without.
//
// CUDA graphs of torch live in a module of their own (libaerie_torch_graph.so beside the
// executable): the executable links no CUDA library.
#pragma once

#include <functional>
#include <memory>

#include <c10/core/Device.h>

#include "aerie/base/status.h"

namespace aerie::train {

// One thread. Memory of what is captured comes from a pool that all graphs of a process share: what
// one of them leaves there is gone once another one ran.
class TorchGraph {
 public:
  virtual ~TorchGraph() = default;
  // Captures what work() launches on torch's current stream, from this thread and autograd's; on
  // the device nothing runs. Code of the host runs, once. work() takes nothing from the host's
  // memory and waits for nothing; it ran before. Throws what work() or torch throws: the object is
  // of no use then. Once.
  virtual void capture(std::function<void()> work) = 0;
  // On torch's current stream.
  virtual void replay() = 0;
};

// kUnavailable: this build or machine has none.
Result<std::unique_ptr<TorchGraph>> make_torch_graph(at::Device device);

// What the module exports under the name kTorchGraphEntry.
using TorchGraphEntry = TorchGraph*(int device_index);
inline constexpr const char* kTorchGraphEntry = "aerie_torch_graph_1";

}  // namespace aerie::train
