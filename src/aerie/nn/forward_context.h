// What a forward pass needs beside tensors: mode, dtype policy, random streams, an optional tap.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/kernels/conv/batch_norm_sums.h"
#include "aerie/nn/dtype_policy.h"
#include "aerie/nn/random_fill.h"

namespace aerie::nn {

// Draws of a forward pass given from outside, for parity tests: dropout keep-masks in the order the
// dropouts run, the attention context, and which layers stochastic depth drops.
struct InjectedDraws {
  std::vector<at::Tensor> dropout_keep;  // 1 = kept; shapes as at the site
  std::optional<std::array<int64_t, 2>> context;
  std::vector<bool> drop_layers;
  mutable size_t next_dropout = 0;
};

struct ForwardContext {
  bool training = false;
  DtypePolicy policy;
  RandomKey random;
  const InjectedDraws* injected = nullptr;  // replaces draws from `random`
  // BatchNorm statistics over valid frames only (NeMo counts padded ones too).
  bool batch_norm_valid_frames = false;
  // Training keeps the input of every layer instead of its activations (recompute.h).
  bool recompute_layers = false;
  // The second run of a recomputed layer: running statistics stay as the first run left them.
  bool again = false;
  // In training, BatchNorm's sums of every layer are replaced by those of all ranks. Outlives the
  // backward pass; null: each batch has its own.
  const kernels::ExchangeSums* exchange = nullptr;
  // Of a recomputed layer: where its first run leaves the exchanged sums for the second, which
  // exchanges nothing.
  std::shared_ptr<at::Tensor> exchanged_sums;
  // Stochastic depth's factors of all sites and items [sites, items], float32 on the device;
  // undefined: a model that has such sites makes them.
  at::Tensor path_factors;
  // Receives named intermediate tensors, for tests and tools.
  std::function<void(const std::string& name, const at::Tensor& value)> tap;

  void report(const std::string& name, const at::Tensor& value) const {
    if (tap) tap(name, value);
  }
};

}  // namespace aerie::nn
