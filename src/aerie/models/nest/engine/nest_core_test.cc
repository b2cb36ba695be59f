// One step: its numbers (docs/numerics.md 7), accumulation, parts, skipped steps, memory.
#include "aerie/models/nest/engine/nest_core.h"

#include <cmath>
#include <limits>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>

#include "aerie/models/nest/engine/test_util.h"
#include "aerie/models/nest/nest_task.h"

namespace aerie::train {
namespace {

const nest::MaskSpans kSpans = {{{16, 56}}, {{26, 66}}};

nest::NestBatch reference_batch() {
  nest::NestBatch batch;
  batch.audio = batch.noisy = nest::reference_audio();
  batch.lengths = batch.noisy_lengths = nest::reference_lengths();
  batch.padded_samples = 16000;
  return batch;
}

TEST(NestCoreTest, OneStepEqualsAppendixB5) {
  config::RunConfig config = small_run_config();
  config.model = nest::reference_model_config();
  config.model.optim = small_run_config().model.optim;
  auto core = make_core(config);
  nn::ParameterRegistry& p = core->model().parameters();
  for (const char* prefix : {"encoder.", "quantizer.", "decoder."})
    nest::fill_reference_weights(p, prefix);
  {
    at::NoGradGuard no_grad;
    p["mask_processor.mask_embedding"].copy_(0.05 * (at::arange(80, at::kFloat) - 40) / 40);
  }
  const at::Tensor weight = p["encoder.layers.0.feed_forward1.linear1.weight"].detach().clone();
  core->force_masks(&kSpans);
  ASSERT_TRUE(core->add(
                      1, [](int64_t) { return reference_batch(); }, 1, 1)
                  .ok());
  auto outcome = core->finish(std::vector<double>{1e-3});
  ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
  EXPECT_NEAR(outcome->loss, 4.633575, 2e-5);
  EXPECT_NEAR(outcome->grad_norm, 3.834352, 4e-4);
  EXPECT_EQ(nest::masked_frames(*outcome), 9);
  EXPECT_EQ(nest::all_frames(*outcome), 23);
  EXPECT_FALSE(outcome->skipped);
  EXPECT_EQ(outcome->loss_scale, 1.0);
  const at::Tensor delta = p["encoder.layers.0.feed_forward1.linear1.weight"].detach() - weight;
  EXPECT_NEAR(nest::at_index(delta, {0, 0}), 1.00018e-03, 1e-8);
  EXPECT_NEAR(nest::total(delta), 7.551426e-02, 1e-5);
  EXPECT_NEAR(nest::total(p["encoder.layers.0.conv.batch_norm.running_mean"]), -0.077517, 2e-6);
  EXPECT_NEAR(nest::total(p["encoder.layers.0.conv.batch_norm.running_var"]), 28.607481, 2e-5);
  EXPECT_EQ(nest::value(p["encoder.layers.0.conv.batch_norm.num_batches_tracked"]), 1);
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

void check_split(config::RunConfig config, double bound) {
  std::vector<at::Tensor> grads;
  std::vector<StepOutcome> outcomes;
  for (const int64_t split : {1, 2, 4, 64}) {
    auto core = make_core(config);
    const Status status = core->add(2, batches(5, 3), 2, split);
    ASSERT_TRUE(status.ok()) << status.to_string();
    grads.push_back(core->model().parameters().flat_grads().clone());
    auto outcome = core->finish(std::vector<double>{1e-3});
    ASSERT_TRUE(outcome.ok());
    outcomes.push_back(*outcome);
  }
  ASSERT_GT(nest::masked_frames(outcomes[0]), 0);
  ASSERT_GT(grads[0].abs().max().item<double>(), 0.0);
  for (size_t i = 1; i < grads.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_LT(largest_difference(grads[i], grads[0]), bound);
    EXPECT_EQ(nest::masked_frames(outcomes[i]), nest::masked_frames(outcomes[0]));
    EXPECT_EQ(nest::all_frames(outcomes[i]), nest::all_frames(outcomes[0]));
    EXPECT_NEAR(outcomes[i].loss, outcomes[0].loss, 1e-5);
    EXPECT_NEAR(outcomes[i].grad_norm, outcomes[0].grad_norm, 1e-5 * outcomes[0].grad_norm);
  }
}

TEST(NestCoreTest, PartsGiveTheGradientsOfTheWhole) {
  config::RunConfig config = noisy_run_config();
  config.model.encoder.conv_norm_type = config::ConvNorm::kLayerNorm;
  check_split(config, 1e-5);
}

TEST(NestCoreTest, PartsGiveTheGradientsOfTheWholeInPostConv) {
  config::RunConfig config = noisy_run_config();
  config.model.encoder.conv_norm_type = config::ConvNorm::kLayerNorm;
  config.model.mask_position = config::MaskPosition::kPostConv;
  check_split(config, 1e-5);
}

TEST(NestCoreTest, AccumulationAveragesMicroBatches) {
  config::RunConfig config = noisy_run_config();
  auto together = make_core(config);
  ASSERT_TRUE(together->add(3, batches(2, 0), 3, 1).ok());
  at::Tensor sum;
  double loss = 0.0;
  for (uint64_t i = 0; i < 3; ++i) {
    // Statistics do not enter training-mode gradients, so a fresh core sees what the window saw.
    auto alone = make_core(config);
    ASSERT_TRUE(alone->add(1, batches(2, i), 1, 1).ok());
    const at::Tensor grads = alone->model().parameters().flat_grads();
    sum = sum.defined() ? sum + grads / 3 : grads / 3;
    loss += alone->finish(std::vector<double>{1e-3})->loss / 3;
  }
  EXPECT_LT(largest_difference(together->model().parameters().flat_grads(), sum), 1e-5);
  const StepOutcome outcome = *together->finish(std::vector<double>{1e-3});
  EXPECT_EQ(outcome.micro_losses.size(), 3u);
  EXPECT_NEAR(outcome.loss, loss, 1e-5);
  // A window cut in two is the same window.
  auto cut = make_core(config);
  ASSERT_TRUE(cut->add(2, batches(2, 0), 3, 1).ok());
  ASSERT_TRUE(cut->add(1, batches(2, 2), 3, 1).ok());
  ASSERT_TRUE(cut->finish(std::vector<double>{1e-3}).ok());
  EXPECT_EQ(first_difference(full_state(*together), full_state(*cut)), "");
}

TEST(NestCoreTest, StepsDoNotDependOnEvaluation) {
  config::RunConfig config = noisy_run_config();
  auto plain = make_core(config);
  auto other = make_core(config);
  step(*plain, 0);
  step(*plain, 1);
  step(*other, 0);
  const auto before = full_state(*other);
  auto eval = other->evaluate(make_batch(4, 9, 99));
  ASSERT_TRUE(eval.ok()) << eval.status().to_string();
  EXPECT_TRUE(eval->counted);
  EXPECT_GT(eval->sums.at(nest::kMaskedFrames), 0.0);
  EXPECT_EQ(first_difference(full_state(*other), before), "");
  EXPECT_EQ(other->evaluate(make_batch(4, 9, 99))->loss, eval->loss);
  EXPECT_NE(other->evaluate(make_batch(4, 10, 99))->loss, eval->loss);
  step(*other, 1);
  EXPECT_EQ(first_difference(full_state(*plain), full_state(*other)), "");
}

TEST(NestCoreTest, NonFiniteStepChangesNothing) {
  config::RunConfig config = noisy_run_config();
  config.exp_manager.ema.enable = true;
  for (const auto precision : {config::Precision::k32, config::Precision::kBf16Mixed}) {
    config.trainer.precision = precision;
    auto core = make_core(config);
    step(*core, 0);
    const auto before = full_state(*core);
    const auto poisoned = [](int64_t i) -> Result<nest::NestBatch> {
      nest::NestBatch batch = make_batch(3, 1 + static_cast<uint64_t>(i));
      if (i == 1) batch.noisy[1][500] = std::numeric_limits<float>::quiet_NaN();
      return batch;
    };
    ASSERT_TRUE(core->add(2, poisoned, 2, 1).ok());
    auto outcome = core->finish(std::vector<double>{1e-3});
    ASSERT_TRUE(outcome.ok());
    EXPECT_TRUE(outcome->skipped);
    EXPECT_TRUE(std::isfinite(outcome->micro_losses[0]));
    EXPECT_FALSE(std::isfinite(outcome->micro_losses[1]));
    EXPECT_EQ(first_difference(full_state(*core), before), "");
    // And the run goes on as if it had not been.
    auto undisturbed = make_core(config);
    step(*undisturbed, 0);
    step(*undisturbed, 3);
    EXPECT_FALSE(step(*core, 3).skipped);
    EXPECT_EQ(first_difference(full_state(*core), full_state(*undisturbed)), "");
  }
}

TEST(NestCoreTest, OverflowIn16MixedSkipsAndHalvesTheScale) {
  config::RunConfig config = small_run_config();
  config.trainer.precision = config::Precision::k16Mixed;
  auto core = make_core(config);
  ASSERT_NE(core->scaler(), nullptr);
  EXPECT_EQ(core->scaler()->scale().item<float>(), 65536.0f);
  core->scaler()->restore(256.0, 0);
  const StepOutcome first = step(*core, 0);
  EXPECT_FALSE(first.skipped);
  EXPECT_EQ(first.loss_scale, 256.0);
  EXPECT_EQ(core->scaler()->growth_tracker().item<int>(), 1);
  const auto before = full_state(*core);
  core->scaler()->restore(1e30, 1);  // float16 ends at 65504
  const StepOutcome outcome = step(*core, 1);
  EXPECT_TRUE(outcome.skipped);
  EXPECT_TRUE(std::isfinite(outcome.loss));
  EXPECT_EQ(outcome.loss_scale, static_cast<double>(1e30f));
  EXPECT_EQ(core->scaler()->scale().item<float>(), 0.5f * 1e30f);
  EXPECT_EQ(core->scaler()->growth_tracker().item<int>(), 0);
  EXPECT_EQ(first_difference(full_state(*core), before), "");
  core->scaler()->restore(1024.0, 0);
  const StepOutcome next = step(*core, 1);
  EXPECT_FALSE(next.skipped);
  EXPECT_EQ(next.loss_scale, 1024.0);
  // The gradient norm is that of the unscaled gradients.
  auto exact = make_core(small_run_config());
  const StepOutcome reference = step(*exact, 0);
  EXPECT_NEAR(first.grad_norm, reference.grad_norm, 0.05 * reference.grad_norm);
  EXPECT_NEAR(first.loss, reference.loss, 0.02 * reference.loss);
}

TEST(NestCoreTest, FixedLossScaleStaysAndSkips) {
  config::RunConfig config = small_run_config();
  config.trainer.precision = config::Precision::k16Mixed;
  config.aerie.loss_scale = 1e30;
  auto core = make_core(config);
  const auto before = full_state(*core);
  EXPECT_TRUE(step(*core, 0).skipped);
  EXPECT_EQ(core->scaler()->scale().item<float>(), 1e30f);
  EXPECT_EQ(first_difference(full_state(*core), before), "");
}

TEST(NestCoreTest, FallsBackFrom16MixedOnly) {
  config::RunConfig config = small_run_config();
  config.trainer.precision = config::Precision::k16Mixed;
  auto core = make_core(config);
  auto precision = core->fall_back_precision();
  ASSERT_TRUE(precision.ok());
  EXPECT_EQ(*precision, config::Precision::kBf16Mixed);
  EXPECT_EQ(core->scaler(), nullptr);
  EXPECT_FALSE(step(*core, 0).skipped);
  EXPECT_EQ(core->fall_back_precision().status().code(), StatusCode::kUnsupported);
}

TEST(NestCoreTest, OutOfMemoryChangesNothing) {
  config::RunConfig config = noisy_run_config();
  config.exp_manager.ema.enable = true;
  auto core = make_core(config);
  step(*core, 0);
  // Fails in the second micro-batch of a request, with and without gradients from an earlier one.
  for (const bool open : {false, true}) {
    SCOPED_TRACE(open);
    auto reference = make_core(config);
    step(*reference, 0);
    if (open) {
      ASSERT_TRUE(core->add(1, batches(3, 1), 3, 1).ok());
      ASSERT_TRUE(reference->add(1, batches(3, 1), 3, 1).ok());
    }
    const auto before = full_state(*core);
    const at::Tensor grads = core->model().parameters().flat_grads().clone();
    const auto failing = [](int64_t i) -> Result<nest::NestBatch> {
      if (i == 1) return out_of_memory("no room");
      return make_batch(3, 2 + static_cast<uint64_t>(i));
    };
    const Status status = core->add(2, failing, 3, 1);
    EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
    EXPECT_EQ(core->window_open(), open);
    EXPECT_EQ(first_difference(full_state(*core), before), "");
    if (open) {
      EXPECT_TRUE(at::equal(grads, core->model().parameters().flat_grads()));
    }
    ASSERT_TRUE(core->add(2, batches(3, 2), 3, 1).ok());
    ASSERT_TRUE(reference->add(2, batches(3, 2), 3, 1).ok());
    auto outcome = core->finish(std::vector<double>{1e-3});
    ASSERT_TRUE(outcome.ok());
    EXPECT_EQ(outcome->micro_losses.size(), open ? 3u : 2u);
    ASSERT_TRUE(reference->finish(std::vector<double>{1e-3}).ok());
    EXPECT_EQ(first_difference(full_state(*core), full_state(*reference)), "");
    core = make_core(config);
    step(*core, 0);
  }
}

TEST(NestCoreTest, EmptyMaskIsZeroOrNan) {
  config::RunConfig config = small_run_config();
  config.model.masking.mask_prob = 0.0;
  for (const bool compat : {false, true}) {
    SCOPED_TRACE(compat);
    config.aerie.empty_mask = compat ? config::EmptyMask::kNan : config::EmptyMask::kZero;
    for (const int64_t split : {1, 3}) {
      auto core = make_core(config);
      const at::Tensor before = core->model().parameters().flat_params().clone();
      ASSERT_TRUE(core->add(1, batches(3, 0), 1, split).ok());
      const auto outcome = core->finish(std::vector<double>{0.5});
      ASSERT_TRUE(outcome.ok());
      // Zero gradients are gradients: the step counts and decays, in NeMo too.
      EXPECT_FALSE(outcome->skipped);
      EXPECT_EQ(outcome->without_loss, 1);
      EXPECT_EQ(outcome->grad_norm, 0.0);
      EXPECT_EQ(std::isnan(outcome->loss), compat);
      EXPECT_TRUE(at::allclose(core->model().parameters().flat_params(), before * (1 - 0.5e-3),
                               1e-6, 1e-9));
      const auto eval = core->evaluate(make_batch(3, 0));
      ASSERT_TRUE(eval.ok());
      EXPECT_EQ(eval->counted, compat);
      EXPECT_EQ(std::isnan(eval->loss), compat);
    }
  }
}

TEST(NestCoreTest, BatchWithoutSamplesAddsNothing) {
  auto core = make_core(small_run_config());
  const auto mixed = [](int64_t i) -> Result<nest::NestBatch> {
    nest::NestBatch batch = make_batch(3, 0);
    return i == 0 ? batch_rows(batch, 0, 0) : batch;
  };
  ASSERT_TRUE(core->add(2, mixed, 2, 1).ok());
  const auto outcome = core->finish(std::vector<double>{1e-3});
  ASSERT_TRUE(outcome.ok());
  EXPECT_EQ(outcome->micro_losses[0], 0.0);
  EXPECT_GT(outcome->micro_losses[1], 0.0);
  EXPECT_FALSE(core->evaluate(batch_rows(make_batch(3, 0), 0, 0))->counted);
}

TEST(NestCoreTest, AnomalyIsNamed) {
  config::RunConfig config = small_run_config();
  config.trainer.detect_anomaly = true;
  auto core = make_core(config);
  EXPECT_FALSE(step(*core, 0).skipped);
  {
    at::NoGradGuard no_grad;
    core->model().parameters()["encoder.layers.1.feed_forward1.linear1.bias"].fill_(
        std::numeric_limits<float>::infinity());
  }
  const Status status = core->add(1, batches(2, 1), 1, 1);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.to_string().find("layers.1"), std::string::npos) << status.to_string();
}

TEST(NestCoreTest, ClippingBoundsTheUpdate) {
  config::RunConfig config = small_run_config();
  config.model.optim.kind = config::OptimizerKind::kSgd;
  config.model.optim.weight_decay = 0.0;
  config.trainer.gradient_clip_val = 0.25;
  auto core = make_core(config);
  const at::Tensor before = core->model().parameters().flat_params().clone();
  const StepOutcome outcome = step(*core, 0, 1, 1.0);
  ASSERT_GT(outcome.grad_norm, 0.25);
  EXPECT_NEAR(nest::l2(core->model().parameters().flat_params() - before), 0.25, 1e-4);
}

}  // namespace
}  // namespace aerie::train
