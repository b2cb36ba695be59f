// Says when gradients of parts are complete in a backward pass of autograd, while it goes on.
//
// Hooks on the trainable parameters live as long as this. One thread arms and finishes; autograd
// calls from its own thread in between, one call at a time.
#pragma once

#include <functional>
#include <memory>

#include "aerie/nn/param_registry.h"
#include "aerie/train/graph/flat_parts.h"

namespace aerie::train {

class BackwardWatch {
 public:
  // The registry outlives it.
  BackwardWatch(nn::ParameterRegistry& registry, const FlatParts& parts);
  ~BackwardWatch();
  BackwardWatch(const BackwardWatch&) = delete;
  BackwardWatch& operator=(const BackwardWatch&) = delete;

  // Of the next backward pass: written(part) is called from the last part to the first. Every
  // parameter must get its gradient at once: layers that autograd runs again (nn/recompute.h) may
  // add to a shared parameter several times.
  void arm(std::function<void(int part)> written);
  // Behind that pass: calls it for the parts that are left, whose parameters were not all used.
  void finish();

 private:
  struct State;
  nn::ParameterRegistry& registry_;
  std::shared_ptr<State> state_;
};

}  // namespace aerie::train
