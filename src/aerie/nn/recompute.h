// Activation checkpointing: a part of the forward pass that keeps its input instead of everything
// it computed, and runs again in the backward pass.
//
// Because all draws come from counters (random_fill.h), the second run repeats the first to the
// bit, and so do the gradients.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

namespace aerie::nn {

// run(x, false) now and run(x, true) in the backward pass. `run` must be a function of x alone:
// what it captures may not change in between, and the second time (again = true) it must leave
// running statistics and other records of the first time alone. Parameters that it uses receive
// their gradients in the backward pass as usual.
at::Tensor recomputed(std::function<at::Tensor(const at::Tensor& x, bool again)> run,
                      const at::Tensor& x);

}  // namespace aerie::nn
