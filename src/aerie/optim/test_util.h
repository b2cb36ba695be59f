// A small registry and fixtures for the tests of this folder.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "aerie/archive/safetensors.h"
#include "aerie/base/env.h"
#include "aerie/base/testing/paths.h"
#include "aerie/device/gpu.h"
#include "aerie/nn/param_registry.h"

namespace aerie::optim {

struct ParamSpec {
  std::string name;
  std::vector<int64_t> shape;
  bool trainable = true;
  bool is_buffer = false;
};

// Suites called *GpuTest skip without one.
inline bool has_gpu() {
  return !device::driver().gpus.empty() && device::load_torch_cuda().ok();
}

inline std::unique_ptr<nn::ParameterRegistry> make_registry(const std::vector<ParamSpec>& specs,
                                                            const nn::FlatLayout& layout = {},
                                                            at::Device device = at::kCPU) {
  auto registry = std::make_unique<nn::ParameterRegistry>();
  for (const ParamSpec& spec : specs) {
    nn::ParamInfo info;
    info.name = spec.name;
    info.shape = spec.shape;
    info.trainable = spec.trainable;
    info.is_buffer = spec.is_buffer;
    registry->add(std::move(info));
  }
  registry->materialize(device, at::kFloat, layout);
  return registry;
}

// Values that differ from element to element, without a generator.
inline at::Tensor wave(const std::vector<int64_t>& shape, double phase, double size = 1.0) {
  int64_t numel = 1;
  for (const int64_t extent : shape) numel *= extent;
  return (at::arange(numel, at::kDouble) * 1.7 + phase).sin().mul(size).to(at::kFloat).view(shape);
}

inline void fill(nn::ParameterRegistry& registry, double phase) {
  at::NoGradGuard no_grad;
  for (const int64_t index : registry.parameters()) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(index)];
    registry.tensor(index).copy_(wave(info.shape, phase + static_cast<double>(index)));
  }
}

inline void set_grads(nn::ParameterRegistry& registry, double phase, double size = 1.0) {
  for (const int64_t index : registry.trainable()) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(index)];
    registry.grad(index).copy_(wave(info.shape, phase * 3.1 + static_cast<double>(index), size));
  }
}

inline archive::TensorArchive open_fixture(const std::string& name) {
  auto file = archive::read_safetensors(Env::real(), test_data("/fixtures/") + name);
  EXPECT_TRUE(file.ok()) << file.status().to_string();
  return file.ok() ? std::move(file).value() : archive::TensorArchive();
}

// Undefined when the archive has none of that name. Only float32 and int64.
inline at::Tensor read(const archive::TensorArchive& file, const std::string& name) {
  const archive::TensorInfo* info = file.find(name);
  if (info == nullptr) return {};
  at::Tensor out = at::empty(info->shape, info->dtype == Dtype::kI64 ? at::kLong : at::kFloat);
  EXPECT_TRUE(file.read(*info, out.mutable_data_ptr(), info->nbytes()).ok()) << name;
  return out;
}

// Largest |got - want| over max |want|.
inline double relative_error(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor w = want.to(at::kCPU, at::kDouble);
  const double size = std::max(1e-30, w.abs().max().item<double>());
  return (got.to(at::kCPU, at::kDouble) - w).abs().max().item<double>() / size;
}

}  // namespace aerie::optim
