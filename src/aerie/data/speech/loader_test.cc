#include <cmath>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "aerie/base/clock.h"
#include "aerie/data/speech/loader_test_util.h"
#include "aerie/data/speech/test_corpus.h"

namespace aerie::data {
namespace {

config::BatchAugmentorConfig augmentor(double prob = 0.7) {
  config::BatchAugmentorConfig out;
  out.prob = prob;
  out.noise_ratio = 0.5;
  return out;
}

TEST(LoaderTest, RowsAreTheFilesSamples) {
  TestCorpus corpus(11);
  config::DatasetConfig config = corpus.config(4);
  config.shuffle = false;
  auto loader = make(config, corpus.aerie());
  EXPECT_EQ(loader->batches_per_epoch(), 3);
  uint32_t id = 0;
  for (int b = 0; b < 3; ++b) {
    const SpeechBatch* batch = speech_batch(*loader->next());
    ASSERT_NE(batch, nullptr);
    EXPECT_EQ(batch->num_samples(), b < 2 ? 4 : 3);
    EXPECT_EQ(batch->last_in_epoch(), b == 2);
    const HostArray* audio = batch->find("audio");
    const HostArray* noisy = batch->find("noisy_audio");
    ASSERT_NE(audio, nullptr);
    EXPECT_EQ(audio->shape[0], batch->num_samples());
    EXPECT_EQ(audio->shape[1], batch->capacity());
    EXPECT_EQ(batch->capacity() % 64, 0);
    int64_t longest = 0;
    for (int64_t i = 0; i < batch->num_samples(); ++i, ++id) {
      EXPECT_EQ(batch->sample_ids()[i], id);
      const std::vector<int16_t>& source = corpus.samples[id];
      const int64_t n = std::max<int64_t>(960, static_cast<int64_t>(source.size()));
      longest = std::max(longest, n);
      ASSERT_EQ(batch->audio_len()[i], n);
      ASSERT_EQ(batch->noisy_audio_len()[i], n);
      const float* row = audio->as<float>() + i * batch->capacity();
      const float* noisy_row = noisy->as<float>() + i * batch->capacity();
      for (int64_t k = 0; k < batch->capacity(); ++k) {
        const float expected =
            k < n ? static_cast<float>(source[static_cast<size_t>(k) % source.size()]) / 32768.0f
                  : 0.0f;
        ASSERT_EQ(row[k], expected) << id << " " << k;
        ASSERT_EQ(noisy_row[k], expected);  // no noise, no augmentor
      }
    }
    EXPECT_EQ(batch->padded_length(), longest);
    loader->release(batch);
  }
  EXPECT_EQ(*loader->next(), nullptr);
  EXPECT_EQ(*loader->next(), nullptr);
  const LoaderStats stats = loader->stats();
  EXPECT_EQ(stats.samples, 11u);
  EXPECT_EQ(stats.batches, 3u);
  EXPECT_GT(stats.padding_share, 0.0);
  EXPECT_LT(stats.padding_share, 0.9);
}

TEST(LoaderTest, OrderAndContentDoNotDependOnThreads) {
  TestCorpus corpus(37);
  corpus.add_noise(5);
  config::DatasetConfig config = corpus.config(5);
  config.batch_augmentor = augmentor();
  config.augmentor = {{"gain", 0.5, config::GainPerturbation{}},
                      {"white_noise", 0.5, config::WhiteNoisePerturbation{}}};
  const std::vector<uint64_t> expected = hashes(*make(config, corpus.aerie()), 30);
  EXPECT_EQ(std::set<uint64_t>(expected.begin(), expected.end()).size(), 30u);
  for (const int64_t workers :
       {int64_t{1}, int64_t{2}, int64_t{5}, config::DatasetConfig::kAutoWorkers}) {
    config.num_workers = workers;
    for (const int64_t prefetch : {1, 3}) {
      config.prefetch_factor = prefetch;
      EXPECT_EQ(hashes(*make(config, corpus.aerie()), 30), expected) << workers;
    }
  }
}

TEST(LoaderTest, ResumesAnywhereWithAnotherNumberOfThreads) {
  TestCorpus corpus(23);
  corpus.add_noise(3);
  config::DatasetConfig config = corpus.config(4);
  config.batch_augmentor = augmentor();
  const std::vector<uint64_t> all = hashes(*make(config, corpus.aerie()), 18);  // three epochs
  for (size_t done = 0; done <= 17; ++done) {
    config.num_workers = 2;
    std::string cursor;
    {
      auto loader = make(config, corpus.aerie());
      hashes(*loader, done);
      cursor = loader->cursor_json();
      EXPECT_LT(cursor.size(), 1000u);
    }
    config.num_workers = done % 3 == 0 ? 0 : 3;
    auto resumed = make(config, corpus.aerie());
    ASSERT_TRUE(resumed->restore(cursor).ok());
    EXPECT_EQ(hashes(*resumed, 18 - done), std::vector<uint64_t>(all.begin() + done, all.end()))
        << done;
  }
}

TEST(LoaderTest, VirtualRanksGiveTheSameBatchesToAnyWorld) {
  TestCorpus corpus(50);
  corpus.add_noise(3);
  config::DatasetConfig config = corpus.config(3);
  config.batch_augmentor = augmentor();
  config::SpeechAerieConfig aerie = corpus.aerie();
  aerie.data.virtual_ranks = 4;
  const auto dataset = open(config, aerie);
  // step -> lane -> hash
  const auto collect = [&](uint32_t world) {
    std::map<std::pair<uint64_t, uint32_t>, uint64_t> out;
    int64_t steps = -1;
    for (uint32_t rank = 0; rank < world; ++rank) {
      SpeechLoaderOptions options = quiet();
      options.rank = rank;
      options.world = world;
      auto loader = *make_speech_loader(dataset, config, aerie, options);
      if (steps >= 0) {
        EXPECT_EQ(loader->batches_per_epoch(), steps);
      }
      steps = loader->batches_per_epoch();
      while (const SpeechBatch* batch = speech_batch(*loader->next())) {
        out[{batch->step(), batch->lane()}] = batch->content_hash();
        // Draws of the model are those of the micro-batch that one rank would have there.
        const DrawPlace& draws = batch->place().draws;
        EXPECT_EQ(draws.micro_step(static_cast<uint64_t>(batch->index_in_epoch())),
                  batch->step() * 4 + batch->lane());
        EXPECT_EQ(draws.first_item, 0u);
        EXPECT_EQ(draws.item_stride, 1u);
        loader->release(batch);
      }
    }
    return out;
  };
  const auto one = collect(1);
  EXPECT_EQ(one.size(), 20u);  // 50 samples, 4 lanes of 3: 5 steps
  EXPECT_EQ(collect(2), one);
  EXPECT_EQ(collect(4), one);
  SpeechLoaderOptions options = quiet();
  options.world = 3;
  EXPECT_FALSE(make_speech_loader(dataset, config, aerie, options).ok());
}

// Ranks with a batch of B have the samples of one rank with a batch of all, and draw for them what
// it draws.
TEST(LoaderTest, RanksShareTheBatchOfOne) {
  TestCorpus corpus(23);
  corpus.add_noise(3);
  config::DatasetConfig config = corpus.config(2);
  config.drop_last = false;
  const config::SpeechAerieConfig aerie = corpus.aerie();
  const auto dataset = open(config, aerie);
  using Key = std::tuple<uint64_t, uint64_t>;  // micro-batch, item
  // Sample, what keys its augmentation, its audio.
  using Value = std::tuple<uint32_t, uint64_t, std::vector<float>>;
  const auto collect = [&](uint32_t world, int64_t batch_size) {
    config.batch_size = batch_size;
    std::map<Key, Value> out;
    for (uint32_t rank = 0; rank < world; ++rank) {
      SpeechLoaderOptions options = quiet();
      options.rank = rank;
      options.world = world;
      auto loader = *make_speech_loader(dataset, config, aerie, options);
      EXPECT_EQ(loader->batches_per_epoch(), 3);
      while (const SpeechBatch* batch = speech_batch(*loader->next())) {
        const DrawPlace& draws = batch->place().draws;
        const HostArray* audio = batch->find("noisy_audio");
        if (audio == nullptr) audio = batch->find("audio");
        for (size_t i = 0; i < batch->samples().size(); ++i) {
          const PlannedSample& sample = batch->samples()[i];
          const float* row = audio->as<float>() + static_cast<int64_t>(i) * audio->shape[1];
          out[{draws.micro_step(static_cast<uint64_t>(batch->index_in_epoch())),
               draws.first_item + i * draws.item_stride}] = {
              sample.sample, sample.position, std::vector<float>(row, row + batch->audio_len()[i])};
        }
        loader->release(batch);
      }
    }
    EXPECT_EQ(out.size(), 23u);
    return out;
  };
  const auto one = collect(1, 8);
  EXPECT_EQ(collect(2, 4), one);
  EXPECT_EQ(collect(4, 2), one);
  EXPECT_EQ(collect(8, 1), one);  // the last step has samples for seven ranks
}

TEST(LoaderTest, OtherNumberOfRanksContinuesPlainDataAtTheSameSample) {
  TestCorpus corpus(48);
  config::DatasetConfig config = corpus.config(2);
  const config::SpeechAerieConfig aerie = corpus.aerie();
  const auto dataset = open(config, aerie);
  // Two ranks do 6 steps of 4 samples; one rank goes on with 12 steps of 2.
  std::multiset<uint32_t> seen;
  std::string cursor;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    SpeechLoaderOptions options = quiet();
    options.world = 2;
    options.rank = rank;
    auto loader = *make_speech_loader(dataset, config, aerie, options);
    for (int step = 0; step < 6; ++step) {
      const SpeechBatch* batch = speech_batch(*loader->next());
      for (const uint32_t id : batch->sample_ids()) seen.insert(id);
      loader->release(batch);
    }
    cursor = loader->cursor_json();
  }
  auto loader = *make_speech_loader(dataset, config, aerie, quiet());
  ASSERT_TRUE(loader->restore(cursor).ok());
  while (const SpeechBatch* batch = speech_batch(*loader->next())) {
    for (const uint32_t id : batch->sample_ids()) seen.insert(id);
    loader->release(batch);
  }
  EXPECT_EQ(seen.size(), 48u);
  for (uint32_t id = 0; id < 48; ++id) EXPECT_EQ(seen.count(id), 1u);
}

TEST(LoaderTest, RefusesCursorsOfOtherData) {
  TestCorpus corpus(12), other(13);
  config::DatasetConfig config = corpus.config(3);
  auto loader = make(config, corpus.aerie());
  const std::string cursor = loader->cursor_json();
  EXPECT_EQ(make(other.config(3), other.aerie())->restore(cursor).code(),
            StatusCode::kInvalidArgument);
  EXPECT_FALSE(make(config, corpus.aerie(), quiet(8))->restore(cursor).ok());  // seed
  config.shuffle = false;
  EXPECT_FALSE(make(config, corpus.aerie())->restore(cursor).ok());  // order
  EXPECT_FALSE(loader->restore("{}").ok());
  Cursor far = loader->cursor();
  far.now.step = 1000;
  EXPECT_EQ(loader->restore(far.to_json()).code(), StatusCode::kDataError);
}

TEST(LoaderTest, EpochsCanBeRepeatedAndSkipped) {
  TestCorpus corpus(10);
  config::DatasetConfig config = corpus.config(4);
  for (const int64_t workers : {0, 2}) {
    config.num_workers = workers;
    auto loader = make(config, corpus.aerie());
    const std::vector<uint64_t> first = hashes(*loader, 3);
    ASSERT_TRUE(loader->start_epoch(0).ok());
    EXPECT_EQ(hashes(*loader, 3), first);
    ASSERT_TRUE(loader->start_epoch(5).ok());
    const std::vector<uint64_t> fifth = hashes(*loader, 2);  // left in the middle
    ASSERT_TRUE(loader->start_epoch(0).ok());
    EXPECT_EQ(hashes(*loader, 3), first);
    ASSERT_TRUE(loader->start_epoch(5).ok());
    EXPECT_EQ(hashes(*loader, 2), fifth);
  }
}

TEST(LoaderTest, OneEpochLoadersEndAndCanStartAgain) {
  TestCorpus corpus(10);
  config::DatasetConfig config = corpus.config(4);
  config.shuffle = false;
  config.num_workers = 2;
  SpeechLoaderOptions options = quiet();
  options.single_epoch = true;
  options.max_batches_per_epoch = 2;
  auto loader = make(config, corpus.aerie(), options);
  EXPECT_EQ(loader->batches_per_epoch(), 2);
  std::vector<uint64_t> first;
  while (const SpeechBatch* batch = speech_batch(*loader->next())) {
    first.push_back(batch->content_hash());
    loader->release(batch);
  }
  EXPECT_EQ(first.size(), 2u);
  ASSERT_TRUE(loader->start_epoch(0).ok());
  for (const uint64_t hash : first) {
    const SpeechBatch* batch = speech_batch(*loader->next());
    EXPECT_EQ(batch->content_hash(), hash);
    loader->release(batch);
  }
  EXPECT_EQ(*loader->next(), nullptr);
}

TEST(LoaderTest, TheConsumerMayKeepSeveralBatches) {
  TestCorpus corpus(30);
  config::DatasetConfig config = corpus.config(2);
  for (const int64_t workers : {0, 2}) {
    config.num_workers = workers;
    auto loader = make(config, corpus.aerie());
    std::vector<const Batch*> kept;
    std::vector<uint64_t> before;
    for (int i = 0; i < 12; ++i) {
      kept.push_back(*loader->next());
      ASSERT_NE(kept.back(), nullptr);
      before.push_back(kept.back()->content_hash());
    }
    for (size_t i = 0; i < kept.size(); ++i) EXPECT_EQ(kept[i]->content_hash(), before[i]);
    for (const Batch* batch : kept) loader->release(batch);
  }
}

TEST(LoaderTest, CompatibleModeKeepsRawNoiseOfSkippedItems) {
  TestCorpus corpus(8);
  corpus.add_noise(4, 700);  // shorter than the utterances
  config::DatasetConfig config = corpus.config(4);
  config.batch_augmentor = augmentor(0.0);
  config::SpeechAerieConfig aerie = corpus.aerie();
  {
    auto loader = make(config, aerie);
    const SpeechBatch* batch = speech_batch(*loader->next());
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(batch->noisy_audio_len()[i], batch->audio_len()[i]);
    EXPECT_EQ(std::memcmp(batch->find("audio")->data, batch->find("noisy_audio")->data,
                          batch->find("audio")->bytes()),
              0);
  }
  aerie.compat_nemo_2_6 = true;
  auto loader = make(config, aerie);
  const SpeechBatch* batch = speech_batch(*loader->next());
  int differ = 0;
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_EQ(batch->noisy_audio_len()[i], 700);
    const float* audio = batch->find("audio")->as<float>() + i * batch->capacity();
    const float* noisy = batch->find("noisy_audio")->as<float>() + i * batch->capacity();
    for (int64_t k = 0; k < 700; ++k) differ += audio[k] != noisy[k];
    for (int64_t k = 700; k < batch->capacity(); ++k) ASSERT_EQ(audio[k], noisy[k]);
  }
  EXPECT_GT(differ, 2000);
}

TEST(LoaderTest, WithoutAugmentorNoiseIsAdded) {
  TestCorpus corpus(8);
  corpus.add_noise(4, 20000);
  config::DatasetConfig config = corpus.config(4);
  SpeechLoaderOptions options = quiet();
  options.want_noise = true;
  auto loader = make(config, corpus.aerie(), options);
  const SpeechBatch* batch = speech_batch(*loader->next());
  const float* audio = batch->find("audio")->as<float>();
  const float* noisy = batch->find("noisy_audio")->as<float>();
  const float* noise = batch->find("noise")->as<float>();
  double energy = 0;
  for (int64_t k = 0; k < batch->num_samples() * batch->capacity(); ++k) {
    ASSERT_EQ(noisy[k], audio[k] + noise[k]);
    energy += noise[k] * noise[k];
  }
  EXPECT_GT(energy, 0.01);
  for (int64_t i = 0; i < 4; ++i)
    EXPECT_LE(std::abs(batch->noise_len()[i] - batch->audio_len()[i]), 1);
}

TEST(LoaderTest, TheConsumerCanMixFromThePlan) {
  TestCorpus corpus(40);
  corpus.add_noise(6);
  config::DatasetConfig config = corpus.config(8);
  config.batch_augmentor = augmentor(0.9);
  for (const auto dtype : {config::BatchDtype::kFloat32, config::BatchDtype::kInt16}) {
    config::SpeechAerieConfig aerie = corpus.aerie();
    aerie.audio.batch_dtype = dtype;
    SpeechLoaderOptions here = quiet(), there = quiet();
    there.mix = MixPlace::kConsumer;
    auto mixed = make(config, aerie, here);
    auto planned = make(config, aerie, there);
    for (int b = 0; b < 5; ++b) {
      const SpeechBatch* a = speech_batch(*mixed->next());
      const SpeechBatch* p = speech_batch(*planned->next());
      EXPECT_TRUE(a->mixed_on_cpu());
      EXPECT_FALSE(p->mixed_on_cpu());
      EXPECT_EQ(p->find("noisy_audio"), nullptr);
      ASSERT_EQ(a->capacity(), p->capacity());
      const int64_t stride = p->capacity();
      const auto clean = [&](int64_t row, int64_t k) {
        return dtype == config::BatchDtype::kInt16
                   ? static_cast<float>(p->find("audio")->as<int16_t>()[row * stride + k]) /
                         32768.0f
                   : p->find("audio")->as<float>()[row * stride + k];
      };
      const auto raw_noise = [&](int64_t row, int64_t k) {
        return dtype == config::BatchDtype::kInt16
                   ? static_cast<float>(p->find("noise")->as<int16_t>()[row * stride + k]) /
                         32768.0f
                   : p->find("noise")->as<float>()[row * stride + k];
      };
      const MixPlan& plan = p->mix_plan();
      for (int64_t i = 0; i < p->num_samples(); ++i) {
        std::vector<float> noisy(static_cast<size_t>(stride));
        for (int64_t k = 0; k < stride; ++k) noisy[k] = clean(i, k);
        const MixItem& item = plan.items[i];
        for (int s = item.first_segment; s < item.first_segment + item.num_segments; ++s) {
          const MixSegment& g = plan.segments[s];
          for (int64_t k = 0; k < g.length; ++k) {
            const int64_t from = (g.source_begin + k) % g.source_period;
            noisy[g.dest_begin + k] +=
                item.gain *
                (g.source == MixSource::kSpeech ? clean(g.row, from) : raw_noise(g.row, from));
          }
        }
        for (int64_t k = 0; k < stride; ++k)
          ASSERT_NEAR(noisy[k], a->find("noisy_audio")->as<float>()[i * stride + k], 1e-6);
      }
      mixed->release(a);
      planned->release(p);
    }
  }
}

TEST(LoaderTest, SpeedMakesRowsLonger) {
  TestCorpus corpus(12);
  config::DatasetConfig config = corpus.config(4);
  config::SpeedPerturbation speed;
  speed.min_speed_rate = 1.2;
  speed.max_speed_rate = 1.3;
  speed.num_rates = 2;
  config.augmentor = {{"speed", 1.0, speed}};
  auto loader = make(config, corpus.aerie());
  while (const SpeechBatch* batch = speech_batch(*loader->next())) {
    for (int64_t i = 0; i < batch->num_samples(); ++i) {
      const double n = static_cast<double>(corpus.samples[batch->sample_ids()[i]].size());
      EXPECT_GE(static_cast<double>(batch->audio_len()[i]), 1.19 * n);
      EXPECT_LE(static_cast<double>(batch->audio_len()[i]), 1.31 * n + 1);
      EXPECT_LE(batch->audio_len()[i], batch->capacity());
    }
    loader->release(batch);
  }
}

TEST(LoaderTest, BatchesHaveFewShapes) {
  TestCorpus corpus(200);
  config::DatasetConfig config = corpus.config(2);
  config::SpeechAerieConfig aerie = corpus.aerie();
  aerie.data.max_shapes = 3;
  auto loader = make(config, aerie);
  EXPECT_LE(row_lengths(*loader).size(), 3u);
  std::set<int64_t> shapes;
  while (const SpeechBatch* batch = speech_batch(*loader->next())) {
    shapes.insert(batch->capacity());
    EXPECT_GE(batch->capacity(), batch->padded_length());
    loader->release(batch);
  }
  EXPECT_LE(shapes.size(), 3u);
  EXPECT_GE(shapes.size(), 2u);
}

TEST(LoaderTest, BucketsByDurationPadLess) {
  TestCorpus corpus(300);
  const auto padding = [&](const config::DatasetConfig& config) {
    auto loader = make(config, corpus.aerie());
    while (const SpeechBatch* batch = speech_batch(*loader->next())) loader->release(batch);
    return loader->stats().padding_share;
  };
  config::DatasetConfig config = corpus.config(8);
  const double plain = padding(config);
  config.use_bucketing = true;
  config.num_buckets = 8;
  EXPECT_LT(padding(config), 0.7 * plain);
}

TEST(LoaderTest, KeysAreCheckedAsUsersKnowThem) {
  config::DatasetConfig config;
  config.num_workers = 0;
  EXPECT_TRUE(loader_config(config, {}).validate().ok());
  config.prefetch_factor = 2;
  EXPECT_NE(loader_config(config, {}).validate().to_string().find("prefetch_factor"),
            std::string::npos);
  config.prefetch_factor.reset();
  config.persistent_workers = true;
  EXPECT_NE(loader_config(config, {}).validate().to_string().find("persistent_workers"),
            std::string::npos);
  config.num_workers = 4;
  EXPECT_TRUE(loader_config(config, {}).validate().ok());
  config.prefetch_factor = 0;
  EXPECT_FALSE(loader_config(config, {}).validate().ok());
  config.prefetch_factor = 4;
  config.num_workers = -3;
  EXPECT_FALSE(loader_config(config, {}).validate().ok());
  config.num_workers = config::DatasetConfig::kAutoWorkers;
  EXPECT_TRUE(loader_config(config, {}).validate().ok());
}

TEST(LoaderTest, NoBatchAtAllIsSaidAtOnce) {
  TestCorpus corpus(3);
  config::DatasetConfig config = corpus.config(8);
  config.drop_last = true;
  const Status status =
      make_speech_loader(open(config, corpus.aerie()), config, corpus.aerie(), quiet()).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.to_string().find("drop_last"), std::string::npos);
}

TEST(LoaderTest, TarShardsGiveTheSameSamplesAsFiles) {
  TestCorpus corpus(26);
  corpus.make_tar(4);
  config::DatasetConfig config = corpus.config(5);
  config.is_tarred = true;
  config.manifest_filepath = TestCorpus::paths(corpus.tar_manifest);
  config.tarred_audio_filepaths = TestCorpus::paths(corpus.tar_pattern);
  config.shuffle_n = 16;
  std::vector<uint64_t> expected;
  for (const int64_t workers : {0, 3}) {
    config.num_workers = workers;
    auto loader = make(config, corpus.aerie());
    std::multiset<uint32_t> seen;
    std::vector<uint64_t> now;
    while (const SpeechBatch* batch = speech_batch(*loader->next())) {
      now.push_back(batch->content_hash());
      for (int64_t i = 0; i < batch->num_samples(); ++i) {
        const uint32_t id = batch->sample_ids()[i];
        seen.insert(id);
        const float* row = batch->find("audio")->as<float>() + i * batch->capacity();
        for (size_t k = 0; k < corpus.samples[id].size(); ++k)
          ASSERT_EQ(row[k], static_cast<float>(corpus.samples[id][k]) / 32768.0f);
      }
      loader->release(batch);
    }
    EXPECT_EQ(seen.size(), 26u);
    EXPECT_EQ(std::set<uint32_t>(seen.begin(), seen.end()).size(), 26u);
    if (expected.empty()) expected = now;
    EXPECT_EQ(now, expected);
  }
}

TEST(LoaderTest, TheFirstEpochFillsThePackedCache) {
  TestCorpus corpus(30);
  config::DatasetConfig config = corpus.config(4);
  config.num_workers = 2;
  config::SpeechAerieConfig aerie = corpus.aerie();
  const std::vector<uint64_t> expected = hashes(*make(config, aerie), 24);
  aerie.audio.cache_dir = corpus.dir.file("cache");
  aerie.audio.build_cache = true;
  {
    auto loader = make(config, aerie);
    EXPECT_EQ(hashes(*loader, 24), expected);  // three epochs, the later ones from the cache
  }
  // All of it is there: the recordings are no longer needed.
  for (int i = 0; i < 30; ++i)
    ASSERT_TRUE(Env::real().remove_file(corpus.dir.file(str_cat("utt", i, ".wav"))).ok());
  aerie.audio.build_cache = false;
  EXPECT_EQ(hashes(*make(config, aerie), 24), expected);
}

TEST(LoaderTest, AutoWorkersShrinkForASlowConsumer) {
  TestCorpus corpus(64);
  config::DatasetConfig config = corpus.config(2);
  config.num_workers = config::DatasetConfig::kAutoWorkers;
  auto loader = make(config, corpus.aerie());
  const int most = loader->stats().max_workers;
  ASSERT_GE(most, 1);
  for (int b = 0; b < 400; ++b) {
    const SpeechBatch* batch = speech_batch(*loader->next());
    if (batch == nullptr) {
      ASSERT_TRUE(loader->start_epoch(loader->cursor().epoch + 1).ok());
      continue;
    }
    Clock::real().sleep_ns(10'000'000 * (1 + b / 40));  // slower than readers on a busy machine too
    loader->release(batch);
    if (loader->stats().workers < most) break;
  }
  EXPECT_TRUE(most == 1 || loader->stats().workers < most);
}

}  // namespace
}  // namespace aerie::data
