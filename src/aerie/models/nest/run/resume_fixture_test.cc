// A run folder that an earlier version left in the middle of an epoch (tests/data/resume_v1, made
// by tests/golden/make_resume_fixture.py at 4833b49) goes on as if it had never stopped.
#include <algorithm>
#include <filesystem>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/env.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/checkpoint/checkpoint_store.h"
#include "aerie/data/cursor.h"
#include "aerie/metrics/metrics_log.h"
#include "aerie/models/nest/config/run_config_loader.h"
#include "aerie/models/nest/run/nest_data.h"
#include "aerie/models/nest/run/nest_job.h"
#include "aerie/train/run.h"
#include "aerie/train/run_start.h"

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
  explicit OldRun(const std::string& fixture = "/resume_v1") : source(test_data(fixture)) {
    copy_tree(test_data("/resume_v1/data"), dir.file("data"));
    copy_tree(source + "/run", dir.file("resumed/old"));
    expected = nlohmann::json::parse(*Env::real().read_file(source + "/expected.json"));
  }
  Result<config::LoadedConfig> load(const std::string& exp_dir,
                                    const std::vector<std::string>& more = {}) const {
    config::ConfigArgs args;
    args.config_path = source + "/run";
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
    return config::load_run_config(args, load);
  }
  // Goes on in, or begins, <exp_dir>/old.
  Result<RunResult> train(const std::string& exp_dir,
                          const std::vector<std::string>& more = {}) const {
    AERIE_ASSIGN_OR_RETURN(const config::LoadedConfig loaded, load(exp_dir, more));
    RunOptions options;
    options.command = "test";
    options.env = &Env::real();
    options.quiet = true;
    return run_training(*make_nest_job(loaded), options);
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

  std::string source;
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

// Made by tests/golden/make_batching_fixture.py at 4833b49: batch_duration without buckets (then by
// another rule than Lhotse's, which such a run keeps) and with them.
TEST(ResumeFixtureTest, BatchesByDurationGoOnAsTheyWere) {
  for (const char* mode : {"packed", "buckets"}) {
    SCOPED_TRACE(mode);
    const OldRun old(str_cat("/resume_v1_batching/", mode));
    // Stopped and gone on with once more: the rule stays with the run.
    const auto once = old.train("resumed", {"trainer.max_steps=22"});
    ASSERT_TRUE(once.ok()) << once.status().to_string();
    const auto resumed = old.train("resumed");
    ASSERT_TRUE(resumed.ok()) << resumed.status().to_string();
    ASSERT_EQ(resumed->step, old.expected["step"]);
    const auto compare = [&](metrics::RecordKind kind, const char* name) {
      const auto recorded = old.expected[name].get<std::vector<double>>();
      const auto now = old.values("resumed", kind, name);
      ASSERT_EQ(now.size(), recorded.size()) << name;
      // Another CPU rounds otherwise (5e-4 seen: Adam turns gradients of nearly nothing into whole
      // steps); which clips a batch has is compared one by one below.
      for (size_t i = 0; i < recorded.size(); ++i)
        EXPECT_NEAR(now[i], recorded[i], 2e-3 * recorded[i]) << name << " " << i + 1;
    };
    compare(metrics::RecordKind::kTrain, "train_loss");
    compare(metrics::RecordKind::kVal, "val_loss");
    // On a CPU that rounds as the one of then, to the bit.
    if (old.values("resumed", metrics::RecordKind::kTrain, "train_loss") ==
        old.expected["train_loss"].get<std::vector<double>>()) {
      EXPECT_EQ(old.hashes(resumed->last_checkpoint)["model.safetensors"],
                old.expected["model_xxh64"]);
    }
  }
}

std::string cursor_of(const std::string& run) {
  const CheckpointStore store(Env::real(), run + "/checkpoints");
  const auto loaded = store.newest_valid([](const CheckpointInfo&, const Status&) {});
  EXPECT_TRUE(loaded.ok() && *loaded != nullptr);
  return (*loaded)->state().data_cursor_json;
}

// The samples of each batch up to step `steps` of the run: from its beginning, or from where the
// cursor stands, with batches made by `packing`.
std::vector<std::vector<uint32_t>> batches_of(const OldRun& old, data::Packing packing,
                                              size_t steps, const std::string& cursor_json = "") {
  std::vector<std::vector<uint32_t>> out;
  const auto loaded = old.load("resumed");
  EXPECT_TRUE(loaded.ok()) << loaded.status().to_string();
  NestDataOptions options;
  options.env = &Env::real();
  options.validation = false;
  options.quiet = true;
  options.packing = packing;
  const auto data = open_nest_data(loaded->run, options);
  EXPECT_TRUE(data.ok()) << data.status().to_string();
  int64_t epoch = 0;
  Status started;
  if (cursor_json.empty()) {
    started = data->train->start_epoch(epoch);
  } else {
    epoch = static_cast<int64_t>(data::Cursor::parse(cursor_json)->epoch);
    started = data->train->restore(cursor_json);
  }
  EXPECT_TRUE(started.ok()) << started.to_string();
  while (out.size() < steps) {
    const auto batch = data->train->next();
    EXPECT_TRUE(batch.ok()) << batch.status().to_string();
    if (!batch.ok()) break;
    if (*batch == nullptr) {
      EXPECT_TRUE(data->train->start_epoch(++epoch).ok());
      continue;
    }
    const auto ids = (*batch)->sample_ids();
    out.emplace_back(ids.begin(), ids.end());
    data->train->release(*batch);
  }
  return out;
}

// Recorded by a version that goes on with the losses of 4833b49, as the test above says.
TEST(ResumeFixtureTest, BatchesByDurationHaveTheClipsTheyHad) {
  for (const char* mode : {"packed", "buckets"}) {
    SCOPED_TRACE(mode);
    const OldRun old(str_cat("/resume_v1_batching/", mode));
    const size_t steps = old.expected["step"], stopped_at = old.expected["stopped_at"];
    const auto whole = batches_of(old, data::Packing::kWithinBudget, steps);
    ASSERT_TRUE(old.expected.contains("batches")) << "to be recorded: " << nlohmann::json(whole);
    const auto recorded = old.expected["batches"].get<std::vector<std::vector<uint32_t>>>();
    ASSERT_EQ(recorded.size(), steps);
    EXPECT_EQ(whole, recorded);
    const std::string cursor_json = cursor_of(old.run("resumed"));
    const auto cursor = data::Cursor::parse(cursor_json);
    ASSERT_TRUE(cursor.ok());
    EXPECT_EQ(cursor->packing, data::Packing::kWithinBudget);
    const std::vector rest(recorded.begin() + static_cast<ptrdiff_t>(stopped_at), recorded.end());
    EXPECT_EQ(batches_of(old, cursor->packing, steps - stopped_at, cursor_json), rest);
    // Else nothing above would tell the rules apart.
    if (mode == std::string("packed")) {
      EXPECT_NE(batches_of(old, data::Packing::kLhotse, steps), recorded);
    }
  }
}

// The samples of up to `batches` more batches, -1: of all that are left.
std::map<uint32_t, int> take(BatchSource& source, int64_t batches, std::map<uint32_t, int> seen) {
  for (int64_t taken = 0; taken != batches; ++taken) {
    const auto batch = source.next();
    EXPECT_TRUE(batch.ok()) << batch.status().to_string();
    if (!batch.ok() || *batch == nullptr) break;
    for (const uint32_t id : (*batch)->sample_ids()) ++seen[id];
    source.release(*batch);
  }
  return seen;
}

// Cursors of then do not say what the batches were made with; the run's config.yaml does.
TEST(ResumeFixtureTest, BatchesByDurationCanBeGoneOnWithInOthers) {
  const std::vector<std::vector<std::string>> others = {
      {"model.train_ds.batch_duration=2.0"},
      {"model.train_ds.batch_duration=0.5", "model.train_ds.num_buckets=2"},
      {"model.train_ds.batch_duration=null", "model.train_ds.batch_size=4",
       "model.train_ds.use_bucketing=false"},
      {"model.train_ds.use_bucketing=false", "model.train_ds.batch_duration=1.5"}};
  for (const char* mode : {"packed", "buckets"}) {
    for (size_t k = 0; k < others.size(); ++k) {
      for (const bool drop_last : {false, true}) {
        SCOPED_TRACE(str_cat(mode, " ", k, drop_last ? ", drop_last" : ""));
        const OldRun old(str_cat("/resume_v1_batching/", mode));
        std::vector<std::string> more = others[k];
        if (mode == std::string("packed"))
          for (std::string& key : more)
            if (key.find("ucket") != std::string::npos) key = "++" + key;
        more.push_back(str_cat("++model.train_ds.drop_last=", drop_last ? "true" : "false"));
        const std::string cursor_json = cursor_of(old.run("resumed"));
        const auto cursor = data::Cursor::parse(cursor_json);
        ASSERT_TRUE(cursor.ok() && !cursor->now.batching) << cursor_json;

        const auto before = old.load("resumed"), after = old.load("resumed", more);
        ASSERT_TRUE(before.ok()) << before.status().to_string();
        ASSERT_TRUE(after.ok()) << after.status().to_string();
        NestDataOptions options;
        options.env = &Env::real();
        options.validation = false;
        options.quiet = true;
        options.packing = cursor->packing;
        const auto then = open_nest_data(before->run, options);
        ASSERT_TRUE(then.ok()) << then.status().to_string();
        ASSERT_TRUE(then->train->start_epoch(cursor->epoch).ok());
        auto seen = take(*then->train, static_cast<int64_t>(cursor->now.step), {});
        options.earlier_batching = batching_of(
            earlier_configs(Env::real(), {old.run("resumed"), "", "", ""}, ResumePlan()));
        const auto now = open_nest_data(after->run, options);
        ASSERT_TRUE(now.ok()) << now.status().to_string();
        const Status restored = now->train->restore(cursor_json);
        ASSERT_TRUE(restored.ok()) << restored.to_string();
        seen = take(*now->train, -1, seen);
        for (const auto& [id, count] : seen) EXPECT_EQ(count, 1) << "sample " << id;
        // One of the twenty clips is no recording.
        const size_t lost = 19 - seen.size();
        EXPECT_LT(lost, drop_last ? loader_of(now->train).sampler().max_batch_size() : 1u);
      }
    }
  }
}

TEST(ResumeFixtureTest, ARunInBucketsFinishesWithOthers) {
  const OldRun old("/resume_v1_batching/buckets");
  const auto resumed = old.train("resumed", {"model.train_ds.batch_duration=0.6"});
  ASSERT_TRUE(resumed.ok()) << resumed.status().to_string();
  EXPECT_EQ(resumed->step, old.expected["step"]);
  // A second time the folder's config.yaml is that of the new batches, and the cursor knows more.
  const auto again =
      old.train("resumed", {"model.train_ds.batch_duration=1.1", "trainer.max_steps=36"});
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(again->step, 36);
}

// Without config.yaml its copy says what the batches were made with; without both the resume is
// refused, since samples would be left out or come twice.
TEST(ResumeFixtureTest, ARunInBucketsFinishesWithoutItsConfig) {
  const OldRun old("/resume_v1_batching/buckets");
  const std::string config = old.run("resumed") + "/config.yaml";
  const std::string copy = old.run("resumed") + "/hparams.yaml";
  std::filesystem::rename(config, old.dir.file("elsewhere.yaml"));
  const std::vector<std::string> others = {"model.train_ds.batch_duration=0.6"};
  const auto refused = old.train("resumed", others);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().to_string().find("batch"), std::string::npos)
      << refused.status().to_string();
  std::filesystem::remove(config);  // what the refused start wrote
  std::filesystem::rename(old.dir.file("elsewhere.yaml"), copy);
  const auto resumed = old.train("resumed", others);
  ASSERT_TRUE(resumed.ok()) << resumed.status().to_string();
  EXPECT_EQ(resumed->step, old.expected["step"]);
}

}  // namespace
}  // namespace aerie::train
