// The fast engine against the reference engine on the same batches: on the CPU with the reference
// kernels, and, as *GpuTest, with the real ones, recorded as graphs.
#include "aerie/models/nest/engine/fast_engine.h"

#include <cmath>
#include <functional>
#include <limits>
#include <tuple>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>

#include "aerie/data/speech/synthetic_batch.h"
#include "aerie/device/gpu.h"
#include "aerie/models/nest/engine/reference_engine.h"
#include "aerie/models/nest/engine/test_util.h"
#include "aerie/models/nest/nest_task.h"

namespace aerie::train::fast_engine_test {
namespace {

config::RunConfig fast_config() {
  config::RunConfig config = fast_run_config();
  config::ModelConfig& m = config.model;
  m.encoder.dropout = m.encoder.dropout_pre_encoder = m.encoder.dropout_att = 0.1;
  m.preprocessor.dither = 1e-5;
  config.aerie.tf32 = config::Tf32::kNone;
  config.trainer.accumulate_grad_batches = 2;
  config.trainer.gradient_clip_val = 1.0;
  return config;
}

data::SyntheticBatch make_rows(int64_t rows, uint64_t seed, int64_t samples = 11000,
                               int64_t padding = 0) {
  data::SyntheticBatchOptions options;
  options.rows = rows;
  options.samples = samples;
  options.shortest = 0.03;
  options.seed = seed;
  options.padding = padding;
  auto batch = data::SyntheticBatch::make(options);
  EXPECT_TRUE(batch.ok());
  return std::move(batch).value();
}

class Engines {
 public:
  explicit Engines(bool gpu) : gpu_(gpu) {}
  at::Device device() const { return gpu_ ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU); }
  std::unique_ptr<FastEngine> fast(const config::RunConfig& config) const {
    EXPECT_EQ(FastEngine::not_covered(config), "");
    auto engine = gpu_ ? FastEngine::create(config, device())
                       : FastEngine::create_on_host(config, kernels::kReferenceKernels);
    EXPECT_TRUE(engine.ok()) << engine.status().to_string();
    return std::move(engine).value();
  }
  std::unique_ptr<ReferenceEngine> reference(const config::RunConfig& config) const {
    auto engine = ReferenceEngine::create(config, device());
    EXPECT_TRUE(engine.ok()) << engine.status().to_string();
    return std::move(engine).value();
  }
  bool gpu() const { return gpu_; }

 private:
  bool gpu_;
};

#define AERIE_ENGINE_TEST(name)                                           \
  static void check_##name(const Engines& engines);                       \
  TEST(FastEngineTest, name) {                                            \
    check_##name(Engines(false));                                         \
  }                                                                       \
  TEST(FastEngineGpuTest, name) {                                         \
    if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) \
      GTEST_SKIP() << "no GPU";                                           \
    check_##name(Engines(true));                                          \
  }                                                                       \
  static void check_##name(const Engines& engines)

struct StepOptions {
  int64_t split = 1;
  bool cut = false;  // the window in two requests
  std::optional<double> momentum;
  double rate = 1e-3;
  int64_t samples = 11000;
};

StepOutcome run_step(Engine& engine, int64_t number, const StepOptions& options = {}) {
  const data::SyntheticBatch a = make_rows(3, static_cast<uint64_t>(2 * number), options.samples);
  const data::SyntheticBatch b = make_rows(2, static_cast<uint64_t>(2 * number + 1), 9000);
  const std::vector<const data::Batch*> window = {&a.batch(), &b.batch()};
  StepRequest request;
  request.step = number;
  request.first_micro_step = static_cast<uint64_t>(2 * number);
  request.accumulate = 2;
  request.split = options.split;
  request.momentum = options.momentum;
  request.learning_rates.assign(static_cast<size_t>(engine.num_param_groups()), options.rate);
  request.micro_batches = window;
  if (options.cut) {
    request.micro_batches = std::span(window).first(1);
    request.finish = false;
    const Status first = engine.submit(request);
    EXPECT_TRUE(first.ok()) << first.to_string();
    EXPECT_TRUE(engine.collect(true)->empty());
    request.micro_batches = std::span(window).last(1);
    ++request.first_micro_step;
    request.finish = true;
  }
  const Status status = engine.submit(request);
  EXPECT_TRUE(status.ok()) << status.to_string();
  auto outcomes = engine.collect(true);
  EXPECT_TRUE(outcomes.ok()) << outcomes.status().to_string();
  EXPECT_EQ(outcomes->size(), 1u);
  return outcomes->empty() ? StepOutcome() : outcomes->front();
}

void expect_like(const StepOutcome& got, const StepOutcome& want, double tolerance) {
  EXPECT_EQ(got.step, want.step);
  EXPECT_NEAR(got.loss, want.loss, tolerance * want.loss);
  ASSERT_EQ(got.micro_losses.size(), want.micro_losses.size());
  for (size_t i = 0; i < want.micro_losses.size(); ++i)
    EXPECT_NEAR(got.micro_losses[i], want.micro_losses[i], tolerance * want.micro_losses[i]);
  EXPECT_NEAR(got.grad_norm, want.grad_norm, 10.0 * tolerance * want.grad_norm);
  EXPECT_EQ(nest::masked_frames(got), nest::masked_frames(want));
  EXPECT_EQ(nest::all_frames(got), nest::all_frames(want));
  EXPECT_EQ(got.without_loss, want.without_loss);
  EXPECT_EQ(got.skipped, want.skipped);
  EXPECT_EQ(got.loss_scale, want.loss_scale);
}

std::map<std::string, at::Tensor> state_of(CoreEngine& engine) {
  auto snapshot = engine.snapshot();  // brings the state into the core
  EXPECT_TRUE(snapshot.ok() && (*snapshot)->wait().ok());
  return full_state(engine.core());
}

// Gradients that are zero in exact arithmetic: Adam turns their rounding errors into whole steps.
bool is_noise(const std::string& name) {
  return name.find("depthwise_conv.bias") != std::string::npos ||
         name.find("linear_k.bias") != std::string::npos;
}

// Largest relative distance of a parameter.
double distance(CoreEngine& a, CoreEngine& b) {
  const auto x = state_of(a), y = state_of(b);
  double worst = 0.0;
  for (const int64_t index : a.core().model().parameters().trainable()) {
    const std::string name =
        "model." + a.core().model().parameters().entries()[static_cast<size_t>(index)].name;
    if (is_noise(name)) continue;
    const at::Tensor want = y.at(name);
    worst = std::max(worst, nest::l2(x.at(name) - want) / std::max(nest::l2(want), 1e-2));
  }
  return worst;
}

// More shapes than graphs: those without one run all the same, and none pushes out another.
AERIE_ENGINE_TEST(MoreShapesThanGraphs) {
  auto fast = engines.fast(fast_config());
  for (const bool again : {false, true})
    for (int64_t i = 0; i < 70; ++i) {
      // The shortest first: memory grows in place and takes no graph with it.
      const data::SyntheticBatch batch = make_rows(1, 5, 2000 + 80 * i);
      const auto out = fast->evaluate(batch.batch(), 3, 4);
      ASSERT_TRUE(out.ok()) << out.status().to_string();
      EXPECT_EQ(fast->num_graphs(), again ? std::min<int64_t>(i + 1, 64) : 0);
    }
}

// Far longer and wider batches than before: the graphs of the first shape stay, and so do its
// numbers.
AERIE_ENGINE_TEST(GrowthKeepsGraphsAndNumbers) {
  auto fast = engines.fast(fast_config());
  const data::SyntheticBatch small = make_rows(2, 5, 4000), large = make_rows(6, 7, 60000);
  const auto evaluate = [&](const data::SyntheticBatch& batch) {
    const auto out = fast->evaluate(batch.batch(), 3, 4);
    EXPECT_TRUE(out.ok()) << out.status().to_string();
    return out.ok() ? out->loss : 0.0;
  };
  const double before = evaluate(small);
  EXPECT_EQ(evaluate(small), before);
  EXPECT_EQ(fast->num_graphs(), 1);
  (void)evaluate(large);
  EXPECT_EQ(fast->num_graphs(), 1);
  (void)evaluate(large);
  EXPECT_EQ(fast->num_graphs(), 2);
  EXPECT_EQ(evaluate(small), before);
}

AERIE_ENGINE_TEST(StepsAreTheReferenceEngines) {
  config::RunConfig config = fast_config();
  config::ParamGroupConfig decoder;
  decoder.module = "decoder";
  decoder.lr = 1e-4;
  config.model.optim_param_groups = {decoder};
  config.aerie.no_weight_decay = {"norm", "bias"};
  config.exp_manager.ema.enable = true;
  config.exp_manager.ema.decay = 0.9;
  config.exp_manager.ema.every_n_steps = 2;
  auto fast = engines.fast(config);
  auto reference = engines.reference(config);
  EXPECT_EQ(fast->num_param_groups(), 2);
  EXPECT_EQ(fast->description(),
            str_cat("fast engine, ", engines.device().str(), ", precision 32"));
  for (int64_t s = 0; s < 5; ++s) {
    StepOptions options;
    options.cut = s == 3;
    if (s == 2) options.momentum = 0.8;
    if (s > 2) options.momentum = 0.9;
    const StepOutcome want = run_step(*reference, s, options);
    EXPECT_GT(nest::masked_frames(want), 0);
    expect_like(run_step(*fast, s, options), want, 2e-5);
  }
  EXPECT_EQ(fast->num_graphs(), 2);  // one shape writes gradients, the other adds
  EXPECT_EQ(run_step(*reference, 5).first_runs, 0);
  EXPECT_EQ(run_step(*fast, 5).first_runs, 0);
  EXPECT_LT(distance(*fast, *reference), 2e-3);
  const auto want = full_state(reference->core());
  for (const auto& [name, value] : full_state(fast->core())) {
    const at::Tensor& expected = want.at(name);
    if (!value.is_floating_point() || name == "steps") {
      EXPECT_TRUE(at::equal(value, expected)) << name;
    } else if (name.find("running_") != std::string::npos) {
      EXPECT_TRUE(nest::near(value, expected, 2e-3, 5e-3)) << name;
    } else if (name == "ema") {
      EXPECT_LT(nest::l2(value - expected), 1e-3 * nest::l2(expected));
    }
  }
  for (const bool averaged : {false, true}) {
    EXPECT_TRUE(fast->use_ema_weights(averaged).ok());
    EXPECT_TRUE(reference->use_ema_weights(averaged).ok());
    const data::SyntheticBatch batch = make_rows(5, 99, 15000);
    const auto a = fast->evaluate(batch.batch(), 5, 1),
               b = reference->evaluate(batch.batch(), 5, 1);
    ASSERT_TRUE(a.ok() && b.ok()) << a.status().to_string();
    EXPECT_NEAR(a->loss, b->loss, 2e-4 * b->loss);
    EXPECT_EQ(a->sums, b->sums);
    EXPECT_TRUE(a->counted);
  }
  EXPECT_TRUE(fast->use_ema_weights(false).ok());
}

// Several codebooks, another masking rule, no biases, limited context.
AERIE_ENGINE_TEST(OtherModelsAreTheReferenceEngines) {
  config::RunConfig config = fast_config();
  config::ModelConfig& m = config.model;
  m.num_books = m.quantizer.num_books = m.decoder.num_decoders = m.loss.num_decoders = 2;
  m.decoder.use_bias = false;
  m.encoder.use_bias = false;
  m.encoder.conv_kernel_size = 5;
  m.encoder.att_context_size = {{8, 3}};
  m.encoder.att_context_style = config::AttContextStyle::kChunkedLimited;
  m.masking.allow_overlap = false;
  m.masking.mask_prob = 0.4;
  m.loss.mask_threshold = 0.5;
  m.preprocessor.preemph = std::nullopt;
  m.preprocessor.log_zero_guard_clamp = true;
  m.preprocessor.window_size = 0.02;
  config.aerie.compat_nemo_2_6 = true;
  config.aerie.empty_mask = config::EmptyMask::kNan;
  config.aerie.batch_norm_frames = config::BatchNormFrames::kValid;
  auto fast = engines.fast(config);
  auto reference = engines.reference(config);
  for (int64_t s = 0; s < 3; ++s) {
    const StepOutcome want = run_step(*reference, s);
    expect_like(run_step(*fast, s), want, 5e-5);
  }
  EXPECT_LT(distance(*fast, *reference), 2e-3);
}

void set_heads(config::RunConfig& config, int64_t heads, int64_t width) {
  config.model.encoder.n_heads = heads;
  config.model.encoder.d_model = config.model.decoder.feat_in = heads * width;
}

AERIE_ENGINE_TEST(PartsAreTheReferenceEngines) {
  auto fast = engines.fast(fast_config());
  auto reference = engines.reference(fast_config());
  for (int64_t s = 0; s < 3; ++s) {
    StepOptions options;
    options.split = s == 1 ? 2 : 64;
    const StepOutcome want = run_step(*reference, s, options);
    expect_like(run_step(*fast, s, options), want, 2e-5);
  }
  EXPECT_LT(distance(*fast, *reference), 2e-3);
}

AERIE_ENGINE_TEST(RestoredRunContinuesBitForBit) {
  config::RunConfig config = fast_config();
  config.exp_manager.ema.enable = true;
  config.trainer.precision = config::Precision::kBf16Mixed;
  auto straight = engines.fast(config);
  for (int64_t s = 0; s < 3; ++s) run_step(*straight, s);
  auto snapshot = straight->snapshot();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().to_string();
  MemorySource source(**snapshot);
  for (int64_t s = 3; s < 6; ++s) run_step(*straight, s);
  auto resumed = engines.fast(config);
  run_step(*resumed, 77);  // what it was before must not matter
  ASSERT_TRUE(resumed->restore(source).ok());
  for (int64_t s = 3; s < 6; ++s) run_step(*resumed, s);
  EXPECT_EQ(first_difference(state_of(*resumed), state_of(*straight)), "");
  // The other engine takes it up too, in the run's precision (a step in bf16 and the same one in
  // another order of rounding are up to 4e-3 apart) and in float32, where both compute the same.
  for (const auto& [precision, tolerance] :
       {std::pair(config::Precision::kBf16Mixed, 1e-2), std::pair(config::Precision::k32, 2e-5)}) {
    config.trainer.precision = precision;
    auto reference = engines.reference(config);
    ASSERT_TRUE(reference->restore(source).ok());
    auto again = engines.fast(config);
    ASSERT_TRUE(again->restore(source).ok());
    const StepOutcome want = run_step(*reference, 3), got = run_step(*again, 3);
    EXPECT_NEAR(got.loss, want.loss, tolerance * want.loss);
    EXPECT_EQ(nest::masked_frames(got), nest::masked_frames(want));
  }
}

// Updates that overlap the next pass through the model against updates that are finished before it:
// whole windows and cut ones, parts, a skipped step, evaluation and snapshots in between.
AERIE_ENGINE_TEST(UpdatesBesideTheNextStepChangeNothing) {
  config::RunConfig config = fast_config();
  config.trainer.precision = config::Precision::k16Mixed;
  config.exp_manager.ema.enable = true;
  config.exp_manager.ema.decay = 0.9;
  config.aerie.no_weight_decay = {"norm", "bias"};
  const auto run = [&](bool wait) {
    auto fast = engines.fast(config);
    fast->core().scaler()->restore(256.0, 0);
    EXPECT_TRUE(fast->state_written().ok());
    std::vector<double> seen;
    for (int64_t s = 0; s < 9; ++s) {
      StepOptions options;
      options.cut = s == 1;
      options.split = s == 3 ? 2 : 1;
      options.rate = 1e-3 / static_cast<double>(s + 1);
      if (s >= 4) options.momentum = s == 4 ? 0.8 : 0.9;
      if (s == 5) {
        fast->core().scaler()->restore(1e30, 1);
        EXPECT_TRUE(fast->state_written().ok());
      }
      const StepOutcome outcome = run_step(*fast, s, options);
      EXPECT_EQ(outcome.skipped, s == 5);
      seen.push_back(outcome.loss);
      if (outcome.skipped) {
        fast->core().scaler()->restore(256.0, 0);
      } else {
        seen.push_back(outcome.grad_norm);
      }
      if (wait) fast->core();
      if (s == 2 || s == 6) {
        const data::SyntheticBatch batch = make_rows(2, 99, 9000);
        EXPECT_TRUE(fast->use_ema_weights(s == 6).ok());
        const auto evaluated = fast->evaluate(batch.batch(), 5, 1);
        EXPECT_TRUE(evaluated.ok()) << evaluated.status().to_string();
        seen.push_back(evaluated->loss);
        EXPECT_TRUE(fast->use_ema_weights(false).ok());
      }
      if (s == 7) {
        EXPECT_TRUE(fast->snapshot().ok());
      }
    }
    return std::pair(seen, state_of(*fast));
  };
  const auto [waited, state_waited] = run(true);
  const auto [overlapped, state_overlapped] = run(false);
  EXPECT_EQ(overlapped, waited);
  EXPECT_EQ(first_difference(state_overlapped, state_waited), "");
}

// With a state that was written while an update was still to come, either would be lost.
AERIE_ENGINE_TEST(RestoredStateReplacesAnUpdateUnderWay) {
  const config::RunConfig config = fast_config();
  auto fast = engines.fast(config);
  run_step(*fast, 0);
  auto snapshot = fast->snapshot();
  ASSERT_TRUE(snapshot.ok());
  const MemorySource source(**snapshot);
  const auto before = state_of(*fast);
  run_step(*fast, 1);
  ASSERT_TRUE(fast->restore(source).ok());
  EXPECT_EQ(first_difference(state_of(*fast), before), "");
  run_step(*fast, 1);
  EXPECT_NE(first_difference(state_of(*fast), before), "");
}

AERIE_ENGINE_TEST(SkippedStepChangesNothing) {
  config::RunConfig config = fast_config();
  config.trainer.precision = config::Precision::k16Mixed;
  config.exp_manager.ema.enable = true;
  auto fast = engines.fast(config);
  fast->core().scaler()->restore(256.0, 0);
  ASSERT_TRUE(fast->state_written().ok());
  EXPECT_FALSE(run_step(*fast, 0).skipped);
  auto before = state_of(*fast);
  fast->core().scaler()->restore(1e30, 1);
  ASSERT_TRUE(fast->state_written().ok());
  const StepOutcome outcome = run_step(*fast, 1);
  EXPECT_TRUE(outcome.skipped);
  EXPECT_TRUE(std::isfinite(outcome.loss));
  EXPECT_EQ(outcome.loss_scale, static_cast<double>(1e30f));
  EXPECT_EQ(fast->core().scaler()->scale().item<float>(), 0.5f * 1e30f);
  EXPECT_EQ(first_difference(state_of(*fast), before), "");
  fast->core().scaler()->restore(256.0, 0);
  EXPECT_FALSE(run_step(*fast, 2).skipped);
  EXPECT_NE(first_difference(state_of(*fast), before), "");
}

AERIE_ENGINE_TEST(FallsBackFromHalfToBf16) {
  config::RunConfig config = fast_config();
  config.trainer.precision = config::Precision::k16Mixed;
  auto fast = engines.fast(config);
  run_step(*fast, 0);
  EXPECT_EQ(fast->fall_back_precision().value(), "bf16-mixed");
  const StepOutcome outcome = run_step(*fast, 1);
  EXPECT_FALSE(outcome.skipped);
  EXPECT_EQ(outcome.loss_scale, 1.0);
  EXPECT_TRUE(std::isfinite(outcome.loss));
}

// The same rows with more room behind them: another shape, the same numbers.
AERIE_ENGINE_TEST(RoomBehindTheRowsChangesNothing) {
  const auto run = [&](int64_t padding) {
    auto fast = engines.fast(fast_config());
    const data::SyntheticBatch batch = make_rows(3, 5, 11000, padding);
    const data::Batch* rows = &batch.batch();
    StepRequest request;
    request.micro_batches = std::span(&rows, 1);
    request.learning_rates = {1e-3};
    EXPECT_TRUE(fast->submit(request).ok());
    const auto outcomes = fast->collect(true);
    EXPECT_EQ(outcomes->size(), 1u);
    return outcomes->front();
  };
  const StepOutcome tight = run(0);
  const StepOutcome wide = run(6000);
  EXPECT_NEAR(wide.loss, tight.loss, 1e-6 * tight.loss);
  EXPECT_NEAR(wide.grad_norm, tight.grad_norm, 1e-5 * tight.grad_norm);
}

// Every parameter's gradient in mixed precision: at most 1.5 times as far from float32 as the
// reference engine's.
void expect_near_float32(const Engines& engines, config::RunConfig config, int64_t samples) {
  const auto gradients = [&](CoreEngine& engine) {
    StepOptions options;
    options.rate = 0.0;
    options.samples = samples;
    EXPECT_FALSE(run_step(engine, 0, options).skipped);
    return engine.core().model().parameters().flat_grads().clone();
  };
  config.trainer.gradient_clip_val = 0.0;
  config.aerie.loss_scale = 128.0;
  const at::Tensor exact = gradients(*engines.reference(config));
  for (const auto precision : {config::Precision::kBf16Mixed, config::Precision::k16Mixed}) {
    config.trainer.precision = precision;
    auto fast = engines.fast(config);
    auto reference = engines.reference(config);
    at::Tensor ours = gradients(*fast);
    const at::Tensor theirs = gradients(*reference);
    // The reference engine leaves its gradients unscaled, ours are as backward made them.
    if (precision == config::Precision::k16Mixed) ours = ours / 128.0;
    const nn::ParameterRegistry& registry = fast->core().model().parameters();
    double our_error = 0.0, their_error = 0.0;
    for (const int64_t index : registry.trainable()) {
      const std::string& name = registry.entries()[static_cast<size_t>(index)].name;
      if (is_noise(name)) continue;
      const at::Tensor want = registry.flat_view(exact, index),
                       got = registry.flat_view(ours, index);
      const double norm = nest::l2(want);
      EXPECT_GT(nest::value((got * want).sum()) / (nest::l2(got) * norm), 0.98) << name;
      our_error += nest::l2(got - want) / norm;
      their_error += nest::l2(registry.flat_view(theirs, index) - want) / norm;
    }
    EXPECT_LT(our_error, 1.5 * their_error);
  }
}

AERIE_ENGINE_TEST(MixedPrecisionIsAsNearToFloat32AsTheReferenceEngine) {
  expect_near_float32(engines, fast_config(), 11000);
}

// Heads that fill no tile: two of 44 values as in NEST-S, and widths whose biases do not lie side
// by side in the flat buffer.
AERIE_ENGINE_TEST(NarrowHeadsAreTheReferenceEngines) {
  for (const auto& [heads, width] : {std::pair{2, 44}, {6, 4}}) {
    SCOPED_TRACE(width);
    config::RunConfig config = fast_config();
    set_heads(config, heads, width);
    auto fast = engines.fast(config);
    auto reference = engines.reference(config);
    for (int64_t s = 0; s < 2; ++s) {
      const StepOutcome want = run_step(*reference, s);
      EXPECT_GT(nest::masked_frames(want), 0);
      expect_like(run_step(*fast, s), want, 2e-5);
    }
    EXPECT_LT(distance(*fast, *reference), 2e-3);
    if (width == 44) expect_near_float32(engines, config, 11000);
  }
}

// The shapes that kernels are made for take other ways through them than small ones.
TEST(FastEngineGpuTest, MixedPrecisionAtRealSizes) {
  if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  for (const auto& [heads, width, samples] : {std::tuple{8, 64, 240'000},
                                              {8, 128, 123'457},
                                              {4, 44, 240'000},
                                              {4, 44, 300'000},
                                              {3, 104, 123'457}}) {
    SCOPED_TRACE(width);
    config::RunConfig config = fast_config();
    set_heads(config, heads, width);
    config::ModelConfig& m = config.model;
    m.encoder.n_layers = 1;  // the reference engine draws on the host
    m.encoder.subsampling_conv_channels = 256;
    expect_near_float32(Engines(true), config, samples);
  }
}

TEST(FastEngineTest, SaysWhatItDoesNotCover) {
  const auto reason = [](const std::function<void(config::RunConfig&)>& change) {
    config::RunConfig config = fast_config();
    change(config);
    return FastEngine::not_covered(config);
  };
  EXPECT_EQ(reason([](config::RunConfig&) {}), "");
  EXPECT_EQ(reason([](config::RunConfig& c) { c.model.encoder.dropout_emb = 0.1; }),
            "model.encoder.dropout_emb");
  EXPECT_EQ(reason([](config::RunConfig& c) { c.model.preprocessor.n_fft = 1024; }),
            "model.preprocessor.n_fft other than 512");
  EXPECT_EQ(reason([](config::RunConfig& c) { c.model.optim.kind = config::OptimizerKind::kSgd; }),
            "an optimizer other than adamw and adam");
  EXPECT_EQ(reason([](config::RunConfig& c) { c.trainer.detect_anomaly = true; }),
            "trainer.detect_anomaly");
  EXPECT_NE(reason([](config::RunConfig& c) { c.model.encoder.conv_kernel_size = 31; }), "");
}

// Heads of any multiple of 4 up to 128, and in float32 up to 256.
TEST(FastEngineTest, CoversHeadsOfManyWidths) {
  using config::Precision;
  const auto reason = [](int64_t heads, int64_t width, Precision precision) {
    config::RunConfig config = fast_config();
    config.trainer.precision = precision;
    set_heads(config, heads, width);
    return FastEngine::not_covered(config);
  };
  for (const Precision precision : {Precision::k32, Precision::kBf16Mixed, Precision::k16Mixed}) {
    for (int64_t width = 4; width <= 128; width += 4) {
      SCOPED_TRACE(width);
      EXPECT_EQ(reason(2, width, precision), "");
      EXPECT_EQ(reason(3, width, precision),
                width % 8 == 0 ? "" : "model.encoder.d_model that is no multiple of 8");
    }
    EXPECT_EQ(reason(4, 44, precision), "");  // NEST-S
    EXPECT_EQ(reason(4, 22, precision), "attention heads whose width is no multiple of 4");
    EXPECT_EQ(reason(2, 132, precision), precision == Precision::k32
                                             ? ""
                                             : "attention heads wider than 128 in mixed precision");
    EXPECT_EQ(reason(2, 260, precision), "attention heads wider than 256");
  }
}

}  // namespace
}  // namespace aerie::train::fast_engine_test
