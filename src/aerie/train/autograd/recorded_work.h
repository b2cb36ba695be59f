// Work on tensors of a device that launches the same operations whenever tensors of the same shapes
// come: by itself at first, as a graph (torch_graph.h) from then on.
//
// One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/train/autograd/torch_graph.h"

namespace aerie::train {

class RecordedWork {
 public:
  using Tensors = std::vector<at::Tensor>;  // inputs may be undefined
  // From inputs to outputs, which have no gradients. Kept as long as its graph.
  using Work = std::function<Tensors(const Tensors& inputs)>;

  class Graph {
   public:
    // Copies of the outputs. `flags`: as find() has them.
    Tensors replay(const Tensors& inputs, std::vector<uint8_t>& flags) const;

   private:
    friend class RecordedWork;
    Tensors inputs_, outputs_;
    std::vector<uint8_t> flags_;
    std::unique_ptr<TorchGraph> graph_;
  };

  using MakeGraph = std::function<Result<std::unique_ptr<TorchGraph>>(at::Device)>;
  explicit RecordedWork(at::Device device, MakeGraph make = make_torch_graph)
      : device_(device), make_(std::move(make)) {}

  // The graph for inputs of these shapes, captured now if it is time for it. Null: the caller does
  // the work by itself this time, since the shapes have come too rarely, are too many, or cannot be
  // captured: never, or not while memory is short. `kind`: what the work depends on beside shapes.
  // `flags`: set by the host's part of the work; capturing leaves them alone, a replay sets those
  // that the capture has set.
  Graph* find(const Tensors& inputs, int64_t kind, const Work& work, std::vector<uint8_t>& flags);

  // Graphs hold addresses and settings; nothing of them is under way.
  void clear() { shapes_.clear(); }
  int64_t num_graphs() const;

 private:
  struct Shape {
    std::vector<int64_t> key;
    int64_t runs = 0;
    std::unique_ptr<Graph> graph;
  };
  std::unique_ptr<Graph> capture(const Tensors& inputs, const Work& work,
                                 std::vector<uint8_t>& flags) const;

  at::Device device_;
  MakeGraph make_;
  std::vector<Shape> shapes_;
  bool refused_ = false;  // a capture has failed: others would too
};

}  // namespace aerie::train
