// BatchNorm whose statistics, and whose sums of gradients, are those of all ranks: each batch's go
// through an exchange (kernels/conv/batch_norm_sums.h) once in either direction.
//
// One thread. Draws nothing; autograd sees one operation.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "aerie/kernels/conv/batch_norm_sums.h"

namespace aerie::nn {

struct ExchangedNorm {
  const kernels::ExchangeSums* exchange = nullptr;  // outlives the backward pass
  int layer = 0;
  double eps = 1e-5;
  double momentum = 0.1;
  // Undefined: they stay as they are.
  at::Tensor running_mean, running_var;
  // Of a pass that runs twice (recompute.h): sums that are there are used, not exchanged again;
  // otherwise they are left here. May be null.
  std::shared_ptr<at::Tensor> kept_sums;
};

// x (B,C,T) of float32 or float64. valid (B,1,T): 1 for frames that count in the statistics, all
// others 0; undefined: all count.
at::Tensor exchanged_batch_norm(const ExchangedNorm& norm, const at::Tensor& x,
                                const at::Tensor& valid, const at::Tensor& weight,
                                const at::Tensor& bias);

// The part of a batch without frames in either direction: other ranks may have some. Running
// statistics follow theirs; false: no rank had any.
bool exchange_no_frames(const ExchangedNorm& norm, int64_t channels, at::Device device,
                        bool backward);

}  // namespace aerie::nn
