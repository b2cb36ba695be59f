// Analytic against numeric derivatives in float64, for every parameter tensor of toy models.
#include <ATen/ops/arange.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>

#include "aerie/models/nest/test_util.h"

namespace aerie::nest::gradient_test {
namespace {

config::ModelConfig toy_config() {
  config::ModelConfig m = reference_model_config();
  m.preprocessor.features = 8;
  m.masking.feat_in = 8;
  m.quantizer.feat_in = 8;
  m.quantizer.num_classes = 6;
  m.quantizer.code_dim = 3;
  m.encoder.feat_in = 8;
  m.encoder.d_model = 8;
  m.encoder.n_heads = 2;
  m.encoder.n_layers = 2;
  m.encoder.ff_expansion_factor = 2;
  m.encoder.subsampling_factor = 4;
  m.encoder.subsampling_conv_channels = 3;
  m.encoder.conv_kernel_size = 5;
  m.decoder.feat_in = 8;
  m.decoder.num_classes = 6;
  m.quantizer.combine_time_steps = 4;
  m.loss.combine_time_steps = 4;
  return m;
}

at::Tensor wave(at::IntArrayRef shape, double seed) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return at::sin(at::arange(count, at::kDouble).square() * seed).view(shape);
}

// Directional derivative along a fixed direction for every tensor.
void check(const config::ModelConfig& config, const config::NestAerieConfig& aerie = {}) {
  auto model = make_model(config, aerie);
  ASSERT_NE(model, nullptr);
  nn::ParameterRegistry& p = model->parameters();
  p.materialize(at::kCPU, at::kDouble);
  {
    // Away from the special values of a fresh model (zero biases, unit norms).
    at::NoGradGuard no_grad;
    for (int64_t entry : p.trainable())
      p.tensor(entry).add_(0.2 *
                           wave(p.tensor(entry).sizes(), 0.71 + 0.01 * static_cast<double>(entry)));
  }
  const Features f{wave({2, 8, 40}, 0.37), at::tensor({40, 27}, at::kLong)};
  const int64_t factor = model->settings().post_conv ? config.encoder.subsampling_factor : 1;
  const MaskSpans spans = {{{4 / factor, 20 / factor}}, {{8 / factor, 24 / factor}}};
  nn::RandomKey key;
  key.seed = 3;
  ForwardOptions options;
  options.training = true;
  options.mask_spans = &spans;
  auto loss = [&] {
    auto out = model->forward_features(f, f, key, options);
    EXPECT_TRUE(out.ok()) << out.status().to_string();
    return out->loss;
  };
  loss().backward();
  size_t nonzero = 0;
  for (int64_t entry : p.trainable()) {
    const std::string& name = p.entries()[static_cast<size_t>(entry)].name;
    at::NoGradGuard no_grad;
    at::Tensor tensor = p.tensor(entry);
    const at::Tensor direction = wave(tensor.sizes(), 1.3);
    const double analytic = (p.grad(entry) * direction).sum().item<double>();
    const double eps = 1e-6;
    tensor.add_(direction, eps);
    const double up = loss().item<double>();
    tensor.add_(direction, -2 * eps);
    const double down = loss().item<double>();
    tensor.add_(direction, eps);
    const double numeric = (up - down) / (2 * eps);
    EXPECT_NEAR(analytic, numeric, 1e-6 + 1e-5 * std::abs(numeric)) << name;
    nonzero += std::abs(numeric) > 1e-7;
  }
  // Only biases in front of BatchNorm and of softmax keys may vanish.
  EXPECT_GE(nonzero + 8, p.trainable().size());
}

TEST(GradientTest, Stock) {
  check(toy_config());
}

TEST(GradientTest, DropoutEverywhere) {
  config::ModelConfig m = toy_config();
  m.encoder.dropout = m.encoder.dropout_pre_encoder = m.encoder.dropout_emb = 0.2;
  m.encoder.dropout_att = 0.2;
  m.encoder.stochastic_depth_drop_prob = 0.3;
  check(m);
}

TEST(GradientTest, LocalAttentionWithGlobalTokens) {
  config::ModelConfig m = toy_config();
  m.encoder.self_attention_model = config::SelfAttentionModel::kRelPosLocalAttn;
  m.encoder.att_context_size = {{3, 2}};
  m.encoder.global_tokens = 2;
  m.encoder.global_tokens_spacing = 2;
  m.encoder.global_attn_separate = true;
  check(m);
}

TEST(GradientTest, AbsolutePositionsLayerNormNoBias) {
  config::ModelConfig m = toy_config();
  m.encoder.self_attention_model = config::SelfAttentionModel::kAbsPos;
  m.encoder.conv_norm_type = config::ConvNorm::kLayerNorm;
  m.encoder.use_bias = false;
  m.encoder.feat_out = 5;
  m.decoder.feat_in = 5;
  check(m);
}

TEST(GradientTest, StridingGroupNormTiedBiasesChunkedContext) {
  config::ModelConfig m = toy_config();
  m.encoder.subsampling = config::Subsampling::kStriding;
  m.encoder.conv_norm_type = config::ConvNorm::kGroupNorm;
  m.encoder.conv_norm_groups = 2;
  m.encoder.untie_biases = false;
  m.encoder.att_context_style = config::AttContextStyle::kChunkedLimited;
  m.encoder.att_context_size = {{4, 1}};
  m.encoder.conv_context_size = {4, 0};
  check(m);
}

TEST(GradientTest, StackingNormTwoBooksTrainedMask) {
  config::ModelConfig m = toy_config();
  m.encoder.subsampling = config::Subsampling::kStackingNorm;
  m.encoder.conv_norm_type = config::ConvNorm::kInstanceNorm;
  m.masking.freeze = false;
  m.quantizer.num_books = 2;
  m.decoder.num_decoders = 2;
  m.loss.num_decoders = 2;
  check(m);
}

TEST(GradientTest, PostConvWithTrainedSubsamplingAndValidFrames) {
  config::ModelConfig m = toy_config();
  m.mask_position = config::MaskPosition::kPostConv;
  m.masking.freeze = false;
  config::NestAerieConfig aerie;
  aerie.train_pre_encode = true;
  aerie.batch_norm_frames = config::BatchNormFrames::kValid;
  // Tokens come from the trained stack and would jump: one class leaves nothing to jump to.
  m.quantizer.num_classes = 1;
  check(m, aerie);
}

}  // namespace
}  // namespace aerie::nest::gradient_test
