// Data sets written here against those NeMo's converter wrote from the same manifests
// (tests/data/tarred), and what both read as.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <unistd.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <xxhash.h>

#include "aerie/audio/audio_reader.h"
#include "aerie/audio/audio_writer.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/fault_env.h"
#include "aerie/base/testing/paths.h"
#include "aerie/data/speech/shard/python_format.h"
#include "aerie/data/speech/shard/shard_writer.h"
#include "aerie/tar/sample_key.h"
#include "aerie/tar/tar_archive.h"

namespace aerie::data {
namespace {

const std::string kDir = test_data("/tarred");

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<nlohmann::json> read_lines(const std::string& path) {
  std::istringstream in(read_text(path));
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

std::string without_date(const std::string& text) {
  return text.substr(text.find('\n'));
}

// The converter was run inside the data folder: names of members depend on it.
class ShardTest : public testing::Test {
 protected:
  void SetUp() override {
    char path[4096];
    ASSERT_NE(getcwd(path, sizeof(path)), nullptr);
    before_ = path;
    ASSERT_EQ(chdir(kDir.c_str()), 0);
    options_.manifest_path = "plain.json";
    options_.target_dir = out_.file("set");
    options_.num_shards = 2;
    options_.max_duration_s = 10.0;
    options_.workers = 2;
  }
  void TearDown() override { ASSERT_EQ(chdir(before_.c_str()), 0); }

  ShardReport write() {
    const Result<ShardReport> report = write_tarred_dataset(options_);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    return report.ok() ? *report : ShardReport();
  }
  void expect_same(const std::string& name, const std::string& below = "") {
    SCOPED_TRACE(name + below);
    const std::string want = kDir + "/" + name + below + "/";
    const std::string got = options_.target_dir + below + "/";
    EXPECT_EQ(read_text(got + "tarred_audio_manifest.json"),
              read_text(want + "tarred_audio_manifest.json"));
    EXPECT_EQ(without_date(read_text(got + "metadata.yaml")),
              without_date(read_text(want + "metadata.yaml")));
    for (int i = 0; i < options_.num_shards; ++i) {
      const std::string manifest = str_cat("sharded_manifests/manifest_", i, ".json");
      EXPECT_EQ(Env::real().exists(got + manifest), options_.shard_manifests);
      if (options_.shard_manifests) {
        EXPECT_EQ(read_text(got + manifest), read_text(want + manifest));
      }
    }
  }

  TempDir out_;
  ShardOptions options_;
  std::string before_;
};

struct Decoded {
  std::string member;
  std::vector<float> samples;
  bool operator==(const Decoded&) const = default;
};

// Every line of the set's manifest, decoded from its shard.
std::vector<Decoded> decode_set(const std::string& dir) {
  std::vector<Decoded> out;
  audio::AudioReader reader({});
  TempDir cache;
  std::map<int, std::shared_ptr<tar::TarArchive>> archives;
  for (const nlohmann::json& line : read_lines(dir + "/tarred_audio_manifest.json")) {
    const int shard = line["shard_id"].get<int>();
    if (!archives.contains(shard)) {
      const auto archive =
          tar::TarArchive::open(str_cat(dir, "/audio_", shard, ".tar"), cache.path());
      EXPECT_TRUE(archive.ok()) << archive.status().to_string();
      archives[shard] = *archive;
    }
    const tar::TarIndex& index = archives[shard]->index();
    const std::vector<tar::TarSample> samples = *tar::group_samples(index);
    const std::string name = line["audio_filepath"].get<std::string>();
    const std::string id = tar::strip_sub(tar::manifest_id(name));
    const auto found = std::find_if(samples.begin(), samples.end(),
                                    [&](const tar::TarSample& sample) { return sample.id == id; });
    EXPECT_NE(found, samples.end()) << name;
    if (found == samples.end()) continue;
    std::vector<uint8_t> bytes;
    EXPECT_TRUE(archives[shard]->read(found->audio_member, &bytes).ok());
    audio::Segment segment;
    segment.offset_s = line.value("offset", 0.0);
    segment.duration_s = line["duration"].get<double>();
    const Result<audio::AudioView> view = reader.read_memory(bytes, name, segment);
    EXPECT_TRUE(view.ok()) << view.status().to_string();
    Decoded decoded{std::string(index.name(found->audio_member)), {}};
    decoded.samples.resize(static_cast<size_t>(view->size()));
    view->copy_to(decoded.samples.data());
    out.push_back(std::move(decoded));
  }
  return out;
}

void expect_nemo_decoding(const std::vector<Decoded>& got, const std::string& name) {
  std::ifstream in(kDir + "/decoded.json");
  const nlohmann::json rows = nlohmann::json::parse(in)[name];
  ASSERT_EQ(got.size(), rows.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].member, rows[i][1].get<std::string>());
    EXPECT_EQ(got[i].samples.size(), rows[i][2].get<size_t>());
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx",
                  static_cast<unsigned long long>(
                      XXH64(got[i].samples.data(), got[i].samples.size() * sizeof(float), 0)));
    EXPECT_EQ(std::string(text), rows[i][3].get<std::string>());
  }
}

TEST_F(ShardTest, NemoSetsDecodeAsInNemo) {
  for (const char* name : {"nemo_plain", "nemo_subs", "nemo_sliced"}) {
    SCOPED_TRACE(name);
    expect_nemo_decoding(decode_set(kDir + "/" + name), name);
  }
}

TEST_F(ShardTest, ShuffledSetEqualsTheConverters) {
  options_.min_duration_s = 0.04;
  options_.max_duration_s = 0.12;
  options_.shuffle = true;
  options_.shuffle_seed = 7;
  options_.dynamic_buckets_num = 2;
  const ShardReport report = write();
  expect_same("nemo_plain");
  expect_nemo_decoding(decode_set(options_.target_dir), "nemo_plain");
  ASSERT_EQ(report.buckets.size(), 1u);
  EXPECT_EQ(report.buckets[0].num_entries, 6u);
  EXPECT_EQ(report.buckets[0].num_filtered, 2u);
  EXPECT_EQ(report.buckets[0].num_written, 6u);
}

TEST_F(ShardTest, SortedSetWithoutShardManifests) {
  options_.sort_in_shards = true;
  options_.shard_manifests = false;
  options_.dynamic_buckets_num = 3;
  write();
  expect_same("nemo_sorted");
  expect_nemo_decoding(decode_set(options_.target_dir), "nemo_sorted");
}

TEST_F(ShardTest, SeveralOffsetsPerFile) {
  options_.manifest_path = "subs.json";
  options_.shuffle = true;
  options_.shuffle_seed = 1;
  options_.keep_files_together = true;
  options_.dynamic_buckets_num = 4;
  const ShardReport report = write();
  expect_same("nemo_subs");
  expect_nemo_decoding(decode_set(options_.target_dir), "nemo_subs");
  EXPECT_EQ(report.buckets[0].num_entries, 9u);
  EXPECT_EQ(report.buckets[0].num_written, 8u);  // the remainder is dropped
  EXPECT_EQ(report.buckets[0].num_members, 3u);
}

TEST_F(ShardTest, Buckets) {
  options_.num_shards = 1;
  options_.min_duration_s = 0.015;
  options_.max_duration_s = 0.12;
  options_.buckets_num = 2;
  options_.shuffle = true;
  options_.shuffle_seed = 123456789012;
  write();
  expect_same("nemo_buckets", "/bucket1");
  expect_same("nemo_buckets", "/bucket2");
}

// Decoded segments of the source files themselves.
std::vector<std::vector<float>> decode_sources(const std::string& manifest) {
  std::vector<std::vector<float>> out;
  audio::AudioReader reader({});
  for (const nlohmann::json& line : read_lines(manifest)) {
    audio::Segment segment;
    segment.offset_s = line.value("offset", 0.0);
    segment.duration_s = line["duration"].get<double>();
    const Result<audio::AudioView> view =
        reader.read_file(line["audio_filepath"].get<std::string>(), segment);
    EXPECT_TRUE(view.ok());
    out.emplace_back(static_cast<size_t>(view->size()));
    view->copy_to(out.back().data());
  }
  return out;
}

TEST_F(ShardTest, SlicesKeepTheSamples) {
  options_.manifest_path = "subs.json";
  options_.slice_with_offset = true;
  options_.dynamic_buckets_num = 2;
  write();
  expect_same("nemo_sliced");
  const std::vector<Decoded> got = decode_set(options_.target_dir);
  const std::vector<std::vector<float>> want = decode_sources("subs.json");
  ASSERT_EQ(got.size(), 8u);
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].samples, want[i]) << i;
}

TEST_F(ShardTest, ForcedCodecKeepsTheSamples) {
  for (const char* codec : {"flac", "wav"}) {
    SCOPED_TRACE(codec);
    options_.force_codec = codec;
    options_.overwrite = true;
    write();
    const std::vector<Decoded> got = decode_set(options_.target_dir);
    const std::vector<std::vector<float>> want = decode_sources("plain.json");
    ASSERT_EQ(got.size(), 8u);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].samples, want[i]);
      EXPECT_TRUE(ends_with(got[i].member, str_cat(".", codec)));
    }
    // Unlike the converter, the manifest names the member itself.
    const std::vector<nlohmann::json> lines =
        read_lines(options_.target_dir + "/tarred_audio_manifest.json");
    for (size_t i = 0; i < lines.size(); ++i)
      EXPECT_EQ(lines[i]["audio_filepath"].get<std::string>(), got[i].member);
  }
}

TEST_F(ShardTest, NamesThatCollideStayApart) {
  TempDir in;
  Env& env = Env::real();
  ASSERT_TRUE(env.create_dirs(in.file("a")).ok());
  ASSERT_TRUE(env.copy_file("clips/spk.0/a.wav", in.file("a/b.wav")).ok());
  ASSERT_TRUE(env.copy_file("clips/spk.1/d.wav", in.file("a_b.wav")).ok());
  ASSERT_TRUE(env.copy_file("clips/spk.1/f.wav", in.file("x-sub1.wav")).ok());
  ASSERT_TRUE(env.write_file(in.file("m.json"),
                             "{\"audio_filepath\": \"a/b.wav\", \"duration\": 0.1}\n\n"
                             "{\"audio_filename\": \"a_b.wav\", \"duration\": 0.06}\n"
                             "{\"duration\": 0.05, \"audio_file\": \"x-sub1.wav\"}\n")
                  .ok());
  options_.manifest_path = in.file("m.json");
  options_.num_shards = 1;
  write();
  const std::vector<Decoded> got = decode_set(options_.target_dir);
  ASSERT_EQ(got.size(), 3u);
  EXPECT_EQ(got[0].samples.size(), 1600u);
  EXPECT_EQ(got[1].samples.size(), 960u);
  EXPECT_EQ(got[2].samples.size(), 800u);
}

// Names are joined over all shards, so they must differ there, too.
TEST_F(ShardTest, NamesThatCollideInDifferentShardsStayApart) {
  TempDir in;
  Env& env = Env::real();
  ASSERT_TRUE(env.create_dirs(in.file("a")).ok());
  ASSERT_TRUE(env.copy_file("clips/spk.0/a.wav", in.file("a/b.wav")).ok());
  ASSERT_TRUE(env.copy_file("clips/spk.1/d.wav", in.file("a_b.wav")).ok());
  ASSERT_TRUE(env.copy_file("clips/spk.1/f.wav", in.file("a_b_2.wav")).ok());
  ASSERT_TRUE(env.write_file(in.file("m.json"),
                             "{\"audio_filepath\": \"a/b.wav\", \"duration\": 0.1}\n"
                             "{\"audio_filepath\": \"a_b.wav\", \"duration\": 0.06}\n"
                             "{\"audio_filepath\": \"a_b_2.wav\", \"duration\": 0.05}\n")
                  .ok());
  options_.manifest_path = in.file("m.json");
  options_.num_shards = 3;
  write();
  std::set<std::string> names;
  for (const nlohmann::json& line : read_lines(options_.target_dir + "/tarred_audio_manifest.json"))
    names.insert(line["audio_filepath"].get<std::string>());
  ASSERT_EQ(names.size(), 3u);
  const std::string base = squash_path(in.file("a_b.wav")).base;
  EXPECT_EQ(names, (std::set<std::string>{base + ".wav", base + "_2.wav", base + "_3.wav"}));
}

TEST_F(ShardTest, BadInputIsNamedAndLeavesNothing) {
  TempDir in;
  const auto run = [&](const std::string& text) {
    EXPECT_TRUE(Env::real().write_file(in.file("m.json"), text).ok());
    options_.manifest_path = in.file("m.json");
    options_.num_shards = 1;
    const Result<ShardReport> report = write_tarred_dataset(options_);
    EXPECT_FALSE(report.ok());
    EXPECT_FALSE(Env::real().exists(options_.target_dir));
    EXPECT_FALSE(Env::real().exists(options_.target_dir + ".partial"));
    return report.status().to_string();
  };
  EXPECT_NE(run("{\"audio_filepath\": \"no.wav\", \"duration\": 1}\n").find("line 1"),
            std::string::npos);
  EXPECT_NE(run("\n{oops\n").find("line 2"), std::string::npos);
  EXPECT_NE(run("{\"duration\": 1}\n").find("audio_filepath"), std::string::npos);
  EXPECT_NE(run("").find("only 0 entries"), std::string::npos);
  ASSERT_TRUE(Env::real().write_file(in.file("bad.wav"), "not audio").ok());
  options_.force_codec = "flac";
  EXPECT_NE(run("{\"audio_filepath\": \"bad.wav\", \"duration\": 1}\n").find("m.json:1"),
            std::string::npos);
  options_.force_codec = "aac";
  EXPECT_NE(run("{}").find("aac"), std::string::npos);
}

TEST_F(ShardTest, ChecksWhatItPacks) {
  // Recordings that are copied as they are: one is cut, one has no audio, one is damaged inside.
  TempDir in;
  const auto samples = [](int n) {
    std::vector<uint8_t> bytes;
    std::vector<int16_t> values(static_cast<size_t>(n), 1000);
    audio::AudioView view;
    view.pcm16 = values.data();
    view.frames = n;
    view.sample_rate = 16000;
    audio::EncodeOptions encode;
    encode.format = audio::FileFormat::kWav;
    EXPECT_TRUE(audio::encode_audio(view, encode, &bytes).ok());
    return std::string(bytes.begin(), bytes.end());
  };
  std::string lines;
  for (int i = 0; i < 10; ++i) {
    std::string bytes = samples(8000);
    if (i == 3) bytes.resize(1000);
    if (i == 6) bytes = "not audio";
    ASSERT_TRUE(Env::real().write_file(in.file(str_cat(i, ".wav")), bytes).ok());
    lines += str_cat("{\"audio_filepath\": \"", i, ".wav\", \"duration\": 0.5}\n");
  }
  ASSERT_TRUE(Env::real().write_file(in.file("m.json"), lines).ok());
  options_.manifest_path = in.file("m.json");
  options_.num_shards = 2;
  const Status refused = write_tarred_dataset(options_).status();
  EXPECT_EQ(refused.code(), StatusCode::kDataError);
  EXPECT_NE(refused.to_string().find("2 of 10"), std::string::npos) << refused.to_string();
  EXPECT_NE(refused.to_string().find("m.json:4: "), std::string::npos);
  EXPECT_NE(refused.to_string().find("m.json:7: "), std::string::npos);
  EXPECT_FALSE(Env::real().exists(options_.target_dir));
  options_.max_bad_fraction = 0.2;
  const ShardReport report = write_tarred_dataset(options_).value();
  EXPECT_EQ(report.num_bad, 2u);
  EXPECT_EQ(report.buckets[0].num_written, 8u);
  const std::string manifest =
      *Env::real().read_file(options_.target_dir + "/tarred_audio_manifest.json");
  EXPECT_EQ(manifest.find("3.wav"), std::string::npos) << manifest;
  EXPECT_NE(manifest.find("4.wav"), std::string::npos);
  options_.check = false;
  options_.overwrite = true;
  EXPECT_EQ(write_tarred_dataset(options_)->buckets[0].num_written, 10u);
}

TEST_F(ShardTest, KeepsAnExistingFolderUnlessToldOtherwise) {
  ASSERT_TRUE(Env::real().create_dirs(options_.target_dir).ok());
  ASSERT_TRUE(Env::real().write_file(options_.target_dir + "/mine", "x").ok());
  EXPECT_EQ(write_tarred_dataset(options_).status().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Env::real().exists(options_.target_dir + "/mine"));
  options_.overwrite = true;
  write();
  EXPECT_FALSE(Env::real().exists(options_.target_dir + "/mine"));
  EXPECT_FALSE(Env::real().exists(options_.target_dir + ".old"));
  EXPECT_TRUE(Env::real().exists(options_.target_dir + "/audio_1.tar"));
}

TEST_F(ShardTest, StopsOnRequestAndOnDryRun) {
  ShardHooks hooks;
  hooks.stop = [] { return true; };
  EXPECT_EQ(write_tarred_dataset(options_, hooks).status().code(), StatusCode::kCancelled);
  EXPECT_FALSE(Env::real().exists(options_.target_dir));
  options_.dry_run = true;
  const ShardReport report = write();
  EXPECT_EQ(report.buckets[0].num_entries, 8u);
  EXPECT_FALSE(Env::real().exists(options_.target_dir));
}

TEST_F(ShardTest, PowerCutsLeaveAWholeSetOrNone) {
  options_.workers = 1;
  write();
  const std::string manifest = read_text(options_.target_dir + "/tarred_audio_manifest.json");
  const std::string archive = read_text(options_.target_dir + "/audio_1.tar");
  for (uint64_t n = 1;; n += 3) {
    TempDir dir;
    FaultEnv env(Env::real());
    options_.env = &env;
    options_.target_dir = dir.file("set");
    env.crash_at(n);
    const bool finished = write_tarred_dataset(options_).ok();
    ASSERT_TRUE(env.power_loss().ok());
    if (Env::real().exists(options_.target_dir)) {
      EXPECT_EQ(read_text(options_.target_dir + "/tarred_audio_manifest.json"), manifest);
      EXPECT_EQ(read_text(options_.target_dir + "/audio_1.tar"), archive);
      EXPECT_TRUE(Env::real().exists(options_.target_dir + "/metadata.yaml"));
    } else {
      EXPECT_FALSE(finished);
    }
    if (finished) break;
    ASSERT_LT(n, 5000u);
  }
}

TEST_F(ShardTest, FullDiskIsReportedAndCleanedUp) {
  FaultEnv env(Env::real());
  options_.env = &env;
  env.set_space(20000);
  const Result<ShardReport> report = write_tarred_dataset(options_);
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.status().code(), StatusCode::kIoError);
  EXPECT_FALSE(Env::real().exists(options_.target_dir));
  EXPECT_FALSE(Env::real().exists(options_.target_dir + ".partial"));
}

TEST_F(ShardTest, OnlyManifests) {
  options_.only_manifests = true;
  write();
  EXPECT_FALSE(Env::real().exists(options_.target_dir + "/audio_0.tar"));
  const std::vector<nlohmann::json> lines =
      read_lines(options_.target_dir + "/tarred_audio_manifest.json");
  EXPECT_EQ(lines[0]["abs_audio_filepath"], "clips/spk.0/a.wav");
}

TEST(PythonFormatTest, FloatsAsPythonWritesThem) {
  EXPECT_EQ(python_repr(0.1), "0.1");
  EXPECT_EQ(python_repr(10.0), "10.0");
  EXPECT_EQ(python_repr(1e-5), "1e-05");
  EXPECT_EQ(python_repr(0.0001), "0.0001");
  EXPECT_EQ(python_repr(1e15), "1000000000000000.0");
  EXPECT_EQ(python_repr(1e16), "1e+16");
  EXPECT_EQ(python_repr(1.5e300), "1.5e+300");
  EXPECT_EQ(python_repr(-123.456), "-123.456");
  EXPECT_EQ(python_repr(0.0), "0.0");
  EXPECT_EQ(python_repr(-0.0), "-0.0");
  EXPECT_EQ(python_repr(1.0 / 3.0), "0.3333333333333333");
  EXPECT_EQ(yaml_float(1e-5), "1.0e-05");
  EXPECT_EQ(yaml_float(1.5e-7), "1.5e-07");
}

TEST(PythonFormatTest, ShufflesAsPythonDoes) {
  // random.seed(n); x = list(range(10)); random.shuffle(x)
  EXPECT_EQ(PythonRandom(0).shuffled(10), (std::vector<uint64_t>{7, 8, 1, 5, 3, 4, 2, 0, 9, 6}));
  EXPECT_EQ(PythonRandom(1).shuffled(10), (std::vector<uint64_t>{6, 8, 9, 7, 5, 3, 0, 4, 1, 2}));
  EXPECT_EQ(PythonRandom(123456789012).shuffled(5).size(), 5u);
  EXPECT_TRUE(PythonRandom(0).shuffled(0).empty());
}

}  // namespace
}  // namespace aerie::data
