// aerie.activation_checkpointing: the same results to the bit, less memory in between.
#include <algorithm>
#include <memory>

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "aerie/models/nest/test_util.h"

namespace aerie::nest::recompute_test {
namespace {

// Bytes that torch's CPU allocator has out, now and at most, since the watch began.
class MemoryWatch : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
    live += bytes;
    peak = std::max(peak, live);
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t live = 0;
  int64_t peak = 0;
};

config::ModelConfig deep_config() {
  config::ModelConfig m = reference_model_config();
  m.encoder.n_layers = 4;
  m.encoder.subsampling_conv_channels = 4;
  m.encoder.dropout = 0.2;
  m.encoder.dropout_pre_encoder = 0.1;
  m.encoder.dropout_emb = 0.1;
  m.encoder.dropout_att = 0.3;
  m.encoder.stochastic_depth_drop_prob = 0.4;
  m.preprocessor.dither = 1e-3;
  m.masking.mask_prob = 0.2;
  m.masking.block_size = 8;
  return m;
}

struct Outcome {
  at::Tensor loss, grads;
  std::vector<at::Tensor> buffers;
  int64_t kept = 0;  // bytes alive between forward and backward
  int64_t peak = 0;
};

Outcome run(const config::ModelConfig& config, config::NestAerieConfig aerie, bool recompute,
            config::Precision precision, int64_t samples = 6400, int steps = 2) {
  aerie.activation_checkpointing = recompute;
  auto model = make_model(config, aerie);
  NestBatch batch;
  batch.audio = reference_audio().narrow(1, 0, samples);
  batch.noisy = batch.audio.flip(0) * 0.5 + batch.audio;
  batch.lengths = at::tensor({samples, samples * 2 / 3}, at::kLong);
  batch.noisy_lengths = batch.lengths;
  batch.random.seed = 7;
  ForwardOptions options;
  options.training = true;
  options.policy = nn::DtypePolicy(precision);
  Outcome out;
  for (int step = 0; step < steps; ++step) {
    batch.random.micro_step = static_cast<uint64_t>(step);
    const auto watch = std::make_shared<MemoryWatch>();
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, watch);
    auto result = model->forward(batch, options);
    EXPECT_TRUE(result.ok()) << result.status().to_string();
    out.kept = watch->live;
    result->loss.backward();
    out.loss = result->loss.detach().clone();
    out.peak = watch->peak;
  }
  out.grads = model->parameters().flat_grads().clone();
  for (int64_t i = 0; i < model->parameters().size(); ++i)
    if (model->parameters().entries()[static_cast<size_t>(i)].is_buffer)
      out.buffers.push_back(model->parameters().tensor(i).clone());
  return out;
}

void expect_equal(const config::ModelConfig& config, const config::NestAerieConfig& aerie = {},
                  config::Precision precision = config::Precision::k32, int steps = 2) {
  const Outcome plain = run(config, aerie, false, precision, 6400, steps);
  const Outcome again = run(config, aerie, true, precision, 6400, steps);
  EXPECT_GT(value(plain.loss), 0.0);
  EXPECT_GT(l2(plain.grads), 0.0);
  EXPECT_TRUE(at::equal(plain.loss, again.loss));
  EXPECT_TRUE(at::equal(plain.grads, again.grads));
  ASSERT_EQ(plain.buffers.size(), again.buffers.size());
  for (size_t i = 0; i < plain.buffers.size(); ++i)
    EXPECT_TRUE(at::equal(plain.buffers[i], again.buffers[i])) << "buffer " << i;
}

TEST(RecomputeTest, GradientsAndStatisticsAreEqualToTheBit) {
  expect_equal(deep_config());
}

TEST(RecomputeTest, InMixedPrecision) {
  expect_equal(deep_config(), {}, config::Precision::kBf16Mixed);
}

TEST(RecomputeTest, WithStatisticsOverValidFrames) {
  config::NestAerieConfig aerie;
  aerie.batch_norm_frames = config::BatchNormFrames::kValid;
  expect_equal(deep_config(), aerie);
}

TEST(RecomputeTest, LocalAttentionAndTiedBiases) {
  config::ModelConfig m = deep_config();
  m.encoder.self_attention_model = config::SelfAttentionModel::kRelPosLocalAttn;
  m.encoder.att_context_size = {{3, 2}};
  m.encoder.global_tokens = 1;
  expect_equal(m);
  m = deep_config();
  m.encoder.n_layers = 2;
  m.encoder.untie_biases = false;
  // Layers that share a parameter add to it one after the other, so that over several steps the
  // order of the sums differs.
  expect_equal(m, {}, config::Precision::k32, 1);
}

// Nothing in front of the first layer needs a gradient here.
TEST(RecomputeTest, BehindAFrozenStack) {
  config::ModelConfig m = deep_config();
  m.mask_position = config::MaskPosition::kPostConv;
  m.quantizer.combine_time_steps = 1;
  expect_equal(m);
}

TEST(RecomputeTest, KeepsFarLessMemory) {
  config::ModelConfig deep = deep_config();
  deep.encoder.n_layers = 13;
  const Outcome plain = run(deep, {}, false, config::Precision::k32, 16000, 1);
  const Outcome again = run(deep, {}, true, config::Precision::k32, 16000, 1);
  config::ModelConfig shallow = deep;
  shallow.encoder.n_layers = 1;
  const Outcome one = run(shallow, {}, false, config::Precision::k32, 16000, 1);
  const int64_t per_layer = (plain.kept - one.kept) / 12;
  // Thirteen layers keep hardly more than one does, and the backward pass holds one layer at a
  // time.
  EXPECT_GT(per_layer, 0);
  EXPECT_LT(again.kept, one.kept + per_layer);
  EXPECT_LT(again.peak, plain.peak - 3 * per_layer);
}

// Validation computes without gradients: nothing to recompute.
TEST(RecomputeTest, EvaluationIsNotConcerned) {
  config::NestAerieConfig aerie;
  aerie.activation_checkpointing = true;
  auto model = make_model(deep_config(), aerie);
  at::NoGradGuard no_grad;
  auto out = model->encode(reference_audio(), reference_lengths(), {}, true);
  ASSERT_TRUE(out.ok());
  EXPECT_EQ(out->layers.size(), 4u);
}

}  // namespace
}  // namespace aerie::nest::recompute_test
