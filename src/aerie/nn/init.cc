#include "aerie/nn/init.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>

#include "aerie/base/check.h"
#include "aerie/base/philox.h"
#include "aerie/base/philox_fill.h"
#include "aerie/nn/device_draws.h"

namespace aerie::nn {
namespace {

constexpr int64_t kGrain = 1 << 16;  // values a thread draws at least

uint64_t fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325ull;
  for (char c : text) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001b3ull;
  }
  return hash;
}

// The draws of one tensor, computed in double on the host whatever the tensor's dtype and device.
// Threads share a tensor; each value depends on its index alone. Uniform ones, which are nearly all
// weights of a model, are rounded here: a device copies half as much.
at::Tensor draw(const ParamInfo& info, uint64_t seed) {
  const PhiloxKey key = philox_key(seed, Purpose::kWeightInit);
  const uint64_t position = fnv1a(info.name);
  if (info.init.kind == Init::Kind::kUniform) {
    at::Tensor out = at::empty({info.numel}, at::kFloat);
    float* values = out.data_ptr<float>();
    const double bound = info.init.a;
    at::parallel_for(0, info.numel, kGrain, [&](int64_t begin, int64_t end) {
      std::array<uint32_t, 1024> draws;
      for (int64_t i = begin; i < end; i += static_cast<int64_t>(draws.size())) {
        const int64_t count = std::min<int64_t>(end - i, static_cast<int64_t>(draws.size()));
        philox_fill_u32(key, 0, position, static_cast<uint64_t>(i), count, draws.data());
        for (int64_t k = 0; k < count; ++k)
          values[i + k] = kernels::uniform_of_draw(draws[static_cast<size_t>(k)], bound);
      }
    });
    return out.view(info.shape);
  }
  at::Tensor out = at::empty({info.numel}, at::kDouble);
  double* values = out.data_ptr<double>();
  at::parallel_for(0, info.numel, kGrain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      values[i] = philox_normal(key, 0, position, static_cast<uint64_t>(i));
  });
  out = out.view(info.shape);
  if (info.init.kind == Init::Kind::kNormal) out.mul_(info.init.a);
  if (info.init.kind == Init::Kind::kUnitNormalRows)
    out.div_(at::linalg_vector_norm(out, 2, at::IntArrayRef{-1}, true).clamp_min_(1e-12));
  return out;
}

// The same made where the tensor is. False: not there, or not by these kernels.
bool draw_on_device(const ParamInfo& info, uint64_t seed, const at::Tensor& tensor) {
  if (info.init.kind != Init::Kind::kUniform || tensor.scalar_type() != at::kFloat ||
      !tensor.is_contiguous())
    return false;
  const kernels::KernelTable* table = draw_kernels(tensor.device());
  if (table == nullptr) return false;
  kernels::UniformDraws draws;
  draws.key = philox_key(seed, Purpose::kWeightInit);
  draws.position = fnv1a(info.name);
  draws.bound = info.init.a;
  draws.count = info.numel;
  draws.out = tensor.mutable_data_ptr<float>();
  return queue_draws(tensor.device(), "initial weights",
                     [&](void* stream) { return table->uniform_draws(draws, stream); });
}

}  // namespace

void initialize(ParameterRegistry& registry, uint64_t seed) {
  at::NoGradGuard no_grad;
  for (int64_t i = 0; i < registry.size(); ++i) {
    const ParamInfo& info = registry.entries()[static_cast<size_t>(i)];
    if (info.alias_of >= 0) continue;
    at::Tensor tensor = registry.tensor(i);
    switch (info.init.kind) {
      case Init::Kind::kConstant:
        tensor.fill_(info.init.a);
        break;
      case Init::Kind::kComputed: {
        const std::vector<float> values = info.init.values();
        AERIE_CHECK(static_cast<int64_t>(values.size()) == info.numel, info.name, " has ",
                    values.size(), " initial values for ", info.numel, " elements");
        at::Tensor source = at::empty({info.numel}, at::kFloat);
        std::copy(values.begin(), values.end(), source.data_ptr<float>());
        tensor.copy_(source.view(info.shape));
        break;
      }
      case Init::Kind::kUniform:
      case Init::Kind::kNormal:
      case Init::Kind::kUnitNormalRows:
        if (!draw_on_device(info, seed, tensor)) tensor.copy_(draw(info, seed));
        break;
    }
  }
}

Init default_uniform(int64_t fan_in) {
  return Init::uniform(fan_in > 0 ? 1.0 / std::sqrt(static_cast<double>(fan_in)) : 0.0);
}

}  // namespace aerie::nn
