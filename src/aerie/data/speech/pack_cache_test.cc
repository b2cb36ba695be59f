#include "aerie/data/speech/pack_cache.h"

#include <cmath>
#include <thread>

#include <gtest/gtest.h>

#include "aerie/base/testing/fault_env.h"
#include "aerie/base/testing/mem_env.h"
#include "aerie/data/speech/audio_dataset.h"
#include "aerie/data/speech/test_corpus.h"

namespace aerie::data {
namespace {

audio::AudioView view_of(const std::vector<int16_t>& samples) {
  audio::AudioView view;
  view.pcm16 = samples.data();
  view.frames = static_cast<int64_t>(samples.size());
  view.channels = 1;
  view.sample_rate = 16000;
  return view;
}

PackKey key_of(uint64_t i) {
  return {i + 1, 7};
}

PackCache::Options options_of(const std::string& dir, Env* env, uint64_t num_samples) {
  PackCache::Options options;
  options.dir = dir;
  options.settings = "s";
  options.build = true;
  options.num_samples = num_samples;
  options.quiet = true;
  options.env = env;
  return options;
}

void add(PackCache& cache, uint64_t i) {
  if (!cache.wants(i)) return;
  cache.add(i, key_of(i), "x", "/no/such/file", view_of(noise_samples(500, i)), kPackUnit);
}

void expect_holds(const PackSet& set, uint64_t i) {
  const auto at = set.find(key_of(i));
  ASSERT_TRUE(at.has_value()) << i;
  const std::vector<int16_t> expected = noise_samples(500, i);
  const auto bytes = set.shard(at->shard).data(at->entry);
  ASSERT_EQ(bytes.size(), expected.size() * 2);
  EXPECT_EQ(std::memcmp(bytes.data(), expected.data(), bytes.size()), 0);
}

TEST(PackCacheTest, WhatIsAddedIsThereAfterPublish) {
  auto env = new_mem_env();
  auto cache = *PackCache::open(options_of("/cache", env.get(), 6));
  for (uint64_t i = 0; i < 4; ++i) add(*cache, i);
  EXPECT_FALSE(cache->wants(2));
  EXPECT_TRUE(cache->wants(4));
  EXPECT_EQ(cache->set()->size(), 0u);
  const uint64_t version = cache->version();
  cache->publish();
  EXPECT_GT(cache->version(), version);
  EXPECT_EQ(cache->set()->size(), 4u);
  for (uint64_t i = 0; i < 4; ++i) expect_holds(*cache->set(), i);
  EXPECT_TRUE(cache->building());
  for (uint64_t i = 4; i < 6; ++i) add(*cache, i);
  cache->publish();
  EXPECT_FALSE(cache->building());  // complete
  EXPECT_EQ((*PackCache::open(options_of("/cache", env.get(), 6)))->set()->size(), 6u);
}

TEST(PackCacheTest, EndingWithoutPublishKeepsWhatWasAdded) {
  auto env = new_mem_env();
  {
    auto cache = *PackCache::open(options_of("/cache", env.get(), 6));
    for (uint64_t i = 0; i < 3; ++i) add(*cache, i);
  }
  EXPECT_EQ((*PackCache::open(options_of("/cache", env.get(), 6)))->set()->size(), 3u);
}

TEST(PackCacheTest, SeveralFillOneFolder) {
  auto env = new_mem_env();
  std::vector<std::unique_ptr<PackCache>> caches;
  for (int c = 0; c < 4; ++c) {
    auto options = options_of("/cache", env.get(), 80);
    caches.push_back(*PackCache::open(options));
  }
  std::vector<std::thread> threads;
  for (uint64_t c = 0; c < 4; ++c)
    threads.emplace_back([&, c] {
      for (uint64_t i = c * 20; i < c * 20 + 20; ++i) {
        add(*caches[c], i);
        if (i % 7 == c) caches[c]->publish();
      }
      caches[c]->publish();
    });
  for (std::thread& thread : threads) thread.join();
  // Whoever publishes last sees everybody's.
  caches[2]->publish();
  EXPECT_EQ(caches[2]->set()->size(), 80u);
  for (uint64_t i = 0; i < 80; ++i) expect_holds(*caches[2]->set(), i);
  for (const DirEntry& entry : *env->list_dir("/cache"))
    EXPECT_EQ(entry.name.find(".tmp"), std::string::npos) << entry.name;
}

TEST(PackCacheTest, ShardsOfOtherSettingsAreLeftAlone) {
  auto env = new_mem_env();
  {
    auto cache = *PackCache::open(options_of("/cache", env.get(), 2));
    add(*cache, 0);
  }
  auto options = options_of("/cache", env.get(), 2);
  options.settings = "other";
  auto cache = *PackCache::open(options);
  EXPECT_EQ(cache->set()->size(), 0u);
  EXPECT_EQ(cache->set()->num_skipped(), 1u);
  add(*cache, 1);
  cache->publish();
  EXPECT_EQ(cache->set()->size(), 1u);
  EXPECT_EQ((*PackCache::open(options_of("/cache", env.get(), 2)))->set()->size(), 1u);
}

TEST(PackCacheTest, EveryFailureEndsTheBuildingAndNothingElse) {
  for (const FaultOp kind : {FaultOp::kOpen, FaultOp::kAppend, FaultOp::kSync, FaultOp::kRename,
                             FaultOp::kSyncDir, FaultOp::kFlush, FaultOp::kCreateDir}) {
    for (uint64_t nth = 1; nth < 40; ++nth) {
      auto memory = new_mem_env();
      FaultEnv env(*memory);
      {
        auto cache = *PackCache::open(options_of("/cache", &env, 10));
        env.fail_at(nth, kind, ENOSPC);
        for (uint64_t i = 0; i < 10; ++i) {
          add(*cache, i);
          if (i == 4) cache->publish();
        }
        cache->publish();
        // Everything that can be found can be read.
        for (uint64_t i = 0; i < 10; ++i)
          if (cache->set()->find(key_of(i))) expect_holds(*cache->set(), i);
      }
      env.clear_faults();
      if (!env.exists("/cache")) continue;
      for (const DirEntry& entry : *env.list_dir("/cache"))
        EXPECT_EQ(entry.name.find(".tmp"), std::string::npos) << entry.name;
      EXPECT_TRUE(PackCache::open(options_of("/cache", &env, 10)).ok());
    }
  }
}

TEST(PackCacheTest, FullDisksKeepWhatFits) {
  auto memory = new_mem_env();
  FaultEnv env(*memory);
  env.set_space(8000);
  auto cache = *PackCache::open(options_of("/cache", &env, 10));
  for (uint64_t i = 0; i < 4; ++i) add(*cache, i);
  cache->publish();
  for (uint64_t i = 4; i < 10; ++i) add(*cache, i);
  cache->publish();
  EXPECT_FALSE(cache->building());
  EXPECT_EQ(cache->set()->size(), 4u);
  EXPECT_GT(*env.free_space("/cache"), 1000u);  // the unfinished shard is gone
}

TEST(PackCacheTest, DoesNotBeginWhatCannotFit) {
  auto memory = new_mem_env();
  FaultEnv env(*memory);
  env.set_space(100000);
  auto options = options_of("/cache", &env, 10);
  options.total_s = 10.0;  // 320,000 bytes
  auto cache = *PackCache::open(options);
  EXPECT_FALSE(cache->building());
  EXPECT_FALSE(cache->wants(0));
  EXPECT_TRUE(cache->fills());
  options.total_s = 2.0;
  EXPECT_TRUE((*PackCache::open(options))->building());
}

TEST(PackCacheTest, AbandonedFilesAreRemovedAfterADay) {
  FakeClock clock(Clock::real().wall_ns() - int64_t{100000} * 1000000000);
  auto env = new_mem_env(clock);
  ASSERT_TRUE(env->create_dirs("/cache").ok());
  ASSERT_TRUE(env->write_file("/cache/pack_00000.aerie-pack.tmp", "old").ok());
  clock.advance_s(99000);
  ASSERT_TRUE(env->write_file("/cache/pack_00001.aerie-pack.tmp", "of somebody else").ok());
  auto cache = *PackCache::open(options_of("/cache", env.get(), 1));
  add(*cache, 0);
  cache->publish();
  EXPECT_FALSE(env->exists("/cache/pack_00000.aerie-pack.tmp"));
  EXPECT_TRUE(env->exists("/cache/pack_00001.aerie-pack.tmp"));
  EXPECT_EQ(cache->set()->size(), 1u);
}

// Float audio is kept in 16 bits; it is delivered so from the first time on.
TEST(PackCacheTest, ReadingDoesNotDependOnWhatIsPacked) {
  TempDir dir;
  std::string lines;
  for (int i = 0; i < 6; ++i) {
    std::string bytes = wav_bytes(noise_samples(3000, static_cast<uint64_t>(i)), 22050);
    if (i % 2 == 1) {  // float32, some beyond full scale
      std::vector<float> values(1500);
      for (size_t k = 0; k < values.size(); ++k)
        values[k] = 1.7f * std::sin(static_cast<float>(k) * 0.01f * static_cast<float>(i));
      const uint32_t rate = 16000, per_s = 64000, size = 6000;
      const uint16_t head[4] = {3, 1, 4, 32};
      bytes = wav_bytes(std::vector<int16_t>(3000));
      std::memcpy(&bytes[20], &head[0], 4);
      std::memcpy(&bytes[24], &rate, 4);
      std::memcpy(&bytes[28], &per_s, 4);
      std::memcpy(&bytes[32], &head[2], 4);
      std::memcpy(&bytes[40], &size, 4);
      std::memcpy(&bytes[44], values.data(), size);
    }
    write_file(dir.file(str_cat("a", i, ".wav")), bytes);
    lines += TestCorpus::line(str_cat("a", i, ".wav"), -1);
  }
  write_file(dir.file("m.json"), lines);
  config::DatasetConfig config;
  config.manifest_filepath = TestCorpus::paths(dir.file("m.json"));
  config::SpeechAerieConfig aerie;
  aerie.audio.build_cache = true;
  for (const bool int_values : {false, true}) {
    for (const auto format : {config::CacheFormat::kPcm16, config::CacheFormat::kFlac}) {
      config.int_values = int_values;
      aerie.audio.cache_format = format;
      aerie.audio.cache_dir =
          dir.file(str_cat("cache", int_values, format == config::CacheFormat::kFlac));
      AudioDataset::Options open;
      open.quiet = true;
      auto dataset = *AudioDataset::open(config, aerie, open);
      SampleReader reader(*dataset);
      std::vector<std::vector<float>> first;
      for (int round = 0; round < 3; ++round) {
        for (uint64_t i = 0; i < 6; ++i) {
          const auto view = dataset->read(i, reader);
          ASSERT_TRUE(view.ok()) << view.status().to_string();
          std::vector<float> now;
          for (int64_t k = 0; k < view->frames; ++k)
            now.push_back(view->pcm16 != nullptr ? static_cast<float>(view->pcm16[k]) * kPackUnit
                                                 : view->samples[k]);
          if (round == 0)
            first.push_back(now);
          else
            EXPECT_EQ(now, first[i]) << round << " " << i;
        }
        dataset->cache()->publish();
        EXPECT_EQ(dataset->cache()->set()->size(), 6u);
      }
    }
  }
}

}  // namespace
}  // namespace aerie::data
