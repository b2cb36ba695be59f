#include "aerie/config/schema/validate.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/base/testing/sanitized.h"
#include "aerie/config/schema/key_table.h"
#include "aerie/models/nest/config/nest_schema.h"
#include "aerie/models/nest/config/run_config.h"
#include "aerie/models/nest/config/test_util.h"

namespace aerie::config {
namespace {

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

#define EXPECT_HAS(text, part) EXPECT_TRUE(has((text), (part))) << (text)

ValidateOptions for_training(int num_gpus = 0) {
  ValidateOptions options;
  options.for_training = true;
  options.num_gpus = num_gpus;
  return options;
}

Value strings(std::initializer_list<const char*> items) {
  List list;
  for (const char* item : items) list.emplace_back(item);
  return list;
}

TEST(ValidateTest, UnknownKeyNamesFileLineAndNearest) {
  const Checked checked = check_text("trainer:\n  devices: 1\n  max_step: 10\n");
  EXPECT_HAS(checked.errors(), "test.yaml:3:3");
  EXPECT_HAS(checked.errors(), "trainer.max_step");
  EXPECT_HAS(checked.errors(), "did you mean 'trainer.max_steps'?");
}

TEST(ValidateTest, AllowUnknownTurnsErrorsIntoWarnings) {
  ValidateOptions options;
  options.allow_unknown = true;
  const Checked checked = check_text("model:\n  encoderr: {}\nexp_manager: {foo: 1}\n", options);
  EXPECT_EQ(checked.errors(), "");
  EXPECT_HAS(checked.warnings(), "model.encoderr");
  EXPECT_HAS(checked.warnings(), "exp_manager.foo");
}

TEST(ValidateTest, UnknownTopLevelKeysAreWarnings) {
  const Checked checked = check_text("modle: {x: 1}\nmy_stuff: 3\n");
  EXPECT_EQ(checked.errors(), "");
  EXPECT_HAS(checked.warnings(), "test.yaml:1:1: modle");
  EXPECT_HAS(checked.warnings(), "did you mean 'model'?");
  EXPECT_HAS(checked.warnings(), "my_stuff");
}

TEST(ValidateTest, KeysThatInterpolationsReadAreAccepted) {
  const Checked checked = check_text(
      "root: /data\nmodel:\n  width: {small: 64}\n  encoder: {feat_in: 80, n_layers: 2, d_model: "
      "'${model.width.small}'}\n  train_ds: {batch_size: 2, manifest_filepath: "
      "'${root}/a.json'}\n");
  EXPECT_EQ(checked.errors(), "");
  EXPECT_EQ(checked.warnings(), "");
  EXPECT_EQ(checked.run.model.encoder.d_model, 64);
  EXPECT_EQ(checked.run.model.train_ds.manifest_filepath.groups[0][0], "/data/a.json");
}

TEST(ValidateTest, ExpManagerIsStrict) {
  EXPECT_HAS(check_text("exp_manager: {nam: x}\n").errors(), "did you mean 'exp_manager.name'?");
  EXPECT_HAS(check_text("exp_manager: {ema: {enabled: true}}\n").errors(),
             "exp_manager.ema.enabled");
  // Being read does not help here, as NeMo's schema is closed.
  EXPECT_HAS(check_text("exp_manager: {base: x, name: '${exp_manager.base}'}\n").errors(),
             "exp_manager.base");
}

TEST(ValidateTest, AllErrorsAreCollected) {
  const Checked checked = check_text(
      "trainer:\n  max_steps: many\n  precision: 17\n  foo: 1\nmodel:\n  masking:\n    feat_in: "
      "80\n"
      "    mask_prob: 1.5\n");
  EXPECT_EQ(checked.findings.errors().size(), 4u) << checked.errors();
  const std::string all = checked.findings.to_status().to_string();
  EXPECT_HAS(all, "4 errors");
  EXPECT_HAS(all, "test.yaml:2");
  EXPECT_HAS(all, "test.yaml:8");
  EXPECT_EQ(checked.findings.to_status().code(), StatusCode::kInvalidArgument);
}

TEST(ValidateTest, WrongTypesAndRangesSayWhatIsExpected) {
  EXPECT_HAS(check_stock({{"model.train_ds.shuffle", "yes"}}).errors(), "write true");
  EXPECT_HAS(check_stock({{"model.train_ds.shuffle", 3}}).errors(), "expected true or false");
  EXPECT_HAS(check_stock({{"trainer.max_steps", 1.5}}).errors(), "a whole number");
  EXPECT_HAS(check_text("trainer: {max_steps: 99999999999999999999}\n").errors(),
             "expected a whole number, got 99999999999999999999 (int beyond 64 bits)");
  EXPECT_HAS(check_stock({{"model.encoder.dropout", 1.0}}).errors(), "[0,1)");
  EXPECT_HAS(check_stock({{"model.encoder.n_layers", 0}}).errors(), "[1,1e9]");
  EXPECT_HAS(check_stock({{"model.encoder.n_layers", Value(int64_t{1} << 62)}}).errors(),
             "out of range");
  EXPECT_HAS(check_stock({{"model.masking", 3}}).errors(), "expected a mapping");
  EXPECT_HAS(check_stock({{"model.optim.betas", Value(List{Value(0.9)})}}).errors(),
             "expected two numbers");
  EXPECT_HAS(check_stock({{"aerie.on_nan", "ignore"}}).errors(), "skip, fallback, stop");
  EXPECT_HAS(check_stock({{"aerie.engine", "fats"}}).errors(), "did you mean 'fast'?");
  EXPECT_EQ(check_stock({{"trainer.max_steps", 1e5}}).run.trainer.max_steps, 100000);
}

// A second sentence about the same value, and "the configuration has 2 errors", helped nobody.
TEST(ValidateTest, AWrongValueIsToldOnce) {
  for (const char* text :
       {"trainer: {val_check_interval: -1}\n", "trainer: {devices: {a: 1}}\n",
        "model: {encoder: {feat_in: 80, n_layers: 2, d_model: 32, att_context_size: 4}}\n"}) {
    const Checked checked = check_text(text);
    EXPECT_EQ(checked.findings.errors().size(), 1u) << checked.errors();
  }
}

TEST(ValidateTest, MissingValuesMatterToTrainingOnly) {
  const Checked shown = check_stock({});
  EXPECT_EQ(shown.errors(), "");
  EXPECT_HAS(shown.warnings(), "Missing mandatory value: model.train_ds.manifest_filepath");
  EXPECT_TRUE(shown.run.model.train_ds.manifest_filepath.is_missing);
  const Checked trained = check_stock({}, for_training());
  EXPECT_HAS(trained.errors(), "Missing mandatory value: model.train_ds.manifest_filepath");
  EXPECT_HAS(trained.errors(), "Missing mandatory value: model.validation_ds.manifest_filepath");
  const Checked given = check_stock({{"model.train_ds.manifest_filepath", "a.json"},
                                     {"model.validation_ds.manifest_filepath", "b.json"}},
                                    for_training());
  EXPECT_EQ(given.errors(), "");
  EXPECT_EQ(given.warnings(), "");
}

TEST(ValidateTest, StockSettingsRunOnAnyNumberOfDevices) {
  const std::vector<std::pair<std::string, Value>> kManifests = {
      {"model.train_ds.manifest_filepath", "a.json"},
      {"model.validation_ds.manifest_filepath", "b.json"}};
  EXPECT_EQ(check_stock(kManifests, for_training(0)).errors(), "");
  EXPECT_EQ(check_stock(kManifests, for_training(1)).errors(), "");
  EXPECT_EQ(check_stock(kManifests, for_training(1)).warnings(), "");
  EXPECT_EQ(check_stock(kManifests, for_training(8)).errors(), "");
  EXPECT_EQ(check_stock(kManifests, for_training(8)).warnings(), "");
  auto apart = kManifests;
  apart.emplace_back("trainer.sync_batchnorm", false);
  apart.emplace_back("trainer.use_distributed_sampler", false);
  EXPECT_EQ(check_stock(apart, for_training(1)).warnings(), "");
  EXPECT_HAS(check_stock(apart, for_training(8)).warnings(), "each of the 8 devices alone");
  EXPECT_HAS(check_stock(apart, for_training(8)).warnings(), "divided among the devices");
}

TEST(ValidateTest, DevicesAreJudgedByTheirEffect) {
  const auto errors = [](Value devices, const char* accelerator, int gpus) {
    ValidateOptions options = for_training(gpus);
    Checked checked = check_stock({{"trainer.devices", std::move(devices)},
                                   {"trainer.accelerator", accelerator},
                                   {"model.train_ds.manifest_filepath", "a.json"},
                                   {"model.validation_ds.manifest_filepath", "b.json"}},
                                  options);
    return checked.errors();
  };
  for (const Value& one : {Value(1), Value("1"), Value("auto"), Value(-1), Value("-1"),
                           Value(List{Value(0)}), Value("0,")}) {
    EXPECT_EQ(errors(one, "auto", 0), "") << one.brief();
    EXPECT_EQ(errors(one, "auto", 1), "") << one.brief();
    EXPECT_EQ(errors(one, "cpu", 8), "") << one.brief();
  }
  EXPECT_EQ(errors(Value(List{Value(3)}), "gpu", 8), "");
  EXPECT_HAS(errors(Value(List{Value(3)}), "gpu", 2), "names GPU 3");
  EXPECT_EQ(errors(Value(2), "auto", 8), "");
  EXPECT_EQ(errors(Value(2), "cpu", 0), "");
  EXPECT_EQ(errors(Value("0,1"), "gpu", 8), "");
  EXPECT_EQ(errors(Value("auto"), "gpu", 2), "");
  EXPECT_HAS(errors(Value(4), "gpu", 2), "there are 2");
  EXPECT_HAS(errors(Value(0), "auto", 0), "from 1");
  EXPECT_HAS(errors(Value("many"), "auto", 0), "not a whole number");
  EXPECT_HAS(errors(Value(List{Value(0), Value(0)}), "auto", 8), "listed twice");
  EXPECT_HAS(errors(Value(1), "gpu", 0), "there is none");
  EXPECT_HAS(errors(Value(1), "tpu", 0), "refused");
  EXPECT_HAS(check_stock({{"exp_manager.log_local_rank_0_only", true},
                          {"exp_manager.log_global_rank_0_only", true}})
                 .errors(),
             "cannot both be true");
  // Without training: what depends on the machine is not judged.
  EXPECT_EQ(check_stock({{"trainer.accelerator", "gpu"}}).errors(), "");
  EXPECT_HAS(check_stock({{"trainer.devices", 2}, {"trainer.strategy", "single_device"}}).errors(),
             "cannot train on 2 devices");
  Value ddp{Map()};
  ASSERT_TRUE(ddp.set("_target_", "lightning.pytorch.strategies.DDPStrategy").ok());
  ASSERT_TRUE(ddp.set("process_group_backend", "nccl").ok());
  EXPECT_HAS(
      check_stock(
          {{"trainer.devices", 2}, {"trainer.accelerator", "cpu"}, {"trainer.strategy", ddp}})
          .errors(),
      "nccl needs GPUs");
}

TEST(ValidateTest, EveryPrecisionStringIsKnown) {
  const std::pair<Value, Precision> kAccepted[] = {
      {Value(32), Precision::k32},
      {Value("32"), Precision::k32},
      {Value("32-true"), Precision::k32},
      {Value(), Precision::k32},
      {Value(16), Precision::k16Mixed},
      {Value("16"), Precision::k16Mixed},
      {Value("16-mixed"), Precision::k16Mixed},
      {Value("bf16"), Precision::kBf16Mixed},
      {Value("bf16-mixed"), Precision::kBf16Mixed},
  };
  for (const auto& [value, precision] : kAccepted) {
    const Checked checked = check_stock({{"trainer.precision", value}});
    EXPECT_EQ(checked.errors(), "") << value.brief();
    EXPECT_EQ(checked.run.trainer.precision, precision) << value.brief();
  }
  for (const Value& value :
       {Value(64), Value("64"), Value("64-true"), Value("16-true"), Value("bf16-true"),
        Value("transformer-engine"), Value("transformer-engine-float16")})
    EXPECT_HAS(check_stock({{"trainer.precision", value}}).errors(), "is refused: weights stay");
  const std::string unknown = check_stock({{"trainer.precision", "fp16"}}).errors();
  EXPECT_HAS(unknown, "expected one of 32, 16, bf16, 32-true, 16-mixed, bf16-mixed");
  EXPECT_HAS(check_stock({{"trainer.precision", 17}}).errors(), "unknown value '17'");
}

TEST(ValidateTest, StrategyMayBeAMapping) {
  Map mapping;
  mapping.set("_target_", Value("lightning.pytorch.strategies.DDPStrategy"));
  mapping.set("gradient_as_bucket_view", Value(true));
  mapping.set("static_graph", Value(false));
  mapping.set("bucket_cap_mb", Value(50));
  const Checked checked = check_stock({{"trainer.strategy", Value(mapping)}});
  EXPECT_EQ(checked.errors(), "");
  EXPECT_EQ(checked.run.trainer.strategy.name, "ddp");
  EXPECT_TRUE(checked.run.trainer.strategy.gradient_as_bucket_view);
  EXPECT_EQ(checked.run.trainer.strategy.bucket_cap_mb, 50);
  Map time;
  time.set("_target_", Value("datetime.timedelta"));
  time.set("minutes", Value(2));
  mapping.set("timeout", Value(time));
  const Checked timed =
      check_stock({{"trainer.strategy", Value(mapping)}, {"trainer.max_time", Value(time)}});
  EXPECT_EQ(timed.errors(), "");
  EXPECT_EQ(timed.run.trainer.strategy.timeout_s, 120.0);
  time.set("_target_", Value("datetime.date"));
  EXPECT_HAS(check_stock({{"trainer.max_time", Value(time)}}).errors(), "datetime.timedelta");
  mapping.set("_target_", Value("lightning.pytorch.strategies.FSDPStrategy"));
  EXPECT_HAS(check_stock({{"trainer.strategy", Value(mapping)}}).errors(),
             "known are lightning.pytorch.strategies.DDPStrategy");
  for (const char* name : {"auto", "ddp", "ddp_find_unused_parameters_true", "ddp_spawn"})
    EXPECT_EQ(check_stock({{"trainer.strategy", name}}).errors(), "") << name;
  EXPECT_HAS(check_stock({{"trainer.strategy", "deepspeed_stage_2"}}).errors(), "refused");
  EXPECT_HAS(check_stock({{"trainer.strategy", "dpp"}}).errors(), "did you mean 'ddp'?");
}

TEST(ValidateTest, OtherProductsLoggersAreWarnedAbout) {
  for (const char* name : {"wandb", "mlflow", "dllogger", "clearml", "neptune"}) {
    const Checked checked =
        check_stock({{str_cat("exp_manager.create_", name, "_logger"), Value(true)}});
    EXPECT_EQ(checked.errors(), "") << name;
    EXPECT_HAS(checked.warnings(), str_cat("exp_manager.create_", name, "_logger"));
    EXPECT_HAS(checked.warnings(), "the run goes on without it");
  }
}

TEST(ValidateTest, RefusedFeaturesSayWhy) {
  const std::pair<const char*, Value> kRefused[] = {
      {"model.preprocessor.use_torchaudio", Value(true)},
      {"model.encoder.reduction", Value("pooling")},
      {"model.encoder.reduction_factor", Value(2)},
      {"model.encoder.subsampling", Value("vggnet")},
      {"model.encoder.subsampling", Value("striding_conv1d")},
      {"model.encoder.subsampling", Value("dw_striding_conv1d")},
      {"model.encoder.causal_downsampling", Value(true)},
      {"model.encoder.self_attention_model", Value("rope")},
      {"model.optim.name", Value("adafactor")},
      {"model.train_ds.augmentor", Value(Map())},
      {"init_from_pretrained_model", Value("ssl_en_nest_large_v1.0")},
      {"exp_manager.create_straggler_detection_callback", Value(true)},
  };
  for (const auto& [key, value] : kRefused) {
    const Checked checked = check_stock({{key, value}});
    if (std::string_view(key) == "model.train_ds.augmentor") continue;
    EXPECT_HAS(checked.errors(), "is refused: ") << key;
    EXPECT_HAS(checked.errors(), key);
  }
  Map stretch;
  stretch.set("prob", Value(0.5));
  EXPECT_HAS(check_stock({{"model.train_ds.augmentor.time_stretch", Value(stretch)}}).errors(),
             "not built in");
  EXPECT_HAS(check_stock({{"model.train_ds.augmentor.spede", Value(stretch)}}).errors(),
             "did you mean 'model.train_ds.augmentor.speed'?");
  // Their defaults are fine.
  EXPECT_EQ(check_stock({{"model.preprocessor.use_torchaudio", Value(false)},
                         {"model.encoder.reduction", Value()},
                         {"model.encoder.reduction_factor", Value(1)},
                         {"init_from_pretrained_model", Value()}})
                .errors(),
            "");
}

TEST(ValidateTest, LoggerAndCheckpointingBelongToExpManager) {
  EXPECT_HAS(check_stock({{"trainer.logger", Value(true)}}).errors(), "trainer.logger=false");
  EXPECT_HAS(check_stock({{"trainer.enable_checkpointing", Value(true)}}).errors(),
             "trainer.enable_checkpointing=false");
  EXPECT_EQ(check_stock({{"trainer.logger", Value(true)},
                         {"exp_manager.create_tensorboard_logger", Value(false)}})
                .errors(),
            "");
  EXPECT_EQ(check_text("trainer: {logger: true, enable_checkpointing: true}\n").errors(), "");
}

TEST(ValidateTest, UnknownTargetListsTheKnownOnes) {
  const std::string errors =
      check_stock({{"model.encoder._target_", "my.package.Encoder"}}).errors();
  EXPECT_HAS(errors, "nemo.collections.asr.modules.ConformerEncoder");
  EXPECT_HAS(errors, "command line: model.encoder._target_");
  EXPECT_HAS(check_stock({{"model.train_ds.batch_augmentor._target_", "os.system"}}).errors(),
             "nemo.collections.asr.modules.ssl_modules.SpeakerNoiseAugmentation");
}

TEST(ValidateTest, SizesMustAgree) {
  EXPECT_HAS(check_stock({{"model.encoder.feat_in", 64}}).errors(), "is 64 where");
  EXPECT_HAS(check_stock({{"model.decoder.feat_in", 256}}).errors(), "model.decoder.feat_in");
  EXPECT_HAS(check_stock({{"model.loss.combine_time_steps", 4}}).errors(), "subsampling_factor");
  EXPECT_HAS(check_stock({{"model.quantizer.num_books", 2}}).errors(), "model.quantizer.num_books");
  EXPECT_HAS(check_stock({{"model.encoder.n_heads", 7}}).errors(), "not a multiple of 7 heads");
  EXPECT_HAS(check_stock({{"model.encoder.conv_kernel_size", 8}}).errors(), "must be odd");
  EXPECT_HAS(check_stock({{"model.encoder.subsampling_factor", 6}}).errors(), "power of two");
  EXPECT_HAS(check_stock({{"model.encoder.conv_norm_type", "group_norm7"}}).errors(), "7 groups");
  EXPECT_HAS(check_stock({{"model.encoder.conv_norm_type", "groupnorm8"}}).errors(), "group_norm*");
  EXPECT_HAS(check_stock({{"model.preprocessor.n_window_size", 400}}).errors(), "window_size");
  EXPECT_HAS(check_stock({{"model.preprocessor.n_fft", 256}}).errors(), "400 samples");
  // One number changes them all through interpolation.
  EXPECT_EQ(check_stock({{"model.encoder.d_model", 256}, {"model.num_books", 4}}).errors(), "");
  const Checked post = check_stock({{"model.mask_position", "post_conv"}});
  EXPECT_EQ(post.errors(), "");
  EXPECT_HAS(post.warnings(), "taken as 1");
}

TEST(ValidateTest, LoaderRulesAreTorchs) {
  EXPECT_HAS(check_stock({{"model.train_ds.num_workers", 0}, {"model.train_ds.prefetch_factor", 2}})
                 .errors(),
             "must be null when num_workers is 0");
  EXPECT_HAS(check_stock({{"model.train_ds.num_workers", 0},
                          {"model.train_ds.persistent_workers", Value(true)}})
                 .errors(),
             "must be false when num_workers is 0");
  EXPECT_EQ(
      check_stock({{"model.train_ds.num_workers", "auto"}, {"model.train_ds.prefetch_factor", 2}})
          .errors(),
      "");
  EXPECT_HAS(check_stock({{"model.train_ds.batch_size", Value()}}).errors(), "batch_size");
  EXPECT_EQ(check_stock({{"model.train_ds.batch_size", Value()},
                         {"model.train_ds.use_lhotse", Value(true)},
                         {"model.train_ds.batch_duration", 360}})
                .errors(),
            "");
  EXPECT_HAS(check_stock({{"model.train_ds.use_lhotse", Value(false)},
                          {"model.train_ds.batch_duration", 360}})
                 .warnings(),
             "batch_duration and bucket_batch_size have no effect");
  EXPECT_EQ(check_stock({{"model.train_ds.batch_duration", 360}}).warnings(),
            check_stock({}).warnings());
  EXPECT_HAS(check_stock({{"model.train_ds.min_duration", 90.0}}).errors(), "above max_duration");
  EXPECT_HAS(check_stock({{"model.train_ds.batch_augmentor.min_mix_rate", 0.9}}).errors(),
             "max_mix_rate");
  EXPECT_HAS(check_stock({{"model.train_ds.is_concat", Value(true)},
                          {"model.train_ds.manifest_filepath", strings({"a", "b"})},
                          {"model.train_ds.concat_sampling_probabilities",
                           Value(List{Value(0.5), Value(0.4)})}})
                 .errors(),
             "sum to 1");
  EXPECT_HAS(check_stock({{"model.train_ds.bucketing_batch_size", 4}}).errors(),
             "bucketing_batch_size needs it to be 1");
}

TEST(ValidateTest, OptimizerTakesItsOwnArguments) {
  EXPECT_HAS(check_stock({{"model.optim.momentum", 0.9}}).errors(),
             "adamw has no argument 'momentum'");
  EXPECT_HAS(
      check_text("model:\n  optim: {name: adamw, lr: 1, decoupled_weight_decay: true}\n").errors(),
      "adamw has no argument 'decoupled_weight_decay'");
  EXPECT_HAS(check_stock({{"model.optim.sched.name", "CosineAnnealing"}}).warnings(),
             "CosineAnnealing has no argument 'd_model'");
  EXPECT_HAS(check_stock({{"model.optim.sched.warmup_ratio", 0.1}}).errors(), "warmup_steps");
  EXPECT_HAS(check_stock({{"model.optim.lr", 1e-7}}).errors(), "above model.optim.lr");
  EXPECT_HAS(check_stock({{"model.optim.sched.name", "Noam"}}).errors(), "NoamAnnealing");
  EXPECT_HAS(check_stock({{"model.optim.lrr", 1.0}}).errors(), "did you mean 'model.optim.lr'?");
  EXPECT_HAS(check_stock({{"model.optim_param_groups.encodr.lr", 1.0}}).errors(),
             "not found in model");
}

TEST(ValidateTest, TrainerNumbersFollowLightning) {
  EXPECT_HAS(check_stock({{"trainer.limit_train_batches", 1.5}}).errors(), "share from 0.0 to 1.0");
  EXPECT_HAS(check_stock({{"trainer.val_check_interval", 0}}).errors(), "above 0");
  EXPECT_HAS(check_stock({{"trainer.max_time", 5400}}).errors(), "quotes");
  EXPECT_HAS(check_stock({{"trainer.max_time", "1:30"}}).errors(), "DD:HH:MM:SS");
  EXPECT_HAS(check_stock({{"trainer.accumulate_grad_batches", 0}}).errors(), ">=1");
  EXPECT_HAS(check_stock({{"trainer.gpus", 2}}).errors(), "did you mean 'trainer.devices'?");
}

TEST(ValidateTest, OnlyOneInitFrom) {
  EXPECT_HAS(check_text("init_from_nemo_model: a.nemo\ninit_from_ptl_ckpt: b.ckpt\n").errors(),
             "only one of them");
  EXPECT_HAS(check_text("init_from_nemo_model: {ssl: {include: [encoder]}}\n").errors(),
             "init_from_nemo_model.ssl.path: required");
}

TEST(ValidateTest, TrainingNeedsANestModel) {
  EXPECT_HAS(check_text("name: x\n", for_training()).errors(), "no model node");
  EXPECT_HAS(
      check_text("model: {encoder: {feat_in: 80, n_layers: 1, d_model: 8}}\n", for_training())
          .errors(),
      "model.quantizer: this node is needed");
  EXPECT_HAS(check_text("model: {encoder: {feat_in: 80}}\n").errors(),
             "model.encoder.d_model: required");
}

// Any value anywhere: findings or a struct, never an exception, and what passes validation builds.
TEST(ValidateTest, OddValuesNeverCrash) {
  const Checked stock = check_stock({{"model.train_ds.manifest_filepath", "a.json"},
                                     {"model.validation_ds.manifest_filepath", "b.json"}});
  Map odd_map;
  odd_map.set("a.b", Value(1));
  odd_map.set("_target_", Value("x"));
  const Value kOdd[] = {Value(),
                        Value(true),
                        Value(-1),
                        Value(0),
                        Value(std::numeric_limits<int64_t>::max()),
                        Value(0.5),
                        Value(std::nan("")),
                        Value(std::numeric_limits<double>::infinity()),
                        Value(""),
                        Value("a,b"),
                        Value::missing(),
                        Value(List()),
                        Value(List{Value(List{Value(), Value("x")}), Value(1)}),
                        Value(List{Value(1), Value(2)}),
                        Value(Map()),
                        Value(odd_map)};
  ValidateOptions options;
  options.num_gpus = 2;
  // Sanitizers take a quarter of the pairs: four values of each key, in turns.
  constexpr size_t kEvery = kSanitized ? 4 : 1;
  size_t accepted = 0, pair = 0;
  for (const KeySpec* key : nest_schema().all_keys()) {
    std::string path(key->path);
    if (const size_t ds = path.find("<ds>"); ds != std::string::npos)
      path.replace(ds, 4, "validation_ds");
    for (size_t star = path.find('*'); star != std::string::npos; star = path.find('*'))
      path.replace(star, 1, "some");
    ++pair;
    for (const Value& odd : kOdd) {
      if (++pair % kEvery != 0) continue;
      Value tree = stock.resolved;
      if (!tree.set(path, odd).ok()) continue;
      SCOPED_TRACE(str_cat(path, " = ", odd.brief()));
      options.for_training = !options.for_training;
      const Findings findings = validate(nest_schema(), tree, options);
      const auto run = build_run_config(tree);
      if (!findings.errors().empty()) continue;
      EXPECT_TRUE(run.ok()) << run.status().to_string();
      ++accepted;
    }
  }
  EXPECT_GT(accepted, 500u / kEvery);
}

TEST(ValidateTest, AConfigThatIsNoMappingIsAnError) {
  const Findings findings = validate(nest_schema(), Value(List{Value(1)}), {});
  EXPECT_EQ(findings.errors().size(), 1u);
}

}  // namespace
}  // namespace aerie::config
