// The engine as the loop sees it: requests, outcomes, snapshots, checkpoints.
#include "aerie/models/nest/engine/reference_engine.h"

#include <thread>

#include "aerie/base/env.h"
#include "aerie/base/temp_dir.h"
#include "aerie/checkpoint/checkpoint_store.h"
#include "aerie/models/nest/engine/test_util.h"

namespace aerie::train::reference_engine_test {
namespace {

// A batch that says how many samples it has and where it stands; the converter makes up the rest.
data::ArrayBatch fake_batch(size_t rows) {
  data::ArrayBatch batch;
  batch.mutable_samples().resize(rows);
  return batch;
}

Result<nest::NestBatch> fake_tensors(const data::Batch& batch, const nn::RandomKey& random) {
  nest::NestBatch out = make_batch(batch.num_samples(), random.micro_step);
  out.random = random;
  return out;
}

std::unique_ptr<ReferenceEngine> make_engine(const config::RunConfig& config) {
  auto engine = ReferenceEngine::create(config, at::kCPU, fake_tensors);
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  return std::move(engine).value();
}

StepOutcome run_step(Engine& engine, int64_t number, bool cut = false,
                     std::optional<double> momentum = std::nullopt) {
  const data::ArrayBatch first = fake_batch(2), second = fake_batch(3);
  std::vector<const data::Batch*> window = {&first, &second};
  StepRequest request;
  request.step = number;
  request.first_micro_step = static_cast<uint64_t>(2 * number);
  request.accumulate = 2;
  request.momentum = momentum;
  request.learning_rates.assign(static_cast<size_t>(engine.num_param_groups()), 1e-3);
  request.micro_batches = window;
  if (cut) {
    request.micro_batches = std::span(window).first(1);
    request.finish = false;
    EXPECT_TRUE(engine.submit(request).ok());
    EXPECT_TRUE(engine.collect(true)->empty());
    request.micro_batches = std::span(window).last(1);
    ++request.first_micro_step;
    request.finish = true;
  }
  const Status status = engine.submit(request);
  EXPECT_TRUE(status.ok()) << status.to_string();
  auto outcomes = engine.collect(true);
  EXPECT_TRUE(outcomes.ok());
  EXPECT_EQ(outcomes->size(), 1u);
  return outcomes->empty() ? StepOutcome() : outcomes->front();
}

config::RunConfig config_with_all() {
  config::RunConfig config = noisy_run_config();
  config.exp_manager.ema.enable = true;
  config.exp_manager.ema.decay = 0.9;
  config.exp_manager.ema.every_n_steps = 2;
  config::ParamGroupConfig decoder;
  decoder.module = "decoder";
  decoder.lr = 1e-4;
  config.model.optim_param_groups = {decoder};
  return config;
}

TEST(ReferenceEngineTest, DescribesItself) {
  auto engine = make_engine(config_with_all());
  EXPECT_EQ(engine->num_param_groups(), 2);
  EXPECT_EQ(engine->base_rates(), (std::vector<double>{1e-3, 1e-4}));
  EXPECT_EQ(engine->num_parameters(), engine->core().model().parameters().num_trainable_elements());
  EXPECT_EQ(engine->max_in_flight(), 0);
  EXPECT_EQ(engine->description(), "reference engine, cpu, precision 32");
  EXPECT_GT(engine->memory().current_gib, 0.0);
}

TEST(ReferenceEngineTest, TakesTheMomentumOfTheSchedule) {
  config::RunConfig config = config_with_all();
  config.model.optim.betas = {0.6, 0.98};
  auto configured = make_engine(config);
  config.model.optim.betas[0] = 0.9;
  auto told = make_engine(config);
  auto left = make_engine(config);
  for (int64_t s = 0; s < 3; ++s) {
    run_step(*configured, s);
    run_step(*told, s, false, 0.6);
    run_step(*left, s);
  }
  EXPECT_EQ(first_difference(full_state(configured->core()), full_state(told->core())), "");
  EXPECT_NE(first_difference(full_state(configured->core()), full_state(left->core())), "");
}

TEST(ReferenceEngineTest, ActivationsAreRecomputedBeforeABatchIsCut) {
  config::RunConfig config = config_with_all();
  const auto plain = make_engine(config);
  bool failed = false;
  auto tight = ReferenceEngine::create(
      config, at::kCPU, [&](const data::Batch& batch, const nn::RandomKey& random) {
        if (!std::exchange(failed, true))
          return Result<nest::NestBatch>(out_of_memory("9 GiB are needed, 1 GiB is free"));
        return fake_tensors(batch, random);
      });
  ASSERT_TRUE(tight.ok()) << tight.status().to_string();
  EXPECT_FALSE((*tight)->core().model().recomputes());
  const StepOutcome want = run_step(*plain, 0), got = run_step(**tight, 0);
  EXPECT_TRUE((*tight)->core().model().recomputes());
  EXPECT_EQ(got.micro_losses, want.micro_losses);
}

TEST(ReferenceEngineTest, CutWindowsGiveOneOutcome) {
  auto whole = make_engine(config_with_all());
  auto cut = make_engine(config_with_all());
  for (int64_t s = 0; s < 3; ++s) {
    const StepOutcome a = run_step(*whole, s);
    const StepOutcome b = run_step(*cut, s, /*cut=*/true);
    EXPECT_EQ(a.step, s);
    EXPECT_EQ(a.micro_losses, b.micro_losses);
    EXPECT_EQ(a.grad_norm, b.grad_norm);
  }
  EXPECT_EQ(first_difference(full_state(whole->core()), full_state(cut->core())), "");
}

TEST(ReferenceEngineTest, RestoredRunContinuesBitForBit) {
  for (const auto kind : {config::OptimizerKind::kAdamW, config::OptimizerKind::kSgd,
                          config::OptimizerKind::kNovograd}) {
    config::RunConfig config = config_with_all();
    config.model.optim.kind = kind;
    config.model.optim.momentum = 0.9;
    if (kind == config::OptimizerKind::kAdamW)
      config.trainer.precision = config::Precision::k16Mixed;
    auto straight = make_engine(config);
    for (int64_t s = 0; s < 3; ++s) run_step(*straight, s);
    auto snapshot = straight->snapshot();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status().to_string();

    // Read by another thread while training goes on.
    std::unique_ptr<MemorySource> source;
    std::thread reader([&] { source = std::make_unique<MemorySource>(**snapshot); });
    for (int64_t s = 3; s < 6; ++s) run_step(*straight, s);
    reader.join();

    config.aerie.seed += 1;  // other initial weights
    auto resumed = make_engine(config);
    config.aerie.seed -= 1;
    resumed = make_engine(config);
    run_step(*resumed, 40);  // and another past
    const Status status = resumed->restore(*source);
    ASSERT_TRUE(status.ok()) << status.to_string();
    for (int64_t s = 3; s < 6; ++s) run_step(*resumed, s);
    EXPECT_EQ(first_difference(full_state(straight->core()), full_state(resumed->core())), "");
    if (straight->core().scaler() != nullptr) {
      EXPECT_EQ(straight->core().scaler()->growth_tracker().item<int>(),
                resumed->core().scaler()->growth_tracker().item<int>());
    }
  }
}

TEST(ReferenceEngineTest, CheckpointOnDiskContinuesBitForBit) {
  TempDir dir;
  auto straight = make_engine(config_with_all());
  for (int64_t s = 0; s < 2; ++s) run_step(*straight, s);
  CheckpointStore store(Env::real(), dir.file("checkpoints"));
  auto snapshot = straight->snapshot();
  ASSERT_TRUE(snapshot.ok());
  TrainState state;
  state.step = 2;
  const auto saved = store.save("x--step=2", state, **snapshot);
  ASSERT_TRUE(saved.ok()) << saved.status().to_string();
  for (int64_t s = 2; s < 4; ++s) run_step(*straight, s);
  auto checkpoint = store.open("x--step=2");
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  EXPECT_EQ((*checkpoint)->names("model").size(),
            static_cast<size_t>(straight->core().model().parameters().size()));
  auto resumed = make_engine(config_with_all());
  const Status status = resumed->restore(**checkpoint);
  ASSERT_TRUE(status.ok()) << status.to_string();
  for (int64_t s = 2; s < 4; ++s) run_step(*resumed, s);
  EXPECT_EQ(first_difference(full_state(straight->core()), full_state(resumed->core())), "");
}

TEST(ReferenceEngineTest, SnapshotMemoryIsReused) {
  auto engine = make_engine(config_with_all());
  run_step(*engine, 0);
  const void* first = nullptr;
  for (int i = 0; i < 3; ++i) {
    auto snapshot = engine->snapshot();
    ASSERT_TRUE((*snapshot)->wait().ok());
    const void* data = (*snapshot)->tensors().front().data;
    if (i == 0) first = data;
    EXPECT_EQ(data, first);
  }
}

TEST(ReferenceEngineTest, AveragedWeightsGoInAndOut) {
  config::RunConfig config = config_with_all();
  config.exp_manager.ema.decay = 0.5;
  auto engine = make_engine(config);
  // Before the first step there is nothing to swap.
  ASSERT_TRUE(engine->use_ema_weights(true).ok());
  ASSERT_TRUE(engine->use_ema_weights(false).ok());
  for (int64_t s = 0; s < 3; ++s) run_step(*engine, s);
  const auto before = full_state(engine->core());
  auto plain = engine->snapshot();
  const MemorySource plain_source(**plain);
  const double original = engine->evaluate(fake_batch(3), 5, 0)->loss;
  ASSERT_TRUE(engine->use_ema_weights(true).ok());
  ASSERT_TRUE(engine->use_ema_weights(true).ok());  // no second swap
  EXPECT_NE(engine->evaluate(fake_batch(3), 5, 0)->loss, original);
  // A snapshot taken now holds the weights as weights all the same.
  auto swapped = engine->snapshot();
  MemorySource swapped_source(**swapped);
  // Training on averaged weights would be a mistake.
  StepRequest request;
  const data::ArrayBatch batch = fake_batch(2);
  const std::vector<const data::Batch*> window = {&batch};
  request.micro_batches = window;
  request.learning_rates = {1e-3, 1e-3};
  EXPECT_FALSE(engine->submit(request).ok());
  ASSERT_TRUE(engine->use_ema_weights(false).ok());
  EXPECT_EQ(engine->evaluate(fake_batch(3), 5, 0)->loss, original);
  EXPECT_EQ(first_difference(full_state(engine->core()), before), "");
  auto resumed = make_engine(config);
  ASSERT_TRUE(resumed->restore(swapped_source).ok());
  EXPECT_EQ(first_difference(full_state(resumed->core()), before), "");
}

TEST(ReferenceEngineTest, BadStateIsRefusedUnchanged) {
  auto engine = make_engine(config_with_all());
  run_step(*engine, 0);
  auto snapshot = engine->snapshot();
  ASSERT_TRUE((*snapshot)->wait().ok());
  auto other = make_engine(config_with_all());
  run_step(*other, 7);
  const auto before = full_state(other->core());
  const auto refused = [&](const std::function<void(MemorySource&)>& damage) {
    MemorySource source(**snapshot);
    damage(source);
    const Status status = other->restore(source);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(status.code(), StatusCode::kDataError) << status.to_string();
    EXPECT_EQ(first_difference(full_state(other->core()), before), "");
  };
  const std::string weight = "encoder.layers.1.norm_out.weight";
  refused([](MemorySource& s) { s.scalars() = "{"; });
  refused([](MemorySource& s) { s.scalars() = "{}"; });
  refused([](MemorySource& s) { s.scalars() = R"({"optimizer":{"name":"sgd","step":1}})"; });
  refused([](MemorySource& s) {
    s.scalars() = R"({"optimizer":{"name":"adamw","step":1},"ema":{"count":-1}})";
  });
  refused([](MemorySource& s) {
    s.scalars() = R"({"optimizer":{"name":"adamw","step":1},"scaler":{"scale":"x"}})";
  });
  refused([](MemorySource& s) {
    s.scalars() = R"({"optimizer":{"name":"adamw","step":1},"fallen_back_to":"17"})";
  });
  refused([&](MemorySource& s) { s.drop("model", weight); });
  refused([&](MemorySource& s) { s.drop("ema", weight); });
  refused([&](MemorySource& s) { s.drop("optimizer", "exp_avg." + weight); });
  refused([&](MemorySource& s) { s.rename("exp_avg." + weight, "exp_avg.unknown"); });
  refused([](MemorySource& s) { s.drop_file("optimizer"); });
  MemorySource whole(**snapshot);
  EXPECT_TRUE(other->restore(whole).ok());
  EXPECT_EQ(first_difference(full_state(other->core()), full_state(engine->core())), "");
}

TEST(ReferenceEngineTest, AveragesMayStartWithAResume) {
  config::RunConfig config = config_with_all();
  config.exp_manager.ema.enable = false;
  auto engine = make_engine(config);
  run_step(*engine, 0);
  auto snapshot = engine->snapshot();
  MemorySource source(**snapshot);
  EXPECT_TRUE(source.names("ema").empty());
  auto resumed = make_engine(config_with_all());
  ASSERT_TRUE(resumed->restore(source).ok());
  EXPECT_FALSE(resumed->core().ema()->started());
  run_step(*resumed, 1);
  EXPECT_TRUE(resumed->core().ema()->started());
}

TEST(ReferenceEngineTest, FallenBackPrecisionSurvivesACheckpoint) {
  config::RunConfig config = config_with_all();
  config.trainer.precision = config::Precision::k16Mixed;
  auto engine = make_engine(config);
  const auto name = engine->fall_back_precision();
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(*name, "bf16-mixed");
  EXPECT_EQ(engine->description(), "reference engine, cpu, precision bf16-mixed");
  auto snapshot = engine->snapshot();
  MemorySource source(**snapshot);
  auto resumed = make_engine(config);
  ASSERT_TRUE(resumed->restore(source).ok());
  EXPECT_EQ(resumed->core().precision(), config::Precision::kBf16Mixed);
  // A run that asks for something else gets what it asks for.
  config.trainer.precision = config::Precision::k32;
  auto exact = make_engine(config);
  ASSERT_TRUE(exact->restore(source).ok());
  EXPECT_EQ(exact->core().precision(), config::Precision::k32);
}

TEST(ReferenceEngineTest, SnapshotInsideAWindowIsRefused) {
  auto engine = make_engine(config_with_all());
  StepRequest request;
  const data::ArrayBatch batch = fake_batch(2);
  const std::vector<const data::Batch*> window = {&batch};
  request.micro_batches = window;
  request.accumulate = 2;
  request.finish = false;
  ASSERT_TRUE(engine->submit(request).ok());
  EXPECT_FALSE(engine->snapshot().ok());
}

}  // namespace
}  // namespace aerie::train::reference_engine_test
