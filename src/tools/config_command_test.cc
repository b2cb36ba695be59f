#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/strings.h"
#include "aerie/base/testing/paths.h"
#include "command_test.h"

namespace aerie::tools {
namespace {

Outcome run(const std::vector<std::string>& args) {
  return tools::run(run_config, args);
}

Outcome with_config(const std::string& verb, const std::string& name,
                    std::vector<std::string> more = {}) {
  std::vector<std::string> args = {verb, "--config-path", config_dir("/nest"),
                                   "--config-name=" + name};
  args.insert(args.end(), more.begin(), more.end());
  return run(args);
}

std::string write_config(const std::string& name, const std::string& text) {
  const std::string path = testing::TempDir() + name;
  std::ofstream(path) << text;
  return path;
}

TEST(ConfigCommandTest, ShowPrintsValuesAndOrigins) {
  const Outcome shown =
      with_config("show", "nest_fast-conformer_fast",
                  {"model.train_ds.manifest_filepath=a.json", "trainer.max_steps=10"});
  EXPECT_EQ(shown.exit_code(), 0) << shown.status.to_string();
  EXPECT_HAS(shown.out, "manifest_filepath: a.json");
  EXPECT_HAS(shown.out, "# command line: trainer.max_steps=10");
  EXPECT_HAS(shown.out, "precision: 16-mixed");
  EXPECT_HAS(shown.out, "nest_fast-conformer_fast.yaml:");
  EXPECT_HAS(shown.out, "seed: 1234");
  EXPECT_HAS(shown.out, "# default");
  EXPECT_EQ(shown.out.find("${"), std::string::npos);
}

TEST(ConfigCommandTest, ShowMarksKeysWithoutEffect) {
  const Outcome shown = with_config(
      "show", "nest_fast-conformer",
      {"model.train_ds.manifest_filepath=a.json", "++model.train_ds.persistent_workers=true"});
  EXPECT_EQ(shown.exit_code(), 0) << shown.status.to_string();
  for (const char* key : {"strategy: ddp", "sync_batchnorm: true", "persistent_workers: true"}) {
    const size_t at = shown.out.find(key);
    ASSERT_NE(at, std::string::npos) << key;
    EXPECT_HAS(shown.out.substr(at, shown.out.find('\n', at) - at), "no effect: ");
  }
  const size_t steps = shown.out.find("max_steps: ");
  EXPECT_EQ(shown.out.substr(steps, shown.out.find('\n', steps) - steps).find("no effect"),
            std::string::npos);
}

TEST(ConfigCommandTest, MisspelledOverridesFailWithASuggestion) {
  const Outcome node = with_config("show", "nest_fast-conformer_fast", {"modle.x=1"});
  EXPECT_EQ(node.exit_code(), 2);
  EXPECT_HAS(node.status.to_string(), "Could not override 'modle.x'");
  EXPECT_HAS(node.status.to_string(), "nest_fast-conformer_fast.yaml");
  EXPECT_HAS(node.status.to_string(), "did you mean 'model");
  const Outcome key = with_config("show", "nest_fast-conformer_fast", {"trainer.max_step=10"});
  EXPECT_EQ(key.exit_code(), 2);
  EXPECT_HAS(key.status.to_string(), "trainer.max_step");
  EXPECT_HAS(key.status.to_string(), "nest_fast-conformer_fast.yaml");
  EXPECT_HAS(key.status.to_string(), "did you mean 'trainer.max_steps'");
  const Outcome added = with_config("show", "nest_fast-conformer_fast", {"+trainer.max_step=10"});
  EXPECT_EQ(added.exit_code(), 2);
  EXPECT_HAS(added.status.to_string(), "command line: +trainer.max_step=10");
  EXPECT_HAS(added.status.to_string(), "did you mean 'trainer.max_steps'");
  const Outcome allowed =
      with_config("show", "nest_fast-conformer_fast", {"+trainer.max_step=10", "--allow-unknown"});
  EXPECT_EQ(allowed.exit_code(), 0);
  EXPECT_HAS(allowed.err, "warning: command line: +trainer.max_step=10");
}

TEST(ConfigCommandTest, OverrideFormsReachTheConfig) {
  const Outcome shown = with_config(
      "show", "nest_fast-conformer",
      {"--json", "aerie.seed=7", "+trainer.limit_train_batches=0.5", "++trainer.precision=bf16",
       "~model.train_ds.batch_augmentor", "model.train_ds.manifest_filepath=[[a.json],[b.json,c]]",
       "model.optim={lr:1e-3,sched:{warmup_steps:10}}", "exp_manager.name='${name}_x'",
       "model.train_ds.tarred_audio_filepaths='s_{0..3}.tar'"});
  ASSERT_EQ(shown.exit_code(), 0) << shown.status.to_string();
  const auto config = nlohmann::json::parse(shown.out)["config"];
  EXPECT_EQ(config["aerie"]["seed"], 7);
  EXPECT_EQ(config["trainer"]["limit_train_batches"], 0.5);
  EXPECT_EQ(config["trainer"]["precision"], "bf16");
  EXPECT_FALSE(config["model"]["train_ds"].contains("batch_augmentor"));
  EXPECT_EQ(config["model"]["train_ds"]["manifest_filepath"][1][0], "b.json");
  EXPECT_EQ(config["model"]["optim"]["lr"], 1e-3);
  EXPECT_EQ(config["model"]["optim"]["sched"]["min_lr"], 1e-6);
  EXPECT_EQ(config["exp_manager"]["name"], "SSL-NEST-FastConformer_x");
  EXPECT_EQ(config["model"]["train_ds"]["tarred_audio_filepaths"], "s_{0..3}.tar");
}

TEST(ConfigCommandTest, ValidateCatchesWhatOnlyTrainingFound) {
  for (const char* text : {"", "# nothing\n", "---\n", "{}\n"}) {
    const Outcome empty = run({"validate", write_config("empty.yaml", text)});
    EXPECT_EQ(empty.exit_code(), 2) << text;
    EXPECT_HAS(empty.status.to_string(), "the configuration is empty");
    EXPECT_HAS(empty.status.to_string(), "empty.yaml");
  }
  const Outcome tarred =
      with_config("validate", "nest_fast-conformer",
                  {"model.train_ds.manifest_filepath=a.json", "model.train_ds.is_tarred=true"});
  EXPECT_EQ(tarred.exit_code(), 2);
  EXPECT_HAS(tarred.status.to_string(), "model.train_ds.tarred_audio_filepaths");
  for (const char* number :
       {"model.optim.lr=1e400", "model.train_ds.batch_size=1000000000", "model.optim.lr=inf",
        "model.train_ds.batch_augmentor.max_r_noise=1e999", "trainer.gradient_clip_val=nan"}) {
    const Outcome odd = with_config("validate", "nest_fast-conformer", {number});
    EXPECT_EQ(odd.exit_code(), 2) << number;
  }
  EXPECT_HAS(
      with_config("validate", "nest_fast-conformer", {"model.train_ds.batch_size=1000000000"})
          .status.to_string(),
      "expected a number in [1,1048576]");
  // Where it means "no limit" infinity stays welcome.
  for (const char* number : {"model.train_ds.max_duration=inf", "trainer.gradient_clip_val=inf"})
    EXPECT_EQ(with_config("validate", "nest_fast-conformer", {number}).exit_code(), 0) << number;
}

TEST(ConfigCommandTest, TabsAreNamed) {
  for (const char* text : {"model:\n\ttrain_ds: 1\n", "a:\n  b: 1\n \tc: 2\n"}) {
    const Outcome tab = run({"validate", write_config("tab.yaml", text)});
    EXPECT_EQ(tab.exit_code(), 2);
    EXPECT_HAS(tab.status.to_string(), "this is a tab");
  }
}

TEST(ConfigCommandTest, ValidateListsEverythingWrong) {
  const std::string file = write_config(
      "bad.yaml", "trainer:\n  precision: 16-true\n  max_step: 1\nexp_manager:\n  bogus: 1\n");
  const Outcome checked = run({"validate", file});
  EXPECT_EQ(checked.exit_code(), 2);
  const std::string text = checked.status.to_string();
  EXPECT_HAS(text, "3 errors");
  EXPECT_HAS(text, "bad.yaml:2:14: trainer.precision: '16-true' is refused");
  EXPECT_HAS(text, "bad.yaml:3:3: trainer.max_step");
  EXPECT_HAS(text, "bad.yaml:5:3: exp_manager.bogus");
  const Outcome json = run({"validate", file, "--json"});
  EXPECT_EQ(json.exit_code(), 2);
  const auto parsed = nlohmann::json::parse(json.out);
  EXPECT_FALSE(parsed["ok"]);
  EXPECT_EQ(parsed["findings"].size(), 3u);
  EXPECT_EQ(with_config("validate", "nest_fast-conformer_ddp_example").exit_code(), 0);
}

TEST(ConfigCommandTest, AerieNodeNeedsNotBeInTheFile) {
  const std::string file = write_config("tiny.yaml", "trainer: {devices: 1}\n");
  const Outcome shown = run({"show", file, "aerie.data.virtual_ranks=4", "--json"});
  ASSERT_EQ(shown.exit_code(), 0) << shown.status.to_string();
  EXPECT_EQ(nlohmann::json::parse(shown.out)["config"]["aerie"]["data"]["virtual_ranks"], 4);
  // A partial or empty node is completed.
  const std::string partial =
      write_config("partial.yaml", "aerie: {seed: 3, data: {cache_dir: x}}\n");
  const auto config = nlohmann::json::parse(run({"show", partial, "--json"}).out)["config"];
  EXPECT_EQ(config["aerie"]["seed"], 3);
  EXPECT_EQ(config["aerie"]["data"]["cache_dir"], "x");
  EXPECT_EQ(config["aerie"]["data"]["max_shapes"], 16);
  const std::string empty = write_config("empty.yaml", "aerie:\ntrainer: {devices: 1}\n");
  const Outcome none = run({"show", empty, "aerie.on_oom=stop", "--json"});
  ASSERT_EQ(none.exit_code(), 0) << none.status.to_string();
  EXPECT_EQ(nlohmann::json::parse(none.out)["config"]["aerie"]["on_oom"], "stop");
}

TEST(ConfigCommandTest, DiffNamesKeysAndOrigins) {
  const std::string folder = config_dir("/nest");
  const Outcome different =
      run({"diff", "--config-path", folder, "nest_fast-conformer", "nest_fast-conformer_m"});
  EXPECT_EQ(different.exit_code(), 0) << different.status.to_string();
  EXPECT_HAS(different.out, "model.encoder.d_model\n  - 512");
  EXPECT_HAS(different.out, "  + 256");
  EXPECT_HAS(different.out, "nest_fast-conformer_m.yaml:");
  const Outcome same =
      run({"diff", folder + "/nest_fast-conformer.yaml", folder + "/nest_fast-conformer_l.yaml"});
  EXPECT_HAS(same.out, "no difference");
  EXPECT_EQ(run({"diff", "--config-path", folder, "nest_fast-conformer"}).exit_code(), 2);
}

TEST(ConfigCommandTest, CfgJobPrintsTheComposedFile) {
  const Outcome job = with_config("show", "nest_fast-conformer", {"--cfg", "job"});
  EXPECT_HAS(job.out, "feat_in: ${model.preprocessor.features}");
  const Outcome resolved = with_config("show", "nest_fast-conformer", {"-c", "job", "--resolve"});
  EXPECT_HAS(resolved.out, "feat_in: 80");
  EXPECT_EQ(with_config("show", "nest_fast-conformer", {"--cfg", "everything"}).exit_code(), 2);
}

TEST(ConfigCommandTest, KeysCanBeFiltered) {
  const Outcome keys = run({"keys", "model.validation_ds.num_workers"});
  EXPECT_EQ(keys.exit_code(), 0);
  EXPECT_HAS(keys.out, "model.validation_ds.num_workers: int|str = 0");
  EXPECT_EQ(run({"keys", "nothing.here"}).exit_code(), 2);
  EXPECT_HAS(run({"keys", "--markdown"}).out, "# Configuration keys");
  EXPECT_GT(nlohmann::json::parse(run({"keys", "--json"}).out).size(), 450u);
}

TEST(ConfigCommandTest, WrongCommandLinesAreExplained) {
  EXPECT_EQ(run({"--help"}).exit_code(), 0);
  EXPECT_EQ(run({}).exit_code(), 2);
  EXPECT_HAS(run({"shwo"}).status.to_string(), "did you mean 'show'?");
  EXPECT_HAS(run({"show", "--config-pth", "x"}).status.to_string(), "--config-path");
  EXPECT_HAS(run({"show"}).status.to_string(), "no config is named");
  EXPECT_HAS(run({"show", "x.yaml", "word"}).status.to_string(), "word=value");
  EXPECT_HAS(run({"show", "--multirun", "x.yaml"}).status.to_string(), "one run at a time");
  EXPECT_HAS(run({"show", "--config-name"}).status.to_string(), "needs a value");
  EXPECT_HAS(run({"show", "x.yaml", "--json=1"}).status.to_string(), "takes no value");
  EXPECT_EQ(with_config("show", "no_such_config").exit_code(), 2);
  EXPECT_EQ(with_config("show", "nest_fast-conformer", {"trainer.max_steps=1,2"}).exit_code(), 2);
  EXPECT_EQ(with_config("show", "nest_fast-conformer", {"model.encoder.d_model='${no.such}'"})
                .exit_code(),
            2);
}

TEST(ConfigCommandTest, TakesConfigurationsOfBirdsEyeViews) {
  const std::string preset = config_dir("/baseline/lss_swin_nuscenes_optimized.py");
  const Outcome shown = run({"show", preset, "--cfg-options", "runner.max_iters=7"});
  EXPECT_EQ(shown.exit_code(), 0) << shown.status.to_string();
  EXPECT_HAS(shown.out, "max_steps: 7");
  EXPECT_HAS(shown.out, "lss_swin_nuscenes_optimized.py:");
  EXPECT_HAS(shown.err, "learning rate 3e-04");
  const Outcome valid = run({"validate", preset});
  EXPECT_EQ(valid.exit_code(), 0) << valid.status.to_string();
  EXPECT_HAS(valid.out, "ok, with warnings");
  const Outcome wrong = run({"validate", preset, "--cfg-options", "runner.max_iter=7"});
  EXPECT_EQ(wrong.exit_code(), 2);
  EXPECT_HAS(wrong.status.to_string(), "did you mean 'runner.max_iters'?");
  const std::string yaml = testing::TempDir() + "converted_bev.yaml";
  EXPECT_EQ(run({"convert", preset, "-o", yaml}).exit_code(), 0);
  const Outcome again = run({"diff", preset, yaml});
  EXPECT_EQ(again.exit_code(), 0) << again.status.to_string();
  EXPECT_HAS(again.out, "no difference");
  EXPECT_HAS(run({"keys", "--family", "bev", "model.encoders"}).out, "embed_dims");
  EXPECT_EQ(run({"convert", "nowhere.py"}).exit_code(), 2);
}

}  // namespace
}  // namespace aerie::tools
