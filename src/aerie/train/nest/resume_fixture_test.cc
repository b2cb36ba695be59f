// A run folder that an earlier version left in the middle of an epoch (tests/data/resume_v1, made
// by tests/golden/make_resume_fixture.py at 4833b49) goes on as if it had never stopped.
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/env.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/config/schema/run_config_loader.h"
#include "aerie/data/cursor.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/train/checkpoint_store.h"
#include "aerie/train/nest/nest_run.h"

namespace aerie::train {
namespace {

void copy_tree(const std::string& from, const std::string& to) {
  Env& env = Env::real();
  ASSERT_TRUE(env.create_dirs(to).ok());
  const auto entries = env.list_dir(from);
  ASSERT_TRUE(entries.ok()) << entries.status().to_string();
  for (const DirEntry& entry : *entries) {
    const std::string source = from + "/" + entry.name, target = to + "/" + entry.name;
    if (entry.is_dir) {
      copy_tree(source, target);
    } else {
      ASSERT_TRUE(env.copy_file(source, target).ok());
    }
  }
}

struct OldRun {
  OldRun() {
    copy_tree(test_data("/resume_v1/data"), dir.file("data"));
    copy_tree(test_data("/resume_v1/run"), dir.file("resumed/old"));
    expected = nlohmann::json::parse(*Env::real().read_file(test_data("/resume_v1/expected.json")));
  }
  // Goes on in, or begins, <exp_dir>/old.
  Result<NestRunResult> train(const std::string& exp_dir,
                              const std::vector<std::string>& more = {}) const {
    config::ConfigArgs args;
    args.config_path = test_data("/resume_v1/run");
    args.config_name = "config";
    const std::string data = dir.file("data");
    args.overrides = {"model.train_ds.manifest_filepath=" + data + "/train.json",
                      "model.train_ds.tarred_audio_filepaths=" + data + "/audio__OP_0..1_CL_.tar",
                      "model.train_ds.noise_manifest=" + data + "/noise.json",
                      "model.validation_ds.manifest_filepath=" + data + "/val.json",
                      "model.validation_ds.noise_manifest=" + data + "/noise.json",
                      "exp_manager.exp_dir=" + dir.file(exp_dir)};
    args.overrides.insert(args.overrides.end(), more.begin(), more.end());
    config::LoadOptions load;
    load.for_training = true;
    load.num_gpus = 0;
    AERIE_ASSIGN_OR_RETURN(const config::LoadedConfig loaded, config::load_run_config(args, load));
    NestRunOptions options;
    options.config = &loaded;
    options.command = "test";
    options.env = &Env::real();
    options.quiet = true;
    return run_nest_training(options);
  }
  std::string run(const std::string& exp_dir) const { return dir.file(exp_dir) + "/old"; }
  std::vector<double> values(const std::string& exp_dir, metrics::RecordKind kind,
                             const char* name) const {
    std::vector<double> out;
    const auto file = metrics::read_metrics(Env::real(), run(exp_dir) + "/metrics.jsonl");
    if (!file.ok()) return out;
    double value = 0.0;
    for (const metrics::Record& record : file->records)
      if (record.kind() == kind && record.number(name, &value)) out.push_back(value);
    return out;
  }
  nlohmann::json hashes(const std::string& checkpoint) const {
    nlohmann::json out;
    const auto manifest =
        nlohmann::json::parse(*Env::real().read_file(checkpoint + "/manifest.json"));
    for (const auto& [name, entry] : manifest["files"].items())
      if (ends_with(name, ".safetensors")) out[name] = entry["xxh64"];
    return out;
  }

  TempDir dir;
  nlohmann::json expected;
};

TEST(ResumeFixtureTest, GoesOnWithTheBitsOfTheUninterruptedRun) {
  const OldRun old;
  const auto whole = old.train("whole");
  ASSERT_TRUE(whole.ok()) << whole.status().to_string();
  const auto resumed = old.train("resumed");
  ASSERT_TRUE(resumed.ok()) << resumed.status().to_string();
  ASSERT_EQ(resumed->step, old.expected["step"]);
  const nlohmann::json bits = old.hashes(resumed->last_checkpoint);
  ASSERT_EQ(bits.size(), 3u);  // weights, moments, averaged weights

  // What an earlier version computed before the interruption stands in the first lines of the
  // resumed run's metrics. Another CPU may round otherwise; where it does not, everything is equal.
  const auto recorded = old.expected["train_loss"].get<std::vector<double>>();
  const auto losses = old.values("whole", metrics::RecordKind::kTrain, "train_loss");
  ASSERT_EQ(losses.size(), recorded.size());
  const size_t stopped_at = old.expected["stopped_at"];
  if (std::equal(losses.begin(), losses.begin() + static_cast<int64_t>(stopped_at),
                 recorded.begin())) {
    EXPECT_EQ(bits, old.hashes(whole->last_checkpoint));
    EXPECT_EQ(bits, old.expected["xxh64"]);
    EXPECT_EQ(losses, recorded);
    EXPECT_EQ(old.values("resumed", metrics::RecordKind::kTrain, "train_loss"), recorded);
    EXPECT_EQ(old.values("resumed", metrics::RecordKind::kVal, "val_loss"),
              old.expected["val_loss"].get<std::vector<double>>());
  }
  const auto after = old.values("resumed", metrics::RecordKind::kTrain, "train_loss");
  ASSERT_EQ(after.size(), recorded.size());
  for (size_t i = 0; i < recorded.size(); ++i) {
    EXPECT_NEAR(losses[i], recorded[i], 2e-3 * recorded[i]) << "step " << i + 1;
    EXPECT_NEAR(after[i], recorded[i], 2e-3 * recorded[i]) << "step " << i + 1;
  }
}

TEST(ResumeFixtureTest, KeepsTheBestAndTheBadSampleOfEarlier) {
  const OldRun old;
  const auto resumed = old.train("resumed");
  ASSERT_TRUE(resumed.ok()) << resumed.status().to_string();
  // No later validation was better, by more digits than the name has.
  EXPECT_TRUE(ends_with(resumed->best_checkpoint, "-step=10")) << resumed->best_checkpoint;
  const std::string last = resumed->last_checkpoint;
  const size_t slash = last.rfind('/');
  const auto state =
      CheckpointStore(Env::real(), last.substr(0, slash)).open(last.substr(slash + 1));
  ASSERT_TRUE(state.ok()) << state.status().to_string();
  const auto cursor = data::Cursor::parse((*state)->state().data_cursor_json);
  ASSERT_TRUE(cursor.ok());
  EXPECT_EQ(cursor->bad_samples, 1u);
  const std::string list = *Env::real().read_file(old.run("resumed") + "/bad_samples.jsonl");
  EXPECT_EQ(std::count(list.begin(), list.end(), '\n'), 1) << list;
}

}  // namespace
}  // namespace aerie::train
