// The bird's-eye-view family by the real binary, killed at any moment and resumed: it ends with the
// bits of a run that was left alone. Accumulation crosses epochs, saves and evaluations.
#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <map>
#include <unistd.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/base/path.h"
#include "aerie/base/philox.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "process.h"

namespace aerie::crash {
namespace {

using Json = nlohmann::ordered_json;

int64_t bev_number(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  return text != nullptr ? std::atoll(text) : fallback;
}

class BevCrashTest : public ::testing::Test {
 protected:
  BevCrashTest()
      : steps_(bev_number("AERIE_BEV_CRASH_STEPS", 25)),
        kills_(bev_number("AERIE_BEV_CRASH_KILLS", 3)) {
    Process synth({aerie_binary(), "data", "synth", "--kind", "nuscenes", "--out", path("town"),
                   "--scenes", "4", "--samples-per-scene", "4", "--image-size", "160x90"},
                  {path("synth.log"), 0});
    EXPECT_EQ(synth.wait(), 0) << read(path("synth.log"));
    const std::string text = str_cat(R"(
name: tiny
trainer:
  accelerator: cpu
  deterministic: true
  max_steps: )",
                                     steps_, R"(
  accumulate_grad_batches: 3
  gradient_clip_val: 35
  val_check_interval: 10
  check_val_every_n_epoch: null
  limit_val_batches: 2
  log_every_n_steps: 1
  num_sanity_val_steps: 0
  enable_progress_bar: false
exp_manager:
  resume_if_exists: true
  resume_ignore_no_checkpoint: true
  checkpoint_callback_params: {monitor: mIoU, mode: max, every_n_train_steps: 4}
aerie: {seed: 3, step_unit: micro}
model:
  classes: [drivable_area, walkway]
  encoders:
    camera:
      backbone: {embed_dims: 8, depths: [1, 1, 1, 1], num_heads: [1, 2, 2, 4], mlp_ratio: 2}
      neck: {out_channels: 12}
      vtransform: {out_channels: 6, xbound: [-48, 48, 2], ybound: [-48, 48, 2], dbound: [1, 33, 4]}
  decoder: {backbone: {width: 4}}
  train_ds:
    root: )",
                                     path("town"), R"(
    split: mini_train
    cache_dir: )",
                                     path("cache"), R"(
    batch_size: 2
    num_workers: 2
    image: {size: [32, 88], resize_lim: [0.5, 0.7]}
  validation_ds: {split: mini_val, num_workers: 0}
  optim:
    name: adamw
    lr: 2e-3
    sched: {name: poly, warmup: linear, warmup_iters: 5, warmup_ratio: 1e-3}
    momentum_sched: {name: cyclic}
)");
    EXPECT_TRUE(Env::real().write_file(path("tiny.yaml"), text).ok());
  }

  std::string path(const std::string& name) { return folder_.file(name); }
  static std::string read(const std::string& file) {
    auto text = Env::real().read_file(file);
    return text.ok() ? std::move(text).value() : "";
  }
  std::unique_ptr<Process> start(const std::string& name) {
    return std::make_unique<Process>(
        std::vector<std::string>{aerie_binary(), "train", path("tiny.yaml"), "--work-dir",
                                 path(name)},
        Process::Options{path(name + ".log"), 0});
  }
  std::vector<Json> lines(const std::string& name) {
    std::vector<Json> out;
    for (const std::string& line : split(read(path(name) + "/metrics.jsonl"), '\n'))
      if (Json json = Json::parse(line, nullptr, false); json.is_object())
        out.push_back(std::move(json));
    return out;
  }
  int64_t last_step(const std::string& name) {
    int64_t step = 0;
    for (const Json& line : lines(name)) step = line.value("step", step);
    return step;
  }

  // Weights and optimizer state of the newest checkpoint, its state without times, and the numbers
  // of every step and evaluation.
  std::map<std::string, std::string> outcome(const std::string& name) {
    std::map<std::string, std::string> out;
    int64_t newest = -1;
    const auto entries = Env::real().list_dir(path(name) + "/checkpoints");
    EXPECT_TRUE(entries.ok()) << name;
    if (!entries.ok()) return out;
    for (const DirEntry& entry : *entries) {
      const std::string folder = str_cat(path(name), "/checkpoints/", entry.name);
      Json state = Json::parse(read(folder + "/state.json"), nullptr, false);
      if (!state.is_object() || state["train"]["step"].get<int64_t>() < newest) continue;
      newest = state["train"]["step"].get<int64_t>();
      state["train"].erase("wall_s");
      out["state"] = state.dump(1);
      for (const char* file : {"model.safetensors", "optimizer.safetensors"})
        out[file] = read(str_cat(folder, "/", file));
    }
    for (const Json& line : lines(name)) {
      if (line["kind"] == "event") continue;
      for (const char* key :
           {"kind", "step", "epoch", "loss", "val_loss", "mIoU", "learning_rate", "grad_norm"})
        if (line.contains(key)) out["metrics"] += str_cat(key, "=", line[key].dump(), " ");
      out["metrics"] += "\n";
    }
    return out;
  }

  const int64_t steps_, kills_;
  TempDir folder_;
};

TEST_F(BevCrashTest, KilledRunEndsWithTheSameBits) {
  auto straight = start("straight");
  ASSERT_EQ(straight->wait(), 0) << read(path("straight.log"));
  const auto expected = outcome("straight");
  EXPECT_GT(expected.at("model.safetensors").size(), 1000u);
  EXPECT_NE(expected.at("metrics").find("kind=\"val\" step=10 "), std::string::npos)
      << expected.at("metrics");

  RandomStream random(static_cast<uint64_t>(bev_number("AERIE_CRASH_SEED", 1)), Purpose::kTest, 0,
                      0);
  int64_t killed = 0;
  for (int64_t k = 0; k < kills_; ++k) {
    auto run = start("killed");
    const int64_t target =
        last_step("killed") + static_cast<int64_t>(random.below(static_cast<uint64_t>(
                                  std::max<int64_t>(2, 2 * steps_ / (kills_ + 1)))));
    // After so many steps, or somewhere in the first seconds if that comes sooner.
    const double end =
        Clock::real().monotonic_s() + 0.2 + static_cast<double>(random.below(6000000)) * 1e-6;
    while (run->running() && last_step("killed") <= target && Clock::real().monotonic_s() < end)
      ::usleep(500);
    ::usleep(static_cast<useconds_t>(random.below(30000)));
    run->send(SIGKILL);
    const int status = run->wait();
    if (status == 0) break;  // it came to the end first: fewer kills, the same comparison
    ASSERT_EQ(status, 1000 + SIGKILL) << read(path("killed.log"));
    ++killed;
  }
  EXPECT_GE(killed, 1);
  auto rest = start("killed");
  ASSERT_EQ(rest->wait(), 0) << read(path("killed.log"));
  std::printf("%lld steps, killed %lld times\n", static_cast<long long>(steps_),
              static_cast<long long>(killed));
  const auto got = outcome("killed");
  EXPECT_EQ(got.at("metrics"), expected.at("metrics"));
  EXPECT_EQ(got.at("state"), expected.at("state"));
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(got.at(file) == expected.at(file)) << file << " differs";
}

// The way of a GPU through the whole program, computed on the CPU (tests/fake_gpu): float16 on the
// second device, ended and gone on with.
TEST_F(BevCrashTest, ARunOnADeviceGoesOnToTheBit) {
  const std::string fake = join_path(parent_path(aerie_binary()), "fake_gpu");
  const auto train = [&](const std::string& name, int64_t steps) {
    Process run({"/usr/bin/env",
                 "LD_LIBRARY_PATH=" + fake,
                 "AERIE_TORCH_CUDA=" + fake + "/libfake_torch_cuda.so",
                 "AERIE_MODULE_DIR=" + fake,
                 aerie_binary(),
                 "train",
                 path("tiny.yaml"),
                 "--work-dir",
                 path(name),
                 "--gpu-ids",
                 "1",
                 "--cfg-options",
                 "trainer.accelerator=gpu",
                 "trainer.precision=16-mixed",
                 "trainer.benchmark=true",
                 str_cat("trainer.max_steps=", steps),
                 "trainer.val_check_interval=6",
                 "exp_manager.ema.enable=true",
                 "exp_manager.checkpoint_callback_params.every_n_train_steps=6",
                 "model.optim.sched=None",
                 "model.optim.momentum_sched=None"},
                {path(name + ".log"), 0});
    ASSERT_EQ(run.wait(), 0) << read(path(name + ".log"));
  };
  train("straight", 12);
  train("parts", 6);
  train("parts", 12);
  EXPECT_NE(read(path("straight.log")).find("reference engine, cuda:1, precision 16-mixed"),
            std::string::npos)
      << read(path("straight.log"));
  const auto expected = outcome("straight"), got = outcome("parts");
  EXPECT_NE(expected.at("metrics").find("kind=\"val\" step=12 "), std::string::npos)
      << expected.at("metrics");
  EXPECT_EQ(got.at("metrics"), expected.at("metrics"));
  for (const char* file : {"model.safetensors", "optimizer.safetensors"})
    EXPECT_TRUE(got.at(file) == expected.at(file)) << file << " differs";
}

}  // namespace
}  // namespace aerie::crash
