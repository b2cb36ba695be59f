// Collectives on tensors of one device, over the ranks of a run. A group has an order of its own:
// every rank makes the same calls in the same order, whatever it does in other groups.
//
// Calls start work behind what is queued on torch's current stream (on the CPU: at once) and return
// a function that makes the stream that is current then (the CPU: the caller) wait for it. Tensors
// stay as they are until that. Errors are exceptions.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

namespace aerie::train {

// The name of spans in which the host waits for other ranks, as reports have it
// (train::kPhaseRanks).
inline constexpr const char* kWaitSpan = "waiting for ranks";

class RankGroup {
 public:
  virtual ~RankGroup() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Whether collectives on tensors of this device may be recorded in a CUDA graph.
  virtual bool recordable(at::Device device) const = 0;
  // Whether gradients of a sharded optimizer go to their owners alone, by reduce(). Over Gloo they
  // go to all: the order of a sum in its ring depends on how tensors are cut, and a sharded
  // optimizer is to get the very sums of a whole one.
  virtual bool reduces_to_one(at::Device device) const = 0;

  using Wait = std::function<void()>;
  enum class Op { kSum, kMean, kMax };
  struct Piece {
    at::Tensor tensor;  // contiguous
    int rank = 0;       // who gets the sum, or has the value
  };
  // Each tensor becomes the sum of what all ranks have in its place.
  virtual Wait all_reduce(std::vector<at::Tensor> tensors, Op op) = 0;
  // Only one rank's tensor does; those of the others are undefined afterwards.
  virtual Wait reduce(std::vector<Piece> pieces, Op op) = 0;
  // Each tensor becomes what one rank has in its place.
  virtual Wait broadcast(std::vector<Piece> pieces) = 0;
};

// Torch's current stream on a device is `stream` (what kernels take) while it lives; nothing on the
// CPU.
class OnStream {
 public:
  OnStream(at::Device device, void* stream);
  ~OnStream();
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  std::function<void()> back_;
};

}  // namespace aerie::train
