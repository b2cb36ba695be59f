// Masking, quantizer, loss, front end and model assembly by their definitions, and the quirks of
// docs/numerics.md 6 that belong to the model.
#include <map>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mv.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "aerie/models/nest/test_util.h"

namespace aerie::nest {
namespace {

config::MaskingConfig stock_masking() {
  config::MaskingConfig c;
  c.mask_prob = 0.01;
  c.block_size = 40;
  c.allow_overlap = true;
  return c;
}

std::vector<MaskSpan> spans_of(const config::MaskingConfig& c, MaskRule rule, int64_t length,
                               uint64_t item) {
  const MaskPlan plan = plan_mask(c, c.block_size, rule, length);
  nn::RandomKey key;
  key.seed = 77;
  key.micro_step = item;
  return mask_spans(plan, draw_mask(plan, c.mask_prob, key, 0), length);
}

// --- masking -------------------------------------------------------------------------------------

TEST(MaskingTest, ShortClipsHideTheirFirstEightFramesInR0) {
  const config::MaskingConfig c = stock_masking();
  EXPECT_EQ(spans_of(c, MaskRule::kR0, 50, 0), (std::vector<MaskSpan>{{0, 8}}));
  EXPECT_EQ(spans_of(c, MaskRule::kR0, 5, 0), (std::vector<MaskSpan>{{0, 5}}));
  EXPECT_EQ(plan_mask(c, 40, MaskRule::kR0, 51).kind, MaskPlan::Kind::kStarts);
  EXPECT_EQ(plan_mask(c, 40, MaskRule::kR0, 51).num_starts, 11);
  // R1 has no such rule: what does not fit is not hidden.
  EXPECT_TRUE(spans_of(c, MaskRule::kR1, 39, 0).empty());
  EXPECT_EQ(plan_mask(c, 40, MaskRule::kR1, 40).num_starts, 1);
  EXPECT_TRUE(spans_of(c, MaskRule::kR1, 0, 0).empty());
}

TEST(MaskingTest, TheLastFrameCanBeHiddenInR1Only) {
  config::MaskingConfig c = stock_masking();
  c.mask_prob = 1.0;
  const at::Tensor r0 = mask_from_spans({spans_of(c, MaskRule::kR0, 100, 0)}, 112)[0];
  const at::Tensor r1 = mask_from_spans({spans_of(c, MaskRule::kR1, 100, 0)}, 112)[0];
  EXPECT_EQ(r0.sum().item<int64_t>(), 99);
  EXPECT_FALSE(r0[99].item<bool>());
  EXPECT_EQ(r1.sum().item<int64_t>(), 100);
  EXPECT_TRUE(r1[99].item<bool>());
  c.mask_prob = 0.0;
  EXPECT_TRUE(spans_of(c, MaskRule::kR1, 100, 0).empty());
}

TEST(MaskingTest, CoverageAndStartsHaveTheRightDistribution) {
  const config::MaskingConfig c = stock_masking();
  const int64_t length = 1500;
  double frames = 0.0, squares = 0.0, loss_frames_share = 0.0;
  std::vector<int> starts(static_cast<size_t>(length), 0);
  const int kTrials = 3000;
  for (int trial = 0; trial < kTrials; ++trial) {
    const auto spans = spans_of(c, MaskRule::kR1, length, static_cast<uint64_t>(trial));
    for (const MaskSpan& span : spans) ++starts[static_cast<size_t>(span.begin)];
    const at::Tensor mask = mask_from_spans({spans}, 1504);
    const double share = mask.sum().item<double>() / static_cast<double>(length);
    frames += share;
    squares += share * share;
    loss_frames_share += loss_frames(mask, 8, 0.8).sum().item<double>() / 188.0;
  }
  const double mean = frames / kTrials;
  // From an independent simulation of 20,000 masks; docs/numerics.md 3.1 has about the same.
  EXPECT_NEAR(mean, 0.3230, 0.005);
  EXPECT_NEAR(loss_frames_share / kTrials, 0.2899, 0.005);
  EXPECT_NEAR(std::sqrt(squares / kTrials - mean * mean), 0.0736, 0.004);
  // Every legal start is equally likely: chi-square against the expected count.
  const int64_t legal = length - 40 + 1;
  double chi = 0.0;
  const double expected = kTrials * 0.01;
  for (int64_t t = 0; t < length; ++t) {
    const double n = starts[static_cast<size_t>(t)];
    if (t >= legal) {
      EXPECT_EQ(n, 0) << t;
    } else {
      chi += (n - expected) * (n - expected) / expected;
    }
  }
  EXPECT_NEAR(chi, static_cast<double>(legal), 5 * std::sqrt(2.0 * static_cast<double>(legal)));
}

TEST(MaskingTest, SeparateBlocksOfR1StayInsideTheClip) {
  config::MaskingConfig c = stock_masking();
  c.allow_overlap = false;
  for (double prob : {0.05, 0.3, 0.65, 0.99}) {
    c.mask_prob = prob;
    for (int64_t length : {3, 41, 79, 100, 333, 1500}) {
      const MaskPlan plan = plan_mask(c, 40, MaskRule::kR1, length);
      std::map<int64_t, int> offsets;
      for (uint64_t item = 0; item < 50; ++item) {
        const auto spans = spans_of(c, MaskRule::kR1, length, item);
        EXPECT_EQ(static_cast<int64_t>(spans.size()), plan.num_patches);
        for (size_t i = 0; i < spans.size(); ++i) {
          EXPECT_GE(spans[i].begin, 0);
          EXPECT_LE(spans[i].end, length);
          EXPECT_EQ(spans[i].end - spans[i].begin, plan.block);
          if (i > 0) {
            EXPECT_GE(spans[i].begin, spans[i - 1].end);
          }
        }
      }
    }
  }
}

TEST(MaskingTest, HiddenFramesEqualTheEmbeddingInAllBins) {
  nn::ParameterRegistry registry;
  const BlockMasking masking(nn::Scope(registry, "m"), stock_masking(), 6, 40, MaskRule::kR1);
  registry.materialize(at::kCPU);
  nn::initialize(registry, 3);
  EXPECT_FALSE(registry.entries()[0].trainable);
  const at::Tensor x = at::ones({2, 6, 20});
  const at::Tensor y = masking.apply(x, mask_from_spans({{{2, 5}}, {}}, 20));
  EXPECT_TRUE(
      at::equal(y[0].slice(1, 2, 5), registry["m.mask_embedding"].unsqueeze(1).expand({6, 3})));
  EXPECT_EQ((y == 1.0).sum().item<int64_t>(), 2 * 6 * 20 - 18);
  EXPECT_EQ(masking.apply(x.to(at::kBFloat16), at::zeros({2, 20}, at::kBool)).scalar_type(),
            at::kBFloat16);
}

TEST(MaskingTest, FreezeAndConstantValues) {
  config::MaskingConfig c = stock_masking();
  c.freeze = false;
  nn::ParameterRegistry trained, constant;
  BlockMasking a(nn::Scope(trained, "m"), c, 4, 40, MaskRule::kR1);
  EXPECT_TRUE(trained.entries()[0].trainable);
  c.mask_value = -2.5;
  BlockMasking b(nn::Scope(constant, "m"), c, 4, 40, MaskRule::kR1);
  EXPECT_FALSE(constant.entries()[0].trainable);
  constant.materialize(at::kCPU);
  nn::initialize(constant, 1);
  EXPECT_EQ(constant["m.mask_embedding"].sum().item<double>(), -10.0);
}

// --- quantizer -----------------------------------------------------------------------------------

struct QuantizerSetup {
  explicit QuantizerSetup(config::QuantizerDistance distance, int64_t books = 2) {
    config::QuantizerConfig c;
    c.feat_in = 10;
    c.code_dim = 8;
    c.num_classes = 128;
    c.num_books = books;
    c.combine_time_steps = 4;
    c.dist_fn = distance;
    quantizer = std::make_unique<Quantizer>(nn::Scope(registry, "q"), c);
    registry.materialize(at::kCPU);
    nn::initialize(registry, 5);
  }
  nn::ParameterRegistry registry;
  std::unique_ptr<Quantizer> quantizer;
};

at::Tensor wave(at::IntArrayRef shape) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return at::sin(at::arange(count, at::kFloat).square() * 0.37).view(shape);
}

TEST(QuantizerTest, InitialStatistics) {
  QuantizerSetup q(config::QuantizerDistance::kL2);
  const at::Tensor norms = q.registry["q.codebooks"].norm(2, {-1});
  EXPECT_LT((norms - 1).abs().max().item<double>(), 1e-14);
  EXPECT_EQ(q.registry["q.codebooks"].scalar_type(), at::kDouble);
  const at::Tensor proj = q.registry["q.proj.weight"].to(at::kDouble);
  EXPECT_NEAR(proj.std().item<double>(), std::sqrt(2.0 / (40 + 16)), 0.012);
  EXPECT_EQ(q.registry.num_trainable_elements(), 0);
}

TEST(QuantizerTest, SilentTokensAreThoseOfZeros) {
  for (const int64_t books : {1, 2, 5}) {
    QuantizerSetup q(config::QuantizerDistance::kL2, books);
    const at::Tensor zeros = at::zeros({1, 10, q.quantizer->combine_time_steps()});
    const at::Tensor tokens = q.quantizer->forward({}, zeros).flatten();
    EXPECT_TRUE(at::equal(q.quantizer->silent_tokens(), tokens)) << tokens;
  }
}

TEST(QuantizerTest, CosineEqualsL2) {
  QuantizerSetup l2(config::QuantizerDistance::kL2);
  QuantizerSetup cosine(config::QuantizerDistance::kCosine);
  const at::Tensor x = wave({3, 10, 64});
  EXPECT_TRUE(at::equal(l2.quantizer->forward({}, x), cosine.quantizer->forward({}, x)));
}

TEST(QuantizerTest, NearestCodeByDefinition) {
  QuantizerSetup q(config::QuantizerDistance::kL2);
  const at::Tensor x = wave({2, 10, 16});
  const at::Tensor tokens = q.quantizer->forward({}, x);
  ASSERT_EQ(tokens.sizes(), at::IntArrayRef({2, 4, 2}));
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t t = 0; t < 4; ++t) {
      // Stacking order: frame within the group first, then bin.
      std::vector<at::Tensor> frames;
      for (int64_t k = 0; k < 4; ++k) frames.push_back(x[b].select(1, 4 * t + k));
      const at::Tensor y = at::mv(q.registry["q.proj.weight"], at::cat(frames)).view({2, 8});
      for (int64_t h = 0; h < 2; ++h) {
        const at::Tensor unit = (y[h] / y[h].norm()).to(at::kDouble);
        const at::Tensor distance = (q.registry["q.codebooks"][h] - unit).norm(2, {-1});
        EXPECT_EQ(tokens[b][t][h].item<int64_t>(), distance.argmin().item<int64_t>());
      }
    }
  }
}

TEST(QuantizerTest, ProjectionPrecisionMovesFewTokens) {
  QuantizerSetup q(config::QuantizerDistance::kL2, 1);
  const at::Tensor x = wave({8, 10, 400});
  const at::Tensor exact = q.quantizer->forward({}, x);
  const at::Tensor bf16 = q.quantizer->forward(nn::DtypePolicy(config::Precision::kBf16Mixed), x);
  const double moved = (exact != bf16).to(at::kDouble).mean().item<double>();
  EXPECT_GT(moved, 0.0);
  EXPECT_LT(moved, 0.05);
}

TEST(QuantizerTest, TiesTakeTheFirstCode) {
  QuantizerSetup q(config::QuantizerDistance::kL2, 1);
  {
    at::NoGradGuard no_grad;
    at::Tensor books = q.registry["q.codebooks"];
    books[0].slice(0, 3, 128).copy_(books[0][2].expand({125, 8}));
  }
  const at::Tensor tokens = q.quantizer->forward({}, wave({2, 10, 40}));
  EXPECT_LE(tokens.max().item<int64_t>(), 2);
}

// --- decoder and loss ----------------------------------------------------------------------------

TEST(LossTest, SevenOfEightFramesCount) {
  for (int64_t hidden = 0; hidden <= 8; ++hidden) {
    const at::Tensor mask = mask_from_spans({{{0, hidden}}}, 8);
    EXPECT_EQ(loss_frames(mask, 8, 0.8)[0][0].item<bool>(), hidden >= 7) << hidden;
  }
  EXPECT_TRUE(loss_frames(at::zeros({1, 8}, at::kBool), 8, -1.0)[0][0].item<bool>());
}

TEST(LossTest, ChannelIsClassTimesBooksPlusBook) {
  config::DecoderConfig c;
  c.feat_in = 5;
  c.num_classes = 7;
  c.num_decoders = 3;
  c.use_bias = true;
  nn::ParameterRegistry registry;
  const Decoder decoder(nn::Scope(registry, "d"), c);
  registry.materialize(at::kCPU);
  nn::initialize(registry, 2);
  const at::Tensor x = wave({2, 5, 4});
  const at::Tensor got = decoder.forward({}, x);
  ASSERT_EQ(got.sizes(), at::IntArrayRef({2, 4, 7, 3}));
  const at::Tensor logits = at::matmul(registry["d.decoder_layers.0.weight"].squeeze(-1), x) +
                            registry["d.decoder_layers.0.bias"].unsqueeze(-1);
  for (int64_t h = 0; h < 3; ++h) {
    std::vector<at::Tensor> channels;
    for (int64_t k = 0; k < 7; ++k) channels.push_back(logits.select(1, k * 3 + h));
    const at::Tensor want = at::log_softmax(at::stack(channels, -1), -1);
    EXPECT_TRUE(near(got.select(3, h), want, 1e-5, 1e-6));
  }
}

TEST(LossTest, MaskedRowsAloneGiveTheSameLossAndGradients) {
  config::DecoderConfig c;
  c.feat_in = 6;
  c.num_classes = 11;
  c.num_decoders = 2;
  c.use_bias = true;
  nn::ParameterRegistry registry;
  const Decoder decoder(nn::Scope(registry, "d"), c);
  registry.materialize(at::kCPU);
  nn::initialize(registry, 2);
  at::Tensor x = wave({3, 6, 9});
  x.requires_grad_(true);
  const at::Tensor tokens = at::arange(3 * 9 * 2, at::kLong).remainder(11).view({3, 9, 2});
  const at::Tensor selected = at::arange(27, at::kLong).remainder(4).eq(1).view({3, 9});

  const MaskedLoss full = masked_token_loss(decoder.forward({}, x), tokens, selected);
  mean_loss(full, false).backward();
  const at::Tensor x_grad = x.grad().clone();
  const at::Tensor w_grad = registry.flat_grads().clone();
  x.mutable_grad() = at::Tensor();
  registry.zero_grad();

  const at::Tensor rows = at::nonzero(selected.flatten()).flatten();
  const at::Tensor chosen = x.transpose(1, 2).reshape({27, 6}).index_select(0, rows);
  const at::Tensor log_probs = decoder.forward_rows({}, chosen);
  const at::Tensor picked =
      log_probs.gather(1, tokens.view({27, 1, 2}).index_select(0, rows)).squeeze(1);
  const at::Tensor loss = -picked.sum() / 2.0 / rows.size(0);
  EXPECT_NEAR(value(loss), value(mean_loss(full, false)), 1e-6);
  loss.backward();
  EXPECT_TRUE(near(x.grad(), x_grad, 1e-5, 1e-7));
  EXPECT_TRUE(near(registry.flat_grads(), w_grad, 1e-5, 1e-7));
}

TEST(LossTest, SumsAndCountsAddUpOverParts) {
  const at::Tensor log_probs = at::log_softmax(wave({4, 6, 5, 2}), 2);
  const at::Tensor tokens = at::arange(48, at::kLong).remainder(5).view({4, 6, 2});
  const at::Tensor selected = at::arange(24, at::kLong).remainder(3).eq(0).view({4, 6});
  const MaskedLoss all = masked_token_loss(log_probs, tokens, selected);
  double sum = 0.0, count = 0.0;
  for (int64_t part = 0; part < 2; ++part) {
    auto half = [&](const at::Tensor& t) { return t.narrow(0, 2 * part, 2); };
    const MaskedLoss loss = masked_token_loss(half(log_probs), half(tokens), half(selected));
    sum += value(loss.sum);
    count += value(loss.count);
  }
  EXPECT_NEAR(sum, value(all.sum), 1e-5);
  EXPECT_EQ(count, value(all.count));
}

// --- front end -----------------------------------------------------------------------------------

TEST(FeaturesTest, LengthsAndPaddedFrames) {
  auto model = make_model(reference_model_config());
  const Preprocessor& p = model->preprocessor();
  const int64_t samples[] = {1, 159, 160, 319, 320, 16000, 240000};
  const int64_t frames[] = {0, 0, 1, 1, 2, 100, 1500};
  const int64_t padded[] = {16, 16, 16, 16, 16, 112, 1504};
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(p.frames_of(samples[i]), frames[i]);
    EXPECT_EQ(p.padded_frames_of(samples[i]), padded[i]);
    if (samples[i] > 20000) continue;
    const Features f = p.forward(wave({1, samples[i]}), at::tensor({samples[i]}, at::kLong), {});
    EXPECT_EQ(f.lengths[0].item<int64_t>(), frames[i]);
    EXPECT_EQ(f.values.size(2), padded[i]);
    EXPECT_TRUE(at::isfinite(f.values).all().item<bool>());
  }
}

TEST(FeaturesTest, BatchPaddingChangesNothing) {
  auto model = make_model(reference_model_config());
  const at::Tensor audio = reference_audio();
  const Features both = model->preprocessor().forward(audio, reference_lengths(), {});
  const Features one = model->preprocessor().forward(audio[1].unsqueeze(0).narrow(1, 0, 12000),
                                                     at::tensor({12000}, at::kLong), {});
  EXPECT_TRUE(near(one.values[0].narrow(1, 0, 75), both.values[1].narrow(1, 0, 75), 1e-5, 1e-5));
}

TEST(FeaturesTest, DitherIsForTrainingAndRepeatable) {
  config::ModelConfig config = reference_model_config();
  config.preprocessor.dither = 1e-3;
  auto model = make_model(config);
  const at::Tensor audio = reference_audio();
  const at::Tensor copy = audio.clone();
  Preprocessor::Mode mode;
  auto run = [&] { return model->preprocessor().forward(audio, reference_lengths(), mode).values; };
  const at::Tensor eval = run();
  mode.training = true;
  const at::Tensor first = run();
  EXPECT_FALSE(at::equal(eval, first));
  EXPECT_TRUE(at::equal(first, run()));
  mode.signal = 1;  // the noisy signal has draws of its own
  EXPECT_FALSE(at::equal(first, run()));
  mode.signal = 0;
  mode.random.micro_step = 1;
  EXPECT_FALSE(at::equal(first, run()));
  EXPECT_TRUE(at::equal(audio, copy)) << "the caller's audio was changed";
  const at::Tensor normals = nn::dither_normals({1, 2, 3}, 0, 4, 20000).to(at::kDouble);
  EXPECT_NEAR(normals.mean().item<double>(), 0.0, 0.015);
  EXPECT_NEAR(normals.std().item<double>(), 1.0, 0.01);
}

// --- the model -----------------------------------------------------------------------------------

NestBatch reference_batch() {
  NestBatch batch;
  batch.audio = reference_audio();
  batch.noisy = batch.audio * 0.9;
  batch.lengths = reference_lengths();
  batch.noisy_lengths = reference_lengths();
  batch.padded_samples = 16000;
  batch.random.seed = 5;
  return batch;
}

TEST(NestModelTest, CapacityBeyondThePaddedLengthChangesNothing) {
  auto model = reference_model();
  NestBatch batch = reference_batch();
  ForwardOptions options;
  options.training = true;
  const double tight = value(model->forward(batch, options)->loss);
  batch.audio = at::constant_pad_nd(batch.audio, {0, 8000});
  batch.noisy = at::constant_pad_nd(batch.noisy, {0, 8000});
  auto again = reference_model();
  EXPECT_EQ(value(again->forward(batch, options)->loss), tight);
}

TEST(NestModelTest, RandomnessHangsOnSeedStepAndItem) {
  config::ModelConfig config = reference_model_config();
  config.encoder.dropout = config.encoder.dropout_att = config.encoder.dropout_emb = 0.1;
  config.encoder.dropout_pre_encoder = 0.1;
  config.masking.mask_prob = 0.05;
  ForwardOptions options;
  options.training = true;
  NestBatch batch = reference_batch();
  auto loss = [&] { return value(make_model(config)->forward(batch, options)->loss); };
  const double first = loss();
  EXPECT_EQ(first, loss());
  batch.random.micro_step = 1;
  EXPECT_NE(first, loss());
  batch.random.micro_step = 0;
  batch.random.seed = 6;
  EXPECT_NE(first, loss());
}

TEST(NestModelTest, EmptyMaskIsZeroByDefaultAndNanInCompat) {
  config::ModelConfig config = reference_model_config();
  config.masking.mask_prob = 0.0;
  for (const bool nan : {false, true}) {
    config::NestAerieConfig aerie;
    aerie.empty_mask = nan ? config::EmptyMask::kNan : config::EmptyMask::kZero;
    auto model = make_model(config, aerie);
    ForwardOptions options;
    options.training = true;
    auto out = model->forward(reference_batch(), options);
    ASSERT_TRUE(out.ok());
    EXPECT_EQ(value(out->loss_parts.count), 0);
    EXPECT_EQ(std::isnan(value(out->loss)), nan);
    out->loss.backward();
    EXPECT_EQ(model->parameters().flat_grads().abs().max().item<double>(), 0.0);
  }
}

TEST(NestModelTest, TokensFollowTokensPrecision) {
  config::NestAerieConfig aerie;
  ForwardOptions options;
  options.policy = nn::DtypePolicy(config::Precision::kBf16Mixed);
  auto exact = make_model(reference_model_config(), aerie);
  aerie.tokens_precision = config::TokensPrecision::kAutocast;
  auto autocast = make_model(reference_model_config(), aerie);
  const NestBatch batch = reference_batch();
  const Features clean = exact->preprocessor().forward(batch.audio, batch.lengths, {});
  EXPECT_TRUE(at::equal(exact->forward(batch, options)->tokens,
                        exact->quantizer().forward({}, clean.values)));
  EXPECT_TRUE(at::equal(autocast->forward(batch, options)->tokens,
                        autocast->quantizer().forward(options.policy, clean.values)));
}

TEST(NestModelTest, ParameterCountsOfThePublishedSizes) {
  struct Size {
    const char* name;
    int64_t d, layers, heads, kernel;
    bool bias;
    int64_t encoder, trainable;
  };
  const Size sizes[] = {
      {"S", 176, 16, 4, 9, true, 12600240, 14050224},
      {"M", 256, 16, 4, 9, true, 26128640, 28233984},
      {"L", 512, 17, 8, 9, true, 108762112, 112964608},
      {"XL", 1024, 24, 8, 9, false, 607306752, 615703552},
      {"XXL", 1024, 42, 8, 5, false, 1060543488, 1068940288},
  };
  for (const Size& size : sizes) {
    SCOPED_TRACE(size.name);
    config::EncoderConfig e = reference_model_config().encoder;
    e.d_model = size.d;
    e.n_layers = size.layers;
    e.n_heads = size.heads;
    e.conv_kernel_size = size.kernel;
    e.use_bias = size.bias;
    e.subsampling_conv_channels = 256;
    ASSERT_TRUE(nn::check_encoder_config(e).ok());
    nn::ParameterRegistry registry;  // declared, never allocated
    const nn::ConformerEncoder encoder(nn::Scope(registry, "encoder"), e);
    EXPECT_EQ(registry.num_trainable_elements(), size.encoder);
    config::QuantizerConfig q;
    q.combine_time_steps = 8;
    const Quantizer quantizer(nn::Scope(registry, "quantizer"), q);
    const BlockMasking masking(nn::Scope(registry, "mask_processor"), stock_masking(), 80, 40,
                               MaskRule::kR1);
    config::DecoderConfig d;
    d.feat_in = size.d;
    d.use_bias = true;
    const Decoder decoder(nn::Scope(registry, "decoder"), d);
    EXPECT_EQ(registry.num_trainable_elements(), size.trainable);
    EXPECT_EQ(registry.num_frozen_elements(), 141392);
  }
}

TEST(NestModelTest, NamesInPublicOrder) {
  config::ModelConfig config = reference_model_config();
  config.encoder.n_layers = 1;
  std::vector<std::string> names;
  const auto model = make_model(config);
  for (const auto& info : model->parameters().entries()) names.push_back(info.name);
  const std::vector<std::string> want = {
      "preprocessor.featurizer.window",
      "preprocessor.featurizer.fb",
      "encoder.pre_encode.out.weight",
      "encoder.pre_encode.out.bias",
      "encoder.pre_encode.conv.0.weight",
      "encoder.pre_encode.conv.0.bias",
      "encoder.pre_encode.conv.2.weight",
      "encoder.pre_encode.conv.2.bias",
      "encoder.pre_encode.conv.3.weight",
      "encoder.pre_encode.conv.3.bias",
      "encoder.pre_encode.conv.5.weight",
      "encoder.pre_encode.conv.5.bias",
      "encoder.pre_encode.conv.6.weight",
      "encoder.pre_encode.conv.6.bias",
      "encoder.layers.0.norm_feed_forward1.weight",
      "encoder.layers.0.norm_feed_forward1.bias",
      "encoder.layers.0.feed_forward1.linear1.weight",
      "encoder.layers.0.feed_forward1.linear1.bias",
      "encoder.layers.0.feed_forward1.linear2.weight",
      "encoder.layers.0.feed_forward1.linear2.bias",
      "encoder.layers.0.norm_conv.weight",
      "encoder.layers.0.norm_conv.bias",
      "encoder.layers.0.conv.pointwise_conv1.weight",
      "encoder.layers.0.conv.pointwise_conv1.bias",
      "encoder.layers.0.conv.depthwise_conv.weight",
      "encoder.layers.0.conv.depthwise_conv.bias",
      "encoder.layers.0.conv.batch_norm.weight",
      "encoder.layers.0.conv.batch_norm.bias",
      "encoder.layers.0.conv.batch_norm.running_mean",
      "encoder.layers.0.conv.batch_norm.running_var",
      "encoder.layers.0.conv.batch_norm.num_batches_tracked",
      "encoder.layers.0.conv.pointwise_conv2.weight",
      "encoder.layers.0.conv.pointwise_conv2.bias",
      "encoder.layers.0.norm_self_att.weight",
      "encoder.layers.0.norm_self_att.bias",
      "encoder.layers.0.self_attn.pos_bias_u",
      "encoder.layers.0.self_attn.pos_bias_v",
      "encoder.layers.0.self_attn.linear_q.weight",
      "encoder.layers.0.self_attn.linear_q.bias",
      "encoder.layers.0.self_attn.linear_k.weight",
      "encoder.layers.0.self_attn.linear_k.bias",
      "encoder.layers.0.self_attn.linear_v.weight",
      "encoder.layers.0.self_attn.linear_v.bias",
      "encoder.layers.0.self_attn.linear_out.weight",
      "encoder.layers.0.self_attn.linear_out.bias",
      "encoder.layers.0.self_attn.linear_pos.weight",
      "encoder.layers.0.norm_feed_forward2.weight",
      "encoder.layers.0.norm_feed_forward2.bias",
      "encoder.layers.0.feed_forward2.linear1.weight",
      "encoder.layers.0.feed_forward2.linear1.bias",
      "encoder.layers.0.feed_forward2.linear2.weight",
      "encoder.layers.0.feed_forward2.linear2.bias",
      "encoder.layers.0.norm_out.weight",
      "encoder.layers.0.norm_out.bias",
      "quantizer.codebooks",
      "quantizer.proj.weight",
      "mask_processor.mask_embedding",
      "decoder.decoder_layers.0.weight",
      "decoder.decoder_layers.0.bias",
  };
  EXPECT_EQ(names, want);
}

// --- post_conv -----------------------------------------------------------------------------------

config::ModelConfig post_conv_config() {
  config::ModelConfig c = reference_model_config();
  c.mask_position = config::MaskPosition::kPostConv;
  c.masking.mask_prob = 0.3;
  return c;
}

TEST(PostConvTest, CombineTimeStepsIsSetToOneWithAWarning) {  // Q7
  auto model = make_model(post_conv_config());
  ASSERT_EQ(model->settings().warnings.size(), 1u);
  EXPECT_NE(model->settings().warnings[0].find("combine_time_steps 8 set to 1"), std::string::npos);
  EXPECT_EQ(model->quantizer().combine_time_steps(), 1);
  ForwardOptions options;
  options.training = true;
  auto out = model->forward(reference_batch(), options);
  ASSERT_TRUE(out.ok()) << out.status().to_string();
  EXPECT_EQ(out->tokens.sizes(), at::IntArrayRef({2, 14, 1}));
  EXPECT_EQ(out->mask.sizes(), at::IntArrayRef({2, 14}));
}

TEST(PostConvTest, SubsamplingIsFrozenUnlessAskedFor) {  // Q8
  for (const bool train : {false, true}) {
    config::NestAerieConfig aerie;
    aerie.train_pre_encode = train;
    config::ModelConfig config = post_conv_config();
    config.masking.freeze = false;
    auto model = make_model(config, aerie);
    ForwardOptions options;
    options.training = true;
    model->forward(reference_batch(), options)->loss.backward();
    nn::ParameterRegistry& p = model->parameters();
    const int64_t entry = p.find("encoder.pre_encode.pre_encode.out.weight");
    EXPECT_EQ(p.entries()[static_cast<size_t>(entry)].trainable, train);
    const int64_t embedding = p.find("encoder.pre_encode.masking.mask_embedding");
    EXPECT_EQ(p.entries()[static_cast<size_t>(embedding)].trainable, train);
    if (train) {
      EXPECT_GT(l2(p.grad(entry)), 0.0);
      EXPECT_GT(l2(p.grad(embedding)), 0.0);
    }
  }
}

TEST(PostConvTest, BlockSizeIsDividedOnce) {  // Q9
  auto fresh = nest_settings(post_conv_config());
  ASSERT_TRUE(fresh.ok());
  EXPECT_EQ(fresh->mask_block_size, 5);
  // As NeMo writes it into an archive.
  config::ModelConfig stored = post_conv_config();
  stored.masking.block_size = 5;
  stored.masking.feat_in = stored.quantizer.feat_in = stored.encoder.d_model;
  stored.loss.combine_time_steps = 1;
  stored.quantizer.combine_time_steps = 1;
  auto restored = nest_settings(stored);
  ASSERT_TRUE(restored.ok());
  EXPECT_EQ(restored->mask_block_size, 5);
  config::ModelConfig small = post_conv_config();
  small.masking.block_size = 7;
  EXPECT_FALSE(nest_settings(small).ok());
}

TEST(PostConvTest, WorksInMixedPrecision) {  // Q10
  auto model = make_model(post_conv_config());
  for (const auto precision : {config::Precision::kBf16Mixed, config::Precision::k16Mixed}) {
    ForwardOptions options;
    options.training = true;
    options.policy = nn::DtypePolicy(precision);
    auto out = model->forward(reference_batch(), options);
    ASSERT_TRUE(out.ok()) << out.status().to_string();
    EXPECT_TRUE(std::isfinite(value(out->loss)));
    out->loss.backward();
    EXPECT_TRUE(at::isfinite(model->parameters().flat_grads()).all().item<bool>());
  }
}

TEST(PostConvTest, NamesRepeatAsInNemo) {
  auto model = make_model(post_conv_config());
  const auto& entries = model->parameters().entries();
  auto name = [&](size_t i) { return entries[i].name; };
  EXPECT_EQ(name(2), "encoder.pre_encode.pre_encode.out.weight");
  EXPECT_EQ(name(14), "encoder.pre_encode.masking.mask_embedding");
  EXPECT_EQ(name(15), "encoder.layers.0.norm_feed_forward1.weight");
  const size_t n = entries.size();
  EXPECT_EQ(name(n - 1), "pre_encoder.masking.mask_embedding");
  EXPECT_EQ(name(n - 13), "pre_encoder.pre_encode.out.weight");
  EXPECT_EQ(name(n - 14), "decoder.decoder_layers.0.bias");
  EXPECT_EQ(name(n - 16), "mask_processor.mask_embedding");
  EXPECT_GE(entries[n - 1].alias_of, 0);
}

// --- configurations that make no model -----------------------------------------------------------

TEST(NestSettingsTest, MismatchesNameTheKeys) {
  auto error = [](auto change) {
    config::ModelConfig m = reference_model_config();
    change(m);
    auto made = nest_settings(m);
    return made.ok() ? std::string() : made.status().to_string();
  };
  using config::ModelConfig;
  EXPECT_EQ(error([](ModelConfig&) {}), "");
  EXPECT_NE(error([](ModelConfig& m) { m.encoder.feat_in = 64; }).find("encoder.feat_in"),
            std::string::npos);
  EXPECT_NE(error([](ModelConfig& m) { m.decoder.feat_in = 64; }).find("decoder.feat_in"),
            std::string::npos);
  EXPECT_NE(error([](ModelConfig& m) { m.loss.combine_time_steps = 4; }).find("combine_time_steps"),
            std::string::npos);
  EXPECT_NE(error([](ModelConfig& m) { m.decoder.num_decoders = 2; }).find("num_decoders"),
            std::string::npos);
  EXPECT_NE(error([](ModelConfig& m) { m.masking.mask_prob = 1.5; }).find("mask_prob"),
            std::string::npos);
  EXPECT_NE(error([](ModelConfig& m) { m.decoder.num_classes = 8; }).find("num_classes"),
            std::string::npos);
}

TEST(NestModelTest, FramesThatDoNotDivideAreAnErrorNotACrash) {
  config::ModelConfig config = reference_model_config();
  config.preprocessor.pad_to = 0;
  auto model = make_model(config);
  auto out = model->forward(reference_batch(), {});
  ASSERT_FALSE(out.ok());
  EXPECT_NE(out.status().to_string().find("pad_to"), std::string::npos);
}

// The key `mel_norm: null` arrives as "none".
TEST(PreprocessorTest, FiltersWithoutNormalisation) {
  config::ModelConfig m = reference_model_config();
  m.preprocessor.mel_norm = "none";
  auto model = make_model(m);
  ASSERT_NE(model, nullptr);
  const at::Tensor fb = model->parameters()["preprocessor.featurizer.fb"];
  EXPECT_LE(value(fb.max()), 1.0);
  EXPECT_GT(value(fb.amax(2).min()), 0.1);
  m.preprocessor.mel_norm = "area";
  EXPECT_FALSE(NestModel::create(m, {}).ok());
}

}  // namespace
}  // namespace aerie::nest
