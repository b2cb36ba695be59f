#include "aerie/data/speech/synth/corpus.h"

#include <cmath>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/path.h"
#include "aerie/base/philox.h"
#include "aerie/base/testing/fault_env.h"
#include "aerie/base/testing/mem_env.h"

namespace aerie::data::synth {
namespace {

using Json = nlohmann::json;

CorpusOptions small(const std::string& out) {
  CorpusOptions options;
  options.out = out;
  options.hours = 0.01;
  options.num_speakers = 5;
  options.seed = 42;
  options.min_duration_s = 1.0;
  options.max_duration_s = 3.0;
  options.dev_share = 0.2;
  options.test_share = 0.2;
  options.noise_hours = 0.0;
  options.num_workers = 2;
  return options;
}

std::vector<Json> manifest(Env& env, const std::string& path) {
  std::vector<Json> out;
  const std::string text = env.read_file(path).value();
  for (const std::string& line : split(text, '\n'))
    if (!line.empty()) out.push_back(Json::parse(line));
  return out;
}

// Every file below a folder with its bytes.
std::map<std::string, std::string> tree(Env& env, const std::string& folder,
                                        const std::string& below = "") {
  std::map<std::string, std::string> out;
  const auto entries = env.list_dir(join_path(folder, below)).value();
  for (const DirEntry& entry : entries) {
    const std::string name = join_path(below, entry.name);
    if (entry.is_dir) {
      out.merge(tree(env, folder, name));
    } else {
      out[name] = env.read_file(join_path(folder, name)).value();
    }
  }
  return out;
}

TEST(CorpusTest, ManifestsDescribeTheAudio) {
  const auto env = new_mem_env();
  CorpusOptions options = small("/c");
  options.noise_hours = 0.01;
  const CorpusReport report = write_corpus(options, *env).value();
  ASSERT_EQ(report.parts.size(), 5u);
  double hours = 0.0;
  std::map<std::string, std::set<std::string>> speakers;
  for (const CorpusPart& part : report.parts) {
    const auto lines = manifest(*env, join_path("/c", part.name + ".json"));
    EXPECT_EQ(lines.size(), part.num_files);
    double total_s = 0.0;
    for (const Json& line : lines) {
      const std::string path = line.at("audio_filepath");
      EXPECT_FALSE(is_absolute_path(path));
      const double duration = line.at("duration");
      total_s += duration;
      // 16 bits mono behind a header of 44 bytes.
      EXPECT_EQ(env->stat(join_path("/c", path)).value().size,
                44u + 2 * static_cast<uint64_t>(std::llround(duration * 16000)));
      if (part.num_speakers == 0) {
        EXPECT_TRUE(line.contains("label"));
        EXPECT_GT(duration, options.max_duration_s);
        continue;
      }
      EXPECT_GE(duration, options.min_duration_s);
      EXPECT_LE(duration, options.max_duration_s);
      EXPECT_NE(line.at("text"), "");
      speakers[part.name].insert(line.at("speaker"));
      double at = 0.0;
      for (const Json& sound : line.at("phonemes")) {
        EXPECT_EQ(sound.at(1), at);
        at = sound.at(2);
      }
      EXPECT_EQ(at, duration);
    }
    EXPECT_NEAR(total_s / 3600.0, part.hours, 1e-9);
    if (part.num_speakers > 0) hours += part.hours;
  }
  EXPECT_NEAR(hours, options.hours, 3 * options.min_duration_s / 3600.0);
  for (const std::string& speaker : speakers["test"])
    EXPECT_EQ(speakers["train"].count(speaker) + speakers["dev"].count(speaker), 0u);
  const Json description = Json::parse(env->read_file("/c/corpus.json").value());
  EXPECT_EQ(description.at("complete"), true);
  EXPECT_EQ(description.at("phonemes").size(), 23u);
  EXPECT_EQ(description.at("lexicon").size(), 60u);
}

TEST(CorpusTest, DoesNotDependOnTheNumberOfWorkers) {
  const auto env = new_mem_env();
  CorpusOptions one = small("/one"), four = small("/four");
  one.num_workers = 1;
  four.num_workers = 4;
  ASSERT_TRUE(write_corpus(one, *env).ok());
  ASSERT_TRUE(write_corpus(four, *env).ok());
  EXPECT_EQ(tree(*env, "/one"), tree(*env, "/four"));
  CorpusOptions other = small("/other");
  other.seed = 43;
  ASSERT_TRUE(write_corpus(other, *env).ok());
  EXPECT_NE(tree(*env, "/one").at("train.json"), tree(*env, "/other").at("train.json"));
}

TEST(CorpusTest, MoreHoursBeginWithTheSameUtterances) {
  const auto env = new_mem_env();
  CorpusOptions longer = small("/longer");
  longer.hours *= 2;
  ASSERT_TRUE(write_corpus(small("/short"), *env).ok());
  ASSERT_TRUE(write_corpus(longer, *env).ok());
  const auto before = manifest(*env, "/short/train.json");
  const auto after = manifest(*env, "/longer/train.json");
  ASSERT_GT(after.size(), before.size());
  // The last one of the shorter corpus is cut to fit.
  for (size_t i = 0; i + 1 < before.size(); ++i) {
    EXPECT_EQ(before[i], after[i]);
    const std::string path = before[i].at("audio_filepath");
    EXPECT_EQ(env->read_file(join_path("/short", path)).value(),
              env->read_file(join_path("/longer", path)).value());
  }
}

TEST(CorpusTest, WritesFlac) {
  const auto env = new_mem_env();
  CorpusOptions options = small("/c");
  options.format = AudioFormat::kFlac;
  ASSERT_TRUE(write_corpus(options, *env).ok());
  const auto lines = manifest(*env, "/c/train.json");
  const std::string path = lines.at(0).at("audio_filepath");
  EXPECT_EQ(file_extension(path), ".flac");
  EXPECT_EQ(env->read_file(join_path("/c", path)).value().substr(0, 4), "fLaC");
}

TEST(CorpusTest, ReusesReplacesAndRefuses) {
  const auto env = new_mem_env();
  CorpusOptions options = small("/c");
  EXPECT_FALSE(write_corpus(options, *env).value().reused);
  EXPECT_TRUE(write_corpus(options, *env).value().reused);
  options.seed = 7;
  EXPECT_EQ(write_corpus(options, *env).status().code(), StatusCode::kInvalidArgument);
  options.force = true;
  EXPECT_TRUE(env->write_file("/c/mine.txt", "keep").ok());
  EXPECT_FALSE(write_corpus(options, *env).value().reused);
  EXPECT_EQ(env->read_file("/c/mine.txt").value(), "keep") << "only our own files are replaced";

  CorpusOptions foreign = small("/home");
  foreign.force = true;
  ASSERT_TRUE(env->create_dirs("/home/audio").ok());
  ASSERT_TRUE(env->write_file("/home/audio/precious.wav", "x").ok());
  EXPECT_EQ(write_corpus(foreign, *env).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(env->exists("/home/audio/precious.wav"));
  ASSERT_TRUE(env->write_file("/home/corpus.json", "{\"generator\": 3}").ok());
  EXPECT_EQ(write_corpus(foreign, *env).status().code(), StatusCode::kInvalidArgument);
}

TEST(CorpusTest, AnInterruptedCorpusIsCompleted) {
  const auto memory = new_mem_env();
  ASSERT_TRUE(write_corpus(small("/whole"), *memory).ok());
  const auto expected = tree(*memory, "/whole");
  for (const uint64_t crash : {3u, 20u, 40u, 90u}) {
    ASSERT_TRUE(memory->remove_tree("/c").ok());
    FaultEnv env(*memory);
    env.crash_at(crash);
    EXPECT_FALSE(write_corpus(small("/c"), env).ok());
    env.clear_faults();
    const auto report = write_corpus(small("/c"), env);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
    EXPECT_FALSE(report->reused);
    EXPECT_EQ(tree(*memory, "/c"), expected);
  }
}

TEST(CorpusTest, SaysWhenTheDiskIsFull) {
  const auto memory = new_mem_env();
  FaultEnv env(*memory);
  env.set_space(100'000);
  const Status status = write_corpus(small("/c"), env).status();
  EXPECT_EQ(status.code(), StatusCode::kIoError);
  EXPECT_NE(status.to_string().find("room"), std::string::npos);
}

TEST(CorpusTest, RefusesNonsense) {
  const auto refused = [](auto change) {
    CorpusOptions options = small("/c");
    change(options);
    return options.validate().code() == StatusCode::kInvalidArgument;
  };
  EXPECT_TRUE(small("/c").validate().ok());
  EXPECT_TRUE(refused([](auto& o) { o.out = ""; }));
  EXPECT_TRUE(refused([](auto& o) { o.hours = std::nan(""); }));
  EXPECT_TRUE(refused([](auto& o) { o.hours = -1; }));
  EXPECT_TRUE(refused([](auto& o) { o.num_speakers = 1; }));
  EXPECT_TRUE(refused([](auto& o) { o.min_duration_s = 5; }));
  EXPECT_TRUE(refused([](auto& o) { o.max_duration_s = INFINITY; }));
  EXPECT_TRUE(refused([](auto& o) { o.test_share = 1.0; }));
  EXPECT_TRUE(refused([](auto& o) { o.noise_hours = -2.0; }));
  EXPECT_TRUE(refused([](auto& o) { o.num_workers = -1; }));
}

}  // namespace
}  // namespace aerie::data::synth
