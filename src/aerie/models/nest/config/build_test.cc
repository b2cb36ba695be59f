#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/base/testing/paths.h"
#include "aerie/config/schema/devices.h"
#include "aerie/config/schema/key_table.h"
#include "aerie/config/schema/value_parsers.h"
#include "aerie/data/speech/config/speech_schema.h"
#include "aerie/models/nest/config/nest_schema.h"
#include "aerie/models/nest/config/run_config.h"
#include "aerie/models/nest/config/test_util.h"

namespace aerie::config {
namespace {

// The struct's initialisers and the table's defaults are two lists of the same facts.
TEST(BuildTest, TableDefaultsAreTheStructsDefaults) {
  Value tree{Map()};
  for (const KeySpec* key : nest_schema().all_keys()) {
    std::string path(key->path);
    if (key->default_value.empty() || key->default_value == kRequired) continue;
    if (path.find('*') != std::string::npos || path.find("._target_") != std::string::npos)
      continue;
    // Subtrees that must stay absent to mean "not there", and schedules, whose name is required.
    if (starts_with(path, "model.<ds>.augmentor") || starts_with(path, "model.optim.args") ||
        starts_with(path, "model.optim.sched") || starts_with(path, "trainer.strategy."))
      continue;
    const size_t ds = path.find("<ds>");
    if (ds != std::string::npos) path.replace(ds, 4, "train_ds");
    Value value = default_of(*key);
    if (value.is_null() && (ends_with(path, "batch_augmentor"))) continue;
    const Value* existing = tree.find(path);
    if (existing != nullptr && existing->is_map()) continue;  // a group's own null default
    ASSERT_TRUE(tree.set(path, std::move(value)).ok()) << path;
  }
  const auto built = build_run_config(tree);
  ASSERT_TRUE(built.ok()) << built.status().to_string();
  RunConfig expected;
  expected.exp_manager.present = true;
  // Both written and absent adamw differ: the table's name default is adam.
  RunConfig actual = *built;
  actual.model.train_ds.batch_augmentor.reset();
  actual.model.train_ds.manifest_filepath.origin.clear();
  actual.model.train_ds.noise_manifest.origin.clear();
  actual.model.train_ds.tarred_audio_filepaths.origin.clear();
  EXPECT_EQ(actual.model.train_ds.seed, 0);
  actual.model.train_ds.seed.reset();
  EXPECT_TRUE(actual.model.preprocessor == expected.model.preprocessor);
  EXPECT_TRUE(actual.model.encoder == expected.model.encoder);
  EXPECT_TRUE(actual.model.masking == expected.model.masking);
  EXPECT_TRUE(actual.model.quantizer == expected.model.quantizer);
  EXPECT_TRUE(actual.model.decoder == expected.model.decoder);
  EXPECT_TRUE(actual.model.loss == expected.model.loss);
  EXPECT_TRUE(actual.model.spec_augment == expected.model.spec_augment);
  EXPECT_TRUE(actual.model.optim == expected.model.optim);
  EXPECT_TRUE(actual.model.train_ds == expected.model.train_ds);
  EXPECT_TRUE(actual.trainer == expected.trainer);
  EXPECT_TRUE(actual.exp_manager == expected.exp_manager);
  EXPECT_TRUE(actual.aerie == expected.aerie);
  EXPECT_TRUE(actual.model == expected.model);
  EXPECT_TRUE(actual.init_from == expected.init_from);
}

TEST(BuildTest, EmptyTreeGivesTheDefaults) {
  const auto built = build_run_config(Value(Map()));
  ASSERT_TRUE(built.ok());
  EXPECT_TRUE(*built == RunConfig());
}

TEST(BuildTest, StockFileFillsTheStructs) {
  const Checked checked = check_stock({});
  ASSERT_TRUE(checked.ok()) << checked.errors();
  const ModelConfig& model = checked.run.model;
  EXPECT_EQ(checked.run.name, "SSL-NEST-FastConformer");
  EXPECT_EQ(model.num_classes, 8192);
  EXPECT_EQ(model.preprocessor.win_length(), 400);
  EXPECT_EQ(model.preprocessor.hop_length(), 160);
  EXPECT_EQ(model.preprocessor.fft_size(), 512);
  EXPECT_EQ(model.preprocessor.features, 80);
  EXPECT_EQ(model.preprocessor.dither, 1e-5);
  EXPECT_EQ(model.masking.feat_in, 80);
  EXPECT_EQ(model.masking.mask_prob, 0.01);
  EXPECT_TRUE(model.masking.allow_overlap);
  EXPECT_EQ(model.quantizer.combine_time_steps, 8);
  EXPECT_EQ(model.quantizer.dist_fn, QuantizerDistance::kL2);
  EXPECT_EQ(model.encoder.subsampling, Subsampling::kDwStriding);
  EXPECT_EQ(model.encoder.conv_channels(), 256);
  EXPECT_EQ(model.encoder.conv_context(), (std::array<int64_t, 2>{4, 4}));
  EXPECT_EQ(model.encoder.dropout_emb, 0.0);
  EXPECT_EQ(model.decoder.feat_in, 512);
  EXPECT_TRUE(model.decoder.use_bias);
  EXPECT_EQ(model.loss.mask_threshold, 0.8);
  EXPECT_EQ(model.optim.kind, OptimizerKind::kAdamW);
  EXPECT_EQ(model.optim.betas, (std::array<double, 2>{0.9, 0.98}));
  ASSERT_TRUE(model.optim.sched.has_value());
  EXPECT_EQ(model.optim.sched->kind, ScheduleKind::kNoamAnnealing);
  EXPECT_EQ(model.optim.sched->d_model, 512);
  EXPECT_EQ(model.optim.sched->min_lr, 1e-6);
  EXPECT_EQ(model.train_ds.batch_size, 8);
  EXPECT_EQ(model.train_ds.shuffle_n, 2048);
  EXPECT_TRUE(model.train_ds.drop_last);
  EXPECT_FALSE(model.validation_ds[0].drop_last);
  EXPECT_EQ(model.train_ds.batch_augmentor->max_num_segments, 1);
  EXPECT_EQ(model.train_ds.concat_sampling_temperature, 1.0);
  ASSERT_EQ(model.validation_ds.size(), 1u);
  EXPECT_EQ(model.validation_ds[0].name, "");
  const TrainerConfig& trainer = checked.run.trainer;
  EXPECT_EQ(trainer.devices.kind, DevicesConfig::Kind::kAll);
  EXPECT_FALSE(trainer.val_check_interval.is_fraction);
  EXPECT_EQ(trainer.val_check_interval.count, 2500);
  EXPECT_EQ(trainer.epoch_limit(), -1);
  EXPECT_EQ(trainer.num_sanity_val_steps, 0);
  const ExpManagerConfig& manager = checked.run.exp_manager;
  EXPECT_TRUE(manager.present);
  EXPECT_EQ(manager.name, "SSL-NEST-FastConformer");
  EXPECT_EQ(manager.checkpoint_callback_params.filename,
            "SSL-NEST-FastConformer--{val_loss:.3f}-{step}");
  EXPECT_EQ(manager.checkpoint_callback_params.save_top_k, 1);
  EXPECT_TRUE(manager.checkpoint_callback_params.save_last);
  EXPECT_TRUE(manager.resume_if_exists);
}

TEST(BuildTest, GoldenConfigsLoad) {
  const Checked plain = check_file(test_data("/golden/plain/config.yaml"));
  ASSERT_TRUE(plain.ok()) << plain.errors();
  EXPECT_EQ(plain.warnings(), "");
  EXPECT_EQ(plain.run.model.loss.mask_threshold, -1.0);
  EXPECT_EQ(plain.run.model.optim.sched->kind, ScheduleKind::kCosineAnnealing);
  EXPECT_EQ(plain.run.model.optim.sched->max_steps, 24);
  EXPECT_EQ(plain.run.init_from.kind, InitFromConfig::Kind::kNemoModel);
  EXPECT_EQ(plain.run.init_from.sources[0].path, "init.nemo");
  EXPECT_FALSE(plain.run.trainer.check_val_every_n_epoch.has_value());
  EXPECT_FALSE(plain.run.exp_manager.present);
  const Checked ragged = check_file(test_data("/golden/ragged/config.yaml"));
  ASSERT_TRUE(ragged.ok()) << ragged.errors();
  EXPECT_EQ(ragged.run.model.quantizer.num_books, 2);
  EXPECT_EQ(ragged.run.trainer.accumulate_grad_batches, 2);
  EXPECT_EQ(ragged.run.trainer.gradient_clip_val, 1.0);
  EXPECT_EQ(ragged.run.model.optim.sched->d_model, 48);
}

TEST(BuildTest, CompatChangesDefaultsOnly) {
  const NestAerieConfig compat = check_stock({{"aerie.compat", "nemo-2.6"}}).run.aerie;
  EXPECT_TRUE(compat.compat_nemo_2_6);
  EXPECT_EQ(compat.empty_mask, EmptyMask::kNan);
  EXPECT_EQ(compat.audio.shuffle_level, ShuffleLevel::kShard);
  EXPECT_EQ(compat.validation_seed, ValidationSeed::kRandom);
  const NestAerieConfig both =
      check_stock({{"aerie.compat", "nemo-2.6"}, {"aerie.empty_mask", "zero"}}).run.aerie;
  EXPECT_EQ(both.empty_mask, EmptyMask::kZero);
}

TEST(BuildTest, IgnoresMissingCheckpointsOnlyWhenTold) {
  EXPECT_FALSE(check_stock({}).run.aerie.ignore_missing_checkpoints);
  EXPECT_TRUE(check_stock({{"aerie.ignore_missing_checkpoints", Value(true)}})
                  .run.aerie.ignore_missing_checkpoints);
}

TEST(BuildTest, PreprocessorSpellings) {
  const auto build = [](const char* text) {
    return check_text(str_cat("model: {preprocessor: ", text, "}\n")).run.model.preprocessor;
  };
  EXPECT_EQ(build("{n_window_size: 320, n_window_stride: 80}").win_length(), 320);
  EXPECT_EQ(build("{n_window_size: 320, n_window_stride: 80}").hop_length(), 80);
  EXPECT_EQ(build("{}").fft_size(), 512);
  EXPECT_EQ(build("{log_zero_guard_value: eps}").log_zero_guard_value, 1.1920928955078125e-07);
  EXPECT_TRUE(build("{log_zero_guard_type: clamp}").log_zero_guard_clamp);
  EXPECT_EQ(build("{pad_to: max}").pad_to, PreprocessorConfig::kPadToMax);
  EXPECT_EQ(build("{normalize: null}").normalize, FeatureNormalize::kNone);
  EXPECT_EQ(build("{preemph: null}").preemph, std::nullopt);
  EXPECT_EQ(build("{mel_norm: null}").mel_norm, "none");
  const auto fixed = build("{features: 2, normalize: {fixed_mean: [0, 1], fixed_std: [1.0, 2.0]}}");
  EXPECT_EQ(fixed.normalize, FeatureNormalize::kFixed);
  EXPECT_EQ(fixed.fixed_std, (std::vector<double>{1.0, 2.0}));
}

TEST(BuildTest, EncoderSpellings) {
  const auto build = [](const std::vector<std::pair<std::string, Value>>& changes) {
    const Checked checked = check_stock(changes);
    EXPECT_EQ(checked.errors(), "");
    return checked.run.model.encoder;
  };
  const Value pair(List{Value(70), Value(1)});
  const Value other(List{Value(140), Value(27)});
  EXPECT_EQ(build({{"model.encoder.att_context_size", pair}}).att_context_size.size(), 1u);
  EXPECT_EQ(
      build({{"model.encoder.att_context_size", Value(List{pair, other})}}).att_context_size[1],
      (std::array<int64_t, 2>{140, 27}));
  EXPECT_EQ(build({{"model.encoder.conv_context_size", "causal"}}).conv_context(),
            (std::array<int64_t, 2>{8, 0}));
  EXPECT_EQ(
      build({{"model.encoder.conv_context_size", Value(List{Value(6), Value(2)})}}).conv_context(),
      (std::array<int64_t, 2>{6, 2}));
  const EncoderConfig grouped = build({{"model.encoder.conv_norm_type", "group_norm8"}});
  EXPECT_EQ(grouped.conv_norm_type, ConvNorm::kGroupNorm);
  EXPECT_EQ(grouped.conv_norm_groups, 8);
  EXPECT_EQ(build({{"model.encoder.conv_norm_type", "fused_batch_norm"}}).conv_norm_type,
            ConvNorm::kFusedBatchNorm);
}

TEST(BuildTest, SeveralValidationSetsGetNames) {
  const auto build = [](const char* text) {
    const Checked checked = check_text(str_cat("model:\n  validation_ds: ", text, "\n"));
    EXPECT_EQ(checked.errors(), "");
    return checked.run.model.validation_ds;
  };
  auto sets =
      build("{batch_size: 2, manifest_filepath: [a/dev-clean_manifest.json, b/other.json]}");
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].name, "dev_clean_");
  EXPECT_EQ(sets[1].name, "other_");
  EXPECT_EQ(sets[1].manifest_filepath.flat(), std::vector<std::string>{"b/other.json"});
  sets = build("{batch_size: 2, manifest_filepath: [a.json, b.json], name: [x, y-z]}");
  EXPECT_EQ(sets[1].name, "y_z_");
  sets = build("{batch_size: 2, manifest_filepath: [a.json, b.json], val_dl_idx: -1}");
  EXPECT_EQ(sets.size(), 1u);
  sets = build(
      "{ds_item: [{name: one, manifest_filepath: a.json, batch_size: 3}, "
      "{manifest_filepath: b.json, batch_size: 4}]}");
  ASSERT_EQ(sets.size(), 2u);
  EXPECT_EQ(sets[0].name, "one_");
  EXPECT_EQ(sets[1].batch_size, 4);
  EXPECT_EQ(build("null").size(), 0u);
  EXPECT_EQ(build("{batch_size: 2, manifest_filepath: null}").size(), 0u);
  const Checked nameless = check_text(
      "model: {validation_ds: {batch_size: 1, manifest_filepath: [manifest.json, b]}}\n");
  EXPECT_NE(nameless.errors().find("leaves no name"), std::string::npos) << nameless.errors();
}

TEST(BuildTest, DatasetSpellings) {
  const auto build = [](const char* text) {
    const Checked checked = check_text(str_cat("model:\n  sample_rate: 8000\n  train_ds: ", text));
    EXPECT_EQ(checked.errors(), "");
    return checked.run.model.train_ds;
  };
  DatasetConfig data = build(
      "{batch_size: 1, manifest_filepath: 'a.json,b.json', is_tarred: true, "
      "tarred_audio_filepaths: [['a_{0..3}.tar'], [b__OP_0..3_CL_.tar]], "
      "bucketing_batch_size: [4, 2], num_workers: auto}");
  EXPECT_EQ(data.sample_rate, 8000);
  EXPECT_EQ(data.manifest_filepath.groups.size(), 1u);
  EXPECT_FALSE(data.manifest_filepath.is_list);
  EXPECT_TRUE(data.tarred_audio_filepaths.is_nested);
  EXPECT_EQ(data.tarred_audio_filepaths.groups.size(), 2u);
  EXPECT_TRUE(data.bucketing_batch_size_is_list);
  EXPECT_EQ(data.num_workers, DatasetConfig::kAutoWorkers);
  data = build(
      "{batch_size: 2, bucketing_strategy: fixed_order, channel_selector: average, "
      "concat_sampling_technique: null}");
  EXPECT_EQ(data.channel_selector.kind, ChannelSelector::Kind::kAverage);
  EXPECT_EQ(data.concat_sampling_technique, ConcatTechnique::kRoundRobin);
  data = build("{batch_size: 2, use_bucketing: true, batch_duration: 30}");
  EXPECT_TRUE(data.use_bucketing);
  EXPECT_EQ(data.batch_duration, 30.0);
  data = build("{batch_size: 2, use_lhotse: false, use_bucketing: true, batch_duration: 30}");
  EXPECT_FALSE(data.use_bucketing);
  EXPECT_FALSE(data.batch_duration.has_value());
  data = build(
      "{batch_size: 2, channel_selector: 1, augmentor: {white_noise: {prob: 1.0, "
      "min_level: -80, max_level: -50}, speed: {prob: 0.3, sr: 8000}}}");
  EXPECT_EQ(data.channel_selector.indices, std::vector<int64_t>{1});
  ASSERT_EQ(data.augmentor.size(), 2u);
  EXPECT_EQ(data.augmentor[0].name, "white_noise");
  EXPECT_EQ(std::get<WhiteNoisePerturbation>(data.augmentor[0].params).max_level, -50);
  EXPECT_EQ(std::get<SpeedPerturbation>(data.augmentor[1].params).sr, 8000);
}

TEST(BuildTest, OptimizerDefaultsDependOnItsName) {
  const auto build = [](const char* text) {
    const Checked checked = check_text(str_cat("model:\n  optim: ", text, "\n"));
    EXPECT_EQ(checked.errors(), "");
    return checked.run.model.optim;
  };
  EXPECT_EQ(build("{name: adamw, lr: 1e-3}").weight_decay, 1e-2);
  EXPECT_EQ(build("{name: adamw, lr: 1e-3, args: {name: auto, params: {betas: [0.8, 0.5]}}}")
                .weight_decay,
            0.0);
  EXPECT_EQ(
      build("{name: adamw, lr: 1e-3, args: {name: auto, params: {betas: [0.8, 0.5]}}}").betas[1],
      0.5);
  EXPECT_EQ(build("{lr: 1e-3}").kind, OptimizerKind::kAdam);
  EXPECT_EQ(build("{lr: 1e-3}").weight_decay, 0.0);
  EXPECT_EQ(build("{name: novograd, lr: 1e-3}").betas[0], 0.95);
  EXPECT_EQ(build("{_target_: torch.optim.SGD, lr: 1e-3, momentum: 0.9}").momentum, 0.9);
  EXPECT_FALSE(build("{name: adamw, lr: 1}").sched.has_value());
  EXPECT_FALSE(
      build("{name: adamw, lr: 1, sched: {name: WarmupPolicy, max_steps: -1}}").sched.has_value());
  // NeMo puts trainer.max_steps over the schedule's own -1.
  const Checked bounded = check_text(
      "trainer: {max_steps: 7}\nmodel:\n  optim: {name: adamw, lr: 1, sched: {name: WarmupPolicy, "
      "max_steps: -1}}\n");
  EXPECT_TRUE(bounded.run.model.optim.sched.has_value());
  const Checked unbounded = check_text(
      "trainer: {max_epochs: 7}\nmodel:\n  optim: {name: adamw, lr: 1, sched: {name: WarmupPolicy, "
      "max_steps: -1}}\n");
  EXPECT_FALSE(unbounded.run.model.optim.sched.has_value());
  EXPECT_EQ(build("{name: adamw, lr: 1, sched: {name: SquareAnnealing}}").sched->min_lr, 1e-5);
  const OptimConfig decoupled = build("{name: adam, lr: 1, decoupled_weight_decay: true}");
  EXPECT_EQ(decoupled.kind, OptimizerKind::kAdamW);
  EXPECT_EQ(decoupled.weight_decay, 0.0);
  EXPECT_EQ(build("{name: adam, lr: 1, decoupled_weight_decay: false}").kind, OptimizerKind::kAdam);
  EXPECT_EQ(check_text("model:\n  optim: {lr: 99999999999999999999}\n").run.model.optim.lr, 1e20);
  EXPECT_EQ(build("{name: adamw, lr: 1, sched: {name: CosineAnnealing, args: {name: auto, params: "
                  "{warmup_steps: 7}}}}")
                .sched->warmup_steps,
            7);
}

TEST(BuildTest, TimesAndLimits) {
  EXPECT_EQ(*parse_duration(Value("01:02:03:04"), false), 86400 + 2 * 3600 + 3 * 60 + 4);
  Map parts;
  parts.set("_target_", Value("datetime.timedelta"));
  parts.set("minutes", Value(30));
  EXPECT_EQ(*parse_duration(Value(parts), false), 1800);
  EXPECT_FALSE(parse_duration(Value("1:2"), false).ok());
  EXPECT_FALSE(parse_duration(Value("0:0:-1:0"), false).ok());
  EXPECT_EQ(*parse_duration(Value(2.5), true), 2.5);
  EXPECT_TRUE(parse_batch_limit(Value(1.0))->is_fraction);
  EXPECT_FALSE(parse_batch_limit(Value(1))->is_fraction);
  EXPECT_EQ(parse_batch_limit(Value(20.0))->count, 20);
  EXPECT_EQ(parse_batch_limit(Value(0.25))->of(10), 2);
  EXPECT_EQ(parse_batch_limit(Value(3))->of(10), 3);
  EXPECT_EQ(parse_batch_limit(Value(30))->of(10), 10);
}

TEST(BuildTest, InitFromMapping) {
  const Checked checked = check_text(
      "init_from_nemo_model:\n  ssl: {path: a.nemo, include: [encoder], exclude: decoder}\n"
      "init_strict: false\n");
  ASSERT_TRUE(checked.ok()) << checked.errors();
  const InitFromConfig& init = checked.run.init_from;
  ASSERT_EQ(init.sources.size(), 1u);
  EXPECT_EQ(init.sources[0].label, "ssl");
  EXPECT_EQ(init.sources[0].include, std::vector<std::string>{"encoder"});
  EXPECT_EQ(init.sources[0].exclude, std::vector<std::string>{"decoder"});
  EXPECT_FALSE(init.init_strict);
}

TEST(BuildTest, DevicePlan) {
  TrainerConfig trainer;
  EXPECT_FALSE(plan_devices(trainer, 0)->gpu);
  EXPECT_TRUE(plan_devices(trainer, 2)->gpu);
  EXPECT_EQ(plan_devices(trainer, 2)->world_size, 2);
  EXPECT_EQ(plan_devices(trainer, 2)->ids, (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(plan_devices(trainer, 0)->world_size, 1);
  trainer.devices.kind = DevicesConfig::Kind::kIds;
  trainer.devices.ids = {1};
  EXPECT_EQ(plan_devices(trainer, 2)->ids, std::vector<int64_t>{1});
  EXPECT_FALSE(plan_devices(trainer, 1).ok());
  trainer.accelerator = Accelerator::kCpu;
  EXPECT_EQ(plan_devices(trainer, 2)->ids, std::vector<int64_t>{0});
  trainer.devices.kind = DevicesConfig::Kind::kCount;
  trainer.devices.count = 4;
  trainer.num_nodes = 2;
  EXPECT_EQ(plan_devices(trainer, 0)->world_size, 8);
  EXPECT_EQ(plan_devices(trainer, 0)->ids, std::vector<int64_t>(4, 0));
}

TEST(BuildTest, DevicePlanOfStartedProcesses) {
  TrainerConfig trainer;
  const LaunchedRanks third{.size = 4, .local_size = 4, .local_rank = 2};
  EXPECT_EQ(plan_devices(trainer, 0, third)->world_size, 4);
  EXPECT_EQ(plan_devices(trainer, 4, third)->own, 2);
  EXPECT_FALSE(plan_devices(trainer, 2, third).ok());
  // Each process sees a GPU of its own.
  EXPECT_EQ(plan_devices(trainer, 1, third)->own, 0);
  trainer.devices.kind = DevicesConfig::Kind::kIds;
  trainer.devices.ids = {7, 5, 3, 1};
  EXPECT_EQ(plan_devices(trainer, 8, third)->own, 3);
  trainer.devices.ids = {0, 1};
  EXPECT_NE(plan_devices(trainer, 8, third).status().message().find("ask for 2 processes, 4 were"),
            std::string::npos);
  // Two on one GPU: over Gloo only.
  const LaunchedRanks second{.size = 2, .local_size = 2, .local_rank = 1};
  trainer.devices.ids = {1, 1};
  EXPECT_FALSE(plan_devices(trainer, 2, second).ok());
  trainer.strategy.process_group_backend = "gloo";
  EXPECT_EQ(plan_devices(trainer, 2, second)->own, 1);
}

// A value that slipped past validation is an error, never a crash.
TEST(BuildTest, WrongTypesAreReported) {
  Value tree{Map()};
  ASSERT_TRUE(tree.set("model.encoder.d_model", Value("wide")).ok());
  const auto built = build_run_config(tree);
  ASSERT_FALSE(built.ok());
  EXPECT_NE(built.status().to_string().find("model.encoder.d_model"), std::string::npos);
}

}  // namespace
}  // namespace aerie::config
