// The draws of random_fill.h made where tensors are: on a GPU by kernels of the CUDA module, queued
// on torch's current stream, so that nothing is copied and nobody waits; on the CPU, and where the
// module is not loaded, by the host. Bits are the same.
#pragma once

#include <ATen/core/Tensor.h>

#include "aerie/kernels/kernel_table.h"
#include "aerie/nn/random_fill.h"

namespace aerie::nn {

// What draws for tensors of a device; null: the host does.
const kernels::KernelTable* draw_kernels(at::Device device);

// Runs call(stream) with the device's current stream, on that device. False: the kernel does not
// cover the arguments. Throws on errors of the device.
bool queue_draws(at::Device device, const char* what, const std::function<int(void* stream)>& call);

// A few numbers of the host's on a device, for work that is queued from now on.
at::Tensor sent_to(at::Device device, const at::Tensor& small);

// x times the factors of its draws, computed in float32 where x is narrower, in x's dtype.
at::Tensor drawn_dropout(const at::Tensor& x, const kernels::DropoutDraws& draws);

// dither_normals() on a device.
at::Tensor dither_normals_on(at::Device device, const RandomKey& key, uint32_t signal,
                             int64_t batch, int64_t samples);

// For tests: while it lives, tensors on the CPU are drawn for by these kernels.
class DrawOnCpuWith {
 public:
  explicit DrawOnCpuWith(const kernels::KernelTable& kernels);
  ~DrawOnCpuWith();
  DrawOnCpuWith(const DrawOnCpuWith&) = delete;
  DrawOnCpuWith& operator=(const DrawOnCpuWith&) = delete;
};

}  // namespace aerie::nn
