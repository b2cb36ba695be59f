// Shared by the tests of this folder: the deterministic weights and signals of docs/numerics.md 7,
// small model configurations, comparisons.
#pragma once

#include <cmath>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "aerie/models/nest/config/nest_config.h"
#include "aerie/models/nest/nest_model.h"
#include "aerie/nn/init.h"

namespace aerie::nest {

// Appendix B.3: element i of the k-th tensor below `prefix`, in public order.
inline void fill_reference_weights(nn::ParameterRegistry& registry, const std::string& prefix) {
  at::NoGradGuard no_grad;
  uint64_t k = 0;
  for (int64_t e = 0; e < registry.size(); ++e) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(e)];
    if (info.name.rfind(prefix, 0) != 0) continue;
    const std::string leaf = info.name.substr(info.name.rfind('.') + 1);
    at::Tensor values = at::empty({info.numel}, at::kDouble);
    for (int64_t i = 0; i < info.numel; ++i) {
      const uint64_t h =
          (2654435761ull * static_cast<uint64_t>(i) + 40503ull * k + 12345ull) & 0xffffffffull;
      const double u = static_cast<double>(h) / 4294967296.0 - 0.5;
      double v;
      if (info.dtype == at::kLong) {
        v = 0.0;
      } else if (leaf == "running_var") {
        v = 1.0 + 0.5 * u;
      } else if (leaf == "running_mean") {
        v = 0.1 * u;
      } else if (leaf == "pos_bias_u" || leaf == "pos_bias_v") {
        v = 0.5 * u;
      } else if (leaf == "bias") {
        v = 0.1 * u;
      } else if (info.shape.size() == 1) {
        v = 1.0 + 0.1 * u;
      } else {
        v = 2.0 * u / std::sqrt(static_cast<double>(info.numel / info.shape[0]));
      }
      values.data_ptr<double>()[i] = v;
    }
    values = values.view(info.shape);
    if (leaf == "codebooks")
      values = values / at::linalg_vector_norm(values, 2, at::IntArrayRef{-1}, true);
    registry.tensor(e).copy_(values);
    ++k;
  }
}

// Appendix B.2: two test signals, 16000 and 12000 samples of 16000.
inline at::Tensor reference_audio() {
  at::Tensor audio = at::zeros({2, 16000}, at::kFloat);
  float* x = audio.data_ptr<float>();
  const double pi = M_PI;
  for (int n = 0; n < 16000; ++n)
    x[n] = static_cast<float>(0.5 * std::sin(2 * pi * 440 * n / 16000.0) +
                              0.25 * std::sin(2 * pi * 1000 * n / 16000.0 + 0.5));
  for (int n = 0; n < 12000; ++n)
    x[16000 + n] = static_cast<float>(0.3 * std::sin(2 * pi * (200 + 0.05 * n) * n / 16000.0));
  return audio;
}
inline at::Tensor reference_lengths() {
  return at::tensor({16000, 12000}, at::kLong);
}

inline config::ModelConfig reference_model_config() {
  config::ModelConfig m;
  m.num_classes = 64;
  m.preprocessor.window_size = 0.025;
  m.preprocessor.features = 80;
  m.preprocessor.n_fft = 512;
  m.preprocessor.dither = 0.0;
  m.masking.mask_prob = 0.01;
  m.masking.block_size = 40;
  m.masking.allow_overlap = true;
  m.quantizer.num_classes = 64;
  m.quantizer.dist_fn = config::QuantizerDistance::kL2;
  m.quantizer.combine_time_steps = 8;
  config::EncoderConfig& e = m.encoder;
  e.feat_in = 80;
  e.d_model = 32;
  e.n_layers = 2;
  e.n_heads = 4;
  e.subsampling = config::Subsampling::kDwStriding;
  e.subsampling_factor = 8;
  e.subsampling_conv_channels = 16;
  e.conv_kernel_size = 9;
  e.dropout = e.dropout_pre_encoder = e.dropout_emb = e.dropout_att = 0.0;
  m.decoder.feat_in = 32;
  m.decoder.num_classes = 64;
  m.decoder.use_bias = true;
  m.loss.combine_time_steps = 8;
  return m;
}

inline std::unique_ptr<NestModel> make_model(const config::ModelConfig& config,
                                             const config::NestAerieConfig& aerie = {}) {
  auto model = NestModel::create(config, aerie);
  EXPECT_TRUE(model.ok()) << model.status().to_string();
  return model.ok() ? std::move(model).value() : nullptr;
}

inline std::unique_ptr<NestModel> reference_model() {
  auto model = make_model(reference_model_config());
  for (const char* prefix : {"encoder.", "quantizer.", "decoder."})
    fill_reference_weights(model->parameters(), prefix);
  return model;
}

inline double value(const at::Tensor& t) {
  return t.detach().to(at::kDouble).item<double>();
}
inline double at_index(const at::Tensor& t, std::initializer_list<int64_t> index) {
  at::Tensor x = t.detach();
  for (int64_t i : index) x = x[i];
  return value(x);
}
inline double total(const at::Tensor& t) {
  return value(t.detach().to(at::kDouble).sum());
}
inline double abs_total(const at::Tensor& t) {
  return value(t.detach().to(at::kDouble).abs().sum());
}
inline double l2(const at::Tensor& t) {
  return value(t.detach().to(at::kDouble).norm());
}

// |got - want| <= abs + rel * |want| for every element.
inline ::testing::AssertionResult near(const at::Tensor& got, const at::Tensor& want, double rel,
                                       double abs) {
  if (got.sizes() != want.sizes()) {
    return ::testing::AssertionFailure()
           << "shape " << got.sizes() << " instead of " << want.sizes();
  }
  const at::Tensor g = got.detach().to(at::kCPU, at::kDouble);
  const at::Tensor w = want.detach().to(at::kCPU, at::kDouble);
  const at::Tensor excess = (g - w).abs() - (abs + rel * w.abs());
  if (excess.numel() == 0 || excess.max().item<double>() <= 0.0)
    return ::testing::AssertionSuccess();
  const int64_t worst = excess.argmax().item<int64_t>();
  return ::testing::AssertionFailure()
         << "element " << worst << " is " << g.flatten()[worst].item<double>() << " instead of "
         << w.flatten()[worst].item<double>() << "; largest difference "
         << (g - w).abs().max().item<double>();
}

}  // namespace aerie::nest
