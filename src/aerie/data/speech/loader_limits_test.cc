// What the loader does with audio that cannot be read and with memory that is not there.
#include <atomic>
#include <cerrno>
#include <map>
#include <mutex>

#include <gtest/gtest.h>

#include "aerie/data/speech/loader_test_util.h"
#include "aerie/data/speech/test_corpus.h"

namespace aerie::data {
namespace {

TEST(LoaderTest, BadAudioIsSkippedSilencedOrFatal) {
  TestCorpus corpus(20);
  write_file(corpus.dir.file("utt3.wav"), "this is no audio at all");
  ASSERT_TRUE(Env::real().remove_file(corpus.dir.file("utt7.wav")).ok());
  config::DatasetConfig config = corpus.config(5);
  config.shuffle = false;
  config::SpeechAerieConfig aerie = corpus.aerie();
  aerie.max_bad_fraction = 0.2;
  for (const int64_t workers : {0, 3}) {
    config.num_workers = workers;
    aerie.on_bad_audio = config::OnBadAudio::kSkip;
    std::vector<uint32_t> reported;
    SpeechLoaderOptions options = quiet();
    options.on_bad_sample = [&](const BadSample& bad) { reported.push_back(bad.sample_id); };
    auto loader = make(config, aerie, options);
    std::vector<uint32_t> ids;
    while (const SpeechBatch* batch = speech_batch(*loader->next())) {
      for (const uint32_t id : batch->sample_ids()) ids.push_back(id);
      for (int64_t i = 0; i < batch->num_samples(); ++i) {
        // Rows moved up still hold their own samples.
        EXPECT_EQ(batch->find("audio")->as<float>()[i * batch->capacity()],
                  static_cast<float>(corpus.samples[batch->sample_ids()[i]][0]) / 32768.0f);
      }
      loader->release(batch);
    }
    EXPECT_EQ(ids.size(), 18u);
    EXPECT_EQ(reported, (std::vector<uint32_t>{3, 7}));
    ASSERT_EQ(loader->bad_samples().size(), 2u);
    EXPECT_NE(loader->bad_samples()[0].place.find("train.json:4"), std::string::npos);
    EXPECT_EQ(loader->stats().bad_samples, 2u);

    aerie.on_bad_audio = config::OnBadAudio::kZero;
    loader = make(config, aerie);
    int64_t count = 0;
    while (const SpeechBatch* batch = speech_batch(*loader->next())) {
      for (int64_t i = 0; i < batch->num_samples(); ++i, ++count) {
        if (batch->sample_ids()[i] != 3) continue;
        EXPECT_EQ(batch->audio_len()[i],
                  std::max<int64_t>(960, static_cast<int64_t>(corpus.samples[3].size())));
        for (int64_t k = 0; k < batch->capacity(); ++k)
          ASSERT_EQ(batch->find("audio")->as<float>()[i * batch->capacity() + k], 0.0f);
      }
      loader->release(batch);
    }
    EXPECT_EQ(count, 20);

    aerie.on_bad_audio = config::OnBadAudio::kFail;
    loader = make(config, aerie);
    const Status status = loader->next().status();
    EXPECT_FALSE(status.ok());
    EXPECT_NE(status.to_string().find("train.json:4 (utt3.wav)"), std::string::npos)
        << status.to_string();
    EXPECT_FALSE(loader->next().ok());  // it stays broken
  }
}

TEST(LoaderTest, TooManyBadSamplesStopTheRunWithTheirNames) {
  TestCorpus corpus(40);
  for (const int i : {5, 6, 11}) write_file(corpus.dir.file(str_cat("utt", i, ".wav")), "broken");
  config::DatasetConfig config = corpus.config(4);
  config.shuffle = false;
  config::SpeechAerieConfig aerie = corpus.aerie();
  aerie.max_bad_fraction = 0.05;  // two of forty
  for (const int64_t workers : {0, 4}) {
    config.num_workers = workers;
    auto loader = make(config, aerie);
    for (int b = 0; b < 2; ++b) {
      const SpeechBatch* batch = speech_batch(*loader->next());
      loader->release(batch);
    }
    const Status status = loader->next().status();
    ASSERT_EQ(status.code(), StatusCode::kDataError);
    for (const char* name : {"utt5.wav", "utt6.wav", "utt11.wav", "max_bad_fraction"})
      EXPECT_NE(status.to_string().find(name), std::string::npos) << name;
  }
}

TEST(LoaderTest, EmptyAndCutRecordingsAreBadSamples) {
  TestCorpus corpus(20);
  write_file(corpus.dir.file("utt3.wav"), wav_bytes({}));
  write_file(corpus.dir.file("utt9.wav"), wav_bytes(corpus.samples[9]).substr(0, 1000));
  for (const bool durations : {true, false}) {
    std::string lines;
    for (size_t i = 0; i < corpus.samples.size(); ++i)
      lines +=
          TestCorpus::line(str_cat("utt", i, ".wav"),
                           durations ? static_cast<double>(corpus.samples[i].size()) / 16000 : -1);
    write_file(corpus.manifest, lines);
    config::DatasetConfig config = corpus.config(5);
    config.shuffle = false;
    config::SpeechAerieConfig aerie = corpus.aerie();
    aerie.max_bad_fraction = 0.2;
    auto loader = make(config, aerie);
    std::vector<uint32_t> ids;
    while (const SpeechBatch* batch = speech_batch(*loader->next())) {
      for (const uint32_t id : batch->sample_ids()) ids.push_back(id);
      loader->release(batch);
    }
    EXPECT_EQ(ids.size(), 18u);
    ASSERT_EQ(loader->bad_samples().size(), 2u);
    EXPECT_NE(loader->bad_samples()[0].place.find("train.json:4"), std::string::npos);
    EXPECT_NE(loader->bad_samples()[0].reason.find("holds no audio"), std::string::npos);
    EXPECT_NE(loader->bad_samples()[1].place.find("train.json:10"), std::string::npos);
    EXPECT_NE(loader->bad_samples()[1].reason.find("cut short"), std::string::npos);
  }
}

// The real file system, on which recordings cannot be opened for a while.
class FlakyEnv final : public Env {
 public:
  FlakyEnv(int error_number, int failures) : error_(error_number), failures_(failures) {}
  std::atomic<int> num_failed{0};

  Result<std::unique_ptr<RandomAccessFile>> open_random_access(const std::string& path) override {
    if (ends_with(path, ".wav") || ends_with(path, ".tar")) {
      const std::lock_guard lock(mutex_);
      if (++opened_[path] <= failures_) {
        ++num_failed;
        return errno_error(str_cat("cannot open '", path, "'"), error_);
      }
    }
    return real_.open_random_access(path);
  }
  Result<MappedFile> map_file(const std::string& path) override { return real_.map_file(path); }
  Result<std::unique_ptr<WritableFile>> open_writable(const std::string& path,
                                                      WriteMode mode) override {
    return real_.open_writable(path, mode);
  }
  Result<FileStat> stat(const std::string& path) override { return real_.stat(path); }
  Result<std::vector<DirEntry>> list_dir(const std::string& path) override {
    return real_.list_dir(path);
  }
  Status create_dir(const std::string& path) override { return real_.create_dir(path); }
  Status rename(const std::string& from, const std::string& to) override {
    return real_.rename(from, to);
  }
  Status remove_file(const std::string& path) override { return real_.remove_file(path); }
  Status remove_dir(const std::string& path) override { return real_.remove_dir(path); }
  Status fsync_dir(const std::string& path) override { return real_.fsync_dir(path); }
  Result<uint64_t> free_space(const std::string& path) override { return real_.free_space(path); }

 private:
  Env& real_ = Env::real();
  const int error_;
  const int failures_;
  std::mutex mutex_;
  std::map<std::string, int> opened_;
};

TEST(LoaderTest, ReadErrorsThatPassAreNoBadSamples) {
  TestCorpus corpus(12);
  corpus.make_tar(2);
  for (const bool tarred : {false, true}) {
    config::DatasetConfig config = corpus.config(4);
    if (tarred) {
      config.is_tarred = true;
      config.manifest_filepath = TestCorpus::paths(corpus.tar_manifest);
      config.tarred_audio_filepaths = TestCorpus::paths(corpus.tar_pattern);
    }
    config.num_workers = 2;
    const config::SpeechAerieConfig aerie = corpus.aerie();
    const std::vector<uint64_t> want = hashes(*make(config, aerie), 3);
    const auto open_with = [&](FlakyEnv& env, double total_s) {
      AudioDataset::Options options;
      options.quiet = true;
      options.env = &env;
      options.retry.total_s = total_s;
      auto dataset = AudioDataset::open(config, aerie, options);
      EXPECT_TRUE(dataset.ok()) << dataset.status().to_string();
      return *dataset;
    };
    for (const int error : {EMFILE, EINTR, ESTALE, EAGAIN}) {
      FlakyEnv env(error, 3);
      auto loader = *make_speech_loader(open_with(env, 15.0), config, aerie, quiet());
      EXPECT_EQ(hashes(*loader, 3), want) << error;
      EXPECT_EQ(loader->stats().bad_samples, 0u);
      EXPECT_GE(env.num_failed, tarred ? 6 : 36);
    }
    if (tarred) continue;
    // What does not pass ends the run by its own name: the recordings are not to blame.
    FlakyEnv env(EMFILE, 1 << 30);
    auto loader = *make_speech_loader(open_with(env, 0.05), config, aerie, quiet());
    const Status status = loader->next().status();
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.to_string();
    EXPECT_NE(status.to_string().find("Too many open files"), std::string::npos);
    EXPECT_NE(status.to_string().find("train.json:"), std::string::npos) << status.to_string();
    EXPECT_EQ(loader->stats().bad_samples, 0u);
  }
}

TEST(LoaderTest, BatchesThatNoMachineHoldsNameTheLine) {
  TestCorpus corpus(10);
  std::ofstream(corpus.manifest, std::ios::app) << TestCorpus::line("utt0.wav", 999'000);
  config::DatasetConfig config = corpus.config(1 << 14);
  const config::SpeechAerieConfig aerie = corpus.aerie();
  const Status status = make_speech_loader(open(config, aerie), config, aerie, quiet()).status();
  EXPECT_EQ(status.code(), StatusCode::kDataError) << status.to_string();
  EXPECT_NE(status.to_string().find("train.json:11 (utt0.wav), 999000 s"), std::string::npos)
      << status.to_string();
  EXPECT_NE(status.hint().find("max_duration"), std::string::npos);
}

TEST(LoaderTest, RepeatedAudioIsNotCounted) {
  TestCorpus corpus(12);
  config::DatasetConfig config = corpus.config(4);
  config::SpeechAerieConfig aerie = corpus.aerie();
  aerie.audio.min_audio_len_secs = 1.0;  // all of them are shorter
  double seconds = 0.0, want = 0.0;
  for (const auto& samples : corpus.samples) want += static_cast<double>(samples.size()) / 16000;
  auto loader = make(config, aerie);
  while (const SpeechBatch* batch = speech_batch(*loader->next())) {
    for (const int64_t length : batch->audio_len()) EXPECT_EQ(length, 16000);
    seconds += batch->amount();
    loader->release(batch);
  }
  EXPECT_NEAR(seconds, want, 1e-9);
  EXPECT_NEAR(loader->stats().amount, want, 1e-9);
  EXPECT_LT(want, 4.0);  // of twelve seconds delivered
}

// Counts what is taken, and fails beyond a limit.
class CountingAllocator final : public HostAllocator {
 public:
  void* allocate(size_t bytes) override {
    const uint64_t now = used += bytes;
    uint64_t seen = peak.load();
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
    return HostAllocator::pageable().allocate(bytes);
  }
  void deallocate(void* data, size_t bytes) override {
    used -= bytes;
    HostAllocator::pageable().deallocate(data, bytes);
  }
  const char* kind() const override { return "counted"; }
  std::atomic<uint64_t> used{0}, peak{0};
};

TEST(LoaderTest, MemoryStaysWithinTheBudget) {
  TestCorpus corpus(60);
  config::DatasetConfig config = corpus.config(8);
  config.num_workers = 4;
  config::SpeechAerieConfig aerie = corpus.aerie();
  CountingAllocator allocator;
  SpeechLoaderOptions options = quiet();
  options.allocator = &allocator;
  {
    auto loader = make(config, aerie, options);
    hashes(*loader, 40);
    EXPECT_LE(allocator.peak, loader->memory_bytes());
    EXPECT_GT(allocator.peak, 0u);
    EXPECT_NE(loader->description().find("counted"), std::string::npos);
  }
  EXPECT_EQ(allocator.used, 0u);
  // Half of what it would take: a smaller ring.
  const uint64_t full = make(config, aerie)->memory_bytes();
  aerie.data.memory_budget_gib = static_cast<double>(full) / 2 / 1073741824.0;
  allocator.peak = 0;
  {
    auto loader = make(config, aerie, options);
    hashes(*loader, 40);
    EXPECT_LE(loader->memory_bytes(), full / 2 + 1);
    EXPECT_LE(allocator.peak, loader->memory_bytes());
  }
  aerie.data.memory_budget_gib = 1e-6;
  const Status status = make_speech_loader(open(config, aerie), config, aerie, options).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.to_string().find("memory_budget_gib"), std::string::npos);
}

TEST(LoaderTest, UnknownDurationsAreReadWhole) {
  TestCorpus corpus(20, 1, false);
  config::DatasetConfig config = corpus.config(4);
  config.shuffle = false;
  config::SpeechAerieConfig aerie = corpus.aerie();
  config.max_duration = 0.1;  // says nothing about unknown ones, but is all we know
  for (const int64_t workers : {0, 3}) {
    config.num_workers = workers;
    auto loader = make(config, aerie);
    size_t id = 0;
    while (const SpeechBatch* batch = speech_batch(*loader->next())) {
      for (int64_t i = 0; i < batch->num_samples(); ++i, ++id) {
        const auto& source = corpus.samples[id];
        ASSERT_EQ(batch->audio_len()[i],
                  std::max<int64_t>(960, static_cast<int64_t>(source.size())));
        const float* row = batch->find("noisy_audio")->as<float>() + i * batch->capacity();
        for (size_t k = 0; k < source.size(); ++k)
          ASSERT_EQ(row[k], static_cast<float>(source[k]) / 32768.0f);
        for (int64_t k = batch->audio_len()[i]; k < batch->capacity(); ++k) ASSERT_EQ(row[k], 0.0f);
      }
      loader->release(batch);
    }
    EXPECT_EQ(id, 20u);
  }
}

TEST(LoaderTest, SamplesBeyondTheBudgetAreBadOnes) {
  TestCorpus corpus(20);
  // The manifest says 0.1 s with duration missing; the file has 60 s.
  write_file(corpus.dir.file("huge.wav"), wav_bytes(noise_samples(16000 * 60, 3)));
  std::ofstream(corpus.manifest, std::ios::app) << TestCorpus::line("huge.wav", -1);
  config::DatasetConfig config = corpus.config(3);
  config.shuffle = false;
  config.num_workers = 1;
  config::SpeechAerieConfig aerie = corpus.aerie();
  aerie.max_bad_fraction = 0.1;
  aerie.data.memory_budget_gib = 3e-3;
  auto loader = make(config, aerie);
  int64_t count = 0;
  while (const SpeechBatch* batch = speech_batch(*loader->next())) {
    count += batch->num_samples();
    loader->release(batch);
  }
  EXPECT_EQ(count, 20);
  ASSERT_EQ(loader->bad_samples().size(), 1u);
  EXPECT_NE(loader->bad_samples()[0].reason.find("memory_budget_gib"), std::string::npos)
      << loader->bad_samples()[0].reason;
}

}  // namespace
}  // namespace aerie::data
