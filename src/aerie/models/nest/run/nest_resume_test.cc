// Starting a run again: with other keys, when it is finished, with broken checkpoints; and where
// its TensorBoard files are, beside what NeMo writes.
#include <algorithm>
#include <cstring>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/testing/paths.h"
#include "aerie/config/yaml.h"
#include "aerie/models/nest/run/run_test_util.h"
#include "aerie/train/run_changes.h"

namespace aerie::train::nest_resume_test {
namespace {

using metrics::RecordKind;

RunResult run(const TinyRun& tiny, const std::vector<std::string>& overrides) {
  auto result = tiny.train(overrides);
  EXPECT_TRUE(result.ok()) << result.status().to_string();
  return result.ok() ? std::move(result).value() : RunResult{};
}

std::string changes_of_last_start(const TinyRun& tiny) {
  std::string out;
  for (const metrics::Record& record : tiny.records(RecordKind::kEvent))
    if (record.text("event") == "resume") out = record.text("changes");
  return out;
}

std::vector<std::string> changes(const char* before, const char* now) {
  return config_changes(*config::parse_yaml(before, "a"), *config::parse_yaml(now, "b"));
}

TEST(RunChangesTest, NamesEveryKeyWithBothValues) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(changes("a: {b: 1, c: x}\n", "a: {b: 1, c: x}\n"), Lines{});
  EXPECT_EQ(changes("model: {optim: {lr: 0.001}, train_ds: {batch_size: 8}}\naerie: {seed: 1}\n",
                    "model: {optim: {lr: 0.002}, train_ds: {batch_size: 16}}\naerie: {seed: 2}\n"),
            (Lines{"model.optim.lr: 0.001 -> 0.002", "model.train_ds.batch_size: 8 -> 16",
                   "aerie.seed: 1 -> 2"}));
  EXPECT_EQ(changes("a: [1, 2]\nb: true\n", "a: [1, 3]\nc: null\n"),
            (Lines{"a: [1, 2] -> [1, 3]", "b: true -> not set", "c: not set -> null"}));
  // An expression is not a value.
  EXPECT_EQ(changes("a: ${oc.env:X}\n", "a: 5\n"), Lines{});
}

TEST(RunChangesTest, OtherDataUnderTheSameKeys) {
  data::Cursor before, now;
  before.num_samples = 100;
  now.num_samples = 120;
  EXPECT_TRUE(data_changes(before, now).empty());
  now.data_fingerprint = 1;
  EXPECT_EQ(data_changes(before, now)[0], "training data: 100 samples -> 120");
  before.num_samples.reset();
  EXPECT_NE(data_changes(before, now)[0].find("other samples"), std::string::npos);
}

// 24 clips in batches of 4. After four steps 8 clips are left of the epoch: with batches of 3 two
// more steps (two clips fill no batch), with 2 four, with 8 one.
TEST(NestResumeTest, AnotherBatchSizeFinishesTheEpoch) {
  for (const auto& [batch_size, steps] : std::map<int, int64_t>{{3, 6}, {2, 8}, {8, 5}}) {
    const TinyRun tiny;
    run(tiny, {"trainer.max_steps=4", "trainer.max_epochs=1"});
    const RunResult result = run(tiny, {"trainer.max_steps=50", "trainer.max_epochs=1",
                                        str_cat("model.train_ds.batch_size=", batch_size)});
    EXPECT_EQ(result.step, steps) << "batches of " << batch_size;
    EXPECT_EQ(tiny.steps(RecordKind::kTrain).back(), steps);
  }
}

TEST(NestResumeTest, SaysWhatHasChangedSinceTheLastStart) {
  const TinyRun tiny;
  run(tiny, {"trainer.max_steps=6"});
  run(tiny, {"trainer.max_steps=7"});
  EXPECT_EQ(changes_of_last_start(tiny), "trainer.max_steps: 6 -> 7");
  run(tiny, {"trainer.max_steps=8", "model.optim.lr=0.5", "model.train_ds.batch_size=2"});
  const std::string changes = changes_of_last_start(tiny);
  EXPECT_NE(changes.find("model.train_ds.batch_size: 4 -> 2"), std::string::npos) << changes;
  EXPECT_NE(changes.find("model.optim.lr: "), std::string::npos) << changes;
  // At the start of an epoch the data may be other data; it is said.
  const TinyRun grown;
  run(grown, {"trainer.max_steps=6"});
  const std::string manifest = grown.file("train.json");
  const std::string lines = *Env::real().read_file(manifest);
  data::write_file(manifest, lines + lines.substr(0, lines.find('\n') + 1));
  run(grown, {"trainer.max_steps=8"});
  EXPECT_NE(changes_of_last_start(grown).find("training data: 24 samples -> 25"), std::string::npos)
      << changes_of_last_start(grown);
}

TEST(NestResumeTest, AFinishedRunSaysThatItIs) {
  const TinyRun tiny;
  run(tiny, {"trainer.max_steps=6"});
  const auto names = tiny.checkpoint_names();
  const RunResult again = run(tiny, {"trainer.max_steps=6"});
  EXPECT_EQ(again.stop_sentence, "already finished at step 6; raise trainer.max_steps");
  EXPECT_EQ(again.step, 6);
  EXPECT_EQ(tiny.checkpoint_names(), names);
  EXPECT_EQ(tiny.steps(RecordKind::kTrain).size(), 6u);
  const RunResult on = run(tiny, {"trainer.max_steps=7"});
  EXPECT_EQ(on.stop_sentence, "finished after step 7");
}

TEST(NestResumeTest, BadSamplesAreListedOnceAndCountedOverRestarts) {
  const TinyRun tiny;
  for (const int i : {13, 14, 15}) data::write_file(tiny.file(str_cat("utt", i, ".wav")), "broken");
  const auto lines = [&] {
    const auto text = Env::real().read_file(tiny.run_dir() + "/bad_samples.jsonl");
    return text.ok() ? std::count(text->begin(), text->end(), '\n') : 0;
  };
  for (const int steps : {6, 9, 12, 18})
    run(tiny, {str_cat("trainer.max_steps=", steps), "aerie.max_bad_fraction=0.5"});
  EXPECT_EQ(lines(), 3);
  // Three of 24 are known: the next one that is met counts as the fourth or again as the third.
  const auto stopped = tiny.train({"trainer.max_steps=24", "aerie.max_bad_fraction=0.1"});
  ASSERT_FALSE(stopped.ok());
  EXPECT_NE(stopped.status().to_string().find("3 of 24 samples cannot be read"), std::string::npos)
      << stopped.status().to_string();
}

// Tags of the event files below a folder, by the folder they are in, with the x of their points.
using Points = std::map<std::string, std::map<std::string, std::vector<int64_t>>>;

uint64_t varint(const std::string& bytes, size_t& at) {
  uint64_t out = 0;
  for (int shift = 0; at < bytes.size(); shift += 7) {
    const uint8_t byte = static_cast<uint8_t>(bytes[at++]);
    out |= static_cast<uint64_t>(byte & 0x7F) << shift;
    if ((byte & 0x80) == 0) break;
  }
  return out;
}

// The length-delimited fields of a message; `number` gets the varint of field 2.
std::multimap<uint64_t, std::string> fields(const std::string& bytes, int64_t* number = nullptr) {
  std::multimap<uint64_t, std::string> out;
  for (size_t at = 0; at < bytes.size();) {
    const uint64_t tag = varint(bytes, at);
    switch (tag & 7) {
      case 0: {
        const uint64_t value = varint(bytes, at);
        if (number != nullptr && tag >> 3 == 2) *number = static_cast<int64_t>(value);
        break;
      }
      case 1:
        at += 8;
        break;
      case 5:
        at += 4;
        break;
      default: {
        const uint64_t size = varint(bytes, at);
        out.emplace(tag >> 3, bytes.substr(at, size));
        at += size;
      }
    }
  }
  return out;
}

void read_points(const std::string& root, const std::string& below, Points& out) {
  const std::string folder = below.empty() ? root : root + "/" + below;
  for (const DirEntry& entry : *Env::real().list_dir(folder)) {
    if (entry.is_dir) {
      read_points(root, below.empty() ? entry.name : below + "/" + entry.name, out);
      continue;
    }
    if (!starts_with(entry.name, "events.out.tfevents.")) continue;
    const std::string bytes = *Env::real().read_file(folder + "/" + entry.name);
    for (size_t at = 0; at + 16 <= bytes.size();) {
      uint64_t size = 0;
      std::memcpy(&size, bytes.data() + at, sizeof size);
      int64_t step = 0;
      const auto event = fields(bytes.substr(at + 12, size), &step);
      at += 16 + size;
      for (auto [it, end] = event.equal_range(5); it != end; ++it)
        for (const auto& [number, value] : fields(it->second)) {
          if (number != 1) continue;
          const auto parts = fields(value);
          if (const auto tag = parts.find(1); tag != parts.end())
            out[below.empty() ? "." : below][tag->second].push_back(step);
        }
    }
  }
}

TEST(NestResumeTest, TensorBoardFilesAreWhereNeMosAre) {
  const auto recorded =
      nlohmann::json::parse(*Env::real().read_file(test_data("/retention/tensorboard.json")));
  const struct {
    const char* name;
    std::vector<std::string> keys;
    const char* folder;
    bool again;
  } kLayouts[] = {
      {"resume_if_exists twice", {"trainer.max_steps=6"}, "runs", true},
      {"version given",
       {"trainer.max_steps=3", "exp_manager.resume_if_exists=false", "++exp_manager.version=v"},
       "runs",
       false},
      {"explicit_log_dir", {"trainer.max_steps=3", "++exp_manager.explicit_log_dir="}, "x", false},
  };
  for (const bool two : {false, true}) {
    for (const auto& layout : kLayouts) {
      const TinyRun tiny;
      std::vector<std::string> keys = layout.keys;
      if (ends_with(keys.back(), "explicit_log_dir=")) keys.back() += tiny.file("x");
      keys.push_back("++trainer.limit_val_batches=2");
      keys.push_back("exp_manager.name=run");
      if (two)
        keys.push_back(str_cat("model.validation_ds.manifest_filepath=[",
                               tiny.file("dev_clean.json"), ",", tiny.file("dev_other.json"), "]"));
      run(tiny, keys);
      Points points;
      read_points(tiny.file(layout.folder), "", points);
      const auto& nemo = recorded[layout.name][two ? "two sets" : "one set"];
      for (const auto& [folder, tags] : nemo.items()) {
        if (folder == "run/version_1") continue;  // of the second start
        ASSERT_TRUE(points.contains(folder)) << layout.name << " " << folder;
        for (const auto& [tag, x] : tags.items()) {
          if (tag == "hp_metric") continue;
          const std::string ours = tag == "val_val_loss" ? "dev_clean_val_loss" : tag;
          EXPECT_EQ(points[folder][ours], x.get<std::vector<int64_t>>())
              << layout.name << " " << folder << " " << tag;
        }
      }
      EXPECT_EQ(points.size(), 1u);
      if (!layout.again) continue;
      keys.push_back("trainer.max_steps=9");
      run(tiny, keys);
      points.clear();
      read_points(tiny.file(layout.folder), "", points);
      EXPECT_TRUE(points.contains("run/version_1"));
      EXPECT_EQ(points["run/version_1"]["train_loss"], (std::vector<int64_t>{6, 7, 8}));
      EXPECT_EQ(points["run/version_1"]["val_loss"], (std::vector<int64_t>{8}));
    }
  }
}

}  // namespace
}  // namespace aerie::train::nest_resume_test
