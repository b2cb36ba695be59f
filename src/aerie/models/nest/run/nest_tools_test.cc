// Dry runs, evaluation and measurement from a configuration.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/testing/paths.h"
#include "aerie/config/yaml.h"
#include "aerie/models/nest/run/dry_run.h"
#include "aerie/models/nest/run/nest_data.h"
#include "aerie/models/nest/run/nest_eval.h"
#include "aerie/models/nest/run/nest_job.h"
#include "aerie/models/nest/run/nest_measure.h"
#include "aerie/models/nest/run/run_test_util.h"

namespace aerie::train {
namespace {

Result<DryRunReport> dry_run(const TinyRun& tiny, const std::vector<std::string>& overrides) {
  AERIE_ASSIGN_OR_RETURN(const config::LoadedConfig loaded, tiny.config(overrides));
  DryRunOptions options;
  options.config = &loaded;
  options.env = &Env::real();
  return dry_run_nest(options);
}

Result<NestEvalReport> evaluate(const TinyRun& tiny, const std::vector<std::string>& overrides,
                                const std::string& checkpoint = "", bool test = false) {
  AERIE_ASSIGN_OR_RETURN(const config::LoadedConfig loaded, tiny.config(overrides, false));
  NestEvalOptions options;
  options.config = &loaded.run;
  options.env = &Env::real();
  options.checkpoint = checkpoint;
  options.test = test;
  options.model_node = loaded.resolved.child("model");
  return evaluate_nest(options);
}

TEST(DryRunTest, TriesEverythingAndLeavesNothing) {
  const TinyRun tiny;
  const auto before = TinyRun::names(tiny.file(""));
  const auto report = dry_run(tiny, {});
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  std::set<std::string> after;
  for (const std::string& name : TinyRun::names(tiny.file("")))
    if (!ends_with(name, ".aerie-index")) after.insert(name);
  EXPECT_EQ(after, before);

  ASSERT_EQ(report->sets.size(), 2u);
  EXPECT_EQ(report->sets[0].samples, 24u);
  EXPECT_EQ(report->sets[0].batches, 6);
  EXPECT_EQ(report->sets[0].worst_rows, 4);
  EXPECT_EQ(report->sets[1].samples, 6u);
  EXPECT_EQ(report->sets[1].worst_rows, 2);
  EXPECT_EQ(report->steps_per_epoch, 6);
  EXPECT_EQ(report->planned_steps, 6);
  EXPECT_GT(report->worst.step_ms, 0.0);
  for (const char* phase :
       {"data wait", "host prepare", "forward", "backward", "optimizer", "read-back"})
    EXPECT_NE(report->worst.phase(phase), nullptr) << phase;
  EXPECT_GT(report->validation_batch_ms, 0.0);
  EXPECT_GT(report->checkpoint_bytes, 1000u);
  EXPECT_GT(report->archive_bytes, 1000u);
  EXPECT_GT(report->peak_gib, 0.0);
  EXPECT_GT(report->epoch_s, 0.0);
  EXPECT_NEAR(report->total_s, report->epoch_s, 1e-9);
  EXPECT_NE(report->to_text().find("an epoch of 6 steps"), std::string::npos);
  const auto json = nlohmann::json::parse(report->to_json());
  EXPECT_EQ(json["data"][0]["worst_rows"], 4);
  EXPECT_EQ(json["steps_per_epoch"], 6);
}

TEST(DryRunTest, WrongDataIsFoundInEverySet) {
  const TinyRun tiny;
  for (const char* key :
       {"model.train_ds.manifest_filepath", "model.train_ds.noise_manifest",
        "model.validation_ds.manifest_filepath", "model.validation_ds.noise_manifest"}) {
    const auto report = dry_run(tiny, {str_cat(key, "=", tiny.file("missing.json"))});
    ASSERT_FALSE(report.ok()) << key;
    EXPECT_EQ(exit_code_for(report.status().code()), 3) << report.status().to_string();
    EXPECT_NE(report.status().to_string().find("missing.json"), std::string::npos);
  }
}

TEST(DryRunTest, ReportsWhereTheRunWouldStart) {
  const TinyRun tiny;
  ASSERT_TRUE(tiny.train({"trainer.max_steps=3"}).ok());
  const auto before = TinyRun::names(tiny.run_dir());
  const auto checkpoints = tiny.checkpoint_names();
  const auto report = dry_run(tiny, {"trainer.max_steps=6"});
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_NE(report->start.find("at step 3"), std::string::npos) << report->start;
  EXPECT_NEAR(report->total_s, report->epoch_s / 2, 1e-9);
  EXPECT_EQ(TinyRun::names(tiny.run_dir()), before);
  EXPECT_EQ(tiny.checkpoint_names(), checkpoints);
}

TEST(NemoConfigTest, EndsWithTargetAndVersion) {
  const TinyRun tiny;
  const auto loaded = tiny.config({});
  ASSERT_TRUE(loaded.ok()) << loaded.status().to_string();
  const auto text = nemo_model_config(loaded->resolved);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  const auto node = config::parse_yaml(*text, "model_config.yaml");
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  const auto keys = node->as_map().keys();
  ASSERT_GE(keys.size(), 3u);
  EXPECT_EQ(keys[keys.size() - 2], "target");
  EXPECT_EQ(keys.back(), "nemo_version");
  EXPECT_EQ(node->child("target")->as_string(),
            "nemo.collections.asr.models.ssl_models.EncDecDenoiseMaskedTokenPredModel");
}

TEST(WorstBatchTest, DurationBucketsKeepTheirSizes) {
  const TinyRun tiny;
  const auto loaded = tiny.config({"model.train_ds.batch_size=3"});
  ASSERT_TRUE(loaded.ok());
  config::RunConfig run = loaded->run;
  NestDataOptions options;
  options.env = &Env::real();
  options.validation = false;
  options.quiet = true;
  const auto plain = open_nest_data(run, options);
  ASSERT_TRUE(plain.ok()) << plain.status().to_string();
  const BatchShape shape = worst_batch(loader_of(plain->train), run.model.train_ds);
  EXPECT_EQ(shape.rows, 3);
  double longest = 0.0;
  for (const double d : loader_of(plain->train).sampler().set().lengths)
    longest = std::max(longest, d);
  EXPECT_NEAR(static_cast<double>(shape.samples), longest * 16000, 70.0);

  // Batches of at most half a second: many short clips or few long ones, never many long ones.
  run.model.train_ds.batch_duration = 0.5;
  run.model.train_ds.batch_size.reset();
  const auto packed = open_nest_data(run, options);
  ASSERT_TRUE(packed.ok()) << packed.status().to_string();
  const BatchShape small = worst_batch(loader_of(packed->train), run.model.train_ds);
  EXPECT_GE(small.rows, 1);
  EXPECT_LE(small.rows * small.samples, 2 * 8000);
}

TEST(DryRunTest, TriesTheLargestBatchOfEveryBucket) {
  const TinyRun tiny;
  const auto report =
      dry_run(tiny, {"++model.train_ds.use_bucketing=true", "++model.train_ds.num_buckets=3",
                     "model.train_ds.batch_size=4"});
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  ASSERT_EQ(report->buckets.size(), 3u);
  std::set<int64_t> seen;
  double size = 0.0, memory = report->memory_before_gib;
  for (const DryRunBucket& one : report->buckets) {
    seen.insert(one.bucket);
    EXPECT_GT(one.step_ms, 0.0);
    EXPECT_GE(static_cast<double>(one.rows) * one.seconds, size);  // small ones first
    EXPECT_GE(one.memory_gib, memory);
    size = static_cast<double>(one.rows) * one.seconds;
    memory = one.memory_gib;
  }
  EXPECT_EQ(seen, (std::set<int64_t>{0, 1, 2}));
  EXPECT_EQ(report->buckets.back().rows, report->sets[0].worst_rows);
  EXPECT_NE(report->to_text().find("buckets"), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(report->to_json())["buckets"].size(), 3u);
}

TEST(EvalTest, GivesTheNumberThatTrainingLogged) {
  const TinyRun tiny;
  const std::string sets =
      str_cat("model.validation_ds.manifest_filepath=[", tiny.file("dev_clean.json"), ",",
              tiny.file("dev_other.json"), "]");
  const auto trained = tiny.train({sets});
  ASSERT_TRUE(trained.ok()) << trained.status().to_string();
  const auto clean = tiny.values(metrics::RecordKind::kVal, "dev_clean_val_loss");
  const auto other = tiny.values(metrics::RecordKind::kVal, "dev_other_val_loss");
  ASSERT_EQ(clean.size(), 2u);
  ASSERT_EQ(other.size(), 2u);

  // The newest checkpoint of the run, then the same weights by other names.
  const auto newest = evaluate(tiny, {sets});
  ASSERT_TRUE(newest.ok()) << newest.status().to_string();
  ASSERT_EQ(newest->sets.size(), 2u);
  EXPECT_EQ(newest->sets[0].name, "dev_clean_val_loss");
  EXPECT_DOUBLE_EQ(newest->sets[0].loss, clean.back());
  EXPECT_DOUBLE_EQ(newest->sets[1].loss, other.back());
  EXPECT_DOUBLE_EQ(newest->loss, clean.back());
  EXPECT_DOUBLE_EQ(newest->mean, (clean.back() + other.back()) / 2);
  const auto json = nlohmann::json::parse(newest->to_json());
  EXPECT_DOUBLE_EQ(json["val_loss"].get<double>(), clean.back());
  EXPECT_DOUBLE_EQ(json["sets"][1]["loss"].get<double>(), other.back());
  EXPECT_NE(newest->to_text().find("mean val_loss"), std::string::npos);

  const std::string nemo = tiny.checkpoints() + "/tiny.nemo";
  const auto check = [&](const Result<NestEvalReport>& report, const char* what) {
    ASSERT_TRUE(report.ok()) << what << ": " << report.status().to_string();
    EXPECT_DOUBLE_EQ(report->loss, clean.back()) << what;
  };
  check(evaluate(tiny, {sets}, nemo), "--checkpoint x.nemo");
  check(evaluate(tiny, {sets}, trained->last_checkpoint), "--checkpoint of a native one");
  check(evaluate(tiny, {sets}, tiny.run_dir()), "--checkpoint of a run");
  check(
      evaluate(tiny, {sets, "exp_manager.resume_if_exists=false", "+init_from_nemo_model=" + nemo}),
      "init_from_nemo_model");
  check(evaluate(tiny, {sets, "exp_manager.resume_if_exists=false",
                        "+init_from_ptl_ckpt='" + trained->last_checkpoint + "'"}),
        "init_from_ptl_ckpt");
  check(evaluate(tiny,
                 {sets, "+exp_manager.resume_from_checkpoint='" + trained->last_checkpoint + "'"}),
        "resume_from_checkpoint");
}

// Weights load as long as their shapes fit, and give other numbers than in training.
TEST(EvalTest, SettingsThatAreOthersInTheCheckpointAreNamed) {
  const TinyRun tiny;
  const auto trained = tiny.train({"trainer.max_steps=1"});
  ASSERT_TRUE(trained.ok()) << trained.status().to_string();
  const std::string nemo = tiny.checkpoints() + "/tiny.nemo";
  for (const std::string& path : {nemo, trained->last_checkpoint, tiny.run_dir()}) {
    const auto same = evaluate(tiny, {"++model.encoder.dropout=0.3"}, path);
    ASSERT_TRUE(same.ok()) << same.status().to_string();
    EXPECT_TRUE(same->differences.empty()) << path << ": " << same->differences[0];
    const auto other = evaluate(tiny, {"++model.encoder.xscaling=false"}, path);
    ASSERT_TRUE(other.ok()) << other.status().to_string();
    ASSERT_EQ(other->differences.size(), 1u) << path;
    EXPECT_NE(other->differences[0].find("model.encoder.xscaling is false, in "), std::string::npos)
        << other->differences[0];
    EXPECT_NE(other->to_json().find("model.encoder.xscaling"), std::string::npos);
  }
}

TEST(EvalTest, LimitsTestSetsAndMistakes) {
  const TinyRun tiny;
  ASSERT_TRUE(tiny.train({"trainer.max_steps=1"}).ok());
  const auto limited = evaluate(tiny, {"+trainer.limit_val_batches=1"});
  ASSERT_TRUE(limited.ok()) << limited.status().to_string();
  EXPECT_EQ(limited->sets[0].batches, 1);

  const auto test = evaluate(tiny,
                             {"+model.test_ds={manifest_filepath: '" + tiny.file("dev_other.json") +
                                  "', sample_rate: 16000, batch_size: 2, min_duration: 0.0}",
                              "+trainer.limit_test_batches=2"},
                             "", /*test=*/true);
  ASSERT_TRUE(test.ok()) << test.status().to_string();
  EXPECT_EQ(test->metric, "test_loss");
  EXPECT_EQ(test->sets[0].batches, 2);

  const auto code = [](const Result<NestEvalReport>& report) {
    return report.ok() ? 0 : exit_code_for(report.status().code());
  };
  EXPECT_EQ(code(evaluate(tiny, {"exp_manager.resume_if_exists=false"})), 2);
  EXPECT_EQ(code(evaluate(tiny, {}, tiny.file("no.nemo"))), 2);
  EXPECT_EQ(code(evaluate(tiny, {}, "", /*test=*/true)), 2);
  EXPECT_EQ(code(evaluate(tiny, {"+trainer.limit_val_batches=0.01"})), 2);
  EXPECT_EQ(code(evaluate(tiny, {"model.validation_ds.manifest_filepath=/none.json"})), 3);
  // Another model than the checkpoint's.
  EXPECT_EQ(code(evaluate(tiny, {"model.encoder.d_model=32"})), 3);
}

TEST(NestMeasureTest, MeasuresTheModelOfAConfiguration) {
  const TinyRun tiny;
  const auto loaded = tiny.config({"trainer.accumulate_grad_batches=2"}, false);
  ASSERT_TRUE(loaded.ok());
  NestMeasureOptions options;
  options.steps = 2;
  options.warmup = 1;
  options.batch_size = 3;
  options.seconds = 0.5;
  const auto measured = measure(loaded->run, options);
  ASSERT_TRUE(measured.ok()) << measured.status().to_string();
  EXPECT_EQ(measured->steps.steps, 2);
  EXPECT_GT(measured->parameters, 0);
  EXPECT_NEAR(measured->steps.amount, 2 * 0.5 * (1.0 + 0.9 + 0.8), 1e-3);
  EXPECT_TRUE(std::isfinite(measured->steps.loss));
  EXPECT_GT(measured->steps.phase("backward")->host_ms, 0.0);
  options.seconds = 0.0;
  EXPECT_EQ(measure(loaded->run, options).status().code(), StatusCode::kInvalidArgument);
}

TEST(NestMeasureTest, TheBuiltInModelIsTheStockOne) {
  config::ConfigArgs args;
  args.config_path = config_dir("/nest");
  args.config_name = "nest_fast-conformer";
  const auto stock = config::load_run_config(args);
  ASSERT_TRUE(stock.ok()) << stock.status().to_string();
  const config::RunConfig built_in = nest_l_config();
  EXPECT_EQ(built_in.model.preprocessor, stock->run.model.preprocessor);
  EXPECT_EQ(built_in.model.masking, stock->run.model.masking);
  EXPECT_EQ(built_in.model.quantizer, stock->run.model.quantizer);
  EXPECT_EQ(built_in.model.encoder, stock->run.model.encoder);
  EXPECT_EQ(built_in.model.decoder, stock->run.model.decoder);
  EXPECT_EQ(built_in.model.loss, stock->run.model.loss);
  EXPECT_EQ(built_in.model.optim, stock->run.model.optim);
  // What the products of 16 clips of 15 s come to without the subsampling.
  EXPECT_NEAR(nest_step_tflop(built_in.model, 16, 15.0), 2.06, 0.1);
}

}  // namespace
}  // namespace aerie::train
