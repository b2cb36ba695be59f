// What a forward pass needs beside tensors: mode, dtype policy, random streams, an optional tap.
#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

#include "aerie/nn/dtype_policy.h"
#include "aerie/nn/random_fill.h"

namespace aerie::nn {

struct ForwardContext {
  bool training = false;
  DtypePolicy policy;
  RandomKey random;
  // BatchNorm statistics over valid frames only (NeMo counts padded ones too).
  bool batch_norm_valid_frames = false;
  // Receives named intermediate tensors, for tests and tools.
  std::function<void(const std::string& name, const at::Tensor& value)> tap;

  void report(const std::string& name, const at::Tensor& value) const {
    if (tap) tap(name, value);
  }
};

}  // namespace aerie::nn
