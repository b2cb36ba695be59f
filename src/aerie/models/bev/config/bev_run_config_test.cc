// From mm-style files, BEVFusion's YAML and our own to the configuration of a run.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "aerie/base/env.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/config/dialects/mm/mm_args.h"
#include "aerie/config/schema/type_spec.h"
#include "aerie/config/yaml.h"
#include "aerie/models/bev/config/bev_loader.h"
#include "aerie/models/bev/config/bev_schema.h"

namespace aerie::bev {
namespace {

using config::KeySpec;
using config::Value;
using config::mm::MmArgs;
using config::mm::parse_mm_args;

Result<LoadedBevConfig> load(const std::vector<std::string>& args, int num_gpus = 1,
                             bool for_training = false) {
  AERIE_ASSIGN_OR_RETURN(const MmArgs parsed, parse_mm_args(args));
  BevLoadOptions options;
  options.num_gpus = num_gpus;
  options.for_training = for_training;
  return load_bev_config(Env::real(), parsed, options);
}

std::string preset(const std::string& suffix) {
  return config_dir(str_cat("/baseline/lss_swin_nuscenes", suffix, ".py"));
}

std::string warnings(const LoadedBevConfig& loaded) {
  std::string out;
  for (const config::Finding& finding : loaded.findings.warnings())
    out += finding.to_string() + "\n";
  return out;
}

class BevFilesTest : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    const std::string path = dir_.file(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    std::ofstream(path) << text;
    return path;
  }
  // An mm-style file with what every one needs, and `more`.
  Result<LoadedBevConfig> mm(const std::string& more, std::vector<std::string> args = {}) {
    args.insert(args.begin(), write("a.py", str_cat(kBody, more)));
    return load(args);
  }
  std::string error(const std::string& more, const std::vector<std::string>& args = {}) {
    const auto loaded = mm(more, args);
    return loaded.ok() ? "accepted" : loaded.status().to_string();
  }

  static constexpr const char* kBody =
      "model = dict(profile='seed')\n"
      "data = dict(samples_per_gpu=4, workers_per_gpu=2,\n"
      "  train=dict(type='NuScenesDataset', data_root='d'),\n"
      "  val=dict(type='NuScenesDataset', data_root='d'))\n"
      "optimizer = dict(type='AdamW', lr=2e-4, weight_decay=0.01)\n"
      "runner = dict(type='IterBasedRunner', max_iters=1000)\n"
      "evaluation = dict(interval=100, metric='mIoU')\n";
  TempDir dir_;
};

constexpr const char* kNative =
    "name: lss_swin_nuscenes_optimized\n"
    "trainer: {devices: [0], max_steps: 200000, step_unit: micro, precision: 16-mixed,\n"
    "          loss_scale: 512.0, accumulate_grad_batches: 1, gradient_clip_val: 35.0,\n"
    "          val_check_interval: 40000, check_val_every_n_epoch: null, log_every_n_steps: 50,\n"
    "          compile: {enabled: false, mode: reduce-overhead}}\n"
    "model:\n"
    "  profile: seed\n"
    "  classes: [drivable_area, ped_crossing, walkway, stop_line, carpark_area, divider]\n"
    "  train_ds: {root: data/nuscenes, version: v1.0-trainval, split: train, batch_size: 6,\n"
    "             num_workers: 12, pin_memory: true, persistent_workers: true, prefetch_factor: "
    "4,\n"
    "             decode: auto}\n"
    "  validation_ds: {split: val, batch_size: 1}\n"
    "  optim: {name: adamw, lr: 2.0e-4, lr_scaling: {rule: linear, base_batch: 4},\n"
    "          weight_decay: 0.01, sched: {name: poly, power: 1.0, warmup: linear,\n"
    "          warmup_iters: 1500, warmup_ratio: 1.0e-6}}\n"
    "  metrics: [mIoU]\n"
    "exp_manager: {explicit_log_dir: runs/baseline_optimized,\n"
    "  checkpoint_callback_params: {every_n_train_steps: 20000, save_top_k: 3}}\n";

TEST(BevPresetsTest, HaveTheGuidesValues) {
  struct Expected {
    const char* suffix;
    int64_t batch, workers;
    std::optional<int64_t> prefetch;
    double lr;
    bool half;
    int64_t interval;
  };
  const Expected kPresets[] = {{"", 4, 8, std::nullopt, 2e-4, false, 20000},
                               {"_optimized", 6, 12, 4, 3e-4, true, 40000},
                               {"_speed", 4, 16, 8, 2e-4, true, 40000},
                               {"_high_memory", 8, 8, std::nullopt, 4e-4, true, 40000}};
  for (const Expected& one : kPresets) {
    SCOPED_TRACE(one.suffix);
    const auto loaded = load({preset(one.suffix)}, 1, true);
    ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
    const BevRunConfig& run = loaded->run;
    EXPECT_EQ(run.data.train_ds.batch_size, one.batch);
    EXPECT_EQ(run.data.train_ds.num_workers, one.workers);
    EXPECT_EQ(run.data.train_ds.prefetch_factor, one.prefetch);
    EXPECT_TRUE(run.data.train_ds.persistent_workers);
    EXPECT_TRUE(run.data.train_ds.pin_memory);
    EXPECT_EQ(run.data.validation_ds->batch_size, 1);
    EXPECT_EQ(run.data.validation_ds->split_name(), "val");
    EXPECT_EQ(run.optim.lr, one.lr);
    EXPECT_EQ(run.optim.lr_scaling.rule, LrScalingRule::kNone);
    EXPECT_EQ(run.optim.kind, config::OptimizerKind::kAdamW);
    EXPECT_EQ(run.trainer.precision,
              one.half ? config::Precision::k16Mixed : config::Precision::k32);
    if (one.half) {
      EXPECT_FALSE(run.loss_scale.dynamic);
      EXPECT_EQ(run.loss_scale.initial, 512.0);
      EXPECT_NE(warnings(*loaded).find("efficient_test"), std::string::npos);
    }
    EXPECT_EQ(run.trainer.max_steps, 200000);
    EXPECT_EQ(run.aerie.step_unit, config::StepUnit::kMicro);
    EXPECT_EQ(run.trainer.accumulate_grad_batches, 1);
    EXPECT_EQ(run.trainer.val_check_interval.count, one.interval);
    EXPECT_FALSE(run.trainer.val_check_interval.is_fraction);
    EXPECT_FALSE(run.trainer.check_val_every_n_epoch.has_value());
    EXPECT_EQ(run.trainer.gradient_clip_val, 35.0);
    EXPECT_EQ(run.optim.rate->policy, optim::MmPolicy::kPoly);
    EXPECT_EQ(run.optim.rate->warmup_iters, 1500);
    EXPECT_EQ(run.optim.param_groups.custom_keys.size(), 2u);
    EXPECT_EQ(run.model.image_height, 128);
    EXPECT_EQ(run.model.num_depth_bins(), 59);
    EXPECT_EQ(run.data.train_ds.image.test_rule, nuscenes::TestRuleChoice::kLss);
    EXPECT_EQ(run.exp_manager.explicit_log_dir, str_cat("work_dirs/lss_swin_nuscenes", one.suffix));
    EXPECT_EQ(run.aerie.seed, 0u);
  }
}

TEST(BevPresetsTest, OtherProfilesLoad) {
  const auto bf = load({config_dir("/baseline/bevfusion_camera_nuscenes.py")}, 1, true);
  ASSERT_TRUE(bf.ok()) << bf.status().to_string();
  EXPECT_EQ(bf->run.model.image_width, 704);
  EXPECT_EQ(bf->run.model.network, BevNetwork::kFpn);
  EXPECT_EQ(bf->run.data.train_ds.sampler.type, nuscenes::SamplerType::kCbgs);
  EXPECT_EQ(bf->run.data.validation_ds->image.resize_lim[0], 0.48);
  EXPECT_EQ(bf->run.trainer.max_epochs, 20);
  EXPECT_EQ(bf->run.trainer.max_steps, -1);
  EXPECT_TRUE(bf->run.loss_scale.dynamic);
  EXPECT_EQ(bf->run.optim.rate->policy, optim::MmPolicy::kCyclic);
  EXPECT_FALSE(bf->run.optim.rate->by_epoch);
  EXPECT_EQ(bf->run.optim.momentum_rate->policy, optim::MmPolicy::kCyclic);
  const auto lss = load({config_dir("/baseline/lss_original_nuscenes.py")}, 1, true);
  ASSERT_TRUE(lss.ok()) << lss.status().to_string();
  EXPECT_EQ(lss->run.model.first_stage, 2);
  EXPECT_EQ(lss->run.model.num_depth_bins(), 41);
  EXPECT_EQ(lss->run.model.loss, MapLoss::kVehicle);
  EXPECT_EQ(lss->run.model.classes, std::vector<std::string>{"vehicle"});
  EXPECT_EQ(lss->run.data.train_ds.num_cameras, 5);
}

// It takes a GPU to run them.
TEST(BevPresetsTest, ProofsOfLearningLoad) {
  const auto loaded = load({config_dir("/../bench/learning_proofs.yaml"), "--cfg-options",
                            "model.train_ds.root=/town", "trainer.precision=16-mixed"},
                           1, true);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ(warnings(*loaded), "");
  EXPECT_EQ(loaded->run.data.validation_ds->root, "/town");
  EXPECT_EQ(loaded->run.trainer.max_steps, 1500);
  EXPECT_FALSE(load({config_dir("/../bench/learning_proofs.yaml")}, 1, true).ok());  // no root
}

TEST(BevPresetsTest, TakeTheGuidesCommandLine) {
  const auto loaded = load(
      {preset("_optimized"), "--work-dir", "runs/test_optimized", "--gpu-ids", "0", "--options",
       "runner.max_iters=100", "data.train.data_root=/x", "data.val.data_root=/x"},
      1, true);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ(loaded->run.trainer.max_steps, 100);
  EXPECT_EQ(loaded->run.data.train_ds.root, "/x");
  EXPECT_EQ(loaded->run.data.validation_ds->root, "/x");
  EXPECT_EQ(loaded->run.exp_manager.explicit_log_dir, "runs/test_optimized");
  EXPECT_EQ(loaded->run.trainer.devices.ids, std::vector<int64_t>{0});
  EXPECT_NE(warnings(*loaded).find("--options is deprecated"), std::string::npos);
  // Without a GPU the run is on the CPU in float32, and says so.
  const auto cpu = load({preset("_optimized"), "--gpu-ids", "0"}, 0, true);
  ASSERT_TRUE(cpu.ok()) << cpu.status().to_string();
  EXPECT_EQ(cpu->run.trainer.precision, config::Precision::k32);
  EXPECT_NE(warnings(*cpu).find("there is no GPU here"), std::string::npos);
  EXPECT_NE(warnings(*cpu).find("fp16 needs a GPU"), std::string::npos);
  const auto two = load({preset("_optimized"), "--gpus", "2"}, 0, true);
  ASSERT_TRUE(two.ok()) << two.status().to_string();
  EXPECT_NE(two->run.trainer.devices.count, 2);
  EXPECT_NE(warnings(*two).find("there is no GPU here"), std::string::npos);
}

TEST(MmArgsTest, FollowsMmseg) {
  const auto args = parse_mm_args({"c.py",
                                   "--work-dir=w",
                                   "--gpu-ids",
                                   "0",
                                   "1",
                                   "--seed",
                                   "3",
                                   "--cfg-options",
                                   "a=1",
                                   "b=[1,2]",
                                   "--deterministic",
                                   "--no-validate",
                                   "--auto-resume",
                                   "--launcher",
                                   "pytorch",
                                   "--local_rank",
                                   "0",
                                   "--load-from",
                                   "x.pth",
                                   "--diff_seed",
                                   "--model.encoders.camera.neck.out_channels",
                                   "128"});
  ASSERT_TRUE(args.ok()) << args.status().to_string();
  EXPECT_EQ(args->config, "c.py");
  EXPECT_EQ(args->gpu_ids, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(args->options, (std::vector<std::string>{"a=1", "b=[1,2]"}));
  EXPECT_EQ(args->seed, 3);
  EXPECT_EQ(args->changes.size(), 1u);
  EXPECT_TRUE(args->auto_resume && args->no_validate && args->deterministic && args->diff_seed);
  const auto error = [](const std::vector<std::string>& words) {
    return parse_mm_args(words).status().to_string();
  };
  EXPECT_NE(error({"c.py", "--options", "a=1", "--cfg-options", "b=1"}).find("cannot both"),
            std::string::npos);
  EXPECT_NE(error({"c.py", "--work-dr", "x"}).find("did you mean --work-dir?"), std::string::npos);
  EXPECT_NE(error({"c.py", "--no_validat"}).find("did you mean --no-validate?"), std::string::npos);
  // BEVFusion writes --load_from.
  EXPECT_EQ(parse_mm_args({"c.py", "--load_from", "y.pth"})->load_from, "y.pth");
  EXPECT_EQ(parse_mm_args({"--gpu_ids", "0", "c.yml"})->config, "c.yml");
  // Whether a key without a dot is one shows by the file, which is no value.
  EXPECT_EQ(parse_mm_args({"--max_epochs", "3", "c.yaml"})->changes.front(),
            (std::pair<std::string, std::string>("max_epochs", "3")));
  EXPECT_NE(error({"--optoins", "c.yaml"}).find("did you mean --options?"), std::string::npos);
  EXPECT_NE(error({"c.py", "--gpu-ids", "x"}).find("a whole number"), std::string::npos);
  EXPECT_NE(error({"c.py", "--launcher", "x"}).find("none, pytorch"), std::string::npos);
  EXPECT_NE(error({"c.py", "--cfg-options", "runner"}).find("KEY=VALUE"), std::string::npos);
  EXPECT_NE(error({"c.py", "--seed"}).find("needs a value"), std::string::npos);
  EXPECT_TRUE(config::mm::is_mm_command_line({"c.py"}));
  EXPECT_TRUE(config::mm::is_mm_command_line({"c.yaml", "--work-dir", "x"}));
  EXPECT_FALSE(config::mm::is_mm_command_line({"--config-name", "nest", "a=b.py"}));
}

TEST_F(BevFilesTest, AMissingFileNamesItsNeighbour) {
  write("camera_seg.py", kBody);
  const auto error_of = [&](const std::string& name) {
    return load({dir_.file(name)}).status().to_string();
  };
  EXPECT_NE(error_of("camera_sge.py").find("camera_seg.py?"), std::string::npos);
  EXPECT_NE(error_of("quite_another.py").find("presets are configs/baseline"), std::string::npos);
  EXPECT_NE(error_of("away/camera_seg.yaml").find("away either"), std::string::npos);
}

TEST_F(BevFilesTest, UnknownKeysNameTheNearest) {
  EXPECT_NE(error("data['x'] = 1\n").find("part of a value"), std::string::npos);
  EXPECT_NE(error("evaluation = dict(intervall=5)\n").find("did you mean 'evaluation.interval'?"),
            std::string::npos);
  EXPECT_NE(error("", {"--cfg-options", "data.sample_per_gpu=3"})
                .find("data.sample_per_gpu: unknown key (did you mean 'data.samples_per_gpu'?)"),
            std::string::npos);
  EXPECT_NE(error("optimiser = dict()\n").find("did you mean 'optimizer'?"), std::string::npos);
  EXPECT_NE(error("", {"--cfg-options", "model.profil=bf"}).find("did you mean"),
            std::string::npos);
  const auto allowed = mm("", {"--cfg-options", "data.sample_per_gpu=3", "--allow-unknown"});
  ASSERT_TRUE(allowed.ok()) << allowed.status().to_string();
  EXPECT_NE(warnings(*allowed).find("unknown key, not used"), std::string::npos);
  // A variable that nothing uses is said, one that is used is not.
  const auto variables = mm("scale = 2\nseed = scale * 3\nleft_over = 1\n");
  ASSERT_TRUE(variables.ok()) << variables.status().to_string();
  EXPECT_EQ(variables->run.aerie.seed, 6u);
  EXPECT_EQ(warnings(*variables).find("scale"), std::string::npos);
  EXPECT_NE(warnings(*variables).find("left_over"), std::string::npos);
}

TEST_F(BevFilesTest, LeftOverVariablesAreNoSlips) {
  const auto variables = mm(
      "grid_config = dict(x=1)\nmode = 'x'\nspeed = dict(a=1)\nnorm_cfg = dict(type='SyncBN')\n");
  ASSERT_TRUE(variables.ok()) << variables.status().to_string();
  for (const char* name : {"grid_config", "mode", "speed", "norm_cfg"})
    EXPECT_NE(warnings(*variables).find(name), std::string::npos) << name;
  EXPECT_NE(error("models = dict()\n").find("did you mean 'model'?"), std::string::npos);
  EXPECT_NE(error("sed = 5\n").find("did you mean 'seed'?"), std::string::npos);
}

TEST_F(BevFilesTest, WhatABaseSaidGoesByDelete) {
  const std::string sgd = "type='SGD', lr=0.01, momentum=0.9)\n";
  EXPECT_EQ(error("optimizer = dict(" + sgd), "accepted");
  const std::string betas = error("optimizer = dict(betas=(0.9, 0.99), " + sgd);
  EXPECT_NE(betas.find("optimizer.betas: SGD has no argument 'betas'"), std::string::npos) << betas;
  EXPECT_NE(betas.find("_delete_=True"), std::string::npos) << betas;
  EXPECT_NE(error("runner = dict(type='EpochBasedRunner', max_epochs=3, max_iters=4)\n")
                .find("_delete_=True"),
            std::string::npos);
  // Where there is nothing to delete it means nothing.
  EXPECT_EQ(
      error("model = dict(profile='seed', heads=dict(map=dict(_delete_=True, loss='xent')))\n"),
      "accepted");
  EXPECT_NE(error("runner = None\ntrain_cfg = dict(type='IterBasedTrainLoop', max_iters=9)\n")
                .find("train_cfg is mmengine's"),
            std::string::npos);
}

TEST_F(BevFilesTest, AccumulationHasThreeSpellings) {
  const auto count = [&](const std::string& more) {
    const auto loaded = mm(more);
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    return loaded.ok() ? loaded->run.trainer.accumulate_grad_batches : 0;
  };
  EXPECT_EQ(count("runner = dict(type='IterBasedRunner', max_iters=9, accumulative_counts=2)\n"),
            2);
  EXPECT_EQ(count("optimizer_config = dict(type='GradientCumulativeOptimizerHook', "
                  "cumulative_iters=3)\n"),
            3);
  EXPECT_EQ(count("optim_wrapper = dict(type='OptimWrapper', accumulative_counts=4)\n"), 4);
  // Two optimizers are not mixed.
  const std::string two = error("optim_wrapper = dict(optimizer=dict(type='SGD', lr=1.0))\n");
  EXPECT_NE(two.find("optim_wrapper.optimizer: there is an optimizer outside"), std::string::npos)
      << two;
  const auto wrapped =
      mm("optimizer = None\noptim_wrapper = dict(optimizer=dict(type='SGD', lr=0.5, "
         "momentum=0.9))\n");
  ASSERT_TRUE(wrapped.ok()) << wrapped.status().to_string();
  EXPECT_EQ(wrapped->run.optim.lr, 0.5);
  EXPECT_NE(error("runner = dict(type='IterBasedRunner', max_iters=9, accumulative_counts=2)\n"
                  "optimizer_config = dict(cumulative_iters=3)\n")
                .find("both mean trainer.accumulate_grad_batches"),
            std::string::npos);
}

TEST_F(BevFilesTest, HalfPrecisionHasManyForms) {
  const auto scale = [&](const std::string& more) {
    const auto loaded = mm(more);
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    if (!loaded.ok()) return LossScaleConfig();
    EXPECT_EQ(loaded->run.trainer.precision, config::Precision::k16Mixed);
    return loaded->run.loss_scale;
  };
  EXPECT_EQ(scale("fp16 = dict()\n").initial, 512.0);
  EXPECT_FALSE(scale("fp16 = dict(loss_scale=128.)\n").dynamic);
  EXPECT_EQ(scale("optimizer_config = dict(type='Fp16OptimizerHook', loss_scale=256.)\n").initial,
            256.0);
  EXPECT_TRUE(scale("fp16 = dict(loss_scale='dynamic')\n").dynamic);
  EXPECT_TRUE(scale("optim_wrapper = dict(type='AmpOptimWrapper')\n").dynamic);
  // mmseg's own files: the scale stands in the hook, and fp16 is an empty placeholder.
  EXPECT_TRUE(scale("optimizer_config = dict(type='Fp16OptimizerHook', loss_scale='dynamic')\n"
                    "fp16 = dict()\n")
                  .dynamic);
  EXPECT_EQ(scale("optimizer_config = dict(type='Fp16OptimizerHook', loss_scale=64.)\n"
                  "fp16 = dict()\n")
                .initial,
            64.0);
  EXPECT_EQ(scale("optimizer_config = dict(type='GradientCumulativeFp16OptimizerHook', "
                  "cumulative_iters=2)\nfp16 = dict(loss_scale=32.)\n")
                .initial,
            32.0);
  EXPECT_EQ(scale("optimizer_config = dict(type='Fp16OptimizerHook')\n").initial, 512.0);
  EXPECT_NE(error("optimizer_config = dict(type='Fp16OptimizerHook', loss_scale=64.)\n"
                  "fp16 = dict(loss_scale=32.)\n")
                .find("both mean aerie.loss_scale"),
            std::string::npos);
  const LossScaleConfig dict = scale(
      "fp16 = dict(loss_scale=dict(init_scale=1024., growth_factor=3., backoff_factor=0.25, "
      "growth_interval=7))\n");
  EXPECT_EQ(dict, (LossScaleConfig{true, 1024.0, 3.0, 0.25, 7}));
  EXPECT_NE(error("fp16 = dict(loss_scale=dict(growth=2))\n").find("unknown key"),
            std::string::npos);
  EXPECT_NE(error("fp16 = dict(loss_scale='dynamik')\n").find("dynamic"), std::string::npos);
}

TEST_F(BevFilesTest, KeysThatTheEngineReads) {
  const auto loaded = mm(
      "", {"--cfg-options", "model.encoders.camera.backbone.with_cp=True", "model.norm_eval=True",
           "evaluation.start=7", "optimizer.paramwise_cfg.custom_keys.backbone.lr_mult=0.1",
           "optimizer.paramwise_cfg.custom_keys.norm.decay_mult=0."});
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const BevRunConfig& run = loaded->run;
  EXPECT_TRUE(run.aerie.activation_checkpointing);
  EXPECT_TRUE(run.model.norm_eval);
  EXPECT_EQ(run.aerie.eval_start, 7);
  ASSERT_EQ(run.optim.param_groups.custom_keys.size(), 2u);
  for (const ParamRule& rule : run.optim.param_groups.custom_keys) {
    EXPECT_EQ(rule.lr_mult, rule.part == "backbone" ? 0.1 : 1.0);
    EXPECT_EQ(rule.decay_mult, rule.part == "norm" ? std::optional(0.0) : std::nullopt);
  }
}

TEST_F(BevFilesTest, LearningRateFollowsTheBatch) {
  const auto rate = [&](const std::string& scaling, int batch, const std::string& more = "") {
    const auto loaded =
        mm(str_cat("optimizer = dict(type='AdamW', lr=2e-4, lr_scaling=", scaling, ")\n", more),
           {"--cfg-options", str_cat("data.samples_per_gpu=", batch)});
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    return loaded.ok() ? loaded->run.optim.lr : 0.0;
  };
  const std::string linear = "dict(rule='linear', base_batch=4)";
  EXPECT_DOUBLE_EQ(rate(linear, 4), 2e-4);
  EXPECT_DOUBLE_EQ(rate(linear, 6), 3e-4);
  EXPECT_DOUBLE_EQ(rate(linear, 8), 4e-4);
  EXPECT_DOUBLE_EQ(rate("dict(rule='sqrt', base_batch=4)", 16), 4e-4);
  const std::string twice =
      "runner = dict(type='IterBasedRunner', max_iters=9, accumulative_counts=2)\n";
  EXPECT_DOUBLE_EQ(rate(linear, 4, twice), 4e-4);
  EXPECT_DOUBLE_EQ(rate("dict(rule='linear', base_batch=4, count_accumulation=False)", 4, twice),
                   2e-4);
  EXPECT_DOUBLE_EQ(rate("dict(rule='none')", 64), 2e-4);
  // Short for its rule.
  EXPECT_DOUBLE_EQ(rate("'linear'", 6), 3e-4);
  EXPECT_DOUBLE_EQ(rate("'sqrt'", 16), 4e-4);
  EXPECT_NE(error("optimizer = dict(type='AdamW', lr=2e-4, lr_scaling='lineer')\n").find("linear"),
            std::string::npos);
  const auto said = mm("optimizer = dict(type='AdamW', lr=2e-4, lr_scaling='linear')\n",
                       {"--cfg-options", "data.samples_per_gpu=8"});
  ASSERT_TRUE(said.ok()) << said.status().to_string();
  EXPECT_EQ(said->notes.back(), "learning rate 4e-04 = 2e-04 x batch 8 / 4");
  // Every process has a batch of its own.
  const auto many = load({dir_.file("a.py"), "--gpu-ids", "0", "1", "--cfg-options",
                          "data.samples_per_gpu=8", "trainer.num_nodes=3"},
                         2);
  ASSERT_TRUE(many.ok()) << many.status().to_string();
  EXPECT_DOUBLE_EQ(many->run.optim.lr, 2e-4 * 8 * 6 / 4);
  EXPECT_EQ(many->notes.back(), "learning rate 0.0024 = 2e-04 x batch 8 x 6 devices / 4");
}

TEST_F(BevFilesTest, OlderNamesOfTheLengthGiveWayToTheRunner) {
  const auto said = [&](const std::string& more) {
    const auto loaded = mm(more);
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    if (!loaded.ok()) return std::string();
    EXPECT_EQ(loaded->run.trainer.max_steps, 1000);
    return warnings(*loaded);
  };
  EXPECT_EQ(said("total_iters = 1000\n").find("total_iters"), std::string::npos);
  EXPECT_NE(said("total_iters = 7\n").find("total_iters: is not used"), std::string::npos);
  EXPECT_NE(said("total_epochs = 7\n").find("total_epochs: is not used"), std::string::npos);
  const auto old = mm("runner = None\ntotal_epochs = 3\n");
  ASSERT_TRUE(old.ok()) << old.status().to_string();
  EXPECT_EQ(old->run.trainer.max_epochs, 3);
}

TEST_F(BevFilesTest, GradientsAreClippedByAnyNorm) {
  const auto norm = [&](const std::string& type) {
    const auto loaded =
        mm(str_cat("optimizer_config = dict(grad_clip=dict(max_norm=5", type, "))\n"));
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    return loaded.ok() ? loaded->run.clip_norm_type : 0.0;
  };
  EXPECT_EQ(norm(""), 2.0);
  EXPECT_EQ(norm(", norm_type=1"), 1.0);
  EXPECT_TRUE(std::isinf(norm(", norm_type='inf'")));
  EXPECT_NE(error("optimizer_config = dict(grad_clip=dict(max_norm=5, norm_type=0))\n")
                .find("gradient_clip_norm_type"),
            std::string::npos);
  EXPECT_NE(error("optimizer_config = dict(grad_clip=dict(max_norm=5, norm_type=1))\n"
                  "aerie = dict(shard_optimizer=True)\n")
                .find("shard the optimizer"),
            std::string::npos);
}

TEST_F(BevFilesTest, PoliciesKeepTheirArguments) {
  const auto policy = [&](const std::string& arguments) {
    const auto loaded = mm(str_cat("lr_config = dict(", arguments, ")\n"));
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    return loaded.ok() ? *loaded->run.optim.rate : optim::MmPolicyConfig();
  };
  EXPECT_FALSE(policy("policy='poly', power=0.9, min_lr=1e-4").by_epoch);
  EXPECT_EQ(policy("policy='poly', power=0.9, min_lr=1e-4").min_value, 1e-4);
  EXPECT_TRUE(policy("policy='step', step=[3, 5], by_epoch=True").by_epoch);
  EXPECT_TRUE(policy("policy='step', step=7").step_is_interval);
  EXPECT_EQ(policy("policy='cyclic', target_ratio=(5, 1e-3)").target_ratio,
            (std::array{5.0, 1e-3}));
  EXPECT_EQ(policy("policy='cyclic', target_ratio=8.0").target_ratio, (std::array{8.0, 8.0 / 1e5}));
  EXPECT_EQ(policy("policy='onecycle', max_lr=0.1").policy, optim::MmPolicy::kOneCycle);
  EXPECT_EQ(
      policy("policy='CosineAnnealing', min_lr_ratio=0.1, warmup='exp', warmup_iters=5").warmup,
      optim::MmWarmup::kExp);
  EXPECT_NE(error("lr_config = dict(policy='poli')\n").find("did you mean 'poly'?"),
            std::string::npos);
  EXPECT_NE(
      error("lr_config = dict(policy='poly', gamma=2)\n").find("lr_config.gamma: unknown key"),
      std::string::npos);
  EXPECT_NE(error("lr_config = dict(policy='CosineAnnealing')\n").find("min_lr or min_lr_ratio"),
            std::string::npos);
  EXPECT_NE(
      error("lr_config = dict(policy='step', step=3, warmup='linear')\n").find("warmup_iters"),
      std::string::npos);
}

// mmcv's hooks of momentum have other defaults than those of rates.
TEST_F(BevFilesTest, MomentumHasItsOwnDefaults) {
  const auto momentum = [&](const std::string& arguments) {
    const auto loaded = mm(str_cat("momentum_config = dict(", arguments, ")\n"));
    EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
    return loaded.ok() ? *loaded->run.optim.momentum_rate : optim::MmPolicyConfig();
  };
  EXPECT_EQ(momentum("policy='step', step=[3], warmup='exp', warmup_iters=2").warmup_ratio, 0.9);
  EXPECT_EQ(momentum("policy='step', step=[3], warmup='exp', warmup_iters=2, warmup_ratio=0.95")
                .warmup_ratio,
            0.95);
  const auto rate = mm("lr_config = dict(policy='fixed', warmup='linear', warmup_iters=2)\n");
  ASSERT_TRUE(rate.ok()) << rate.status().to_string();
  EXPECT_EQ(rate->run.optim.rate->warmup_ratio, 0.1);
}

TEST_F(BevFilesTest, PipelinesBecomeKeys) {
  const auto loaded =
      mm("pipeline = [dict(type='LoadPointsFromFile', load_dim=5),\n"
         "  dict(type='ImageAug3D', final_dim=[64, 176], resize_lim=[0.1, 0.2], rot_lim=[-1, 1],\n"
         "       bot_pct_lim=[0.0, 0.1], rand_flip=False, is_train=True),\n"
         "  dict(type='GlobalRotScaleTrans', resize_lim=[1, 1.5], rot_lim=[-0.1, 0.1], "
         "trans_lim=0.25,\n"
         "       is_train=True),\n"
         "  dict(type='LoadBEVSegmentation', classes=['divider', 'walkway'])]\n"
         "data = dict(train=dict(type='RepeatDataset', times=3, dataset=dict(\n"
         "  type='CBGSDataset', dataset=dict(type='NuScenesDataset', pipeline=pipeline,\n"
         "  ann_file='x/nuscenes_infos_train.pkl'))))\n");
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const nuscenes::DataConfig& train = loaded->run.data.train_ds;
  EXPECT_EQ(train.image.size, (std::array<int64_t, 2>{64, 176}));
  EXPECT_EQ(loaded->run.model.image_height, 64);
  EXPECT_FALSE(train.image.rand_flip);
  EXPECT_EQ(train.bev.trans_std, 0.25);
  EXPECT_FALSE(train.bev.flip_horizontal);
  EXPECT_EQ(train.sampler.type, nuscenes::SamplerType::kCbgs);
  EXPECT_EQ(train.sampler.repeat, 3);
  EXPECT_EQ(train.root, "x");
  EXPECT_EQ(train.split, "train");
  EXPECT_EQ(loaded->run.model.classes, (std::vector<std::string>{"divider", "walkway"}));
  EXPECT_NE(warnings(*loaded).find("info files (.pkl)"), std::string::npos);
  EXPECT_NE(join(loaded->notes, "\n").find("LoadPointsFromFile"), std::string::npos);
  const auto step = [&](const std::string& one) {
    return error(str_cat("data = dict(train=dict(type='NuScenesDataset', data_root='d', pipeline=[",
                         one, "]))\n"));
  };
  EXPECT_NE(step("dict(type='ImageAug3d')").find("did you mean 'ImageAug3D'?"), std::string::npos);
  EXPECT_NE(step("dict(type='ImageNormalize', mean=[0, 0, 0], std=[1, 1, 1])").find("ImageNet"),
            std::string::npos);
  EXPECT_NE(step("dict(type='GridMask', prob=0.7)").find("GridMask"), std::string::npos);
  EXPECT_EQ(step("dict(type='GridMask', prob=0.0)"), "accepted");
  const auto set = [&](const std::string& more) {
    return error(
        str_cat("data = dict(train=dict(type='NuScenesDataset', data_root='d', ", more, "))\n"));
  };
  // BEVFusion names the folder of maps again; the data set's own wins, and is said.
  const auto roots = [&](const std::string& more) {
    return mm(
        str_cat("pipeline = [dict(type='LoadBEVSegmentation', dataset_root='maps/')]\n"
                "data = dict(train=dict(_delete_=True, type='NuScenesDataset', "
                "pipeline=pipeline, ",
                more, "))\n"));
  };
  const auto two = roots("dataset_root='own'");
  ASSERT_TRUE(two.ok()) << two.status().to_string();
  EXPECT_EQ(two->run.data.train_ds.root, "own");
  EXPECT_NE(warnings(*two).find("pipeline.0.dataset_root: is not used"), std::string::npos)
      << warnings(*two);
  const auto same = roots("dataset_root='maps'");
  ASSERT_TRUE(same.ok()) << same.status().to_string();
  EXPECT_EQ(warnings(*same).find("is not used: maps"), std::string::npos) << warnings(*same);
  const auto infos = roots("ann_file='infos/x_train.pkl'");
  ASSERT_TRUE(infos.ok()) << infos.status().to_string();
  EXPECT_EQ(infos->run.data.train_ds.root, "maps/");
  const auto batch =
      mm("data = dict(val=dict(samples_per_gpu=3), test=dict(type='NuScenesDataset', "
         "data_root='d', samples_per_gpu=5, split='val'))\n");
  ASSERT_TRUE(batch.ok()) << batch.status().to_string();
  EXPECT_EQ(batch->run.data.validation_ds->batch_size, 3);
  EXPECT_EQ(batch->run.data.test_ds->batch_size, 5);
  // Told where the key stands, not the dict around it.
  const std::string runner = error("", {"--cfg-options", "runner.type=IterBasedRuner"});
  EXPECT_NE(runner.find("command line: runner.type=IterBasedRuner: runner.type: there is no"),
            std::string::npos)
      << runner;
  // An option for a variable changes nothing, here as in mmcv; it is told.
  const auto variable =
      mm("steps = [dict(type='RandomFlip3D')]\n"
         "data = dict(train=dict(pipeline=steps))\n",
         {"--cfg-options", "steps.0.flip_ratio_bev_vertical=0.0"});
  ASSERT_TRUE(variable.ok()) << variable.status().to_string();
  EXPECT_NE(warnings(*variable).find("steps: is a variable of the file"), std::string::npos)
      << warnings(*variable);
  // What a set says of its loader wins over what holds for all.
  const auto own =
      mm("data = dict(samples_per_gpu=4, workers_per_gpu=8, drop_last=True, "
         "train=dict(batch_size=2, drop_last=False), val=dict(num_workers=3))\n");
  ASSERT_TRUE(own.ok()) << own.status().to_string();
  EXPECT_EQ(own->run.data.train_ds.batch_size, 2);
  EXPECT_EQ(own->run.data.train_ds.num_workers, 8);
  EXPECT_FALSE(own->run.data.train_ds.drop_last);
  EXPECT_EQ(own->run.data.validation_ds->num_workers, 3);
  EXPECT_EQ(set("load_interval=1"), "accepted");
  // A list of scenes wins over the split that a base names.
  const auto listed = mm("data = dict(train=dict(split='train', ann_file='mine.txt'))\n");
  ASSERT_TRUE(listed.ok()) << listed.status().to_string();
  EXPECT_EQ(listed->run.data.train_ds.split_name(), "listed");
  EXPECT_EQ(listed->run.data.train_ds.splits.at("listed"), "mine.txt");
  EXPECT_NE(warnings(*listed).find("data.train.split: is not used"), std::string::npos)
      << warnings(*listed);
  EXPECT_NE(set("load_interval=5").find("only 1 is there"), std::string::npos);
}

// What mmseg's and mmdet's files say of Swin.
TEST_F(BevFilesTest, SwinIsWrittenAsMmsegDoes) {
  const std::string swin =
      "model = dict(encoders=dict(camera=dict(backbone=dict(type='SwinTransformer', "
      "pretrain_img_size=224, in_channels=3, embed_dims=96, patch_size=4, window_size=7, "
      "mlp_ratio=4, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], strides=(4, 2, 2, 2), "
      "out_indices=(1, 2, 3), qkv_bias=True, qk_scale=None, patch_norm=True, drop_rate=0., "
      "attn_drop_rate=0., drop_path_rate=0.3, use_abs_pos_embed=False, act_cfg=dict(type='GELU'), "
      "norm_cfg=dict(type='LN', requires_grad=True), with_cp=False, pretrained=None, "
      "frozen_stages=-1, init_cfg=None))))\n";
  EXPECT_EQ(error(swin), "accepted");
  const auto with = [&](const std::string& option) {
    return error(swin, {"--cfg-options", "model.encoders.camera.backbone." + option});
  };
  EXPECT_NE(with("patch_size=2").find("4 x 4"), std::string::npos) << with("patch_size=2");
  EXPECT_NE(with("frozen_stages=2").find("lr_mult=0"), std::string::npos);
  EXPECT_NE(with("use_abs_pos_embed=True").find("relative biases alone"), std::string::npos);
  EXPECT_NE(with("pretrained=w.pth").find("init_cfg.checkpoint"), std::string::npos);
}

TEST_F(BevFilesTest, YamlMayHaveBasesToo) {
  write("base.py", kBody);
  const std::string child =
      write("child.yaml", "_base_: base.py\noptimizer: {lr: 3.0e-4}\nseed: 5\n");
  EXPECT_TRUE(is_bev_command_line(Env::real(), {child}));
  const auto loaded = load({child, "--cfg-options", "data.samples_per_gpu=6"});
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ(loaded->run.optim.lr, 3e-4);
  EXPECT_EQ(loaded->run.aerie.seed, 5u);
  EXPECT_EQ(loaded->run.data.train_ds.batch_size, 6);
  EXPECT_EQ(loaded->files.size(), 2u);
  EXPECT_NE(load({write("lost.yaml", "_base_: nowhere.py\n")})
                .status()
                .to_string()
                .find("does not exist"),
            std::string::npos);
  // Our own keys inherit the same way.
  write("own.yaml", kNative);
  // A slip that would leave out a node; other names are variables, as in Hydra's files.
  std::string slip = kNative;
  slip.replace(slip.find("trainer:"), 8, "traner:");
  const auto refused = load({write("slip.yaml", slip)});
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().to_string().find("traner: unknown key (did you mean 'trainer'?)"),
            std::string::npos)
      << refused.status().to_string();
  EXPECT_TRUE(load({dir_.file("slip.yaml"), "--allow-unknown"}).ok());
  const auto variables = load({write("more.yaml", str_cat(kNative, "trainee: 3\nown: {a: 1}\n"))});
  EXPECT_TRUE(variables.ok()) << variables.status().to_string();
  const auto own =
      load({write("wide.yaml", "_base_: own.yaml\nmodel: {train_ds: {batch_size: 8}}\n")});
  ASSERT_TRUE(own.ok()) << own.status().to_string();
  EXPECT_DOUBLE_EQ(own->run.optim.lr, 4e-4);
}

TEST_F(BevFilesTest, ConvertedFilesMeanTheSame) {
  for (const char* suffix : {"", "_optimized", "_speed", "_high_memory"}) {
    SCOPED_TRACE(suffix);
    const auto python = load({preset(suffix)});
    ASSERT_TRUE(python.ok()) << python.status().to_string();
    const auto yaml = config::emit_yaml(python->native);
    ASSERT_TRUE(yaml.ok());
    const auto again = load({write("native.yaml", *yaml)});
    ASSERT_TRUE(again.ok()) << again.status().to_string() << *yaml;
    EXPECT_EQ(again->resolved, python->resolved);
    EXPECT_EQ(again->run.data.train_ds, python->run.data.train_ds);
    EXPECT_EQ(again->run.optim.rate, python->run.optim.rate);
    EXPECT_TRUE(is_bev_command_line(Env::real(), {dir_.file("native.yaml")}));
  }
  EXPECT_FALSE(is_bev_command_line(Env::real(), {config_dir("/nest/nest_fast-conformer.yaml")}));
}

TEST_F(BevFilesTest, OurOwnYamlLoads) {
  const auto loaded = load({write("own.yaml", kNative)}, 1, true);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_DOUBLE_EQ(loaded->run.optim.lr, 3e-4);
  EXPECT_EQ(loaded->run.aerie.step_unit, config::StepUnit::kMicro);
  EXPECT_EQ(loaded->run.loss_scale.initial, 512.0);
  EXPECT_EQ(loaded->run.data.validation_ds->root, "data/nuscenes");
  EXPECT_NE(join(loaded->notes, "\n").find("2e-04 x batch 6 / 4"), std::string::npos)
      << join(loaded->notes, "\n");
  const auto error_of = [&](const std::string& option) {
    const auto bad = load({write("own.yaml", kNative), "--cfg-options", option});
    return bad.ok() ? "accepted" : bad.status().to_string();
  };
  EXPECT_NE(error_of("model.optim.sched.powr=2").find("did you mean"), std::string::npos);
  EXPECT_NE(error_of("model.encoders.camera.vtransform.xbound=[-50,50,0.3]").find("xbound"),
            std::string::npos);
  EXPECT_NE(error_of("model.encoders.camera.neck.in_channels=[1,2,3]").find("imply"),
            std::string::npos);
  EXPECT_NE(error_of("model.train_ds.gt.xbound=[-30,30,0.5]").find("the model's map has"),
            std::string::npos);
  EXPECT_NE(error_of("model.encoders.camera.backbone.num_heads=[5,5,5,5]").find("heads"),
            std::string::npos);
  EXPECT_NE(error_of("model.heads.map.classes=[divider]").find("write them once"),
            std::string::npos);
  const auto narrow = load({write("own.yaml", kNative), "--cfg-options",
                            "model.encoders.camera.neck.out_channels=64",
                            "model.encoders.camera.backbone.depths=[1,1,1,1]"});
  ASSERT_TRUE(narrow.ok()) << narrow.status().to_string();
  EXPECT_EQ(narrow->run.model.neck_channels, 64);
}

TEST_F(BevFilesTest, BevFusionYamlLoads) {
  write(
      "configs/default.yaml",
      "seed: 0\ndeterministic: false\n"
      "checkpoint_config: {interval: 1, max_keep_ckpts: 1}\n"
      "log_config: {interval: 50, hooks: [{type: TextLoggerHook}, {type: TensorboardLoggerHook}]}\n"
      "load_from: null\nresume_from: null\ncudnn_benchmark: false\n"
      "fp16: {loss_scale: {growth_interval: 2000}}\nmax_epochs: 20\n"
      "runner: {type: CustomEpochBasedRunner, max_epochs: '${max_epochs}'}\n");
  write(
      "configs/nuscenes/default.yaml",
      "dataset_type: NuScenesDataset\ndataset_root: data/nuscenes/\n"
      "image_size: [256, 704]\n"
      "augment2d: {resize: [[0.38, 0.55], [0.48, 0.48]], rotate: [-5.4, 5.4]}\n"
      "augment3d: {scale: [0.9, 1.1], rotate: [-0.78539816, 0.78539816], translate: 0.5}\n"
      "map_classes: [drivable_area, ped_crossing, walkway, stop_line, carpark_area, divider]\n"
      "train_pipeline:\n"
      "  - {type: LoadMultiViewImageFromFiles, to_float32: true}\n"
      "  - {type: ImageAug3D, final_dim: '${image_size}', resize_lim: '${augment2d.resize[0]}',\n"
      "     bot_pct_lim: [0.0, 0.0], rot_lim: '${augment2d.rotate}', rand_flip: true,\n"
      "     is_train: true}\n"
      "  - {type: GlobalRotScaleTrans, resize_lim: '${augment3d.scale}',\n"
      "     rot_lim: '${augment3d.rotate}', trans_lim: '${augment3d.translate}', is_train: true}\n"
      "  - {type: LoadBEVSegmentation, dataset_root: '${dataset_root}',\n"
      "     xbound: [-50.0, 50.0, 0.5], ybound: [-50.0, 50.0, 0.5], classes: '${map_classes}'}\n"
      "  - {type: RandomFlip3D}\n"
      "data:\n  samples_per_gpu: 4\n  workers_per_gpu: 4\n"
      "  train: {type: CBGSDataset, dataset: {type: '${dataset_type}',\n"
      "    dataset_root: '${dataset_root}', pipeline: '${train_pipeline}', test_mode: false,\n"
      "    ann_file: '${dataset_root + \"nuscenes_infos_train.pkl\"}'}}\n"
      "  val: {type: '${dataset_type}', dataset_root: '${dataset_root}',\n"
      "    ann_file: '${dataset_root + \"nuscenes_infos_val.pkl\"}', test_mode: true}\n"
      "evaluation: {interval: 1}\n");
  const std::string leaf = write(
      "configs/nuscenes/seg/camera.yaml",
      "model:\n  type: BEVFusion\n  encoders:\n    camera:\n"
      "      backbone: {type: SwinTransformer, embed_dims: 96, depths: [2, 2, 6, 2],\n"
      "        num_heads: [3, 6, 12, 24], window_size: 7, mlp_ratio: 4, qkv_bias: true,\n"
      "        qk_scale: null, drop_rate: 0.0, attn_drop_rate: 0.0, drop_path_rate: 0.3,\n"
      "        patch_norm: true, out_indices: [1, 2, 3], with_cp: false, convert_weights: true}\n"
      "      neck: {type: GeneralizedLSSFPN, in_channels: [192, 384, 768], out_channels: 256,\n"
      "        start_level: 0, num_outs: 3, norm_cfg: {type: BN2d}, act_cfg: {type: ReLU}}\n"
      "      vtransform: {type: LSSTransform, in_channels: 256, out_channels: 80,\n"
      "        image_size: '${image_size}',\n"
      "        feature_size: '${[image_size[0] // 8, image_size[1] // 8]}',\n"
      "        xbound: [-51.2, 51.2, 0.4], ybound: [-51.2, 51.2, 0.4],\n"
      "        zbound: [-10.0, 10.0, 20.0], dbound: [1.0, 60.0, 0.5], downsample: 2}\n"
      "    lidar: null\n  fuser: null\n"
      "  decoder:\n"
      "    backbone: {type: GeneralizedResNet, in_channels: 80,\n"
      "      blocks: [[2, 160, 2], [2, 320, 2], [2, 640, 1]]}\n"
      "    neck: {type: LSSFPN, in_indices: [-1, 0], in_channels: [640, 160], out_channels: 256,\n"
      "      scale_factor: 2}\n"
      "  heads:\n    object: null\n"
      "    map: {type: BEVSegmentationHead, in_channels: 256, classes: '${map_classes}',\n"
      "      loss: focal, grid_transform: {input_scope: [[-51.2, 51.2, 0.8], [-51.2, 51.2, 0.8]],\n"
      "      output_scope: [[-50, 50, 0.5], [-50, 50, 0.5]]}}\n"
      "optimizer: {type: AdamW, lr: 1.0e-4, weight_decay: 0.01}\n"
      "optimizer_config: {grad_clip: {max_norm: 35, norm_type: 2}}\n"
      "lr_config: {policy: cyclic}\nmomentum_config: {policy: cyclic}\n");
  EXPECT_TRUE(is_bev_command_line(Env::real(), {leaf}));
  const auto loaded = load({leaf, "--run-dir", "runs/x", "--model.heads.map.loss", "xent",
                            "--data.samples_per_gpu", "2"},
                           1, true);
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  EXPECT_EQ(loaded->files.size(), 3u);
  EXPECT_EQ(loaded->run.model.profile, "bf");
  EXPECT_EQ(loaded->run.model.loss, MapLoss::kCrossEntropy);
  EXPECT_EQ(loaded->run.model.map_height(), 200);
  EXPECT_EQ(loaded->run.data.train_ds.batch_size, 2);
  EXPECT_EQ(loaded->run.data.train_ds.image.resize_lim[1], 0.55);
  EXPECT_EQ(loaded->run.data.train_ds.root, "data/nuscenes/");
  EXPECT_EQ(loaded->run.data.validation_ds->split, "val");
  EXPECT_EQ(loaded->run.trainer.max_epochs, 20);
  EXPECT_EQ(loaded->run.exp_manager.explicit_log_dir, "runs/x");
  const auto bad = load({leaf, "--model.heads.map.classes", "${open('x')}"});
  EXPECT_NE(bad.status().to_string().find("a call of 'open' is not allowed"), std::string::npos);
  const auto two = load({leaf, "--max_epochs", "2", "--load_from", "w.pth"});
  ASSERT_TRUE(two.ok()) << two.status().to_string();
  EXPECT_EQ(two->run.trainer.max_epochs, 2);
  EXPECT_EQ(warnings(*two).find("is a variable"), std::string::npos) << warnings(*two);
  EXPECT_EQ(two->run.load_from, "w.pth");
  EXPECT_NE(load({leaf, "--option", "a=2"}).status().to_string().find("did you mean --options?"),
            std::string::npos);
  const auto circle = load({leaf, "--seed.a", "1", "--max_epochs.b", "2"});
  EXPECT_FALSE(circle.ok());
}

TEST(BevSchemaTest, RowsAreWellFormedAndUnique) {
  std::set<std::string_view> seen;
  for (const KeySpec* key : bev_schema().all_keys()) {
    SCOPED_TRACE(std::string(key->path));
    EXPECT_TRUE(seen.insert(key->path).second);
    EXPECT_FALSE(key->help.empty());
    const config::TypeSpec type = config::TypeSpec::parse(key->type);
    if (!key->range.empty()) config::RangeSpec::parse(key->range);
    if (key->default_value.empty() || key->default_value == config::kRequired) continue;
    EXPECT_TRUE(type.accepts(config::default_of(*key))) << key->default_value;
  }
  EXPECT_GT(seen.size(), 250u);
}

TEST(BevSchemaTest, DocumentationIsInStep) {
  std::ifstream file(config_dir("/../docs/config_bev.md"));
  ASSERT_TRUE(file.good());
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), bev_keys_markdown())
      << "run: aerie config keys --family bev --markdown > docs/config_bev.md";
}

}  // namespace
}  // namespace aerie::bev
