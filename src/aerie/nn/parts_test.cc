// Parts of the encoder by their definitions; numbers of whole variants are in tests/parity.
#include <algorithm>
#include <array>
#include <barrier>
#include <cmath>
#include <map>
#include <thread>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "aerie/base/dropout.h"
#include "aerie/nn/attention_mask.h"
#include "aerie/nn/conformer_encoder.h"
#include "aerie/nn/init.h"
#include "aerie/nn/local_window.h"

namespace aerie::nn {
namespace {

using config::AttContextStyle;

config::EncoderConfig toy() {
  config::EncoderConfig c;
  c.feat_in = 16;
  c.d_model = 12;
  c.n_layers = 2;
  c.n_heads = 3;
  c.subsampling = config::Subsampling::kDwStriding;
  c.subsampling_factor = 8;
  c.subsampling_conv_channels = 4;
  c.conv_kernel_size = 5;
  c.ff_expansion_factor = 2;
  c.dropout = c.dropout_pre_encoder = c.dropout_emb = c.dropout_att = 0.0;
  return c;
}

struct Built {
  explicit Built(const config::EncoderConfig& config, uint64_t seed = 1)
      : encoder(Scope(registry, "encoder"), config) {
    registry.materialize(at::kCPU);
    initialize(registry, seed);
  }
  ParameterRegistry registry;
  ConformerEncoder encoder;
};

at::Tensor noise(at::IntArrayRef shape, double seed = 0.37) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return at::sin(at::arange(count, at::kFloat).square() * seed).view(shape);
}

at::Tensor factors_btc(const RandomKey& key, uint32_t site, double p, int64_t batch, int64_t frames,
                       int64_t channels) {
  return dropout_factors(dropout_of_btc(key, site, p, batch, frames, channels),
                         {batch, frames, channels});
}
at::Tensor factors_attention(const RandomKey& key, uint32_t site, double p, int64_t batch,
                             int64_t heads, int64_t frames) {
  return dropout_factors(dropout_of_attention(key, site, p, batch, heads, frames, frames),
                         {batch, heads, frames, frames});
}
at::Tensor factors_positions(const RandomKey& key, uint32_t site, double p, int64_t first,
                             int64_t rows, int64_t channels) {
  return dropout_factors(dropout_of_positions(key, site, p, first, rows, channels),
                         {1, rows, channels});
}

TEST(DropoutTest, KeepRateAndScale) {
  const RandomKey key{11, 3, 0};
  const at::Tensor f = factors_btc(key, 5, 0.3, 4, 50, 200);
  EXPECT_NEAR((f > 0).to(at::kDouble).mean().item<double>(), 0.7, 0.01);
  EXPECT_FLOAT_EQ(f.max().item<float>(), static_cast<float>(1.0 / 0.7));
  EXPECT_NEAR(f.mean().item<double>(), 1.0, 0.015);
  EXPECT_EQ(factors_btc(key, 5, 1.0, 1, 2, 3).abs().sum().item<double>(), 0.0);
}

TEST(DropoutTest, DrawsDependOnLogicalCoordinatesAlone) {
  const RandomKey key{11, 3, 0};
  const at::Tensor wide = factors_btc(key, 5, 0.5, 3, 40, 16);
  const at::Tensor narrow = factors_btc(key, 5, 0.5, 2, 25, 16);
  EXPECT_TRUE(at::equal(wide.narrow(0, 0, 2).narrow(1, 0, 25), narrow));
  RandomKey second = key;  // row 1 of the batch as row 0 of another rank
  second.first_item = 1;
  EXPECT_TRUE(at::equal(factors_btc(second, 5, 0.5, 1, 25, 16)[0], narrow[1]));
  // Samples dealt to ranks in turn: rank 1 of 2 has rows 1 and 3 of the whole batch.
  const at::Tensor whole = factors_btc(key, 5, 0.5, 6, 25, 16);
  second.item_stride = 2;
  const at::Tensor dealt = factors_btc(second, 5, 0.5, 2, 25, 16);
  EXPECT_TRUE(at::equal(dealt[0], whole[1]));
  EXPECT_TRUE(at::equal(dealt[1], whole[3]));
  EXPECT_TRUE(at::equal(factors_btc(second.from(1), 5, 0.5, 1, 25, 16)[0], whole[3]));
  // Of samples of two pictures, rank 1 has the second: pictures 2 and 3 of the whole.
  second.item_stride = 3;
  second.rows_per_item = 2;
  const at::Tensor pictures = factors_btc(second, 5, 0.5, 2, 25, 16);
  EXPECT_TRUE(at::equal(pictures[0], whole[2]));
  EXPECT_TRUE(at::equal(pictures[1], whole[3]));
  EXPECT_EQ(second.position(3), (3ull << 20) | 9);  // sample 1 + 3, its second picture

  const at::Tensor big = factors_attention(key, 6, 0.5, 2, 4, 30);
  const at::Tensor small = factors_attention(key, 6, 0.5, 2, 4, 17);
  EXPECT_TRUE(at::equal(big.narrow(2, 0, 17).narrow(3, 0, 17), small));
  for (uint64_t j = 3; j < 17; ++j) {
    const uint32_t u = dropout_draw(philox_key(11, Purpose::kDropout), 6, (3ull << 20) | 1,
                                    (2ull << 26) + (9ull << 13) + j);
    EXPECT_EQ(small[1][2][9][static_cast<int64_t>(j)].item<float>() > 0, u >= 32768);
  }

  // Relative position 0 has the same factors however long the table is.
  const at::Tensor long_table = factors_positions(key, 1, 0.5, 20, 41, 8);
  const at::Tensor short_table = factors_positions(key, 1, 0.5, 5, 11, 8);
  EXPECT_TRUE(at::equal(long_table[0][20], short_table[0][5]));
}

TEST(DropoutTest, NarrowTypesAreScaledWithoutBias) {
  const at::Tensor x = at::ones({1, 4, 4}, at::kBFloat16);
  const at::Tensor y = apply_dropout(x, at::full({1, 4, 4}, 1.0 / 0.9, at::kFloat));
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  // The product is rounded once; the factor itself is not.
  EXPECT_EQ(y[0][0][0].item<float>(),
            at::full({}, 1.0 / 0.9, at::kFloat).to(at::kBFloat16).item<float>());
}

TEST(RelativeShiftTest, TakesTheColumnOfTheDistance) {
  const int64_t t = 7;
  const at::Tensor raw = noise({2, 3, t, 2 * t - 1});
  const at::Tensor shifted = relative_shift(raw);
  for (int64_t i = 0; i < t; ++i)
    for (int64_t j = 0; j < t; ++j)
      EXPECT_EQ(shifted[1][2][i][j].item<float>(), raw[1][2][i][t - 1 - i + j].item<float>());
}

TEST(LocalWindowTest, ChunksGiveWhatEveryQuerySees) {
  for (const auto& [frames, w] : {std::pair{1, 1}, {7, 2}, {8, 4}, {9, 4}, {5, 8}, {20, 3}}) {
    const at::Tensor q = noise({2, 3, frames, 6}, 0.3).set_requires_grad(true);
    const at::Tensor k = noise({2, 3, frames, 6}, 0.7).set_requires_grad(true);
    const at::Tensor v = noise({2, 3, frames, 6}, 0.9).set_requires_grad(true);
    // By definition: all products, of which a query takes those in its window.
    const at::Tensor key =
        at::arange(frames, at::kLong).unsqueeze(1) + at::arange(-w, w + 1, at::kLong).unsqueeze(0);
    const at::Tensor inside = key.ge(0).logical_and(key.lt(frames)).to(at::kFloat);
    const at::Tensor picked = key.clamp(0, frames - 1).expand({2, 3, frames, 2 * w + 1});
    const at::Tensor want = q.matmul(k.transpose(-2, -1)).gather(3, picked) * inside;
    const at::Tensor got = window_scores({}, q, k, w);
    ASSERT_EQ(got.sizes(), want.sizes());
    EXPECT_LT((got - want).abs().max().item<double>(), 1e-5) << frames << " frames, " << w;

    const at::Tensor band = at::zeros({2, 3, frames, frames}).scatter_add(3, picked, want);
    const at::Tensor want_mix = band.matmul(v), got_mix = window_mix({}, got, v, w);
    ASSERT_EQ(got_mix.sizes(), want_mix.sizes());
    EXPECT_LT((got_mix - want_mix).abs().max().item<double>(), 1e-4) << frames << " frames, " << w;

    const auto grads_of = [&](const at::Tensor& out) {
      for (at::Tensor x : {q, k, v}) x.mutable_grad() = at::Tensor();
      (out * noise(out.sizes(), 0.11)).sum().backward({}, /*retain_graph=*/true);
      return at::cat({q.grad().flatten(), k.grad().flatten(), v.grad().flatten()});
    };
    EXPECT_LT((grads_of(got_mix) - grads_of(want_mix)).abs().max().item<double>(), 1e-3);
  }
}

TEST(PositionTest, RowsAreSinesOfTheRelativePosition) {
  const at::Tensor table = sinusoid_table(3, -1, 7, 8, at::TensorOptions().dtype(at::kFloat));
  ASSERT_EQ(table.sizes(), at::IntArrayRef({1, 7, 8}));
  for (int64_t row = 0; row < 7; ++row) {
    const double p = static_cast<double>(3 - row);
    for (int64_t i = 0; i < 4; ++i) {
      const double angle = p * std::pow(10000.0, -2.0 * static_cast<double>(i) / 8.0);
      EXPECT_NEAR(table[0][row][2 * i].item<double>(), std::sin(angle), 1e-6);
      EXPECT_NEAR(table[0][row][2 * i + 1].item<double>(), std::cos(angle), 1e-6);
    }
  }
}

TEST(ContextMaskTest, RegularAndChunkedByDefinition) {
  const int64_t t = 13;
  for (AttContextStyle style : {AttContextStyle::kRegular, AttContextStyle::kChunkedLimited}) {
    const std::vector<std::array<int64_t, 2>> contexts = {{-1, -1}, {4, 0},  {0, 3},
                                                          {6, 2},   {-1, 1}, {2, -1}};
    for (const auto& context : contexts) {
      const at::Tensor mask = context_mask(style, context, t, at::kCPU);
      const auto [left, right] = context;
      const bool chunked = style == AttContextStyle::kChunkedLimited && right >= 0;
      for (int64_t i = 0; i < t; ++i) {
        for (int64_t j = 0; j < t; ++j) {
          bool want;
          if (chunked) {
            const int64_t behind = i / (right + 1) - j / (right + 1);
            want = behind >= 0 && (left < 0 || behind <= left / (right + 1));
          } else {
            want = (left < 0 || j >= i - left) && (right < 0 || j <= i + right);
          }
          EXPECT_EQ(mask[i][j].item<bool>(), want)
              << left << "," << right << " at " << i << "," << j;
        }
      }
    }
  }
}

TEST(ContextMaskTest, ContextsAreDrawnWithTheirProbabilities) {
  config::EncoderConfig c = toy();
  c.att_context_size = {{4, 1}, {8, 3}, {-1, -1}};
  c.att_context_probs = {0.2, 0.5, 0.3};
  ForwardContext ctx;
  EXPECT_EQ(choose_context(ctx, c), (std::array<int64_t, 2>{4, 1}));  // eval: the first
  ctx.training = true;
  std::map<int64_t, int> seen;
  for (uint64_t step = 0; step < 4000; ++step) {
    ctx.random.micro_step = step;
    ++seen[choose_context(ctx, c)[0]];
  }
  EXPECT_NEAR(seen[4], 800, 100);
  EXPECT_NEAR(seen[8], 2000, 130);
  EXPECT_NEAR(seen[-1], 1200, 120);
}

TEST(SubsamplingTest, LengthsOneToSixtyFour) {
  Built built(toy());
  const at::Tensor lengths = at::arange(0, 65, at::kLong);
  const auto out = built.encoder.subsample({}, noise({65, 16, 64}), lengths);
  for (int64_t n = 0; n <= 64; ++n) EXPECT_EQ(out.lengths[n].item<int64_t>(), (n + 7) / 8) << n;
  EXPECT_EQ(out.x.size(1), 8);
}

TEST(EncoderTest, ResultsDoNotDependOnPadding) {
  at::NoGradGuard no_grad;
  for (const bool local : {false, true}) {
    config::EncoderConfig c = toy();
    if (local) {
      c.self_attention_model = config::SelfAttentionModel::kRelPosLocalAttn;
      c.att_context_size = {{3, 3}};
    }
    Built built(c);
    const at::Tensor x = noise({1, 16, 100});
    const at::Tensor alone = built.encoder.forward({}, x, at::tensor({100}, at::kLong)).encoded;
    const at::Tensor padded = at::constant_pad_nd(x, {0, 60}, 9.0);
    const at::Tensor batch = at::cat({noise({1, 16, 160}, 0.11), padded});
    const auto together = built.encoder.forward({}, batch, at::tensor({160, 100}, at::kLong));
    const int64_t frames = together.lengths[1].item<int64_t>();
    EXPECT_EQ(frames, 13);
    const double difference =
        (together.encoded[1].narrow(1, 0, frames) - alone[0].narrow(1, 0, frames))
            .abs()
            .max()
            .item<double>();
    EXPECT_LT(difference, 1e-5);
  }
}

TEST(EncoderTest, FullyPaddedItemsStayFinite) {
  at::NoGradGuard no_grad;
  Built built(toy());
  const auto out = built.encoder.forward({}, noise({3, 16, 32}), at::tensor({32, 1, 0}, at::kLong));
  EXPECT_TRUE(at::isfinite(out.encoded).all().item<bool>());
  EXPECT_EQ(out.lengths[2].item<int64_t>(), 0);
}

TEST(EncoderTest, KeepLayersGivesEveryLayer) {
  at::NoGradGuard no_grad;
  config::EncoderConfig c = toy();
  c.feat_out = 7;
  Built built(c);
  const auto out = built.encoder.forward({}, noise({1, 16, 32}), at::tensor({32}, at::kLong), true);
  ASSERT_EQ(out.layers.size(), 2u);
  EXPECT_EQ(out.layers[0].sizes(), at::IntArrayRef({1, 7, 4}));
  EXPECT_TRUE(at::equal(out.layers[1], out.encoded));
}

TEST(EncoderTest, SdpaFlagChangesNothing) {
  at::NoGradGuard no_grad;
  config::EncoderConfig c = toy();
  Built plain(c);
  c.use_pytorch_sdpa = true;
  Built sdpa(c);
  const at::Tensor lengths = at::tensor({40, 20}, at::kLong);
  EXPECT_TRUE(at::equal(plain.encoder.forward({}, noise({2, 16, 40}), lengths).encoded,
                        sdpa.encoder.forward({}, noise({2, 16, 40}), lengths).encoded));
}

TEST(EncoderTest, TiedBiasesShareOneParameter) {
  config::EncoderConfig c = toy();
  c.untie_biases = false;
  Built built(c);
  const auto& entries = built.registry.entries();
  const int64_t first = built.registry.find("encoder.layers.0.self_attn.pos_bias_u");
  const int64_t second = built.registry.find("encoder.layers.1.self_attn.pos_bias_u");
  EXPECT_EQ(entries[static_cast<size_t>(second)].alias_of, first);
  EXPECT_EQ(built.registry.tensor(first).data_ptr(), built.registry.tensor(second).data_ptr());
}

TEST(StochasticDepthTest, ProbabilitiesAndExpectation) {
  config::EncoderConfig c = toy();
  c.n_layers = 5;
  c.stochastic_depth_drop_prob = 0.4;
  c.stochastic_depth_start_layer = 2;
  const double linear[] = {0, 0, 0.4 / 3, 0.8 / 3, 0.4};
  for (int64_t i = 0; i < 5; ++i) EXPECT_NEAR(layer_drop_prob(c, i), linear[i], 1e-12);
  c.stochastic_depth_mode = config::StochasticDepthMode::kUniform;
  for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(layer_drop_prob(c, i), i < 2 ? 0.0 : 0.4);
  int drops = 0;
  RandomKey key{9, 0, 0};
  for (key.micro_step = 0; key.micro_step < 5000; ++key.micro_step)
    drops += uniform_of_step(key, Purpose::kStochasticDepth, 3) < 0.4;
  EXPECT_NEAR(drops, 2000, 120);
}

// Two batches that add up their sums, each in a thread of its own.
class TwoRanks {
 public:
  kernels::ExchangeSums of(size_t rank) {
    return [this, rank](const kernels::ExchangedSums& sums, void*) {
      calls_[rank] += sums.backward ? 100 : 1;
      values_[rank] = sums.values;
      gate_.arrive_and_wait();
      std::vector<double> all;
      for (int64_t i = 0; i < sums.count; ++i) all.push_back(values_[0][i] + values_[1][i]);
      gate_.arrive_and_wait();
      std::copy(all.begin(), all.end(), sums.values);
      return kernels::kOk;
    };
  }
  // A rank that fails does not keep the other waiting.
  void leave() { gate_.arrive_and_drop(); }
  int calls(size_t rank) const { return calls_[rank]; }

 private:
  std::barrier<> gate_{2};
  std::array<double*, 2> values_{};
  std::array<int, 2> calls_{};
};

TEST(BatchNormTest, BatchesThatExchangeSumsAreOneBatch) {
  config::EncoderConfig config = toy();
  config.conv_norm_type = config::ConvNorm::kBatchNorm;
  const at::Tensor features = noise({5, 16, 64});
  const at::Tensor lengths = at::tensor({64, 40, 56, 17, 48}, at::kLong);
  const at::Tensor weights = noise({5, 12, 8}, 0.91);
  struct Outcome {
    at::Tensor encoded, grads, mean, var;
  };
  for (const bool valid : {false, true})
    for (const bool recompute : {false, true}) {
      const auto run = [&](int64_t first, int64_t count, const kernels::ExchangeSums* exchange) {
        Built built(config);
        ForwardContext ctx;
        ctx.training = true;
        ctx.batch_norm_valid_frames = valid;
        ctx.recompute_layers = recompute;
        ctx.exchange = exchange;
        const EncoderOutput out = built.encoder.forward(ctx, features.narrow(0, first, count),
                                                        lengths.narrow(0, first, count));
        (out.encoded * weights.narrow(0, first, count)).sum().backward();
        const std::string at = "encoder.layers.1.conv.batch_norm.";
        EXPECT_EQ(built.registry[at + "num_batches_tracked"].item<int64_t>(), 1);
        return Outcome{out.encoded.detach(), built.registry.flat_grads().clone(),
                       built.registry[at + "running_mean"].clone(),
                       built.registry[at + "running_var"].clone()};
      };
      const auto worst = [](const at::Tensor& a, const at::Tensor& b) {
        return ((a - b).abs().max() / b.abs().max()).item<double>();
      };
      const Outcome whole = run(0, 5, nullptr);
      TwoRanks ranks;
      std::array<Outcome, 2> parts;
      const auto work = [&](size_t rank) {
        const kernels::ExchangeSums exchange = ranks.of(rank);
        try {
          parts[rank] = rank == 0 ? run(0, 3, &exchange) : run(3, 2, &exchange);
        } catch (const std::exception& error) {
          ADD_FAILURE() << error.what();
        }
        ranks.leave();
      };
      std::thread other(work, 1);
      work(0);
      other.join();
      // Every layer once in either direction; a recomputed one takes the sums of its first run.
      EXPECT_EQ(ranks.calls(0), 202);
      EXPECT_EQ(ranks.calls(1), ranks.calls(0));
      EXPECT_LT(worst(at::cat({parts[0].encoded, parts[1].encoded}), whole.encoded), 1e-5);
      EXPECT_LT(worst(parts[0].grads + parts[1].grads, whole.grads), 1e-5);
      for (const Outcome& part : parts) {
        EXPECT_LT(worst(part.mean, whole.mean), 1e-5);
        EXPECT_LT(worst(part.var, whole.var), 1e-5);
      }
      EXPECT_GT(worst(run(0, 3, nullptr).encoded, whole.encoded.narrow(0, 0, 3)), 1e-3);
    }
}

TEST(BatchNormTest, ValidFramesOptionIgnoresPadding) {
  config::EncoderConfig c = toy();
  c.n_layers = 1;
  ForwardContext ctx;
  ctx.training = true;
  const at::Tensor x = noise({2, 16, 64});
  const at::Tensor lengths = at::tensor({64, 24}, at::kLong);
  auto run = [&](bool valid, int64_t extra) {
    Built built(c);
    ctx.batch_norm_valid_frames = valid;
    built.encoder.forward(ctx, at::constant_pad_nd(x, {0, extra}), lengths);
    EXPECT_EQ(
        built.registry["encoder.layers.0.conv.batch_norm.num_batches_tracked"].item<int64_t>(), 1);
    return built.registry["encoder.layers.0.conv.batch_norm.running_var"].clone();
  };
  // NeMo's statistics count padded frames, so more padding changes them; ours on request do not.
  EXPECT_GT((run(false, 0) - run(false, 64)).abs().max().item<double>(), 1e-4);
  EXPECT_LT((run(true, 0) - run(true, 64)).abs().max().item<double>(), 1e-6);
}

TEST(DtypePolicyTest, TheTable) {
  using config::Precision;
  const DtypePolicy full;
  const DtypePolicy bf16(Precision::kBf16Mixed);
  const DtypePolicy fp16(Precision::k16Mixed);
  EXPECT_FALSE(full.input_dtype(OpClass::kGemm).has_value());
  EXPECT_EQ(bf16.input_dtype(OpClass::kGemm), at::kBFloat16);
  EXPECT_EQ(bf16.input_dtype(OpClass::kNormalize), at::kFloat);
  EXPECT_EQ(fp16.input_dtype(OpClass::kGemm), at::kHalf);
  EXPECT_EQ(fp16.attention().input_dtype(OpClass::kGemm), at::kBFloat16);
  EXPECT_EQ(bf16.attention().input_dtype(OpClass::kGemm), at::kBFloat16);
}

TEST(DtypePolicyTest, DtypesThroughTheEncoder) {
  at::NoGradGuard no_grad;
  Built built(toy());
  const at::Tensor x = noise({2, 16, 64});
  const at::Tensor lengths = at::tensor({64, 50}, at::kLong);
  const at::Tensor exact = built.encoder.forward({}, x, lengths).encoded;
  for (const auto precision : {config::Precision::kBf16Mixed, config::Precision::k16Mixed}) {
    const at::ScalarType low =
        precision == config::Precision::kBf16Mixed ? at::kBFloat16 : at::kHalf;
    std::map<std::string, at::ScalarType> seen;
    ForwardContext ctx;
    ctx.policy = DtypePolicy(precision);
    ctx.tap = [&](const std::string& name, const at::Tensor& t) { seen[name] = t.scalar_type(); };
    const at::Tensor mixed = built.encoder.forward(ctx, x, lengths).encoded;
    EXPECT_EQ(seen["pre_encode"], low);
    EXPECT_EQ(seen["layers.0.after_ff1"], low);  // the stream is narrow in layer 0 only
    EXPECT_EQ(seen["layers.0.attention"], at::kBFloat16);
    EXPECT_EQ(seen["layers.0.conv"], low);
    EXPECT_EQ(seen["layers.0.out"], at::kFloat);
    EXPECT_EQ(seen["layers.1.after_ff1"], at::kFloat);
    EXPECT_EQ(mixed.scalar_type(), at::kFloat);
    EXPECT_LT((mixed - exact).abs().max().item<double>(), 0.15);
    EXPECT_LT((mixed - exact).square().mean().sqrt().item<double>(), 0.03);
  }
}

TEST(EncoderConfigTest, CombinationsThatMakeNoModel) {
  auto error = [](auto change) {
    config::EncoderConfig c = toy();
    change(c);
    const Status status = check_encoder_config(c);
    return status.ok() ? std::string() : status.to_string();
  };
  using config::EncoderConfig;
  EXPECT_EQ(error([](EncoderConfig&) {}), "");
  EXPECT_NE(error([](EncoderConfig& c) { c.n_heads = 5; }).find("n_heads"), std::string::npos);
  EXPECT_NE(error([](EncoderConfig& c) { c.subsampling_factor = 6; }).find("power of two"),
            std::string::npos);
  EXPECT_NE(error([](EncoderConfig& c) { c.conv_kernel_size = 4; }).find("odd"), std::string::npos);
  EXPECT_NE(error([](EncoderConfig& c) {
              c.conv_context_size = {3, 0};
            }).find("conv_context"),
            std::string::npos);
  EXPECT_NE(error([](EncoderConfig& c) {
              c.conv_norm_type = config::ConvNorm::kGroupNorm;
              c.conv_norm_groups = 5;
            }).find("group_norm5"),
            std::string::npos);
  EXPECT_NE(error([](EncoderConfig& c) {
              c.self_attention_model = config::SelfAttentionModel::kRelPosLocalAttn;
            }).find("bounded"),
            std::string::npos);
  EXPECT_NE(error([](EncoderConfig& c) {
              c.att_context_style = AttContextStyle::kChunkedLimited;
              c.att_context_size = {{5, 2}};
            }).find("multiple"),
            std::string::npos);
  EXPECT_NE(error([](EncoderConfig& c) {
              c.att_context_probs = {0.5, 0.5};
            }).find("probs"),
            std::string::npos);
}

}  // namespace
}  // namespace aerie::nn
