// The golden numbers of docs/numerics.md 7: values that NeMo's own modules gave on the CPU in
// float32, for deterministic weights and signals.
#include <map>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "aerie/models/nest/test_util.h"

namespace aerie::nest {
namespace {

Features reference_features(const NestModel& model) {
  return model.preprocessor().forward(reference_audio(), reference_lengths(), {});
}

TEST(AppendixBTest, WindowAndFilterbankMatch) {
  auto model = make_model(reference_model_config());
  const at::Tensor w = model->parameters()["preprocessor.featurizer.window"];
  EXPECT_EQ(at_index(w, {0}), 0.0);
  EXPECT_NEAR(at_index(w, {1}), 6.198883e-05, 1e-11);
  EXPECT_NEAR(at_index(w, {199}), 0.9999845, 1e-7);
  EXPECT_EQ(at_index(w, {199}), at_index(w, {200}));
  EXPECT_NEAR(total(w), 199.5000059, 1e-6);

  const at::Tensor fb = model->parameters()["preprocessor.featurizer.fb"];
  EXPECT_NEAR(total(fb), 2.558260781, 1e-8);
  EXPECT_EQ((fb != 0).sum().item<int64_t>(), 500);
  EXPECT_FLOAT_EQ(static_cast<float>(at_index(fb, {0, 0, 1})), 0.0225345604f);
  EXPECT_FLOAT_EQ(static_cast<float>(at_index(fb, {0, 0, 2})), 0.00863771047f);
  EXPECT_FLOAT_EQ(static_cast<float>(at_index(fb, {0, 1, 2})), 0.0182157047f);
  EXPECT_FLOAT_EQ(static_cast<float>(at_index(fb, {0, 10, 14})), 0.00675713969f);
  EXPECT_FLOAT_EQ(static_cast<float>(at_index(fb, {0, 79, 250})), 0.00210355804f);
  EXPECT_FLOAT_EQ(static_cast<float>(at_index(fb, {0, 79, 255})), 0.000350593007f);
  EXPECT_EQ(at_index(fb, {0, 79, 256}), 0.0);
  const std::map<int64_t, int64_t> peaks = {{0, 1},   {1, 2},   {2, 4},    {10, 13},
                                            {20, 25}, {40, 55}, {60, 119}, {79, 246}};
  for (const auto& [row, bin] : peaks) EXPECT_EQ(fb[0][row].argmax().item<int64_t>(), bin) << row;
}

TEST(AppendixBTest, LogMelMatches) {
  auto model = make_model(reference_model_config());
  const at::Tensor x = model->preprocessor().log_mel(reference_audio(), reference_lengths(), {});
  ASSERT_EQ(x.sizes(), at::IntArrayRef({2, 80, 101}));
  EXPECT_NEAR(at_index(x, {0, 0, 0}), -7.675172, 1e-4);
  EXPECT_NEAR(at_index(x, {0, 10, 50}), 0.176246, 1e-4);
  EXPECT_NEAR(at_index(x, {0, 40, 99}), -10.281565, 1e-4);
  EXPECT_NEAR(at_index(x, {0, 79, 1}), -14.900971, 1e-4);
  EXPECT_NEAR(at_index(x, {1, 0, 0}), -7.343332, 1e-4);
  EXPECT_NEAR(at_index(x, {1, 20, 30}), -5.652644, 1e-4);
  EXPECT_NEAR(at_index(x, {1, 79, 74}), -13.479039, 1e-4);
}

TEST(AppendixBTest, NormalisedFeaturesMatch) {
  auto model = make_model(reference_model_config());
  const Features f = reference_features(*model);
  const at::Tensor& y = f.values;
  ASSERT_EQ(y.sizes(), at::IntArrayRef({2, 80, 112}));
  EXPECT_EQ(at_index(f.lengths, {0}), 100);
  EXPECT_EQ(at_index(f.lengths, {1}), 75);
  EXPECT_NEAR(at_index(y, {0, 0, 0}), 7.033505, 1e-4);
  EXPECT_NEAR(at_index(y, {0, 10, 50}), 0.098523, 1e-4);
  EXPECT_NEAR(at_index(y, {0, 40, 99}), 4.340887, 1e-4);
  EXPECT_NEAR(at_index(y, {0, 79, 1}), 2.157713, 1e-4);
  EXPECT_NEAR(at_index(y, {1, 0, 0}), 6.009304, 1e-4);
  EXPECT_NEAR(at_index(y, {1, 20, 30}), 1.059601, 1e-4);
  EXPECT_NEAR(at_index(y, {1, 79, 74}), 4.970685, 1e-4);
  EXPECT_EQ(at_index(y, {1, 5, 75}), 0.0);
  EXPECT_EQ(at_index(y, {0, 5, 100}), 0.0);
  EXPECT_NEAR(abs_total(y), 5957.5733, 0.05);
  EXPECT_NEAR(total(y.square()), 13839.5423, 0.2);
}

TEST(AppendixBTest, DeterministicWeightsMatch) {
  auto model = reference_model();
  const at::Tensor out = model->parameters()["encoder.pre_encode.out.weight"];
  EXPECT_NEAR(at_index(out, {0, 0}), -0.0790565, 1e-7);
  EXPECT_NEAR(at_index(out, {0, 1}), 0.0186633, 1e-7);
  EXPECT_NEAR(at_index(out, {0, 2}), -0.0417309, 1e-7);
  const at::Tensor norm = model->parameters()["encoder.layers.0.norm_feed_forward1.weight"];
  EXPECT_NEAR(at_index(norm, {0}), 0.9500116, 1e-6);
  EXPECT_NEAR(at_index(norm, {1}), 1.0118150, 1e-6);
}

struct Row {
  const char* name;
  std::vector<int64_t> shape;
  double sum, abs_sum, first, last;
};

TEST(AppendixBTest, ForwardMatches) {
  at::NoGradGuard no_grad;
  auto model = reference_model();
  const Features f = reference_features(*model);
  std::map<std::string, at::Tensor> taps;
  ForwardOptions options;
  options.apply_mask = false;
  options.tap = [&](const std::string& name, const at::Tensor& t) { taps[name] = t; };
  auto result = model->forward_features(f, f, {}, options);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  taps["encoder"] = result->encoded;
  taps["log_probs"] = result->log_probs;
  const Row rows[] = {
      {"pre_encode", {2, 14, 32}, -1.30791, 22.86569, -0.059157, -0.034093},
      {"scaled", {2, 14, 32}, -7.39864, 129.34785, -0.334644, -0.192861},
      {"pos_emb", {1, 27, 32}, 319.83778, 488.99950, 0.420167, 0.999997},
      {"layers.0.after_ff1", {2, 14, 32}, -11.62695, 200.10102, -0.585900, -0.384483},
      {"layers.0.attention", {2, 14, 32}, -31.37751, 462.35216, -1.451506, -0.034055},
      {"layers.0.conv", {2, 14, 32}, -0.91468, 25.05066, 0.016174, 0.001552},
      {"layers.0.out", {2, 14, 32}, 13.28929, 752.76650, -2.372448, -1.332683},
      {"encoder", {2, 32, 14}, 12.59580, 757.58024, -2.212122, -1.346600},
      {"log_probs", {2, 14, 64, 1}, -7923.86900, 7923.86900, -2.787037, -3.177037},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    ASSERT_TRUE(taps.count(row.name));
    const at::Tensor t = taps[row.name].contiguous();
    ASSERT_EQ(t.sizes(), at::IntArrayRef(row.shape));
    EXPECT_NEAR(abs_total(t), row.abs_sum, 1e-5 * row.abs_sum);
    EXPECT_NEAR(total(t), row.sum, 1e-5 * row.abs_sum);
    EXPECT_NEAR(at_index(t.flatten(), {0}), row.first, 2e-5);
    EXPECT_NEAR(at_index(t.flatten(), {t.numel() - 1}), row.last, 2e-5);
  }
  EXPECT_EQ(at_index(result->encoded_lengths, {0}), 13);
  EXPECT_EQ(at_index(result->encoded_lengths, {1}), 10);
  EXPECT_EQ(taps["blocked"][0].sum().item<int64_t>(), 27);
  EXPECT_EQ(taps["blocked"][1].sum().item<int64_t>(), 96);
  const double column[] = {-2.219710, 1.830748, -0.839477, 0.861152};
  for (int64_t c = 0; c < 4; ++c)
    EXPECT_NEAR(at_index(result->encoded, {0, c, 5}), column[c], 2e-5);
  const double position[] = {0.420167, 0.907447, 0.855881, 0.517173};
  for (int64_t c = 0; c < 4; ++c)
    EXPECT_NEAR(at_index(taps["pos_emb"], {0, 0, c}), position[c], 2e-6);
}

TEST(AppendixBTest, TokensMatch) {
  auto model = reference_model();
  const at::Tensor tokens = model->quantizer().forward({}, reference_features(*model).values);
  ASSERT_EQ(tokens.sizes(), at::IntArrayRef({2, 14, 1}));
  const at::Tensor first = at::tensor({1, 6, 7, 47, 56, 57, 6, 7, 47, 56, 57, 6, 38}, at::kLong);
  const at::Tensor second = at::tensor({9, 61, 58, 55, 57, 9, 6, 9, 59, 59}, at::kLong);
  EXPECT_TRUE(at::equal(tokens[0].flatten().slice(0, 0, 13), first)) << tokens[0];
  EXPECT_TRUE(at::equal(tokens[1].flatten().slice(0, 0, 10), second)) << tokens[1];
  // All-zero groups: every code is equally far up to rounding, which differs between CPUs.
  const at::Tensor silence =
      at::cat({tokens[0].flatten().slice(0, 13), tokens[1].flatten().slice(0, 10)});
  EXPECT_TRUE((silence == silence[0]).all().item<bool>()) << silence;
}

const MaskSpans kSpans = {{{16, 56}}, {{26, 66}}};

TEST(AppendixBTest, EvalLossMatches) {
  at::NoGradGuard no_grad;
  auto model = reference_model();
  const Features f = reference_features(*model);
  ForwardOptions options;
  options.apply_mask = false;
  auto result = model->forward_features(f, f, {}, options);
  ASSERT_TRUE(result.ok());
  const at::Tensor selected = loss_frames(mask_from_spans(kSpans, 112), 8, 0.8);
  at::Tensor want = at::zeros({2, 14}, at::kBool);
  want[0].slice(0, 2, 7).fill_(true);
  want[1].slice(0, 4, 8).fill_(true);
  EXPECT_TRUE(at::equal(selected, want));
  const MaskedLoss loss = masked_token_loss(result->log_probs, result->tokens, selected);
  EXPECT_EQ(value(loss.count), 9);
  EXPECT_NEAR(value(mean_loss(loss, false)), 4.564202, 2e-5);
}

// One training step with the masked columns 0.05 * (bin - 40) / 40.
class TrainingStep : public ::testing::Test {
 protected:
  void SetUp() override {
    model = reference_model();
    {
      at::NoGradGuard no_grad;
      const at::Tensor column = 0.05 * (at::arange(80, at::kFloat) - 40) / 40;
      model->parameters()["mask_processor.mask_embedding"].copy_(column);
    }
    const Features f = reference_features(*model);
    ForwardOptions options;
    options.training = true;
    options.mask_spans = &kSpans;
    auto result = model->forward_features(f, f, {}, options);
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    output = std::move(result).value();
    output.loss.backward();
  }
  double grad_norm(const std::string& name) {
    return l2(model->parameters().grad(model->parameters().find(name)));
  }
  std::unique_ptr<NestModel> model;
  NestOutput output;
};

TEST_F(TrainingStep, LossAndGradientsMatch) {
  EXPECT_NEAR(value(output.loss), 4.633575, 2e-5);
  EXPECT_NEAR(total(output.encoded), 11.44792, 1e-2);
  EXPECT_NEAR(abs_total(output.encoded), 744.52457, 1e-2);
  EXPECT_NEAR(l2(model->parameters().flat_grads()), 3.834352, 4e-4);
  const std::map<std::string, double> want = {
      {"decoder.decoder_layers.0.weight", 2.403331},
      {"encoder.pre_encode.out.weight", 3.631897e-01},
      {"encoder.pre_encode.conv.0.weight", 3.634572e-02},
      {"encoder.layers.0.feed_forward1.linear1.weight", 1.531362e-01},
      {"encoder.layers.0.conv.batch_norm.weight", 4.497383e-02},
      {"encoder.layers.0.self_attn.pos_bias_v", 8.661402e-05},
      {"encoder.layers.0.self_attn.linear_pos.weight", 1.100877e-03},
      {"encoder.layers.1.norm_out.bias", 3.231507e-01},
  };
  for (const auto& [name, value] : want) EXPECT_NEAR(grad_norm(name), value, 1e-4 * value) << name;
  // Cancelled by BatchNorm.
  EXPECT_LT(grad_norm("encoder.layers.0.conv.depthwise_conv.bias"), 5e-6);
}

TEST_F(TrainingStep, RunningStatisticsMatch) {
  const nn::ParameterRegistry& p = model->parameters();
  EXPECT_NEAR(total(p["encoder.layers.0.conv.batch_norm.running_mean"]), -0.077517, 2e-6);
  EXPECT_NEAR(total(p["encoder.layers.0.conv.batch_norm.running_var"]), 28.607481, 2e-5);
  EXPECT_EQ(value(p["encoder.layers.0.conv.batch_norm.num_batches_tracked"]), 1);
}

}  // namespace
}  // namespace aerie::nest
