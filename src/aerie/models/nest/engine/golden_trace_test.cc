// Whole training runs against traces that NeMo wrote: every micro-batch's loss, every step's rate
// and gradient norm, every validation. Loader, model, optimizer and schedule are the real ones; on
// the reference engine, and where there is a GPU on the fast one in float32.
#include <cmath>
#include <fstream>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/archive/nemo.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/data/speech/speech_assembler.h"
#include "aerie/device/gpu.h"
#include "aerie/models/nest/config/run_config_loader.h"
#include "aerie/models/nest/engine/fast_engine.h"
#include "aerie/models/nest/engine/reference_engine.h"
#include "aerie/optim/schedule.h"

namespace aerie::train {
namespace {

using nlohmann::json;

json read_json(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return json::parse(file);
}

void load_weights(const std::string& path, nn::ParameterRegistry& registry) {
  auto nemo = archive::read_nemo(Env::real(), path);
  ASSERT_TRUE(nemo.ok()) << nemo.status().to_string();
  at::NoGradGuard no_grad;
  for (int64_t i = 0; i < registry.size(); ++i) {
    const std::string& name = registry.entries()[static_cast<size_t>(i)].name;
    const archive::TensorInfo* info = nemo->weights.find(name);
    ASSERT_NE(info, nullptr) << name;
    const at::ScalarType type = info->dtype == Dtype::kF64   ? at::kDouble
                                : info->dtype == Dtype::kI64 ? at::kLong
                                                             : at::kFloat;
    at::Tensor value = at::empty(info->shape, type);
    ASSERT_TRUE(nemo->weights.read(*info, value.mutable_data_ptr(), info->nbytes()).ok());
    registry.tensor(i).copy_(value);
  }
}

class GoldenRun {
 public:
  GoldenRun(const std::string& folder, const std::string& config_name, bool fast) {
    const std::string root = test_data("/") + folder;
    config::ConfigArgs args;
    args.config_path = root;
    args.config_name = config_name;
    args.overrides = {"aerie.compat=nemo-2.6",
                      "model.train_ds.manifest_filepath=" + root + "/train.json",
                      "model.validation_ds.manifest_filepath=" + root + "/val.json",
                      "aerie.data.index_dir=" + index_.path()};
    config::LoadOptions options;
    options.num_gpus = 0;
    auto loaded = config::load_run_config(args, options);
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    config = loaded->run;
    if (fast) {
      EXPECT_EQ(FastEngine::not_covered(config), "");
      auto made = FastEngine::create(config, at::Device(at::kCUDA, 0));
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      engine = std::move(made).value();
    } else {
      auto made = ReferenceEngine::create(config, at::kCPU);
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      engine = std::move(made).value();
    }
    load_weights(root + "/init.nemo", engine->core().model().parameters());
    EXPECT_TRUE(engine->state_written().ok());
    train = open(config.model.train_ds);
    EXPECT_EQ(config.model.validation_ds.size(), 1u);
    validation = open(config.model.validation_ds[0]);
    auto schedule = optim::Schedule::make(config.model.optim.sched, engine->base_rates(),
                                          config.trainer.max_steps);
    EXPECT_TRUE(schedule.ok()) << schedule.status().to_string();
    rates = std::move(schedule).value();
  }

  std::unique_ptr<data::Loader> open(const config::DatasetConfig& dataset) {
    data::AudioDataset::Options options;
    options.quiet = true;
    auto set = data::AudioDataset::open(dataset, config.aerie, options);
    EXPECT_TRUE(set.ok()) << set.status().to_string();
    data::SpeechLoaderOptions loader_options;
    loader_options.quiet = true;
    loader_options.consumer_batches = static_cast<int>(config.trainer.accumulate_grad_batches);
    auto loader = data::make_speech_loader(*set, dataset, config.aerie, loader_options);
    EXPECT_TRUE(loader.ok()) << loader.status().to_string();
    return std::move(loader).value();
  }

  double validate() {
    EXPECT_TRUE(validation->start_epoch(0).ok());
    double sum = 0.0;
    int64_t count = 0;
    while (true) {
      auto batch = validation->next();
      EXPECT_TRUE(batch.ok()) << batch.status().to_string();
      if (*batch == nullptr) break;
      auto outcome = engine->evaluate(**batch, 1, static_cast<uint64_t>(count));
      EXPECT_TRUE(outcome.ok()) << outcome.status().to_string();
      sum += outcome->loss;
      ++count;
      validation->release(*batch);
    }
    return sum / static_cast<double>(count);
  }

  // The next window: as many batches as accumulate says, fewer at the end of an epoch.
  StepOutcome step(int64_t number) {
    std::vector<const data::Batch*> window;
    const int64_t accumulate = config.trainer.accumulate_grad_batches;
    while (static_cast<int64_t>(window.size()) < accumulate) {
      if (in_epoch_ == train->batches_per_epoch()) {
        if (!window.empty()) break;
        in_epoch_ = 0;
        EXPECT_TRUE(train->start_epoch(++epoch_).ok());
      }
      auto batch = train->next();
      EXPECT_TRUE(batch.ok()) << batch.status().to_string();
      window.push_back(*batch);
      ++in_epoch_;
    }
    StepRequest request;
    request.micro_batches = window;
    request.step = number;
    request.first_micro_step = micro_;
    request.accumulate = accumulate;
    request.learning_rates = rates->at(number);
    micro_ += window.size();
    const Status status = engine->submit(request);
    EXPECT_TRUE(status.ok()) << status.to_string();
    for (const data::Batch* batch : window) train->release(batch);
    auto outcomes = engine->collect(true);
    EXPECT_TRUE(outcomes.ok() && outcomes->size() == 1);
    return outcomes->front();
  }

  TempDir index_;
  config::RunConfig config;
  std::unique_ptr<CoreEngine> engine;
  std::unique_ptr<data::Loader> train, validation;
  std::optional<optim::Schedule> rates;

 private:
  int64_t in_epoch_ = 0;
  int64_t epoch_ = 0;
  uint64_t micro_ = 0;
};

void compare(const std::string& folder, const std::string& config_name,
             const std::string& trace_name, bool fast = false) {
  const json trace = read_json(test_data("/") + folder + "/" + trace_name);
  GoldenRun run(folder, config_name, fast);
  ASSERT_FALSE(::testing::Test::HasFailure());
  size_t micro = 0;
  size_t val = 0;
  double worst_loss = 0.0, worst_norm = 0.0, worst_val = 0.0;
  for (size_t s = 0; s < trace["steps"].size(); ++s) {
    SCOPED_TRACE(s);
    const json& want = trace["steps"][s];
    const std::vector<double> rates = run.rates->at(static_cast<int64_t>(s));
    EXPECT_NEAR(rates[0], want["lr"].get<double>(), 1e-6 * want["lr"].get<double>());
    if (want.contains("lrs")) {
      ASSERT_EQ(rates.size(), want["lrs"].size());
      for (size_t g = 0; g < rates.size(); ++g) {
        const double lr = want["lrs"][g];
        EXPECT_NEAR(rates[g], lr, 1e-6 * lr);
      }
    }
    const StepOutcome outcome = run.step(static_cast<int64_t>(s));
    EXPECT_FALSE(outcome.skipped);
    EXPECT_EQ(outcome.step, static_cast<int64_t>(s));
    for (const double loss : outcome.micro_losses) {
      ASSERT_LT(micro, trace["micro"].size());
      const double expected = trace["micro"][micro]["loss"];
      EXPECT_NEAR(loss, expected, micro == 0 ? 1e-4 : 1e-3) << "micro-batch " << micro;
      worst_loss = std::max(worst_loss, std::abs(loss - expected));
      ++micro;
    }
    const double norm = want["grad_norm"];
    EXPECT_NEAR(outcome.grad_norm, norm, 0.01 * norm);
    worst_norm = std::max(worst_norm, std::abs(outcome.grad_norm - norm) / norm);
    if (val < trace["val"].size() && trace["val"][val]["after_step"].get<size_t>() == s + 1) {
      const double expected = trace["val"][val]["val_loss"];
      const double got = run.validate();
      EXPECT_NEAR(got, expected, 3e-3);
      worst_val = std::max(worst_val, std::abs(got - expected));
      ++val;
    }
  }
  EXPECT_EQ(micro, trace["micro"].size());
  EXPECT_EQ(val, trace["val"].size());
  ::testing::Test::RecordProperty("worst_loss", std::to_string(worst_loss));
  std::printf("%s %s: largest differences: loss %.2e, gradient norm %.2e relative, val_loss %.2e\n",
              folder.c_str(), trace_name.c_str(), worst_loss, worst_norm, worst_val);
}

TEST(GoldenTraceTest, Plain) {
  compare("golden/plain", "config", "trace.json");
}
TEST(GoldenTraceTest, Ragged) {
  compare("golden/ragged", "config", "trace.json");
}
TEST(GoldenTraceTest, TinyAdam) {
  compare("fixtures/nest_tiny", "config_adam", "trace_adam.json");
}
TEST(GoldenTraceTest, TinySgd) {
  compare("fixtures/nest_tiny", "config_sgd", "trace_sgd.json");
}
TEST(GoldenTraceTest, TinyNovograd) {
  compare("fixtures/nest_tiny", "config_novograd", "trace_novograd.json");
}

// The other runs' heads are no multiple of eight wide, which the fast engine does not cover.
TEST(GoldenTraceGpuTest, Plain) {
  if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  compare("golden/plain", "config", "trace.json", true);
}

}  // namespace
}  // namespace aerie::train
