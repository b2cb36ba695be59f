// Front end, masking, quantizer, decoder, loss and post_conv against NeMo's modules.
#include <map>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/isfinite.h>

#include "aerie/models/nest/decoder.h"
#include "aerie/models/nest/masking.h"
#include "aerie/models/nest/nest_model.h"
#include "aerie/models/nest/preprocessor.h"
#include "aerie/models/nest/quantizer.h"
#include "aerie/nn/init.h"
#include "fixture.h"

namespace aerie::parity {
namespace {

using nest::MaskRule;

TEST(PreprocessorParityTest, EveryOption) {
  const Fixture fixture("pre_all.safetensors");
  ASSERT_EQ(fixture.kind, "preprocessor");
  size_t compared = 0;
  for (size_t i = 0; i < fixture.cases.size(); ++i) {
    const Json& c = fixture.cases[i];
    const std::string name = c.at("name");
    SCOPED_TRACE(name);
    Json merged = fixture.config;
    merged.update(c.at("config"));
    // Both sizes at once are refused by the configuration.
    if (name == "both_window_sizes") continue;
    const config::PreprocessorConfig config = preprocessor_config(merged);
    nn::ParameterRegistry registry;
    auto made = nest::Preprocessor::create(nn::Scope(registry, "featurizer"), config);
    if (name == "fixed_mean_std") {
      // NeMo wants batch x features numbers here, i.e. a fixed batch size; we want one per feature.
      EXPECT_FALSE(made.ok());
      continue;
    }
    ASSERT_TRUE(made.ok()) << made.status().to_string();
    registry.materialize(at::kCPU);
    nn::initialize(registry, 1);

    nest::Preprocessor::Mode mode;
    mode.training = c.at("training").get<bool>();
    if (c.contains("nb_applied"))
      mode.injected_narrow_band = c["nb_applied"].get<std::vector<bool>>();
    if (fixture.has(Fixture::key(i, "draw.dither")))
      mode.injected_dither = fixture.get(Fixture::key(i, "draw.dither"));
    const at::Tensor audio = fixture.input(i, "input_signal");
    const at::Tensor lengths = fixture.input(i, "length");
    const nest::Features got = made->forward(audio, lengths, mode);
    if (c.contains("error")) {
      // NeMo fails on these; the result has no model to compare with but must be sound.
      EXPECT_TRUE(at::isfinite(got.values).all().item<bool>());
      continue;
    }
    EXPECT_TRUE(at::equal(got.lengths, fixture.get(Fixture::key(i, "out.processed_length"))));
    const at::Tensor want = fixture.get(Fixture::key(i, "out.processed_signal"));
    // Normalised values near the padding divide small numbers: absolute bound 1e-4 there. Where a
    // bin holds nothing but the rounding noise of the FFT, its logarithm differs between
    // processors: a few such elements may be off by more.
    ASSERT_EQ(got.values.sizes(), want.sizes());
    const at::Tensor gap = (got.values - want).abs();
    const double off = (gap > 1e-4 + kRel * want.abs()).to(at::kDouble).mean().item<double>();
    EXPECT_LE(off, 0.05);
    EXPECT_LE(gap.max().item<double>(), 0.1);
    EXPECT_EQ(made->padded_frames_of(audio.size(1)), want.size(2));
    for (int64_t b = 0; b < lengths.size(0); ++b)
      EXPECT_EQ(made->frames_of(lengths[b].item<int64_t>()), got.lengths[b].item<int64_t>());
    for (const char* buffer : {"window", "fb"}) {
      const std::string key = Fixture::key(i, std::string("out.") + buffer);
      if (!fixture.has(key)) continue;
      EXPECT_TRUE(at::equal(registry[std::string("featurizer.") + buffer], fixture.get(key)));
    }
    ++compared;
  }
  EXPECT_GE(compared, 40u);
}

TEST(MaskingParityTest, RulesOfNemo26) {
  const Fixture fixture("masking_r0.safetensors");
  for (size_t i = 0; i < fixture.cases.size(); ++i) {
    const Json& c = fixture.cases[i];
    SCOPED_TRACE(c.at("name").get<std::string>());
    Json merged = fixture.config;
    merged.update(c.at("config"));
    const config::MaskingConfig config = masking_config(merged);
    const at::Tensor features = fixture.input(i, "input_feats");
    const at::Tensor lengths = fixture.input(i, "input_lengths");
    nn::ParameterRegistry registry;
    const nest::BlockMasking masking(nn::Scope(registry, "m"), config, config.feat_in,
                                     config.block_size, MaskRule::kR0);
    registry.materialize(at::kCPU);
    nn::initialize(registry, 1);
    if (fixture.has("w.mask_embedding") && !config.mask_value) {
      at::NoGradGuard no_grad;
      registry["m.mask_embedding"].copy_(fixture.get("w.mask_embedding"));
    }

    nest::MaskSpans spans;
    for (int64_t b = 0; b < lengths.size(0); ++b) {
      const int64_t length = lengths[b].item<int64_t>();
      const nest::MaskPlan plan = nest::plan_mask(config, config.block_size, MaskRule::kR0, length);
      const Json& d = c.at("draws")[static_cast<size_t>(b)];
      nest::MaskDraw draw;
      if (d.contains("short")) {
        EXPECT_EQ(plan.kind, nest::MaskPlan::Kind::kShort) << "item " << b;
      } else if (d.contains("starts")) {
        EXPECT_EQ(plan.kind, nest::MaskPlan::Kind::kStarts) << "item " << b;
        EXPECT_EQ(plan.num_starts, d.at("num_starts").get<int64_t>()) << "item " << b;
        draw.starts = d.at("starts").get<std::vector<int64_t>>();
      } else {
        EXPECT_EQ(plan.kind, nest::MaskPlan::Kind::kSlots) << "item " << b;
        EXPECT_EQ(plan.num_slots, d.at("num_choices").get<int64_t>()) << "item " << b;
        EXPECT_EQ(plan.num_patches, static_cast<int64_t>(d.at("slots").size())) << "item " << b;
        EXPECT_EQ(plan.offset_range, config.block_size);
        draw.offset = d.at("offset").get<int64_t>();
        draw.slots = d.at("slots").get<std::vector<int64_t>>();
      }
      spans.push_back(nest::mask_spans(plan, draw, length));
    }
    const at::Tensor mask = nest::mask_from_spans(spans, features.size(2));
    if (c.contains("error")) {
      // NeMo's blocks leave the tensor and it fails; ours are cut at its end.
      EXPECT_TRUE(mask.any().item<bool>());
      continue;
    }
    EXPECT_TRUE(at::equal(mask, fixture.get(Fixture::key(i, "out.mask")).to(at::kBool)));
    EXPECT_TRUE(
        at::equal(masking.apply(features, mask), fixture.get(Fixture::key(i, "out.masked_feats"))));
  }
}

TEST(QuantizerParityTest, TokensOfEveryVariant) {
  const auto files = fixture_files("quant_");
  EXPECT_GE(files.size(), 7u);
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    const Fixture fixture(file);
    const config::QuantizerConfig config = quantizer_config(fixture.config);
    nn::ParameterRegistry registry;
    const nest::Quantizer quantizer(nn::Scope(registry, ""), config);
    registry.materialize(at::kCPU);
    fixture.load_weights(registry, "w.");
    at::Tensor input = fixture.input(0, "input_signal");
    if (fixture.config.value("time_ahead", false)) input = input.transpose(1, 2);
    const at::Tensor tokens = quantizer.forward({}, input);
    const at::Tensor want = fixture.get("case0.out.tokens");
    EXPECT_TRUE(at::equal(want.dim() == 2 ? tokens.squeeze(-1) : tokens, want));
  }
}

TEST(DecoderLossParityTest, LossSelectionAndGradients) {
  const auto files = fixture_files("loss_");
  EXPECT_GE(files.size(), 7u);
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    const Fixture fixture(file);
    const config::DecoderConfig config = decoder_config(fixture.config.at("decoder"));
    nn::ParameterRegistry registry;
    const nest::Decoder decoder(nn::Scope(registry, ""), config);
    registry.materialize(at::kCPU);
    fixture.load_weights(registry, "w.");
    for (size_t i = 0; i < fixture.cases.size(); ++i) {
      const Json& c = fixture.cases[i];
      SCOPED_TRACE(c.at("name").get<std::string>());
      Json merged = fixture.config.at("loss");
      merged.update(c.at("config").at("loss"));
      const config::LossConfig loss_keys = loss_config(merged);
      registry.zero_grad();
      at::Tensor encoded = fixture.input(i, "encoder_output");
      encoded.requires_grad_(true);
      at::Tensor tokens = fixture.input(i, "targets");
      if (tokens.dim() == 2) tokens = tokens.unsqueeze(-1);
      // In the model all bins of a frame are equal; here some are not, so frames have shares.
      const at::Tensor masks = fixture.input(i, "masks");

      const at::Tensor log_probs = decoder.forward({}, encoded);
      if (fixture.has(Fixture::key(i, "out.logprobs"))) {
        const at::Tensor want = fixture.get(Fixture::key(i, "out.logprobs"));
        EXPECT_TRUE(near(want.dim() == 3 ? log_probs.squeeze(-1) : log_probs, want, kRel, kAbs));
      }
      const at::Tensor selected =
          nest::loss_frames(masks.mean(1), loss_keys.combine_time_steps, loss_keys.mask_threshold);
      EXPECT_TRUE(at::equal(selected, fixture.get(Fixture::key(i, "out.selected")).to(at::kBool)));
      const nest::MaskedLoss parts = nest::masked_token_loss(log_probs, tokens, selected);
      EXPECT_EQ(parts.count.item<int64_t>(), c.at("num_selected").get<int64_t>());
      // NaN where nothing is selected, as NeMo; zero by default.
      const at::Tensor loss = nest::mean_loss(parts, true);
      EXPECT_TRUE(near(loss, fixture.get(Fixture::key(i, "out.loss")), 1e-5, 1e-6));
      if (parts.count.item<int64_t>() == 0) {
        EXPECT_EQ(nest::mean_loss(parts, false).item<double>(), 0.0);
      }
      loss.backward();
      for (const std::string& name : fixture.names(Fixture::key(i, "grad."))) {
        const at::Tensor want = fixture.get(Fixture::key(i, "grad." + name));
        const at::Tensor got =
            name == "in.encoder_output" ? encoded.grad() : registry.grad(registry.find(name));
        EXPECT_TRUE(near(got, want, kRel, 1e-6)) << name;
      }
    }
  }
}

config::ModelConfig model_config(const Json& m) {
  config::ModelConfig out;
  out.mask_position = m.at("mask_position") == "post_conv" ? config::MaskPosition::kPostConv
                                                           : config::MaskPosition::kPreConv;
  out.preprocessor = preprocessor_config(m.at("preprocessor"));
  out.masking = masking_config(m.at("masking"));
  out.quantizer = quantizer_config(m.at("quantizer"));
  out.encoder = encoder_config(m.at("encoder"));
  out.decoder = decoder_config(m.at("decoder"));
  out.loss = loss_config(m.at("loss"));
  return out;
}

TEST(PostConvParityTest, TokensMaskLossAndGradients) {
  const Fixture fixture("post_conv.safetensors");
  config::NestAerieConfig aerie;
  aerie.compat_nemo_2_6 = true;
  auto made = nest::NestModel::create(model_config(fixture.config.at("model")), aerie);
  ASSERT_TRUE(made.ok()) << made.status().to_string();
  nest::NestModel& model = **made;
  nn::ParameterRegistry& registry = model.parameters();
  EXPECT_EQ(model.masking().block_size(), fixture.config.at("effective_block_size").get<int64_t>());

  for (size_t i = 0; i < fixture.cases.size(); ++i) {
    const Json& c = fixture.cases[i];
    SCOPED_TRACE(c.at("name").get<std::string>());
    {
      at::NoGradGuard no_grad;
      for (const std::string& name : fixture.names("w.")) {
        ASSERT_GE(registry.find(name), 0) << name;
        registry[name].copy_(fixture.get("w." + name));
      }
      for (const nn::ParamInfo& info : registry.entries())
        EXPECT_TRUE(fixture.has("w." + info.name) || info.group == "preprocessor") << info.name;
    }
    registry.zero_grad();
    nest::Features clean{fixture.input(i, "clean"), fixture.input(i, "length")};
    nest::Features noisy{fixture.input(i, "noisy"), fixture.input(i, "length")};
    nest::MaskSpans spans;
    const at::Tensor frames = fixture.get(Fixture::key(i, "out.encoded_len"));
    if (c.contains("draws")) {
      for (int64_t b = 0; b < frames.size(0); ++b) {
        const int64_t length = frames[b].item<int64_t>();
        const nest::MaskPlan plan =
            nest::plan_mask(masking_config(fixture.config.at("model").at("masking")),
                            model.masking().block_size(), MaskRule::kR0, length);
        const Json& d = c.at("draws")[static_cast<size_t>(b)];
        nest::MaskDraw draw;
        if (d.contains("starts")) draw.starts = d.at("starts").get<std::vector<int64_t>>();
        EXPECT_EQ(plan.kind == nest::MaskPlan::Kind::kShort, d.contains("short"));
        spans.push_back(nest::mask_spans(plan, draw, length));
      }
    }
    nest::ForwardOptions options;
    options.training = c.at("training").get<bool>();
    options.apply_mask = c.at("apply_mask").get<bool>();
    options.mask_spans = &spans;
    auto result = model.forward_features(clean, noisy, {}, options);
    ASSERT_TRUE(result.ok()) << result.status().to_string();
    EXPECT_TRUE(at::equal(result->encoded_lengths, frames));
    EXPECT_TRUE(at::equal(result->tokens, fixture.get(Fixture::key(i, "out.tokens"))));
    EXPECT_TRUE(near(result->encoded, fixture.get(Fixture::key(i, "out.encoded")), kRel, kAbs));
    if (fixture.has(Fixture::key(i, "out.mask"))) {
      EXPECT_TRUE(at::equal(result->mask, fixture.get(Fixture::key(i, "out.mask")).to(at::kBool)));
    }
    if (!c.contains("loss")) continue;
    EXPECT_NEAR(result->loss.item<double>(), c.at("loss").get<double>(), 1e-5);
    if (!options.training) continue;

    result->loss.backward();
    std::map<std::string, bool> none;
    for (const Json& name : c.at("grad_none")) none[name.get<std::string>()] = true;
    for (const std::string& name : fixture.names(Fixture::key(i, "grad.")))
      EXPECT_TRUE(near(registry.grad(registry.find(name)),
                       fixture.get(Fixture::key(i, "grad." + name)), kRel, 2e-6))
          << name;
    // What gets no gradient in NeMo is not trainable here, so that no weight decay touches it.
    for (int64_t entry : registry.parameters()) {
      const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(entry)];
      EXPECT_EQ(!info.trainable, none.count(info.name) == 1) << info.name;
    }
  }
}

}  // namespace
}  // namespace aerie::parity
