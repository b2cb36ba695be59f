// The step made of kernels (aerie/models/nest/step/nest_step.h, here with the reference kernels)
// against the model itself and autograd: features, tokens, loss and every parameter's gradient,
// with dropout, dither and masks drawn from the same counters, on ragged batches and in more
// padding than needed.
#include "aerie/models/nest/step/nest_step.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "aerie/models/nest/step/packed_rows.h"
#include "aerie/models/nest/step/step_plan_text.h"
#include "aerie/models/nest/step_setup.h"
#include "aerie/models/nest/test_util.h"
#include "aerie/nn/positional.h"

namespace aerie::nest {
namespace {

using kernels::Dtype;
using kernels::NestParam;

config::ModelConfig step_config() {
  config::ModelConfig m = reference_model_config();
  m.encoder.dropout = m.encoder.dropout_pre_encoder = m.encoder.dropout_att = 0.1;
  m.preprocessor.dither = 1e-5;
  m.masking.mask_prob = 0.05;
  m.masking.block_size = 10;
  return m;
}

// Everything NestStep points at, in host memory.
class StepOnHost {
 public:
  StepOnHost(NestModel& model, const NestBatch& batch, int extra_frames, Dtype dtype)
      : model_(model), registry_(model.parameters()), dtype_(dtype) {
    const int64_t longest = batch.padded_samples;
    const int64_t nemo_frames = model.preprocessor().padded_frames_of(longest);
    kernels::NestStepConfig& c = config_;
    c = step_config(model, {});
    c.dtype = dtype;
    c.batch = static_cast<int>(batch.size());
    c.samples = static_cast<int>(batch.capacity());
    c.frames = static_cast<int>(nemo_frames) + extra_frames;

    audio_ = at::cat({batch.audio, batch.noisy}).contiguous();
    const at::Tensor lengths = at::cat({batch.lengths, batch.noisy_lengths});
    for (int64_t i = 0; i < lengths.size(0); ++i) {
      samples_.push_back(lengths[i].item<int32_t>());
      const StepLengths at_scales = step_lengths(model, samples_.back());
      frames_.push_back(at_scales.frames);
      if (i < batch.size()) continue;
      quarter_.push_back(at_scales.frames_quarter);
      eighth_.push_back(at_scales.frames_encoder);
    }
    counted_ = static_cast<int32_t>(step_frames_counted(model, longest));
    random_ = {philox_key(batch.random.seed, Purpose::kDropout),
               philox_key(batch.random.seed, Purpose::kMask),
               philox_key(batch.random.seed, Purpose::kDither),
               batch.random.micro_step,
               batch.random.first_item,
               batch.random.item_stride};
    fill_params();
  }

  void run() {
    kernels::NestStep step(kernels::kReferenceKernels, config_, params_);
    memory_.assign(step.memory_bytes() / 8 + 32, 0xFFFFFFFFFFFFFFFFull);
    void* base = memory_.data();
    size_t space = memory_.size() * 8;
    std::align(256, step.memory_bytes(), base, space);
    kernels::NestStepInputs in;
    in.audio = audio_.const_data_ptr<float>();
    in.samples = samples_.data();
    in.frames = frames_.data();
    in.frames_quarter = quarter_.data();
    in.frames_encoder = eighth_.data();
    in.frames_counted = &counted_;
    in.random = &random_;
    in.before_part = before_part;
    ASSERT_EQ(step.run(base, in, {&loss, &masked_rows}, nullptr), kernels::kOk);
    const int64_t rows = 2 * config_.batch;
    features = at::from_blob(const_cast<float*>(step.features()),
                             {rows, config_.frames, config_.bins}, at::kFloat)
                   .clone();
    encoded =
        at::from_blob(const_cast<void*>(step.encoded()),
                      {config_.batch, config_.frames / 8, config_.width}, positions_.scalar_type())
            .clone();
    tokens.assign(step.tokens(), step.tokens() + masked_rows);
  }

  at::Tensor grad(const std::string& name) { return grads_.at(name); }

  std::function<int(int part)> before_part;
  float loss = 0.0f;
  int32_t masked_rows = 0;
  at::Tensor features, encoded;
  std::vector<int32_t> tokens;

 private:
  NestParam param(const std::string& name) {
    if (registry_.find(name) < 0) return {};
    const at::Tensor value = registry_[name].detach();
    NestParam out;
    out.value = value.const_data_ptr<float>();
    out.compute = out.value;
    if (dtype_ != Dtype::kF32) {
      narrow_.push_back(value.to(dtype_ == Dtype::kBF16 ? at::kBFloat16 : at::kHalf).contiguous());
      out.compute = narrow_.back().const_data_ptr();
    }
    at::Tensor grad = at::full_like(value, std::nan(""));
    grads_[name] = grad;
    out.grad = grad.data_ptr<float>();
    return out;
  }
  void fill_params() {
    kernels::NestStepParams& p = params_;
    p = step_params(model_, [this](const std::string& name) { return param(name); });
    for (int i = 0; i < config_.layers; ++i) {
      const std::string at = "encoder.layers." + std::to_string(i) + ".";
      for (const char* buffer : {"running_mean", "running_var", "num_batches_tracked"})
        buffers_[at + buffer] = registry_[at + "conv.batch_norm." + buffer].detach().clone();
      kernels::NestLayerParams& l = p.layers[static_cast<size_t>(i)];
      l.running_mean = buffers_[at + "running_mean"].data_ptr<float>();
      l.running_var = buffers_[at + "running_var"].data_ptr<float>();
      l.num_batches = buffers_[at + "num_batches_tracked"].data_ptr<int64_t>();
    }
    codes_float_ = registry_["quantizer.codebooks"].to(at::kFloat);
    p.codebooks_float = codes_float_.const_data_ptr<float>();
    tables_ = step_tables(model_);
    p.twiddles = tables_.twiddles.data();
    p.bands = tables_.bands.data();
    p.silent_tokens = tables_.silent_tokens.data();
    const int64_t positions = config_.frames / 8;
    const auto options = at::TensorOptions().dtype(dtype_ == Dtype::kF32    ? at::kFloat
                                                   : dtype_ == Dtype::kBF16 ? at::kBFloat16
                                                                            : at::kHalf);
    positions_ = nn::sinusoid_table(positions - 1, -1, 2 * positions - 1, config_.width, options);
    positions_ = positions_.contiguous();
    p.positions = positions_.const_data_ptr();
  }

  NestModel& model_;
  nn::ParameterRegistry& registry_;
  Dtype dtype_;
  kernels::NestStepConfig config_;
  kernels::NestStepParams params_;
  StepTables tables_;
  at::Tensor audio_, codes_float_, positions_;
  std::vector<int32_t> samples_, frames_, quarter_, eighth_;
  int32_t counted_ = 0;
  kernels::RandomState random_{};
  std::map<std::string, at::Tensor> grads_, buffers_;
  std::vector<at::Tensor> narrow_;
  std::vector<uint64_t> memory_;
};

NestBatch ragged_batch() {
  NestBatch batch;
  const std::vector<int64_t> lengths = {16000, 9777, 200, 16000};
  batch.audio = at::zeros({4, 17000}, at::kFloat);
  batch.noisy = at::zeros({4, 17000}, at::kFloat);
  for (int64_t b = 0; b < 4; ++b) {
    const int64_t n = lengths[static_cast<size_t>(b)];
    const at::Tensor t = at::arange(n, at::kDouble);
    const at::Tensor clean = at::sin(t * t * (1e-5 * static_cast<double>(b + 1))) * 0.3;
    batch.audio[b].narrow(0, 0, n).copy_(clean);
    batch.noisy[b].narrow(0, 0, n).copy_(clean + at::sin(t * 1.7) * 0.1);
  }
  batch.lengths = at::tensor(lengths, at::kLong);
  batch.noisy_lengths = batch.lengths;
  batch.padded_samples = 16000;
  batch.random = {7, 3, 2};
  return batch;
}

struct Reference {
  double loss = 0.0;
  NestOutput out;
};

Reference run_model(NestModel& model, const NestBatch& batch, const nn::DtypePolicy& policy = {}) {
  ForwardOptions options;
  options.training = true;
  options.policy = policy;
  model.parameters().zero_grad();
  auto out = model.forward(batch, options);
  EXPECT_TRUE(out.ok()) << out.status().to_string();
  out->loss.backward();
  return {value(out->loss), *out};
}

double relative(const at::Tensor& got, const at::Tensor& want) {
  return l2(got - want) / std::max(l2(want), 1e-12);
}

std::unique_ptr<NestModel> stirred_model(const config::ModelConfig& config) {
  auto model = make_model(config);
  // Away from zero biases and unit norms.
  at::NoGradGuard no_grad;
  nn::ParameterRegistry& p = model->parameters();
  for (const int64_t entry : p.trainable()) {
    const at::Tensor tensor = p.tensor(entry);
    p.tensor(entry).add_(
        0.1 * at::sin(at::arange(tensor.numel(), at::kFloat).square() * 0.37).view(tensor.sizes()));
  }
  return model;
}

TEST(NestStepTest, GradientsEqualAutograd) {
  auto model = stirred_model(step_config());
  const NestBatch batch = ragged_batch();
  for (const int extra : {0, 24}) {
    SCOPED_TRACE(extra);
    StepOnHost step(*model, batch, extra, Dtype::kF32);
    step.run();
    const Reference reference = run_model(*model, batch);
    ASSERT_EQ(step.masked_rows, reference.out.selected.sum().item<int32_t>());
    ASSERT_GT(step.masked_rows, 5);
    const at::Tensor wanted =
        reference.out.tokens.masked_select(reference.out.selected.unsqueeze(-1));
    for (size_t i = 0; i < step.tokens.size(); ++i)
      EXPECT_EQ(step.tokens[i], wanted[static_cast<int64_t>(i)].item<int64_t>()) << i;
    EXPECT_NEAR(step.loss, reference.loss, 2e-5 * reference.loss);
    const int64_t frames = reference.out.encoded.size(2);
    for (int64_t b = 0; b < batch.size(); ++b) {
      const int64_t valid = reference.out.encoded_lengths[b].item<int64_t>();
      EXPECT_LT(relative(step.encoded[b].narrow(0, 0, valid),
                         reference.out.encoded[b].t().narrow(0, 0, valid)),
                1e-4)
          << "item " << b << " of " << frames << " frames";
    }
    for (const int64_t entry : model->parameters().trainable()) {
      const std::string& name = model->parameters().entries()[static_cast<size_t>(entry)].name;
      const at::Tensor want = model->parameters().grad(entry);
      // Zero in exact arithmetic: what is there is rounding.
      if (name.find("depthwise_conv.bias") != std::string::npos ||
          name.find("linear_k.bias") != std::string::npos) {
        EXPECT_LT(l2(step.grad(name)), 1e-5) << name;
        continue;
      }
      EXPECT_LT(relative(step.grad(name), want), 1e-4) << name << " of norm " << l2(want);
    }
  }
}

// Parameters that are not there before their part is asked for.
TEST(NestStepTest, PartsAreAskedForBeforeTheyAreRead) {
  auto model = stirred_model(step_config());
  nn::ParameterRegistry& p = model->parameters();
  const NestBatch batch = ragged_batch();
  StepOnHost plain(*model, batch, 0, Dtype::kF32);
  plain.run();
  ASSERT_TRUE(std::isfinite(plain.loss));

  at::NoGradGuard no_grad;
  const at::Tensor values = p.flat_params().clone();
  p.flat_params().fill_(std::nan(""));
  StepOnHost step(*model, batch, 0, Dtype::kF32);
  std::vector<int> asked;
  step.before_part = [&](int part) {
    asked.push_back(part);
    for (const int64_t entry : p.trainable())
      if (step_part(*model, p.entries()[static_cast<size_t>(entry)].name) == part)
        p.tensor(entry).copy_(p.flat_view(values, entry));
    return 0;
  };
  step.run();
  std::vector<int> all(static_cast<size_t>(
      kernels::nest_num_parts(static_cast<int>(step_config().encoder.n_layers))));
  for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int>(i);
  EXPECT_EQ(asked, all);
  EXPECT_EQ(step.loss, plain.loss);
  for (const int64_t entry : p.trainable()) {
    const std::string& name = p.entries()[static_cast<size_t>(entry)].name;
    EXPECT_TRUE(at::equal(step.grad(name), plain.grad(name))) << name;
  }
}

// A second batch position, limited context, no biases in the layers, no scaling.
TEST(NestStepTest, OtherOptionsEqualAutograd) {
  config::ModelConfig config = step_config();
  config.encoder.use_bias = false;
  config.encoder.xscaling = false;
  config.encoder.conv_kernel_size = 5;
  config.encoder.att_context_size = {{6, 2}};
  config.masking.allow_overlap = false;
  config.masking.mask_prob = 0.3;
  auto model = stirred_model(config);
  NestBatch batch = ragged_batch();
  batch.random = {11, 1000, 0};
  StepOnHost step(*model, batch, 8, Dtype::kF32);
  step.run();
  const Reference reference = run_model(*model, batch);
  EXPECT_NEAR(step.loss, reference.loss, 2e-5 * reference.loss);
  for (const int64_t entry : model->parameters().trainable()) {
    const std::string& name = model->parameters().entries()[static_cast<size_t>(entry)].name;
    EXPECT_LT(relative(step.grad(name), model->parameters().grad(entry)), 1e-4) << name;
  }
}

// Mixed precision: no farther from float32 than 1.5 times what the model's own o path is.
TEST(NestStepTest, MixedPrecisionIsAsNearToFloat32AsTheModel) {
  auto model = stirred_model(step_config());
  const NestBatch batch = ragged_batch();
  StepOnHost step(*model, batch, 8, Dtype::kBF16);
  step.run();
  const auto gradients = [&](const nn::DtypePolicy& policy) {
    run_model(*model, batch, policy);
    std::map<std::string, at::Tensor> out;
    for (const int64_t entry : model->parameters().trainable())
      out[model->parameters().entries()[static_cast<size_t>(entry)].name] =
          model->parameters().grad(entry).clone();
    return out;
  };
  auto exact = gradients({});
  auto o = gradients(nn::DtypePolicy(config::Precision::kBf16Mixed));
  double ours = 0.0, theirs = 0.0;
  for (const auto& [name, want] : exact) {
    if (name.find("depthwise_conv.bias") != std::string::npos ||
        name.find("linear_k.bias") != std::string::npos)
      continue;
    const at::Tensor got = step.grad(name);
    const double cosine = value((got * want).sum()) / (l2(got) * l2(want));
    EXPECT_GT(cosine, 0.98) << name;
    ours += relative(got, want);
    theirs += relative(o[name], want);
  }
  EXPECT_LT(ours, 1.5 * theirs);
}

// What a plan without a model counts is what the model has.
TEST(NestStepTest, ParametersAreCountedWithoutAModel) {
  for (const bool use_bias : {true, false}) {
    config::ModelConfig m = step_config();
    m.encoder.use_bias = use_bias;
    const auto model = make_model(m);
    const nn::ParameterRegistry& registry = model->parameters();
    int64_t trainable = 0;
    for (const auto& entry : registry.entries())
      if (entry.flat_offset >= 0) trainable += registry[entry.name].numel();
    EXPECT_EQ(kernels::count_parameters(step_config(*model, {}), use_bias), trainable);
  }
}

}  // namespace
}  // namespace aerie::nest
