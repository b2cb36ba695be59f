// One step after another on small batches made here: what it learns, what it leaves alone, what it
// gives back.
#include "aerie/models/bev/engine/bev_engine.h"

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include <ATen/DeviceAccelerator.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <gtest/gtest.h>

#include "aerie/data/batch.h"
#include "aerie/device/gpu.h"
#include "aerie/models/bev/engine/batch_tensors.h"
#include "aerie/models/bev/engine/param_groups.h"
#include "aerie/models/bev/engine/precision_table.h"
#include "aerie/models/bev/engine/test_batch.h"
#include "aerie/models/bev/metrics/map_iou.h"

namespace aerie::bev {
namespace {

std::unique_ptr<BevEngine> make(const BevRunConfig& run, at::Device device = at::kCPU) {
  auto engine = BevEngine::create(run, device);
  EXPECT_TRUE(engine.ok()) << engine.status().to_string();
  return std::move(engine).value();
}

struct Steps {
  BevEngine& engine;
  int64_t step = 0;
  uint64_t micro = 0;

  Status submit(std::vector<const data::Batch*> batches, int64_t accumulate = 1, bool finish = true,
                int64_t split = 1) {
    train::StepRequest request;
    request.micro_batches = batches;
    request.step = step;
    request.first_micro_step = micro;
    request.accumulate = accumulate;
    request.finish = finish;
    request.split = split;
    request.learning_rates = engine.optimizer().base_rates();
    micro += batches.size();
    step += finish ? 1 : 0;
    return engine.submit(request);
  }
  train::StepOutcome run(std::vector<const data::Batch*> batches, int64_t accumulate = 1,
                         int64_t split = 1) {
    const Status status = submit(std::move(batches), accumulate, true, split);
    EXPECT_TRUE(status.ok()) << status.to_string();
    auto all = engine.collect(true);
    EXPECT_TRUE(all.ok() && all->size() == 1);
    return all.ok() && !all->empty() ? all->front() : train::StepOutcome();
  }
};

std::map<std::string, at::Tensor> state_of(BevEngine& engine) {
  std::map<std::string, at::Tensor> out;
  const nn::ParameterRegistry& registry = engine.model().parameters();
  for (int64_t i = 0; i < registry.size(); ++i)
    out["model." + registry.entries()[static_cast<size_t>(i)].name] =
        registry.tensor(i).detach().clone();
  for (const optim::NamedState& state : engine.optimizer().state())
    out["optimizer." + state.name] = state.tensor.clone();
  out["steps"] = engine.optimizer().step_counts().clone();
  return out;
}

// The first name whose values differ; empty: none does.
std::string difference(const std::map<std::string, at::Tensor>& a,
                       const std::map<std::string, at::Tensor>& b) {
  for (const auto& [name, tensor] : a)
    if (!b.count(name) || !at::equal(tensor, b.at(name))) return name;
  return "";
}

// A snapshot read back from memory.
class MemorySource final : public train::StateSource {
 public:
  explicit MemorySource(train::StateSnapshot& snapshot) {
    EXPECT_TRUE(snapshot.wait().ok());
    scalars_ = snapshot.scalars_json();
    for (const train::SnapshotTensor& tensor : snapshot.tensors())
      tensors_.emplace_back(tensor,
                            std::string(static_cast<const char*>(tensor.data), tensor.bytes));
  }
  std::vector<std::string> names(const std::string& file) const override {
    std::vector<std::string> out;
    for (const auto& [tensor, bytes] : tensors_)
      if (tensor.file == file) out.push_back(tensor.name);
    return out;
  }
  Status read(const std::string& file, const std::string& name, Dtype dtype,
              const std::vector<int64_t>& shape, void* out) const override {
    for (const auto& [tensor, bytes] : tensors_) {
      if (tensor.file != file || tensor.name != name) continue;
      if (tensor.dtype != dtype || tensor.shape != shape) return data_error("type or shape");
      std::memcpy(out, bytes.data(), bytes.size());
      return ok_status();
    }
    return data_error("no tensor " + name);
  }
  const std::string& scalars_json() const override { return scalars_; }

 private:
  std::vector<std::pair<train::SnapshotTensor, std::string>> tensors_;
  std::string scalars_;
};

TEST(BevEngineTest, LearnsABatchByHeart) {
  BevRunConfig run = tiny();
  run.model.swin.drop_path_rate = 0.0;
  const auto engine = make(run);
  TestBatch batch(run.model, 2, 1);
  Steps steps{*engine};
  const train::StepOutcome first = steps.run({&batch.get()});
  EXPECT_TRUE(std::isfinite(first.loss) && first.grad_norm > 0.0);
  ASSERT_EQ(first.micro_losses.size(), 1u);
  // Classes add up to the loss.
  double sum = 0.0;
  for (const train::MetricValue& metric : first.metrics) sum += metric.value();
  EXPECT_NE(first.metrics.find("loss/map/walkway/focal"), nullptr);
  EXPECT_NEAR(sum, first.loss, 1e-6);
  double last = first.loss;
  for (int i = 0; i < 30; ++i) last = steps.run({&batch.get()}).loss;
  EXPECT_LT(last, 0.5 * first.loss);
}

TEST(BevEngineTest, AWindowIsTheSameHoweverItIsCut) {
  const BevRunConfig run = tiny();
  TestBatch a(run.model, 2, 1), b(run.model, 2, 2);
  const auto whole = make(run), cut = make(run);
  Steps one{*whole}, two{*cut};
  const train::StepOutcome expected = one.run({&a.get(), &b.get()}, 2);
  ASSERT_TRUE(two.submit({&a.get()}, 2, /*finish=*/false).ok());
  EXPECT_FALSE(cut->snapshot().ok());  // its gradients would be lost
  const train::StepOutcome outcome = two.run({&b.get()}, 2);
  EXPECT_EQ(outcome.micro_losses, expected.micro_losses);
  EXPECT_EQ(outcome.grad_norm, expected.grad_norm);
  EXPECT_EQ(difference(state_of(*whole), state_of(*cut)), "");
}

TEST(BevEngineTest, AccumulationDividesAndStochasticDepthFollowsTheCounter) {
  BevRunConfig run = tiny();
  run.model.swin.drop_path_rate = 0.0;
  TestBatch a(run.model, 2, 1);
  const auto once = make(run), twice = make(run);
  const double norm = Steps{*once}.run({&a.get()}).grad_norm;
  EXPECT_NEAR(Steps{*twice}.run({&a.get(), &a.get()}, 2).grad_norm, norm, 1e-5 * norm);

  run.model.swin.drop_path_rate = 0.6;
  const auto first = make(run), again = make(run), later = make(run);
  const double loss = Steps{*first}.run({&a.get()}).loss;
  EXPECT_EQ(Steps{*again}.run({&a.get()}).loss, loss);
  EXPECT_NE((Steps{*later, 0, 5}.run({&a.get()}).loss), loss);
}

TEST(BevEngineTest, GoesOnFromASnapshotToTheBit) {
  const BevRunConfig run = tiny();
  TestBatch a(run.model, 2, 1), b(run.model, 2, 2);
  const auto engine = make(run);
  Steps steps{*engine};
  steps.run({&a.get()});
  steps.run({&b.get()});
  auto snapshot = engine->snapshot();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().to_string();
  const MemorySource source(**snapshot);
  BevRunConfig other = run;
  other.aerie.seed = 8;  // other initial weights
  const auto resumed = make(other);
  ASSERT_TRUE(resumed->restore(source).ok());
  EXPECT_EQ(difference(state_of(*engine), state_of(*resumed)), "");
  // Draws are the seed's: the same run goes on with its own.
  const auto same = make(run);
  ASSERT_TRUE(same->restore(source).ok());
  steps.run({&a.get()});
  Steps{*same, 2, 2}.run({&a.get()});
  EXPECT_EQ(difference(state_of(*engine), state_of(*same)), "");
}

void expect_overflow_to_change_the_scale_alone(at::Device device) {
  for (const bool dynamic : {true, false}) {
    BevRunConfig run = tiny();
    run.trainer.precision = config::Precision::k16Mixed;
    run.loss_scale.initial = 1e30;
    run.loss_scale.dynamic = dynamic;
    run.loss_scale.backoff_factor = 1e-15;
    TestBatch a(run.model, 2, 1);
    const auto engine = make(run, device);
    const auto before = state_of(*engine);
    Steps steps{*engine};
    const train::StepOutcome outcome = steps.run({&a.get()});
    EXPECT_TRUE(outcome.skipped);
    EXPECT_FLOAT_EQ(static_cast<float>(outcome.loss_scale), 1e30f);
    EXPECT_EQ(difference(before, state_of(*engine)), "");
    train::StepOutcome next = outcome;
    for (int i = 0; i < 3 && next.skipped; ++i) next = steps.run({&a.get()});
    EXPECT_EQ(next.skipped, !dynamic);
    EXPECT_EQ(next.loss_scale < 1e20, dynamic);
  }
}

TEST(BevEngineTest, AStepThatOverflowsChangesTheScaleAlone) {
  expect_overflow_to_change_the_scale_alone(at::kCPU);
}

// Where the decision is the device's.
TEST(BevEngineGpuTest, AStepThatOverflowsChangesTheScaleAlone) {
  if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  expect_overflow_to_change_the_scale_alone(at::Device(at::kCUDA, 0));
}

TEST(BevEngineTest, MixedPrecisionIsNearFloat32) {
  BevRunConfig run = tiny();
  run.model.swin.drop_path_rate = 0.0;
  TestBatch a(run.model, 2, 1);
  const auto wide = make(run);
  const train::StepOutcome expected = Steps{*wide}.run({&a.get()});
  for (const auto precision : {config::Precision::kBf16Mixed, config::Precision::k16Mixed}) {
    run.trainer.precision = precision;
    run.loss_scale.initial = 512.0;
    const auto engine = make(run);
    EXPECT_NE(engine->description().find(config::precision_name(precision)), std::string::npos);
    const train::StepOutcome outcome = Steps{*engine}.run({&a.get()});
    EXPECT_FALSE(outcome.skipped);
    EXPECT_NEAR(outcome.loss, expected.loss, 0.02 * expected.loss);
    EXPECT_NEAR(outcome.grad_norm, expected.grad_norm, 0.1 * expected.grad_norm);
  }
  run.trainer.precision = config::Precision::k16Mixed;
  const auto engine = make(run);
  const auto name = engine->fall_back_precision();
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(*name, "bf16-mixed");
  EXPECT_EQ(engine->scaler(), nullptr);
  EXPECT_FALSE(engine->fall_back_precision().ok());
}

// Half precision loses no more than torch's own autocast does on the same network.
void expect_near_autocast(at::Device device, config::Precision narrow, at::ScalarType dtype) {
  BevRunConfig run = tiny();
  run.model.swin.drop_path_rate = 0.0;
  run.aerie.tf32 = config::Tf32::kNone;
  const auto engine = make(run, device);
  struct Pass {
    at::Tensor logits, grads;
  };
  const auto pass = [&](const BevBatch& batch, config::Precision precision, bool autocast) {
    ForwardOptions options;
    options.training = true;
    options.policy = nn::DtypePolicy(precision);
    engine->model().parameters().zero_grad();
    Pass out;
    MapLosses losses;
    {
      at::autocast::set_autocast_enabled(device.type(), autocast);
      at::autocast::set_autocast_dtype(device.type(), dtype);
      at::autocast::increment_nesting();
      out.logits = engine->model().forward(batch, options).value();
      losses = map_losses(run.model, out.logits, batch.truth);
      if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
      at::autocast::set_autocast_enabled(device.type(), false);
    }
    // Small gradients of float16 need a scale.
    constexpr double kScale = 512.0;
    (losses.total * kScale).backward();
    out.logits = out.logits.detach().to(at::kDouble);
    out.grads = engine->model().parameters().flat_grads().to(at::kDouble).clone();
    return out;
  };
  // Relative errors, squared and added up over some batches: one alone may be lucky.
  const auto error = [](const at::Tensor& x, const at::Tensor& y) {
    return ((x - y).norm() / y.norm()).square().item<double>();
  };
  double logits = 0.0, grads = 0.0, torch_logits = 0.0, torch_grads = 0.0;
  for (uint64_t number = 1; number <= 6; ++number) {
    TestBatch contents(run.model, 2, number);
    const BevBatch batch = to_bev_batch(contents.get(), {}, device).value();
    const Pass exact = pass(batch, config::Precision::k32, false);
    const Pass ours = pass(batch, narrow, false);
    const Pass torch = pass(batch, config::Precision::k32, true);
    logits += error(ours.logits, exact.logits);
    grads += error(ours.grads, exact.grads);
    torch_logits += error(torch.logits, exact.logits);
    torch_grads += error(torch.grads, exact.grads);
  }
  std::printf("error of logits %.3f times autocast's, of gradients %.3f times\n",
              std::sqrt(logits / torch_logits), std::sqrt(grads / torch_grads));
  EXPECT_GT(torch_logits, 1e-8) << "autocast was not on";
  EXPECT_LT(std::sqrt(logits / torch_logits), 1.5);
  EXPECT_LT(std::sqrt(grads / torch_grads), 1.5);
}

TEST(BevEngineTest, Bfloat16LosesNoMoreThanAutocast) {
  expect_near_autocast(at::kCPU, config::Precision::kBf16Mixed, at::kBFloat16);
}

TEST(BevEngineGpuTest, HalfPrecisionsLoseNoMoreThanAutocast) {
  if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  expect_near_autocast(at::Device(at::kCUDA, 0), config::Precision::kBf16Mixed, at::kBFloat16);
  expect_near_autocast(at::Device(at::kCUDA, 0), config::Precision::k16Mixed, at::kHalf);
}

TEST(BevEngineTest, RecomputedBlocksChangeNoBit) {
  BevRunConfig run = tiny();
  run.model.swin.drop_path_rate = 0.5;
  TestBatch a(run.model, 2, 1);
  const auto kept = make(run);
  run.aerie.activation_checkpointing = true;
  const auto recomputed = make(run);
  Steps one{*kept}, two{*recomputed};
  for (int i = 0; i < 2; ++i)
    EXPECT_EQ(one.run({&a.get()}).grad_norm, two.run({&a.get()}).grad_norm);
  EXPECT_EQ(difference(state_of(*kept), state_of(*recomputed)), "");
}

// Without BatchNorm's statistics of the batch, two halves are the whole.
TEST(BevEngineTest, AccumulatedHalvesAreTheWholeWhereNormsAreFrozen) {
  BevRunConfig run = tiny();
  run.model.swin.drop_path_rate = 0.0;
  run.model.norm_eval = true;
  TestBatch whole(run.model, 4, 1);
  const auto at_once = make(run), in_parts = make(run);
  const train::StepOutcome a = Steps{*at_once}.run({&whole.get()});
  const train::StepOutcome b = Steps{*in_parts}.run({&whole.get()}, 1, /*split=*/2);
  EXPECT_NEAR(a.loss, b.loss, 1e-6 * a.loss);
  EXPECT_NEAR(a.grad_norm, b.grad_norm, 1e-5 * a.grad_norm);
  const nn::ParameterRegistry& registry = at_once->model().parameters();
  const int64_t mean = registry.find("bevencode.bn1.running_mean");
  ASSERT_GE(mean, 0);
  EXPECT_EQ(registry.tensor(mean).abs().max().item<float>(), 0.0f);
}

// Refuses one allocation of the host, as a full memory would.
class FailingAllocator final : public c10::Allocator {
 public:
  FailingAllocator() : real_(c10::GetCPUAllocator()) { c10::SetCPUAllocator(this, 100); }
  ~FailingAllocator() override { c10::SetCPUAllocator(real_, 100); }
  c10::DataPtr allocate(size_t bytes) override {
    // Twice: where one of oneDNN's primitives finds no memory, torch takes a kernel of its own.
    if (left.load() > 0 && left.fetch_sub(1) <= 2)
      C10_THROW_ERROR(OutOfMemoryError, "fake: out of memory");
    ++count;
    return real_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return real_->raw_deleter(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    real_->copy_data(to, from, bytes);
  }

  std::atomic<int64_t> left = 0;  // allocations until two have failed; 0: none does
  std::atomic<int64_t> count = 0;

 private:
  c10::Allocator* real_;
};

TEST(BevEngineTest, OutOfMemoryLeavesEverythingAsItWas) {
  // How often several threads allocate, and so where it fails, is left to chance.
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const BevRunConfig run = tiny();
  TestBatch a(run.model, 2, 1), b(run.model, 2, 2);
  const auto undisturbed = make(run), engine = make(run);
  Steps expected{*undisturbed}, steps{*engine};
  ASSERT_TRUE(expected.submit({&a.get()}, 2, /*finish=*/false).ok());
  expected.run({&b.get()}, 2, /*split=*/2);

  FailingAllocator memory;
  ASSERT_TRUE(steps.submit({&a.get()}, 2, /*finish=*/false).ok());
  const int64_t needed = memory.count.load();
  const auto before = state_of(*engine);
  const at::Tensor grads = engine->model().parameters().flat_grads().clone();
  // In the copies before the step, in the forward pass, in the backward pass.
  for (const int64_t after : {int64_t{1}, needed / 4, needed / 2, needed * 3 / 4}) {
    const Steps saved = steps;
    memory.left = after + 2;
    const Status status = steps.submit({&b.get()}, 2, /*finish=*/true);
    EXPECT_LT(memory.left.load(), 2) << "nothing failed";
    memory.left = 0;
    EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.to_string();
    EXPECT_NE(status.to_string().find("fake"), std::string::npos) << status.to_string();
    for (const char* word : {"batch", "workers", "fp16", "accumulation"})
      EXPECT_NE(status.hint().find(word), std::string::npos) << after << ": " << status.hint();
    EXPECT_EQ(difference(before, state_of(*engine)), "") << after;
    EXPECT_TRUE(at::equal(grads, engine->model().parameters().flat_grads())) << after;
    steps.step = saved.step;
    steps.micro = saved.micro;
  }
  // Smaller parts of the same request.
  steps.run({&b.get()}, 2, /*split=*/2);
  EXPECT_EQ(difference(state_of(*undisturbed), state_of(*engine)), "");
  at::set_num_threads(threads);
}

TEST(BevEngineTest, AFailureBehindEmptyBatchesLeavesNoGradients) {
  const BevRunConfig run = tiny();
  TestBatch a(run.model, 2, 1);
  const data::ArrayBatch nothing;
  data::ArrayBatch broken;  // a sample without arrays
  broken.mutable_samples().resize(1);
  const auto engine = make(run);
  Steps steps{*engine};
  ASSERT_TRUE(steps.submit({&nothing}, 3, /*finish=*/false).ok());
  EXPECT_FALSE(steps.submit({&a.get(), &broken}, 3, /*finish=*/true).ok());
  EXPECT_EQ(engine->model().parameters().flat_grads().abs().sum().item<double>(), 0.0);
}

TEST(BevEngineTest, PlansWithoutMemoryAreAnErrorToo) {
  const BevRunConfig run = tiny();
  TestBatch a(run.model, 2, 1);
  const auto engine = make(run);
  engine->model().use_tensor_splat(true);
  const BevBatch batch = to_bev_batch(a.get(), {}, at::kCPU).value();
  FailingAllocator memory;
  memory.left = 5;
  const auto plan = engine->model().plan(batch);
  EXPECT_LT(memory.left.load(), 2) << "nothing failed";
  EXPECT_EQ(plan.status().code(), StatusCode::kOutOfMemory) << plan.status().to_string();
  memory.left = 0;
  EXPECT_TRUE(engine->model().plan(batch).ok());
}

// On a GPU in deterministic mode: the same steps give the same bits, also from a snapshot.
TEST(BevEngineGpuTest, RepeatsAndGoesOnToTheBit) {
  if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  BevRunConfig run = tiny();
  run.trainer.deterministic = config::Deterministic::kYes;
  for (const auto precision :
       {config::Precision::k32, config::Precision::kBf16Mixed, config::Precision::k16Mixed}) {
    run.trainer.precision = precision;
    run.loss_scale.initial = 512.0;
    TestBatch a(run.model, 2, 1), b(run.model, 2, 2);
    const auto first = make(run, at::Device(at::kCUDA, 0)),
               second = make(run, at::Device(at::kCUDA, 0));
    Steps one{*first}, two{*second};
    for (Steps* steps : {&one, &two}) {
      steps->run({&a.get(), &b.get()}, 2);
      steps->run({&b.get()});
    }
    EXPECT_EQ(difference(state_of(*first), state_of(*second)), "");
    auto snapshot = first->snapshot();
    ASSERT_TRUE(snapshot.ok()) << snapshot.status().to_string();
    const MemorySource source(**snapshot);
    const auto resumed = make(run, at::Device(at::kCUDA, 0));
    ASSERT_TRUE(resumed->restore(source).ok());
    Steps three{*resumed, one.step, one.micro};
    for (Steps* steps : {&one, &three}) steps->run({&a.get()});
    EXPECT_EQ(difference(state_of(*first), state_of(*resumed)), "");
  }
}

// Whether steps are launched operation by operation or as graphs: the same bits, whatever comes
// between them.
TEST(BevEngineGpuTest, GraphsChangeNoBit) {
  if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  const at::Device gpu(at::kCUDA, 0);
  BevRunConfig run = tiny();
  run.trainer.deterministic = config::Deterministic::kYes;
  run.model.swin.drop_path_rate = 0.5;
  for (const auto precision : {config::Precision::k32, config::Precision::k16Mixed}) {
    run.trainer.precision = precision;
    run.loss_scale.initial = 512.0;
    TestBatch a(run.model, 2, 1), b(run.model, 2, 2), ragged(run.model, 3, 3);
    run.compile.enabled = Compile::kNo;
    const auto launched = make(run, gpu);
    run.compile.enabled = Compile::kYes;
    const auto captured = make(run, gpu);
    Steps one{*launched}, two{*captured};
    const auto same = [&](std::vector<const data::Batch*> batches, int64_t accumulate = 1,
                          int64_t split = 1) {
      const train::StepOutcome x = one.run(batches, accumulate, split),
                               y = two.run(batches, accumulate, split);
      EXPECT_EQ(x.loss, y.loss);
      EXPECT_EQ(x.grad_norm, y.grad_norm);
      EXPECT_EQ(x.micro_losses, y.micro_losses);
    };
    for (int i = 0; i < 4; ++i) same({&a.get()});
    EXPECT_EQ(launched->num_graphs(), 0);
    EXPECT_EQ(captured->num_graphs(), 1);
    same({&a.get(), &b.get()}, 2);
    for (int i = 0; i < 3; ++i) same({&ragged.get()});
    EXPECT_EQ(captured->num_graphs(), 2);
    const auto x = launched->evaluate(a.get(), 1, 0), y = captured->evaluate(a.get(), 1, 0);
    ASSERT_TRUE(x.ok() && y.ok());
    EXPECT_EQ(x->sums, y->sums);
    same({&b.get()}, 1, /*split=*/2);
    same({&b.get()});
    same({&ragged.get(), &a.get()}, 2);
    EXPECT_EQ(difference(state_of(*launched), state_of(*captured)), "");
    if (precision != config::Precision::k16Mixed) continue;
    for (const auto& engine : {launched.get(), captured.get()})
      ASSERT_TRUE(engine->fall_back_precision().ok());
    for (int i = 0; i < 4; ++i) same({&b.get()});
    EXPECT_EQ(difference(state_of(*launched), state_of(*captured)), "");
  }
}

// What makes the host wait for the device while it lives: values that are read, and copies that
// return when they are done.
class DeviceWaits {
 public:
  DeviceWaits() {
    counts_.clear();
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&DeviceWaits::look)
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
  }
  ~DeviceWaits() { at::removeCallback(handle_); }
  DeviceWaits(const DeviceWaits&) = delete;
  DeviceWaits& operator=(const DeviceWaits&) = delete;

  std::map<std::string, int> counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  static std::unique_ptr<at::ObserverContext> look(const at::RecordFunction& fn) {
    static const std::set<std::string> reads = {
        "_local_scalar_dense", "_unique2",      "bincount", "equal",
        "index_put_",          "masked_select", "nonzero",  "unique_dim",
        "unique_consecutive"};
    std::string name = fn.name();
    if (name.rfind("aten::", 0) == 0) name = name.substr(6);
    const auto inputs = fn.inputs();
    const auto tensor = [&](size_t i) {
      return i < inputs.size() && inputs[i].isTensor() ? inputs[i].toTensor() : at::Tensor();
    };
    const auto on_device = [](const at::Tensor& t) { return t.defined() && t.is_cuda(); };
    std::string what;
    if (reads.contains(name) && on_device(tensor(0))) what = name;
    if (name == "index" && on_device(tensor(0)) && inputs.size() > 1) {
      for (const c10::IValue& index : inputs[1].toListRef())  // a mask is counted first
        if (index.isTensor() && index.toTensor().scalar_type() == at::kBool) what = "index by mask";
    }
    if (name == "copy_" && on_device(tensor(0)) != on_device(tensor(1))) {
      const bool waits = inputs.size() < 3 || !inputs[2].toBool();
      if (on_device(tensor(1)))
        what = "copy to the host";
      else if (waits)
        what = "copy to the device";
    }
    if (!what.empty()) {
      const std::lock_guard lock(mutex_);
      ++counts_[what];
    }
    return nullptr;
  }

  static inline std::mutex mutex_;
  static inline std::map<std::string, int> counts_;
  at::CallbackHandle handle_ = at::INVALID_CALLBACK_HANDLE;
};

// Of a micro-batch: pictures and truth go to the device, and the number of points kept comes back.
// Of a step: its results come back.
TEST(BevEngineGpuTest, AStepWaitsForTheDeviceNoMoreThanItMust) {
  if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  for (const auto precision : {config::Precision::k32, config::Precision::k16Mixed}) {
    for (const bool recompute : {false, true}) {
      BevRunConfig run = tiny();
      run.trainer.precision = precision;
      run.loss_scale.initial = 512.0;
      run.aerie.activation_checkpointing = recompute;
      run.model.swin.drop_path_rate = 0.5;
      run.model.class_weights = {1.0, 2.0};
      TestBatch a(run.model, 2, 1), b(run.model, 2, 2);
      const auto engine = make(run, at::Device(at::kCUDA, 0));
      Steps steps{*engine};
      // What is made once; the second time graphs are captured.
      for (int i = 0; i < 2; ++i) steps.run({&a.get(), &b.get()}, 2);
      EXPECT_EQ(engine->num_graphs(), recompute ? 0 : 1);
      const DeviceWaits waits;
      steps.run({&a.get(), &b.get()}, 2);
      const std::map<std::string, int> expected = {{"copy to the device", 4},
                                                   {"copy to the host", 1}};
      EXPECT_EQ(waits.counts(), expected);
    }
  }
}

// The same weights on the CPU and on a device, the last one there is.
TEST(BevEngineGpuTest, AgreesWithTheCpu) {
  if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  const auto last = static_cast<c10::DeviceIndex>(device::driver().gpus.size() - 1);
  const at::Device gpu(at::kCUDA, last);
  BevRunConfig run = tiny();
  run.aerie.tf32 = config::Tf32::kNone;
  TestBatch a(run.model, 2, 1), b(run.model, 3, 2);
  const auto here = make(run), there = make(run, gpu);
  const auto bytes_on = [](c10::DeviceIndex index) {
    return at::accelerator::getDeviceStats(index).allocated_bytes[0].current;
  };
  const int64_t before = bytes_on(0);
  Steps one{*here}, two{*there};
  // Later steps follow signs of gradients that are rounding errors.
  for (int i = 0; i < 3; ++i) {
    const train::StepOutcome x = one.run({&a.get(), &b.get()}, 2, /*split=*/1 + i % 2);
    const train::StepOutcome y = two.run({&a.get(), &b.get()}, 2, /*split=*/1 + i % 2);
    EXPECT_NEAR(x.loss, y.loss, (i == 0 ? 1e-5 : 1e-2) * x.loss) << i;
    EXPECT_NEAR(x.grad_norm, y.grad_norm, (i == 0 ? 1e-4 : 0.1) * x.grad_norm) << i;
  }
  // Pictures see what was predicted.
  class Sink final : public PredictionSink {
   public:
    bool wants(const data::Batch&) const override { return true; }
    Status take(const data::Batch&, std::span<const float> probability) override {
      seen.assign(probability.begin(), probability.end());
      return ok_status();
    }
    std::vector<float> seen;
  } mine, theirs;
  here->set_prediction_sink(&mine);
  there->set_prediction_sink(&theirs);
  const auto x = here->evaluate(b.get(), 1, 0), y = there->evaluate(b.get(), 1, 0);
  ASSERT_TRUE(x.ok() && y.ok()) << y.status().to_string();
  EXPECT_NEAR(x->loss, y->loss, 0.05 * x->loss);
  ASSERT_EQ(x->sums.size(), y->sums.size());
  const double cells = static_cast<double>(3 * run.model.map_height() * run.model.map_width());
  for (size_t i = 0; i < x->sums.size(); ++i) EXPECT_NEAR(x->sums[i], y->sums[i], 0.1 * cells);
  ASSERT_EQ(mine.seen.size(), theirs.seen.size());
  for (size_t i = 0; i < mine.seen.size(); ++i) ASSERT_NEAR(mine.seen[i], theirs.seen[i], 0.1);
  // Nothing of it lies on another device.
  EXPECT_TRUE(last == 0 || bytes_on(0) == before);
  EXPECT_GT(there->memory().peak_gib, 0.0);
}

// Takes all memory of a device but some bytes, in blocks of the two kinds that torch keeps apart.
class ScarceMemory {
 public:
  ScarceMemory(at::Device device, int64_t left)
      : options_(at::TensorOptions(device).dtype(at::kByte)) {
    c10::DeviceAllocator& memory = *at::getDeviceAllocator(at::kCUDA);
    memory.emptyCache();
    const auto free = static_cast<int64_t>(memory.getMemoryInfo(device.index()).first);
    taken_.push_back(at::empty({std::max<int64_t>(0, free - (int64_t{64} << 20))}, options_));
    for (const int64_t bytes : {kLarge, kSmall}) {
      std::vector<at::Tensor> blocks = all_of(bytes);
      blocks.resize(blocks.size() - std::min(blocks.size(), static_cast<size_t>(left / 2 / bytes)));
      taken_.insert(taken_.end(), blocks.begin(), blocks.end());
    }
  }

 private:
  static constexpr int64_t kLarge = int64_t{2} << 20, kSmall = int64_t{64} << 10;
  std::vector<at::Tensor> all_of(int64_t bytes) const {
    std::vector<at::Tensor> out;
    try {
      while (true) out.push_back(at::empty({bytes}, options_));
    } catch (const c10::OutOfMemoryError&) {
      return out;
    }
  }
  at::TensorOptions options_;
  std::vector<at::Tensor> taken_;
};

// Memory of the device ends in the middle of a step: the step is undone, and made again where there
// is enough. Evaluations are cut into parts by themselves.
TEST(BevEngineGpuTest, GoesOnAfterRunningOutOfMemory) {
  if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  const at::Device gpu(at::kCUDA, 0);
  BevRunConfig run = tiny();
  run.trainer.deterministic = config::Deterministic::kYes;
  TestBatch a(run.model, 2, 1), b(run.model, 8, 2);
  const auto undisturbed = make(run, gpu), engine = make(run, gpu);
  Steps expected{*undisturbed}, steps{*engine};
  for (Steps* one : {&expected, &steps}) {
    for (int i = 0; i < 3; ++i) one->run({&b.get()});
    ASSERT_TRUE(one->submit({&a.get()}, 2, /*finish=*/false).ok());
  }
  EXPECT_EQ(engine->num_graphs(), 1);
  const auto before = state_of(*engine);
  const auto scores = engine->evaluate(b.get(), 1, 0);
  ASSERT_TRUE(scores.ok()) << scores.status().to_string();
  const auto cells = static_cast<double>(8 * run.model.map_height() * run.model.map_width());
  bool done = false;
  int failed = 0, scored = 0;
  for (int64_t left = 0; !done && left < int64_t{256} << 20; left += left / 4 + (256 << 10)) {
    const Steps saved = steps;
    Status status;
    {
      const ScarceMemory scarce(gpu, left);
      const auto evaluated = engine->evaluate(b.get(), 1, 0);
      if (evaluated.ok()) {
        // Smaller parts go through other algorithms, which turn cells at a threshold.
        ASSERT_EQ(evaluated->sums.size(), scores->sums.size());
        for (size_t i = 0; i < scores->sums.size(); ++i)
          EXPECT_NEAR(evaluated->sums[i], scores->sums[i], 0.01 * cells) << left << ", sum " << i;
        ++scored;
      } else {
        ASSERT_EQ(evaluated.status().code(), StatusCode::kOutOfMemory)
            << left << ": " << evaluated.status().to_string();
      }
      status = steps.submit({&b.get()}, 2, /*finish=*/true);
    }
    done = status.ok();
    if (done) break;
    ++failed;
    EXPECT_EQ(engine->num_graphs(), 0) << "graphs keep memory that is short";
    ASSERT_EQ(status.code(), StatusCode::kOutOfMemory) << left << ": " << status.to_string();
    EXPECT_NE(status.hint().find("batch"), std::string::npos) << left << ": " << status.hint();
    EXPECT_EQ(difference(before, state_of(*engine)), "") << left;
    steps.step = saved.step;
    steps.micro = saved.micro;
  }
  std::printf("out of memory %d times; %d evaluations beside them\n", failed, scored);
  EXPECT_GE(failed, 2);
  EXPECT_GE(scored, 1);
  ASSERT_TRUE(done);
  EXPECT_EQ(engine->collect(true).value().size(), 1u);
  expected.run({&b.get()}, 2);
  EXPECT_EQ(difference(state_of(*undisturbed), state_of(*engine)), "");
}

TEST(BevEngineTest, EvaluationCountsAsTheMetricDoes) {
  const BevRunConfig run = tiny();
  TestBatch a(run.model, 3, 1);
  const auto engine = make(run);
  const auto before = state_of(*engine);
  const auto outcome = engine->evaluate(a.get(), 1, 0);
  ASSERT_TRUE(outcome.ok()) << outcome.status().to_string();
  EXPECT_EQ(difference(before, state_of(*engine)), "");
  const auto batch = to_bev_batch(a.get(), {}, at::kCPU);
  ASSERT_TRUE(batch.ok());
  at::NoGradGuard no_grad;
  const auto logits = engine->model().forward(*batch, {});
  ASSERT_TRUE(logits.ok());
  const at::Tensor p = logits->sigmoid().contiguous(), y = batch->truth.contiguous();
  MapIou iou(2);
  iou.update({p.const_data_ptr<float>(), static_cast<size_t>(p.numel())},
             {y.const_data_ptr<uint8_t>(), static_cast<size_t>(y.numel())}, 3);
  const size_t thresholds = kMapThresholds.size();
  ASSERT_EQ(outcome->sums.size(), 3 * 2 * thresholds + 2 * 2);
  // Behind them the counts of logits above 0: cells in both, and in either.
  for (size_t k = 0; k < 2; ++k) {
    const at::Tensor above = logits->select(1, static_cast<int64_t>(k)) > 0,
                     there = y.select(1, static_cast<int64_t>(k)) != 0;
    EXPECT_EQ(outcome->sums[6 * thresholds + k], (above & there).sum().item<double>());
    EXPECT_EQ(outcome->sums[6 * thresholds + 2 + k], (above | there).sum().item<double>());
  }
  for (size_t k = 0; k < 2; ++k)
    for (size_t t = 0; t < thresholds; ++t) {
      const MapIou::Count& count = iou.counts()[k][t];
      const auto sum = [&](size_t kind) { return outcome->sums[(kind * 2 + k) * thresholds + t]; };
      EXPECT_EQ(sum(0), static_cast<double>(count.true_positive));
      EXPECT_EQ(sum(1), static_cast<double>(count.false_positive));
      EXPECT_EQ(sum(2), static_cast<double>(count.false_negative));
    }
}

TEST(BevEngineTest, PartsOfABatchKeepTheLossesScale) {
  BevRunConfig run = tiny();
  run.model.swin.drop_path_rate = 0.0;
  TestBatch a(run.model, 3, 1);
  const auto whole = make(run), parts = make(run);
  const double loss = Steps{*whole}.run({&a.get()}).loss;
  // BatchNorm sees fewer samples at a time.
  EXPECT_NEAR(Steps{*parts}.run({&a.get()}, 1, 2).loss, loss, 0.1 * loss);
}

// Convolutions and matrix products in half precision; norms, softmax, losses and the update in
// float32, as docs/bev_model.md says.
TEST(PrecisionTableTest, NamesWhatAStepDid) {
  BevRunConfig run = tiny();
  const auto rows = [&](config::Precision precision) {
    run.trainer.precision = precision;
    const auto text = precision_table(run, /*gpu=*/false);
    EXPECT_TRUE(text.ok()) << text.status().to_string();
    std::map<std::string, std::string> out;  // by the heading
    std::string heading;
    for (const std::string& line : split(text.ok() ? *text : "", '\n')) {
      if (!line.empty() && line[0] != ' ') heading = line.substr(0, line.find(": "));
      out[heading] += line + "\n";
    }
    return out;
  };
  const auto narrow = rows(config::Precision::k16Mixed);
  ASSERT_TRUE(narrow.contains("float16") && narrow.contains("float32")) << narrow.size();
  const std::string& half = narrow.at("float16");
  // On a CPU without half precision torch's convolutions are made of products.
  for (const char* name : {"forward", "backward", "mm "})
    EXPECT_NE(half.find(name), std::string::npos) << name << "\n" << half;
  for (const char* name : {"native_layer_norm", "native_batch_norm", "softmax", "update"})
    EXPECT_EQ(half.find(name), std::string::npos) << name << "\n" << half;
  const std::string& wide = narrow.at("float32");
  EXPECT_EQ(wide.find("conv"), std::string::npos) << wide;
  for (const char* name : {"native_layer_norm", "native_batch_norm", "_softmax", "update"})
    EXPECT_NE(wide.find(name), std::string::npos) << name << "\n" << wide;
  EXPECT_NE(narrow.at("conversions").find("conversion to float16"), std::string::npos);
  // Scaling by a number of the code is no arithmetic in float64.
  EXPECT_FALSE(narrow.contains("float16, float64 -> float16"));
  EXPECT_FALSE(narrow.contains("float32, float64 -> float32"));
  const auto plain = rows(config::Precision::k32);
  EXPECT_FALSE(plain.contains("float16"));
  EXPECT_NE(plain.at("float32").find("conv"), std::string::npos);
  EXPECT_TRUE(rows(config::Precision::kBf16Mixed).contains("bfloat16"));
}

TEST(ParamGroupsTest, TheLongestKeyWinsAndKindsFollow) {
  BevRunConfig run = tiny();
  ParamGroupsConfig& rules = run.optim.param_groups;
  rules.custom_keys = {{"backbone", 0.1, std::nullopt},
                       {"backbone.stages.0", 0.5, 0.0},
                       {"stages.1.blocks.0.attn.w_msa.relative", 0.2, 3.0}};
  rules.norm_decay_mult = 0.0;
  rules.bias_lr_mult = 2.0;
  const auto engine = make(run);
  const nn::ParameterRegistry& registry = engine->model().parameters();
  const auto& trainable = registry.trainable();
  bool decayed_table = false;
  std::map<std::string, int> seen;
  for (size_t t = 0; t < trainable.size(); ++t) {
    const std::string& name = registry.entries()[static_cast<size_t>(trainable[t])].name;
    const optim::GroupSettings& s = engine->optimizer().settings_of(t).values;
    // Tables are decayed only where a key says so.
    if (name.find("stages.1.blocks.0.attn.w_msa.relative") != std::string::npos) {
      EXPECT_DOUBLE_EQ(s.lr, 0.2 * run.optim.lr) << name;
      EXPECT_DOUBLE_EQ(s.weight_decay, 3.0 * run.optim.weight_decay) << name;
      ++seen["table"];
    } else if (name.find("relative_position_bias_table") != std::string::npos) {
      decayed_table = decayed_table || s.weight_decay != 0.0;
    } else if (name.find("backbone.stages.0") != std::string::npos) {
      EXPECT_DOUBLE_EQ(s.lr, 0.5 * run.optim.lr) << name;
      EXPECT_EQ(s.weight_decay, 0.0) << name;
      ++seen["longest"];
    } else if (name.find("backbone") != std::string::npos) {
      EXPECT_DOUBLE_EQ(s.lr, 0.1 * run.optim.lr) << name;
      EXPECT_DOUBLE_EQ(s.weight_decay, run.optim.weight_decay) << name;
      ++seen["backbone"];
    } else if (name == "bevencode.bn1.weight" || name == "bevencode.bn1.bias") {
      EXPECT_DOUBLE_EQ(s.lr, run.optim.lr) << name;
      EXPECT_EQ(s.weight_decay, 0.0) << name;
      ++seen["norm"];
    } else if (name == "bevencode.up2.4.bias") {
      EXPECT_DOUBLE_EQ(s.lr, 2.0 * run.optim.lr) << name;
      ++seen["bias"];
    } else if (name == "bevencode.up2.4.weight") {
      EXPECT_DOUBLE_EQ(s.lr, run.optim.lr) << name;
      EXPECT_DOUBLE_EQ(s.weight_decay, run.optim.weight_decay) << name;
      ++seen["plain"];
    }
  }
  EXPECT_FALSE(decayed_table);
  for (const char* kind : {"longest", "backbone", "norm", "bias", "plain", "table"})
    EXPECT_GT(seen[kind], 0) << kind;
  EXPECT_EQ(engine->num_param_groups(),
            static_cast<int64_t>(engine->optimizer().base_rates().size()));
}

}  // namespace
}  // namespace aerie::bev
