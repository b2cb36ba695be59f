#include <cmath>
#include <cstdlib>
#include <deque>
#include <map>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <gtest/gtest.h>

#include "aerie/base/log.h"
#include "aerie/data/speech/audio_dataset.h"
#include "aerie/data/speech/noise.h"
#include "aerie/data/speech/pack/pack_builder.h"
#include "aerie/data/speech/test_corpus.h"
#include "aerie/data/storage.h"

namespace aerie::data::dataset_test {
namespace {

Result<std::shared_ptr<const AudioDataset>> try_open(const config::DatasetConfig& config,
                                                     const config::SpeechAerieConfig& aerie) {
  AudioDataset::Options options;
  options.quiet = true;
  options.num_threads = 2;
  return AudioDataset::open(config, aerie, options);
}

std::shared_ptr<const AudioDataset> open(const config::DatasetConfig& config,
                                         const config::SpeechAerieConfig& aerie = {}) {
  auto dataset = try_open(config, aerie);
  EXPECT_TRUE(dataset.ok()) << dataset.status().to_string();
  return *dataset;
}

std::vector<float> read(const AudioDataset& dataset, uint64_t i) {
  SampleReader reader(dataset);
  const auto view = dataset.read(i, reader);
  EXPECT_TRUE(view.ok()) << view.status().to_string();
  if (!view.ok()) return {};
  std::vector<float> out(static_cast<size_t>(view->size()));
  view->copy_to(out.data());
  return out;
}

std::vector<float> floats(const std::vector<int16_t>& samples) {
  std::vector<float> out;
  for (const int16_t s : samples) out.push_back(static_cast<float>(s) / 32768.0f);
  return out;
}

config::DatasetConfig config_of(const std::string& manifest) {
  config::DatasetConfig config;
  config.manifest_filepath = TestCorpus::paths(manifest);
  config.batch_size = 2;
  return config;
}

std::string tar_of(const std::vector<std::pair<std::string, std::string>>& members) {
  std::string bytes;
  tar::TarWriter writer([&](std::span<const uint8_t> data) {
    bytes.append(reinterpret_cast<const char*>(data.data()), data.size());
    return ok_status();
  });
  for (const auto& [name, content] : members)
    EXPECT_TRUE(
        writer.add(name, {reinterpret_cast<const uint8_t*>(content.data()), content.size()}).ok());
  EXPECT_TRUE(writer.finish().ok());
  return bytes;
}

TEST(AudioDatasetTest, OffsetAndDurationCutTheFile) {
  TempDir dir;
  const std::vector<int16_t> samples = noise_samples(16000, 1);
  write_file(dir.file("a.wav"), wav_bytes(samples));
  write_file(dir.file("m.json"), TestCorpus::line("a.wav", 0.25, 0.5) +
                                     TestCorpus::line("a.wav", -1) +
                                     TestCorpus::line("a.wav", 9.0, 0.9));
  const auto dataset = open(config_of(dir.file("m.json")));
  const std::vector<float> all = floats(samples);
  EXPECT_EQ(read(*dataset, 0), std::vector<float>(all.begin() + 8000, all.begin() + 12000));
  EXPECT_EQ(read(*dataset, 1), all);
  EXPECT_EQ(read(*dataset, 2), std::vector<float>(all.begin() + 14400, all.end()));
  EXPECT_EQ(dataset->num_unknown_durations(), 1u);
  EXPECT_EQ(dataset->describe(2), dir.file("m.json") + ":3 (a.wav)");
}

TEST(AudioDatasetTest, ChannelsAreChosenOrAveraged) {
  TempDir dir;
  std::vector<int16_t> stereo;
  for (int i = 0; i < 4000; ++i) {
    stereo.push_back(static_cast<int16_t>(i));
    stereo.push_back(static_cast<int16_t>(-3 * i));
  }
  write_file(dir.file("s.wav"), wav_bytes(stereo, 16000, 2));
  write_file(dir.file("l.wav"), wav_bytes(std::vector<int16_t>(4000, 100)));
  write_file(dir.file("r.wav"), wav_bytes(std::vector<int16_t>(4000, 300)));
  write_file(dir.file("m.json"),
             "{\"audio_filepath\":\"s.wav\",\"duration\":0.25}\n"
             "{\"audio_filepath\":\"s.wav\",\"duration\":0.25,\"channel\":1}\n"
             "{\"audio_filepath\":[\"l.wav\",\"r.wav\"],\"duration\":0.25}\n");
  set_log_level(LogLevel::kError);
  const auto mean = open(config_of(dir.file("m.json")));
  EXPECT_FLOAT_EQ(read(*mean, 0)[100], -100.0f / 32768.0f);
  EXPECT_FLOAT_EQ(read(*mean, 1)[100], -300.0f / 32768.0f);
  EXPECT_FLOAT_EQ(read(*mean, 2)[100], 200.0f / 32768.0f);
  config::DatasetConfig config = config_of(dir.file("m.json"));
  config.channel_selector.kind = config::ChannelSelector::Kind::kIndices;
  config.channel_selector.indices = {0};
  const auto left = open(config);
  EXPECT_FLOAT_EQ(read(*left, 0)[100], 100.0f / 32768.0f);
  EXPECT_FLOAT_EQ(read(*left, 2)[100], 100.0f / 32768.0f);
  // NeMo leaves the channels alone and fails later.
  config::SpeechAerieConfig compat;
  compat.compat_nemo_2_6 = true;
  const auto nemo = open(config_of(dir.file("m.json")), compat);
  SampleReader reader(*nemo);
  EXPECT_NE(nemo->read(0, reader).status().to_string().find("channel_selector"), std::string::npos);
  set_log_level(LogLevel::kInfo);
}

TEST(AudioDatasetTest, GroupsFollowTheLists) {
  TempDir dir;
  for (const char* name : {"a.wav", "b.wav"})
    write_file(dir.file(name), wav_bytes(noise_samples(1600, 1)));
  write_file(dir.file("1.json"), TestCorpus::line("a.wav", 0.1) + TestCorpus::line("b.wav", 0.1));
  write_file(dir.file("2.json"), TestCorpus::line("a.wav", 0.1));
  config::DatasetConfig config = config_of(dir.file("1.json") + "," + dir.file("2.json"));
  EXPECT_EQ(open(config)->samples()->groups.size(), 1u);  // comma list: concatenated
  EXPECT_EQ(open(config)->size(), 3u);
  config.manifest_filepath.groups = {{dir.file("1.json")}, {dir.file("2.json")}};
  config.manifest_filepath.is_list = true;
  EXPECT_EQ(open(config)->samples()->groups.size(), 1u);  // list: concatenated
  config.is_concat = true;
  const auto mixture = open(config);
  ASSERT_EQ(mixture->samples()->groups.size(), 2u);
  EXPECT_EQ(mixture->samples()->groups[1].begin, 2u);
  EXPECT_EQ(mixture->samples()->groups[1].end, 3u);
}

TEST(AudioDatasetTest, EmptyAndMissingDataIsNamed) {
  TempDir dir;
  write_file(dir.file("m.json"), TestCorpus::line("a.wav", 0.1));
  config::DatasetConfig config = config_of(dir.file("m.json"));
  config.min_duration = 1.0;
  const Status status = try_open(config, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kDataError);
  EXPECT_NE(status.to_string().find("min_duration"), std::string::npos);
  config.manifest_filepath.is_missing = true;
  EXPECT_EQ(try_open(config, {}).status().code(), StatusCode::kInvalidArgument);
}

// ---- tar ----

struct TarCase {
  TempDir dir;
  config::DatasetConfig config;

  void write(const std::string& manifest,
             const std::vector<std::pair<std::string, std::string>>& members,
             const char* manifest_name = "tarred_audio_manifest.json") {
    write_file(dir.file(manifest_name), manifest);
    write_file(dir.file("audio_0.tar"), tar_of(members));
    config = config_of(dir.file(manifest_name));
    config.is_tarred = true;
    config.tarred_audio_filepaths = TestCorpus::paths(dir.file("audio_0.tar"));
  }
};

TEST(TarShardsTest, SubNamesAndSeveralOffsetsUseTheSameMember) {
  TarCase t;
  const std::vector<int16_t> samples = noise_samples(16000, 4);
  t.write(TestCorpus::line("utt.wav", 0.25) + TestCorpus::line("utt-sub1.wav", 0.25, 0.25) +
              TestCorpus::line("utt-sub2.wav", 0.25, 0.5) +
              TestCorpus::line("other.wav", 0.25, 0.1) + TestCorpus::line("other.wav", 0.5, 0.5),
          {{"other.wav", wav_bytes(samples)}, {"utt.wav", wav_bytes(samples)}});
  const auto dataset = open(t.config);
  ASSERT_EQ(dataset->size(), 5u);
  // Archive order, lines of one member in manifest order.
  EXPECT_EQ(dataset->sample_id(0), 3u);
  EXPECT_EQ(dataset->sample_id(1), 4u);
  EXPECT_EQ(dataset->sample_id(2), 0u);
  EXPECT_EQ(dataset->sample_id(4), 2u);
  const std::vector<float> all = floats(samples);
  EXPECT_EQ(read(*dataset, 1), std::vector<float>(all.begin() + 8000, all.end()));
  EXPECT_EQ(read(*dataset, 4), std::vector<float>(all.begin() + 8000, all.begin() + 12000));
  EXPECT_EQ(dataset->shards()->report().unmatched_rows, 0u);
  // NeMo finds no member for the -subN lines.
  config::SpeechAerieConfig compat;
  compat.compat_nemo_2_6 = true;
  EXPECT_EQ(open(t.config, compat)->size(), 3u);
}

TEST(TarShardsTest, AMemberReallyCalledSubIsMatchedByItsOwnName) {
  TarCase t;
  const std::vector<int16_t> a = noise_samples(4000, 1), b = noise_samples(4000, 2);
  t.write(TestCorpus::line("x-sub1.wav", 0.25) + TestCorpus::line("x.wav", 0.25),
          {{"x.wav", wav_bytes(a)}, {"x-sub1.wav", wav_bytes(b)}});
  const auto dataset = open(t.config);
  ASSERT_EQ(dataset->size(), 2u);
  EXPECT_EQ(read(*dataset, 0), floats(a));
  EXPECT_EQ(read(*dataset, 1), floats(b));
}

TEST(TarShardsTest, FoldersInMemberNamesDoNotMatter) {
  TarCase t;
  const std::vector<int16_t> a = noise_samples(4000, 1);
  t.write(TestCorpus::line("/some/where/x.flac", 0.25), {{"deep/er/x.wav", wav_bytes(a)}});
  const auto dataset = open(t.config);
  ASSERT_EQ(dataset->size(), 1u);
  EXPECT_EQ(read(*dataset, 0), floats(a));
}

TEST(TarShardsTest, WhatHasNoPartnerIsCountedAndLeftOut) {
  TarCase t;
  const std::string wav = wav_bytes(noise_samples(4000, 1));
  t.write(TestCorpus::line("a.wav", 0.25) + TestCorpus::line("gone.wav", 0.25) +
              TestCorpus::line("short.wav", 0.01),
          {{"a.wav", wav}, {"extra.wav", wav}, {"short.wav", wav}});
  t.config.min_duration = 0.1;
  const auto dataset = open(t.config);
  EXPECT_EQ(dataset->size(), 1u);
  const TarShards::Report& report = dataset->shards()->report();
  EXPECT_EQ(report.unmatched_rows, 1u);
  EXPECT_EQ(dataset->left_out(), 1u);
  EXPECT_EQ(report.unmatched_members, 2u);  // extra, and short, which was filtered
  ASSERT_EQ(report.row_examples.size(), 1u);
  EXPECT_NE(report.row_examples[0].find(":2"), std::string::npos);
}

TEST(TarShardsTest, PatternsListsAndBucketsAreUnderstood) {
  TestCorpus corpus(24);
  corpus.make_tar(4);
  config::DatasetConfig config = config_of(corpus.tar_manifest);
  config.is_tarred = true;
  for (const std::string& pattern :
       {corpus.tar_pattern, corpus.dir.file("audio_{0..3}.tar"),
        corpus.dir.file("audio_(0..3).tar"),
        corpus.dir.file("audio_{0,1}.tar") + "," + corpus.dir.file("audio_2.tar") + "," +
            corpus.dir.file("audio_3.tar")}) {
    config.tarred_audio_filepaths = TestCorpus::paths(pattern);
    const auto dataset = open(config);
    EXPECT_EQ(dataset->size(), 24u) << pattern;
    ASSERT_EQ(dataset->samples()->groups.size(), 1u);
    EXPECT_EQ(dataset->samples()->groups[0].shard_starts, (std::vector<uint32_t>{0, 6, 12, 18}));
  }
  config.tarred_audio_filepaths.groups = {{corpus.dir.file("audio_0.tar")},
                                          {corpus.dir.file("audio__OP_1..3_CL_.tar")}};
  config.tarred_audio_filepaths.is_list = config.tarred_audio_filepaths.is_nested = true;
  EXPECT_FALSE(try_open(config, {}).ok());  // one manifest for two buckets
  config.manifest_filepath.groups = {{corpus.tar_manifest}, {corpus.tar_manifest}};
  config.manifest_filepath.is_list = config.manifest_filepath.is_nested = true;
  const auto buckets = open(config);
  ASSERT_EQ(buckets->samples()->groups.size(), 2u);
  EXPECT_EQ(buckets->samples()->groups[0].end, 6u);
  EXPECT_EQ(buckets->samples()->groups[1].shard_starts, (std::vector<uint32_t>{6, 12, 18}));
  EXPECT_EQ(read(*buckets, 20), floats(corpus.samples[20]));
}

TEST(TarShardsTest, ShardedManifestsAreExpanded) {
  TestCorpus corpus(8);
  corpus.make_tar(2);
  ASSERT_TRUE(Env::real().create_dir(corpus.dir.file("sharded_manifests")).ok());
  for (int s = 0; s < 2; ++s) {
    std::string lines;
    for (int i = 4 * s; i < 4 * s + 4; ++i)
      lines += TestCorpus::line(str_cat("utt", i, ".wav"),
                                static_cast<double>(corpus.samples[i].size()) / 16000);
    write_file(corpus.dir.file(str_cat("sharded_manifests/manifest_", s, ".json")), lines);
  }
  config::DatasetConfig config =
      config_of(corpus.dir.file("sharded_manifests/manifest__OP_0..1_CL_.json"));
  config.is_tarred = true;
  config.tarred_audio_filepaths = TestCorpus::paths(corpus.tar_pattern);
  EXPECT_EQ(open(config)->size(), 8u);
}

TEST(TarShardsTest, CompressedArchivesAreRead) {
  TarCase t;
  std::vector<std::pair<std::string, std::string>> members;
  std::string lines;
  std::vector<std::vector<int16_t>> samples;
  for (int i = 0; i < 6; ++i) {
    samples.push_back(noise_samples(4000, static_cast<uint64_t>(i)));
    members.emplace_back(str_cat("u", i, ".wav"), wav_bytes(samples.back()));
    lines += TestCorpus::line(str_cat("u", i, ".wav"), 0.25);
  }
  t.write(lines, members);
  ASSERT_EQ(std::system(str_cat("gzip -kf ", t.dir.file("audio_0.tar")).c_str()), 0);
  t.config.tarred_audio_filepaths = TestCorpus::paths(t.dir.file("audio_0.tar.gz"));
  const auto dataset = open(t.config);
  for (const int i : {5, 0, 3}) EXPECT_EQ(read(*dataset, i), floats(samples[i]));
}

TEST(TarShardsTest, LargeMembersAreReadPieceByPiece) {
  // A recording of a quarter of an hour, larger than what is read whole, and nearly all silence:
  // 30 kB when compressed.
  std::vector<int16_t> long_one(16000 * 900);
  ASSERT_GT(long_one.size() * 2, TarShards::kWholeBytes);
  const std::vector<int16_t> part = noise_samples(8000, 3);
  std::copy(part.begin(), part.end(), long_one.begin() + 16000 * 600);
  TarCase t;
  t.write(TestCorpus::line("a.wav", 0.5, 600.0) + TestCorpus::line("a-sub1.wav", -1) +
              TestCorpus::line("zeros.wav", 1.0),
          {{"a.wav", wav_bytes(long_one)}, {"zeros.wav", std::string(20 << 20, '\0')}});
  ASSERT_EQ(std::system(str_cat("gzip -kf ", t.dir.file("audio_0.tar")).c_str()), 0);
  for (const char* name : {"audio_0.tar", "audio_0.tar.gz"}) {
    SCOPED_TRACE(name);
    t.config.tarred_audio_filepaths = TestCorpus::paths(t.dir.file(name));
    const auto dataset = open(t.config);
    ASSERT_EQ(dataset->size(), 3u);
    SampleReader reader(*dataset);
    std::vector<float> got(8000);
    const auto view = dataset->read(0, reader);
    ASSERT_TRUE(view.ok()) << view.status().to_string();
    ASSERT_EQ(view->frames, 8000);
    view->copy_to(got.data());
    EXPECT_EQ(got, floats(part));
    EXPECT_EQ(dataset->read(2, reader).status().code(), StatusCode::kDataError);
    // Without a duration: as much as there is room for, and no more.
    reader.room_samples = 16000 * 60;
    const Status status = dataset->read(1, reader).status();
    EXPECT_EQ(status.code(), StatusCode::kDataError);
    EXPECT_NE(status.to_string().find("room for 60 s"), std::string::npos) << status.to_string();
    EXPECT_LE(reader.bytes.capacity(), TarShards::kWholeBytes);
    reader.room_samples = 16000 * 900;
    EXPECT_EQ(dataset->read(1, reader)->frames, 16000 * 900);
    EXPECT_LE(reader.bytes.capacity(), TarShards::kWholeBytes);
  }
}

TEST(TarShardsTest, BrokenArchivesAreRefusedByName) {
  TarCase t;
  t.write(TestCorpus::line("a.wav", 0.25), {{"a.wav", wav_bytes(noise_samples(4000, 1))}});
  write_file(t.dir.file("audio_0.tar"),
             tar_of({{"a.wav", wav_bytes(noise_samples(4000, 1))}}).substr(0, 5000));
  const Status status = try_open(t.config, {}).status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.to_string().find("audio_0.tar"), std::string::npos);
  t.config.tarred_audio_filepaths = TestCorpus::paths(t.dir.file("no_{0..1}.tar"));
  EXPECT_FALSE(try_open(t.config, {}).ok());
}

TEST(TarShardsTest, ChannelSelectorIsHonouredUnlessCompatible) {
  TarCase t;
  std::vector<int16_t> stereo;
  for (int i = 0; i < 4000; ++i) {
    stereo.push_back(100);
    stereo.push_back(300);
  }
  t.write(TestCorpus::line("s.wav", 0.25), {{"s.wav", wav_bytes(stereo, 16000, 2)}});
  t.config.channel_selector.kind = config::ChannelSelector::Kind::kIndices;
  t.config.channel_selector.indices = {1};
  EXPECT_FLOAT_EQ(read(*open(t.config), 0)[7], 300.0f / 32768.0f);
  config::SpeechAerieConfig compat;
  compat.compat_nemo_2_6 = true;
  const auto nemo = open(t.config, compat);
  SampleReader reader(*nemo);
  EXPECT_FALSE(nemo->read(0, reader).ok());
}

// NeMo's converter deals the segments of one file to several shards, each with a copy of the file.
TEST(TarShardsTest, LinesBelongToTheShardTheyName) {
  TarCase t;
  const std::vector<int16_t> samples = noise_samples(16000, 4);
  const std::vector<int16_t> other = noise_samples(16000, 5);
  const auto line = [](const char* name, double offset, const char* shard) {
    return str_cat("{\"audio_filepath\":\"", name, "\",\"duration\":0.25,\"offset\":", offset,
                   shard, "}\n");
  };
  t.write(
      line("u.wav", 0.0, ",\"shard_id\":0") + line("u.wav", 0.5, ",\"shard_id\":1") +
          line("v.wav", 0.0, ",\"shard_id\":1") + line("w.wav", 0.0, ""),
      {{"u.wav", wav_bytes(samples)}, {"v.wav", wav_bytes(other)}, {"w.wav", wav_bytes(other)}});
  write_file(t.dir.file("audio_1.tar"), tar_of({{"u.wav", wav_bytes(samples)},
                                                {"v.wav", wav_bytes(samples)},
                                                {"w.wav", wav_bytes(samples)}}));
  t.config.tarred_audio_filepaths = TestCorpus::paths(t.dir.file("audio_{0..1}.tar"));
  const auto dataset = open(t.config);
  ASSERT_EQ(dataset->size(), 4u);  // every line once
  EXPECT_EQ(dataset->shards()->report().repeated_rows, 4u);
  std::map<uint32_t, std::string> shard_of;
  for (uint64_t i = 0; i < 4; ++i)
    shard_of[dataset->sample_id(i)] = dataset->shards()->archive_path(i);
  EXPECT_EQ(shard_of[0], t.dir.file("audio_0.tar"));
  EXPECT_EQ(shard_of[1], t.dir.file("audio_1.tar"));
  EXPECT_EQ(shard_of[2], t.dir.file("audio_1.tar"));
  EXPECT_EQ(shard_of[3], t.dir.file("audio_0.tar"));  // says nothing: the first
  config::SpeechAerieConfig compat;
  compat.compat_nemo_2_6 = true;
  EXPECT_EQ(open(t.config, compat)->size(), 8u);
}

TEST(TarShardsTest, ArchivesThatAreNotThereAreWrongData) {
  TarCase t;
  t.write(TestCorpus::line("s.wav", 0.25), {{"s.wav", wav_bytes(noise_samples(4000, 1))}});
  t.config.tarred_audio_filepaths = TestCorpus::paths(t.dir.file("absent_{0..2}.tar"));
  const Status status = try_open(t.config, {}).status();
  EXPECT_EQ(status.code(), StatusCode::kDataError);
  EXPECT_NE(status.to_string().find("absent_0.tar"), std::string::npos) << status.to_string();
  t.config.tarred_audio_filepaths = TestCorpus::paths(t.dir.path());
  EXPECT_EQ(try_open(t.config, {}).status().code(), StatusCode::kDataError);
}

// Each with what took the samples away.
TEST(AudioDatasetTest, ADataSetWithoutSamplesSaysWhy) {
  TempDir dir;
  config::DatasetConfig config = config_of(dir.file("m.json"));
  const auto error = [&] {
    const Status status = try_open(config, {}).status();
    EXPECT_EQ(status.code(), StatusCode::kDataError);
    return status.to_string();
  };
  write_file(dir.file("m.json"), "\n");
  EXPECT_NE(error().find("the manifest has no entries"), std::string::npos) << error();
  write_file(dir.file("m.json"), TestCorpus::line("other.wav", 0.5));
  write_file(dir.file("a.tar"), tar_of({{"a.wav", wav_bytes(noise_samples(8000, 1))}}));
  config.is_tarred = true;
  config.tarred_audio_filepaths = TestCorpus::paths(dir.file("a.tar"));
  EXPECT_NE(error().find("has a member in the archives"), std::string::npos) << error();
  EXPECT_EQ(error().find("min_duration"), std::string::npos) << error();
  config.min_duration = 1.0;
  EXPECT_NE(error().find("check min_duration"), std::string::npos) << error();
}

// ---- packed cache ----

TEST(PackedCacheTest, SamplesComeFromTheCacheAndChangesAreNoticed) {
  TestCorpus corpus(12);
  PackBuildOptions build;
  build.manifests = {corpus.manifest};
  build.out_dir = corpus.dir.file("cache");
  build.read.sample_rate = 16000;
  ASSERT_EQ(build_pack(build)->num_packed, 12u);
  config::SpeechAerieConfig aerie;
  aerie.audio.cache_dir = build.out_dir;
  const auto dataset = open(config_of(corpus.manifest), aerie);
  ASSERT_NE(dataset->cache(), nullptr);
  EXPECT_EQ(dataset->cache()->set()->size(), 12u);
  // One source is gone, one has changed.
  ASSERT_TRUE(Env::real().remove_file(corpus.dir.file("utt3.wav")).ok());
  const std::vector<int16_t> other = noise_samples(2000, 77);
  write_file(corpus.dir.file("utt5.wav"), wav_bytes(other));
  set_log_level(LogLevel::kError);
  for (uint64_t i = 0; i < 12; ++i) {
    const std::vector<float> got = read(*dataset, i);
    const std::vector<float> expected = floats(i == 5 ? other : corpus.samples[i]);
    ASSERT_EQ(got.size(), std::min(got.size(), expected.size()));
    EXPECT_TRUE(std::equal(got.begin(), got.end(), expected.begin())) << i;
  }
  set_log_level(LogLevel::kInfo);
  // Other reading options: not used, not mixed up.
  config::DatasetConfig trimmed = config_of(corpus.manifest);
  trimmed.trim_silence = true;
  const auto differently = open(trimmed, aerie);
  EXPECT_EQ(differently->cache()->set()->size(), 0u);
  EXPECT_EQ(differently->cache()->set()->num_skipped(), 1u);
}

TEST(PackedCacheTest, MembersOfArchivesAreFound) {
  TestCorpus corpus(12);
  corpus.make_tar(3);
  PackBuildOptions build;
  build.manifests = {corpus.tar_manifest};
  for (int s = 0; s < 3; ++s)
    build.tar_paths.push_back(corpus.dir.file(str_cat("audio_", s, ".tar")));
  build.out_dir = corpus.dir.file("cache");
  build.read.sample_rate = 16000;
  ASSERT_EQ(build_pack(build)->num_packed, 12u);
  config::SpeechAerieConfig aerie;
  aerie.audio.cache_dir = build.out_dir;
  config::DatasetConfig config = config_of(corpus.tar_manifest);
  config.is_tarred = true;
  config.tarred_audio_filepaths = TestCorpus::paths(corpus.tar_pattern);
  const auto dataset = open(config, aerie);
  for (int s = 0; s < 3; ++s)
    ASSERT_TRUE(Env::real().remove_file(corpus.dir.file(str_cat("audio_", s, ".tar"))).ok());
  for (uint64_t i = 0; i < 12; ++i) EXPECT_EQ(read(*dataset, i), floats(corpus.samples[i]));
}

// ---- noise ----

struct Scripted final : NoiseDraws {
  std::deque<uint64_t> entries;
  std::deque<double> shares;  // of the allowed offset
  int level = -60;
  int normals = 0, offsets = 0;
  uint64_t entry(uint64_t n) override {
    const uint64_t value = entries.empty() ? 0 : entries.front();
    if (!entries.empty()) entries.pop_front();
    EXPECT_LT(value, n);
    return value;
  }
  double offset(double high) override {
    ++offsets;
    const double share = shares.empty() ? 0.0 : shares.front();
    if (!shares.empty()) shares.pop_front();
    return share * high;
  }
  int level_db(int low, int high) override {
    EXPECT_EQ(low, -90);
    EXPECT_EQ(high, -47);
    return level;
  }
  float normal() override {
    ++normals;
    return 1.0f;
  }
};

struct NoiseCase {
  TempDir dir;
  NoiseStats stats;
  std::shared_ptr<const Manifest> pool;

  void list(const std::string& lines) {
    write_file(dir.file("n.json"), lines);
    ManifestOptions options;
    options.quiet = true;
    options.use_index_cache = false;
    pool = std::make_shared<const Manifest>(*Manifest::open({dir.file("n.json")}, options));
  }
  NoiseReader reader(bool compat = false) {
    NoiseOptions options;
    options.compat_nemo = compat;
    return NoiseReader(pool, options, &stats);
  }
};

TEST(NoiseTest, LongNoiseIsCutAtARandomPlaceAndItsOffsetIgnored) {
  NoiseCase c;
  const std::vector<int16_t> noise = noise_samples(16000, 1);
  write_file(c.dir.file("n.wav"), wav_bytes(noise));
  c.list(TestCorpus::line("n.wav", 1.0, 0.3));
  Scripted draws;
  draws.shares = {0.5};
  std::vector<float> out(8000);
  NoiseReader reader = c.reader();
  EXPECT_EQ(reader.read(8000, 8000, draws, out.data()), 8000);
  const std::vector<float> all = floats(noise);
  EXPECT_EQ(out, std::vector<float>(all.begin() + 4000, all.begin() + 12000));
}

TEST(NoiseTest, OnlyWhatIsMixedIsRead) {
  NoiseCase c;
  const std::vector<int16_t> noise = noise_samples(16000, 1);
  write_file(c.dir.file("n.wav"), wav_bytes(noise));
  c.list(TestCorpus::line("n.wav", 1.0));
  NoiseReader reader = c.reader();
  Scripted draws;
  draws.shares = {0.5, 0.5};
  std::vector<float> part(3000), whole(8000);
  EXPECT_EQ(reader.read(8000, 3000, draws, part.data()), 3000);
  EXPECT_EQ(reader.read(8000, 8000, draws, whole.data()), 8000);
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin()));
  draws.shares = {0.5};
  std::vector<int16_t> ints(3000);
  EXPECT_EQ(reader.read(8000, 3000, draws, ints.data()), 3000);
  EXPECT_TRUE(std::equal(ints.begin(), ints.end(), noise.begin() + 4000));
}

TEST(NoiseTest, ShortNoiseKeepsItsLengthAndOffset) {
  NoiseCase c;
  const std::vector<int16_t> noise = noise_samples(4000, 2);
  write_file(c.dir.file("n.wav"), wav_bytes(noise));
  c.list(TestCorpus::line("n.wav", 0.125, 0.0625) + TestCorpus::line("n.wav", -1));
  Scripted draws;
  std::vector<float> out(8000, 9.0f);
  NoiseReader reader = c.reader();
  EXPECT_EQ(reader.read(8000, 8000, draws, out.data()), 2000);
  const std::vector<float> all = floats(noise);
  for (int k = 0; k < 2000; ++k) ASSERT_EQ(out[k], all[1000 + k]);
  for (int k = 2000; k < 8000; ++k) ASSERT_EQ(out[k], 0.0f);
  draws.entries = {1};  // unknown duration: the whole file
  EXPECT_EQ(reader.read(8000, 8000, draws, out.data()), 4000);
}

TEST(NoiseTest, StretchesAreAcceptedByEnergyOrBySum) {
  NoiseCase c;
  // First half silent, second half negative.
  std::vector<int16_t> noise(16000, 0);
  for (int i = 8000; i < 16000; ++i) noise[i] = -500;
  write_file(c.dir.file("n.wav"), wav_bytes(noise));
  c.list(TestCorpus::line("n.wav", 1.0));
  Scripted draws;
  draws.shares = {0.0, 0.1, 1.0, 0.9};
  std::vector<float> out(4000);
  NoiseReader fixed = c.reader();
  EXPECT_EQ(fixed.read(4000, 4000, draws, out.data()), 4000);
  EXPECT_EQ(draws.offsets, 3);
  EXPECT_EQ(c.stats.redrawn, 2u);
  EXPECT_FLOAT_EQ(out[10], -500.0f / 32768.0f);
  // NeMo wants a positive sum: after 100 draws the last one stays.
  Scripted again;
  again.shares = std::deque<double>(100, 1.0);
  NoiseReader compat = c.reader(true);
  EXPECT_EQ(compat.read(4000, 4000, again, out.data()), 4000);
  EXPECT_EQ(again.offsets, 100);
  EXPECT_FLOAT_EQ(out[10], -500.0f / 32768.0f);
}

TEST(NoiseTest, SilentNoiseGetsWhiteNoise) {
  NoiseCase c;
  write_file(c.dir.file("n.wav"), wav_bytes(std::vector<int16_t>(1600, 0)));
  c.list(TestCorpus::line("n.wav", 0.1));
  Scripted draws;
  std::vector<float> out(3200);
  NoiseReader reader = c.reader();
  EXPECT_EQ(reader.read(3200, 3200, draws, out.data()), 1600);
  EXPECT_EQ(draws.normals, 1600);
  EXPECT_FLOAT_EQ(out[5], 1e-3f);  // -60 dB
  EXPECT_EQ(out[1600], 0.0f);
}

TEST(NoiseTest, FailuresAreRetriedTwentyTimes) {
  NoiseCase c;
  write_file(c.dir.file("n.wav"), wav_bytes(noise_samples(1600, 1)));
  c.list(TestCorpus::line("missing.wav", 0.1) + TestCorpus::line("n.wav", 0.1));
  set_log_level(LogLevel::kError);
  Scripted draws;
  draws.entries = std::deque<uint64_t>(19, 0);
  draws.entries.push_back(1);
  std::vector<float> out(1600);
  NoiseReader reader = c.reader();
  EXPECT_EQ(reader.read(1600, 1600, draws, out.data()), 1600);
  EXPECT_EQ(c.stats.failed, 19u);
  draws.entries = std::deque<uint64_t>(25, 0);
  EXPECT_EQ(reader.read(1600, 1600, draws, out.data()), 0);
  EXPECT_EQ(c.stats.failed, 39u);
  EXPECT_EQ(c.stats.given_up, 1u);
  for (const float sample : out) ASSERT_EQ(sample, 0.0f);
  set_log_level(LogLevel::kInfo);
}

TEST(NoiseTest, StereoIsAveragedUnlessCompatible) {
  NoiseCase c;
  std::vector<int16_t> stereo;
  for (int i = 0; i < 1600; ++i) {
    stereo.push_back(100);
    stereo.push_back(300);
  }
  write_file(c.dir.file("s.wav"), wav_bytes(stereo, 16000, 2));
  c.list(TestCorpus::line("s.wav", 0.1));
  set_log_level(LogLevel::kError);
  Scripted draws;
  std::vector<float> out(1600);
  NoiseReader fixed = c.reader();
  EXPECT_EQ(fixed.read(1600, 1600, draws, out.data()), 1600);
  EXPECT_FLOAT_EQ(out[3], 200.0f / 32768.0f);
  NoiseReader compat = c.reader(true);
  EXPECT_EQ(compat.read(1600, 1600, draws, out.data()), 0);
  set_log_level(LogLevel::kInfo);
}

TEST(StorageTest, FileSystemsAreKnownByTheirNumbers) {
  EXPECT_TRUE(classify_filesystem(0x6969).network);
  EXPECT_EQ(classify_filesystem(0x6969).filesystem, "nfs");
  EXPECT_FALSE(classify_filesystem(0xEF53).network);
  EXPECT_EQ(classify_filesystem(0x1234).filesystem, "type 0x1234");
  EXPECT_EQ(classify_filesystem(0x01021997).kind(), "network file system (9p)");  // WSL2's /mnt/c
  EXPECT_EQ(classify_filesystem(0x01021994).kind(), "memory");
  EXPECT_EQ(classify_filesystem(0xEF53).kind(), "");
  TempDir dir;
  EXPECT_FALSE(storage_info(dir.path()).filesystem.empty());
  EXPECT_TRUE(storage_info("/nowhere/at/all").filesystem.empty());
}

// A made-up /sys in which every device turns, or does not.
TEST(StorageTest, DisksAreKnownByTheKernelsFiles) {
  TempDir dir, sys;
  struct stat info {};
  ASSERT_EQ(::stat(dir.path().c_str(), &info), 0);
  const std::string device =
      str_cat(sys.path(), "/dev/block/", major(info.st_dev), ":", minor(info.st_dev), "/queue");
  EXPECT_FALSE(storage_info(dir.path(), Env::real(), sys.path()).rotational);
  ASSERT_TRUE(Env::real().create_dirs(device).ok());
  ASSERT_TRUE(Env::real().write_file(device + "/rotational", "1\n").ok());
  StorageInfo disk = storage_info(dir.path(), Env::real(), sys.path());
  EXPECT_TRUE(disk.rotational);
  disk.network = disk.memory = false;  // whatever /tmp is
  EXPECT_EQ(disk.kind(), "rotational disk");
  ASSERT_TRUE(Env::real().write_file(device + "/rotational", "0\n").ok());
  disk = storage_info(dir.path(), Env::real(), sys.path());
  disk.network = disk.memory = false;
  EXPECT_EQ(disk.kind(), "solid-state disk");
}

}  // namespace
}  // namespace aerie::data::dataset_test
