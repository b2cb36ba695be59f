#include <atomic>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "aerie/base/path.h"
#include "aerie/base/philox.h"
#include "aerie/base/process.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/fault_env.h"
#include "aerie/base/testing/mem_env.h"
#include "aerie/base/testing/paths.h"
#include "aerie/data/pack/pack_store.h"
#include "aerie/data/pack/pack_writer.h"
#include "aerie/data/speech/pack/audio_pack.h"
#include "aerie/data/speech/pack/pack_builder.h"
#include "aerie/data/speech/pack/pack_reader.h"

namespace aerie::data {
namespace {

const std::string kAudio = test_data("/audio/");
const std::string kTarred = test_data("/tarred/");

std::vector<float> noise(size_t n, float level, uint64_t seed) {
  RandomStream random(seed, Purpose::kTest, 0, 0);
  std::vector<float> out(n);
  for (float& x : out) x = level * static_cast<float>(random.uniform(-1.0, 1.0));
  return out;
}

audio::AudioView view_of(const std::vector<float>& samples) {
  audio::AudioView view;
  view.samples = samples.empty() ? nullptr : samples.data();
  view.frames = static_cast<int64_t>(samples.size());
  view.sample_rate = 16000;
  return view;
}

PackKey key_of(int i) {
  return pack_key(str_cat("sample", i), 0.0, 0.0, audio::ChannelSelector::all());
}

std::vector<float> to_vector(const audio::AudioView& view) {
  std::vector<float> out(static_cast<size_t>(view.size()));
  view.copy_to(out.data());
  return out;
}

Status write_samples(const PackWriterOptions& options,
                     const std::vector<std::vector<float>>& samples) {
  AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<PackWriter> writer, PackWriter::create(options));
  for (size_t i = 0; i < samples.size(); ++i) {
    PackItem item;
    item.key = key_of(static_cast<int>(i));
    item.name = str_cat("sample ", i);
    AERIE_RETURN_IF_ERROR(encode_pack_item(view_of(samples[i]), options.encoding, &item));
    AERIE_RETURN_IF_ERROR(writer->append(item));
  }
  return writer->finish();
}

TEST(PackTest, ReadsBackWhatWasWritten) {
  for (const PackEncoding encoding : {PackEncoding::kPcm16, PackEncoding::kFlac}) {
    SCOPED_TRACE(pack_encoding_name(encoding));
    TempDir dir;
    PackWriterOptions options;
    options.dir = dir.file("pack");
    options.encoding = encoding;
    options.shard_bytes = 20000;
    const std::vector<std::vector<float>> samples = {
        noise(5000, 0.5f, 1), {}, noise(1, 0.1f, 2), noise(3000, 3.0f, 3), noise(7000, 1.0f, 4)};
    const Status status = write_samples(options, samples);
    ASSERT_TRUE(status.ok()) << status.to_string();
    const auto set = PackSet::open(options.dir, {});
    ASSERT_TRUE(set.ok()) << set.status().to_string();
    EXPECT_EQ((*set)->size(), samples.size());
    EXPECT_GT((*set)->num_shards(), 1u);
    PackReader reader(*set, {});
    for (size_t i = 0; i < samples.size(); ++i) {
      const auto at = (*set)->find(key_of(static_cast<int>(i)));
      ASSERT_TRUE(at.has_value());
      EXPECT_EQ((*set)->name(*at), str_cat("sample ", i));
      const Result<audio::AudioView> view = reader.read(*at);
      ASSERT_TRUE(view.ok()) << view.status().to_string();
      ASSERT_EQ(view->frames, static_cast<int64_t>(samples[i].size()));
      const std::vector<float> got = to_vector(*view);
      const float step = i == 3 ? 3.0f / 32767.0f : 1.0f / 32768.0f;
      for (size_t k = 0; k < got.size(); ++k)
        ASSERT_NEAR(got[k], samples[i][k], step * (i == 4 ? 1.01f : 0.51f)) << i << " " << k;
      EXPECT_EQ(view->samples != nullptr, i == 3);  // beyond full scale: floats
    }
    EXPECT_FALSE((*set)->find(key_of(99)).has_value());
  }
}

TEST(PackTest, EveryDamagedByteIsNoticed) {
  TempDir dir;
  PackWriterOptions options;
  options.dir = dir.file("pack");
  ASSERT_TRUE(write_samples(options, {noise(50, 0.5f, 1), noise(9, 0.5f, 2)}).ok());
  const std::string path = join_path(options.dir, pack_file_name(0));
  const std::string bytes = *Env::real().read_file(path);
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string bad = bytes;
    bad[i] = static_cast<char>(bad[i] ^ 0x10);
    ASSERT_TRUE(Env::real().write_file(path, bad).ok());
    const auto set = PackSet::open(options.dir, {});
    if (!set.ok()) continue;
    // The index is sound: then a sample is not, or the byte was padding.
    PackReader reader(*set, {});
    int failures = 0;
    for (int k = 0; k < 2; ++k) failures += !reader.read(*(*set)->find(key_of(k))).ok();
    const bool padding =
        (i >= 64 + 100 && i < 192) || (i >= 192 + 18 && i < 256) || (i >= 20 && i < 64);
    EXPECT_EQ(failures, padding ? 0 : 1) << i;
  }
  for (size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_TRUE(Env::real().write_file(path, bytes.substr(0, size)).ok());
    EXPECT_FALSE(PackSet::open(options.dir, {}).ok()) << size;
  }
}

TEST(PackTest, SettingsMustFit) {
  TempDir dir;
  PackWriterOptions options;
  options.dir = dir.file("pack");
  options.settings = "a";
  ASSERT_TRUE(write_samples(options, {noise(50, 0.5f, 1)}).ok());
  PackSet::Options open;
  open.settings = "b";
  EXPECT_FALSE(PackSet::open(options.dir, open).ok());
  open.settings = "a";
  open.sample_rate = 8000;
  EXPECT_FALSE(PackSet::open(options.dir, open).ok());
  open.sample_rate = 16000;
  EXPECT_TRUE(PackSet::open(options.dir, open).ok());
  EXPECT_EQ((*PackSet::open(dir.file("absent"), {}))->size(), 0u);
}

TEST(PackTest, LaterShardsWin) {
  TempDir dir;
  PackWriterOptions options;
  options.dir = dir.file("pack");
  ASSERT_TRUE(write_samples(options, {noise(50, 0.5f, 1)}).ok());
  ASSERT_TRUE(write_samples(options, {noise(60, 0.5f, 2)}).ok());
  const auto set = PackSet::open(options.dir, {});
  ASSERT_TRUE(set.ok());
  EXPECT_EQ((*set)->size(), 1u);
  EXPECT_EQ((*set)->entry(*(*set)->find(key_of(0))).frames, 60u);
}

TEST(PackTest, WhatAKilledWriterLeftGoesAtOnce) {
  TempDir dir;
  Env& env = Env::real();
  ProcessIdentity dead = this_process();
  dead.start_ticks -= 1;
  ProcessIdentity elsewhere = this_process();
  elsewhere.boot_id = "another boot";
  const auto leave = [&](uint64_t shard, const std::string& tag) {
    const std::string temporary = dir.file(pack_file_name(shard) + ".tmp");
    ASSERT_TRUE(env.write_file(temporary, "torn").ok());
    if (!tag.empty()) {
      ASSERT_TRUE(env.write_file(temporary + "." + tag, "").ok());
    }
  };
  leave(0, process_tag(dead));
  leave(1, process_tag(elsewhere));
  leave(2, "");  // of a version that did not say who it was
  leave(3, process_tag(this_process()));
  ASSERT_TRUE(env.write_file(dir.file("pack_mine.tmp"), "the user's").ok());
  PackWriterOptions options;
  options.dir = dir.path();
  auto writer = PackWriter::create(options);
  ASSERT_TRUE(writer.ok());
  PackItem item;
  item.key = key_of(0);
  const std::vector<float> samples = noise(100, 0.5f, 7);
  ASSERT_TRUE(encode_pack_item(view_of(samples), PackEncoding::kPcm16, &item).ok());
  ASSERT_TRUE((*writer)->append(item).ok());
  ASSERT_TRUE((*writer)->finish().ok());
  std::set<std::string> left;
  for (const DirEntry& entry : *env.list_dir(dir.path())) left.insert(entry.name);
  EXPECT_EQ(left, (std::set<std::string>{pack_file_name(0), pack_file_name(1) + ".tmp",
                                         pack_file_name(1) + ".tmp." + process_tag(elsewhere),
                                         pack_file_name(2) + ".tmp", pack_file_name(3) + ".tmp",
                                         pack_file_name(3) + ".tmp." + process_tag(this_process()),
                                         "pack_mine.tmp"}));
}

TEST(PackTest, ThreadsMayAppendAndRead) {
  TempDir dir;
  PackWriterOptions options;
  options.dir = dir.file("pack");
  options.shard_bytes = 10000;
  auto writer = PackWriter::create(options);
  ASSERT_TRUE(writer.ok());
  std::atomic<int> failures = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      for (int i = t; i < 60; i += 3) {
        PackItem item;
        item.key = key_of(i);
        const std::vector<float> samples = noise(100 + static_cast<size_t>(i), 0.5f, 7);
        failures += !encode_pack_item(view_of(samples), PackEncoding::kPcm16, &item).ok();
        failures += !(*writer)->append(item).ok();
      }
    });
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE((*writer)->finish().ok());
  const auto set = PackSet::open(options.dir, {});
  ASSERT_TRUE(set.ok());
  EXPECT_EQ((*set)->size(), 60u);
  threads.clear();
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      PackReader reader(*set, {});
      for (int i = 0; i < 60; ++i) {
        const auto view = reader.read(*(*set)->find(key_of(i)));
        failures += !view.ok() || view->frames != 100 + i;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

TEST(PackTest, PowerCutsLeaveWholeShards) {
  const std::vector<std::vector<float>> samples = {noise(500, 0.5f, 1), noise(600, 0.5f, 2),
                                                   noise(700, 0.5f, 3)};
  for (uint64_t n = 1;; ++n) {
    const std::unique_ptr<Env> memory = new_mem_env();
    FaultEnv env(*memory);
    PackWriterOptions options;
    options.dir = "/pack";
    options.shard_bytes = 1500;
    options.env = &env;
    env.crash_at(n);
    const bool finished = write_samples(options, samples).ok();
    ASSERT_TRUE(env.power_loss(n).ok());
    PackSet::Options open;
    open.env = &env;
    const auto set = PackSet::open(options.dir, open);
    ASSERT_TRUE(set.ok()) << n << set.status().to_string();
    PackReader reader(*set, {});
    size_t found = 0;
    for (int i = 0; i < 3; ++i)
      if (const auto at = (*set)->find(key_of(i))) {
        ++found;
        EXPECT_TRUE(reader.read(*at).ok());
      }
    EXPECT_EQ(found, (*set)->size());
    if (finished) {
      EXPECT_EQ(found, 3u);
      break;
    }
    ASSERT_LT(n, 1000u);
  }
}

TEST(PackTest, StereoIsRefused) {
  audio::AudioReader reader({});
  PackItem item;
  const Result<audio::AudioView> view = reader.read_file(kAudio + "pcm16_st.wav");
  ASSERT_TRUE(view.ok());
  EXPECT_FALSE(encode_pack_item(*view, PackEncoding::kPcm16, &item).ok());
}

class PackBuilderTest : public testing::Test {
 protected:
  PackBuilderTest() {
    options_.out_dir = dir_.file("pack");
    options_.index_dir = dir_.file("index");
    options_.workers = 2;
  }
  void write_manifest(const std::string& text) {
    ASSERT_TRUE(Env::real().write_file(dir_.file("m.json"), text).ok());
    options_.manifests = {dir_.file("m.json")};
  }
  std::string line(const std::string& file, double offset, double duration) {
    return str_cat("{\"audio_filepath\": \"", kAudio, file, "\", \"offset\": ", offset,
                   ", \"duration\": ", duration, "}\n");
  }
  PackBuildReport build() {
    const Result<PackBuildReport> report = build_pack(options_);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    return report.ok() ? *report : PackBuildReport();
  }
  std::shared_ptr<const PackSet> open() {
    PackSet::Options set_options;
    set_options.settings = pack_settings(options_.read);
    set_options.sample_rate = options_.read.sample_rate;
    return *PackSet::open(options_.out_dir, set_options);
  }

  TempDir dir_;
  PackBuildOptions options_;
};

TEST_F(PackBuilderTest, PacksSegmentsAndResamples) {
  for (const PackEncoding encoding : {PackEncoding::kPcm16, PackEncoding::kFlac}) {
    options_.encoding = encoding;
    options_.out_dir = dir_.file(pack_encoding_name(encoding));
    write_manifest(line("pcm16.wav", 0.02, 0.05) + line("sr48000.wav", 0, 0.06) +
                   line("f24.flac", 0, 0.1) + line("v.ogg", 0.1, 0.05));
    const PackBuildReport report = build();
    EXPECT_EQ(report.num_packed, 4u);
    EXPECT_NEAR(report.packed_s, 0.05 + 0.06 + 0.1 + 0.05, 1e-3);
    const auto set = open();
    PackReader packed(set, {});
    audio::AudioReader direct(options_.read);
    const auto check = [&](const std::string& file, double offset, double duration, float tol) {
      const std::string path = kAudio + file;
      const auto at = set->find(
          pack_key(pack_source({&path, 1}), offset, duration, audio::ChannelSelector::all()));
      ASSERT_TRUE(at.has_value()) << file;
      const std::vector<float> got = to_vector(*packed.read(*at));
      const std::vector<float> want = to_vector(*direct.read_file(path, {offset, duration}));
      ASSERT_EQ(got.size(), want.size());
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], tol) << file << i;
    };
    check("pcm16.wav", 0.02, 0.05, 0.0f);
    check("sr48000.wav", 0, 0.06, 0.51f / 32768.0f);
    check("f24.flac", 0, 0.1, 0.51f / 32768.0f);
    check("v.ogg", 0.1, 0.05, 0.51f / 32768.0f);
  }
}

TEST_F(PackBuilderTest, DoesNotRepeatWork) {
  write_manifest(line("pcm16.wav", 0, 0.05));
  EXPECT_EQ(build().num_packed, 1u);
  write_manifest(line("pcm16.wav", 0, 0.05) + line("pcm16.wav", 0.05, 0.05));
  const PackBuildReport report = build();
  EXPECT_EQ(report.num_reused, 1u);
  EXPECT_EQ(report.num_packed, 1u);
  EXPECT_EQ(open()->size(), 2u);
}

TEST_F(PackBuilderTest, ResultDoesNotDependOnThreads) {
  std::string text;
  for (int i = 0; i < 40; ++i) text += line("pcm16.wav", i * 0.002, 0.01);
  write_manifest(text);
  build();
  const std::string two = *Env::real().read_file(join_path(options_.out_dir, pack_file_name(0)));
  options_.out_dir = dir_.file("single");
  options_.workers = 1;
  build();
  EXPECT_EQ(*Env::real().read_file(join_path(options_.out_dir, pack_file_name(0))), two);
}

TEST_F(PackBuilderTest, BadRecordingsAreCountedAndLimited) {
  std::string text = line("pcm16.wav", 0, 0.05);
  for (int i = 0; i < 3; ++i) text += line(str_cat("missing", i, ".wav"), 0, 1.0);
  write_manifest(text);
  options_.max_bad_fraction = 0.75;
  const PackBuildReport report = build();
  EXPECT_EQ(report.num_bad, 3u);
  ASSERT_EQ(report.bad.size(), 3u);
  EXPECT_NE(report.bad[0].find("m.json:2"), std::string::npos) << report.bad[0];
  // However few there are: the share decides.
  for (const double fraction : {0.74, 0.01, 0.0}) {
    options_.max_bad_fraction = fraction;
    const Status status = build_pack(options_).status();
    EXPECT_EQ(status.code(), StatusCode::kDataError) << fraction;
    EXPECT_NE(status.to_string().find("max_bad_fraction"), std::string::npos);
    EXPECT_NE(status.to_string().find("missing0.wav"), std::string::npos);
  }
}

TEST_F(PackBuilderTest, FloatPacksKeepWhatSixteenBitsRound) {
  const std::string text = line("pcm16.wav", 0, 0.05) + line("sr8000.wav", 0, 0.05) +
                           line("pcm24.wav", 0, 0.05) + line("float.wav", 0, 0.05);
  write_manifest(text);
  EXPECT_EQ(build().num_rounded, 3u);
  options_.encoding = PackEncoding::kFloat32;
  // What was rounded before is packed again beside it.
  const PackBuildReport report = build();
  EXPECT_EQ(report.num_packed, 4u);
  EXPECT_EQ(report.num_rounded, 0u);
  EXPECT_EQ(report.num_reused, 0u);
  EXPECT_EQ(build().num_reused, 4u);
  PackSet::Options exact;
  exact.exact_only = true;
  const auto set = PackSet::open(options_.out_dir, exact).value();
  EXPECT_EQ(set->size(), 4u);
  EXPECT_EQ(set->num_skipped(), 1u);
  EXPECT_EQ(PackSet::open(options_.out_dir, {}).value()->size(), 4u);  // of each the later one
  audio::AudioReader reader(options_.read);
  for (const char* file : {"pcm16.wav", "sr8000.wav", "pcm24.wav", "float.wav"}) {
    SCOPED_TRACE(file);
    const std::string path = kAudio + file;
    const auto at =
        set->find(pack_key(pack_source({&path, 1}), 0, 0.05, audio::ChannelSelector::all()));
    ASSERT_TRUE(at.has_value());
    const audio::AudioView want = reader.read_file(path, {0.0, 0.05}).value();
    PackReader packed(set, {});
    const audio::AudioView got = packed.read(*at).value();
    ASSERT_EQ(got.frames, want.frames);
    std::vector<float> a(static_cast<size_t>(want.frames)), b(a.size());
    want.copy_to(a.data());
    got.copy_to(b.data());
    EXPECT_EQ(a, b);
    // 16-bit audio stays small.
    EXPECT_EQ(set->entry(*at).bytes, set->entry(*at).frames * (got.pcm16 != nullptr ? 2 : 4));
    EXPECT_EQ(got.pcm16 != nullptr, std::string(file) == "pcm16.wav");
  }
  // Versions before this one say that they cannot read it; one to come is refused by its number.
  std::string bytes = *Env::real().read_file(set->shard(0).path());
  uint32_t version = 0;
  std::memcpy(&version, bytes.data() + 8, sizeof(version));
  EXPECT_EQ(version, 2u);
  bytes[8] = 4;
  ASSERT_TRUE(Env::real().write_file(dir_.file("pack_x.aerie-pack"), bytes).ok());
  const Status newer = PackShard::open(dir_.file("pack_x.aerie-pack")).status();
  EXPECT_EQ(newer.code(), StatusCode::kUnsupported);
  bytes[8] = 3;  // of files: not what its end says
  ASSERT_TRUE(Env::real().write_file(dir_.file("pack_x.aerie-pack"), bytes).ok());
  EXPECT_EQ(PackShard::open(dir_.file("pack_x.aerie-pack")).status().code(),
            StatusCode::kDataError);
  EXPECT_NE(newer.to_string().find("version 4"), std::string::npos);
}

TEST_F(PackBuilderTest, PacksTarredSets) {
  options_.manifests = {kTarred + "nemo_subs/tarred_audio_manifest.json"};
  options_.tar_paths = {kTarred + "nemo_subs/audio_0.tar", kTarred + "nemo_subs/audio_1.tar"};
  const PackBuildReport report = build();
  EXPECT_EQ(report.num_packed, 8u);
  EXPECT_EQ(report.num_unmatched, 0u);
  const auto set = open();
  const auto at = set->find(pack_key(pack_tar_source(options_.tar_paths[0], "clips_spk_1_b.flac"),
                                     0.015, 0.01, audio::ChannelSelector::all()));
  ASSERT_TRUE(at.has_value());
  EXPECT_EQ(set->entry(*at).frames, 160u);
}

}  // namespace
}  // namespace aerie::data
