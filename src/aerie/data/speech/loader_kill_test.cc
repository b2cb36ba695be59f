// A run may end anywhere. Whatever the loader was doing, the batches after the saved position are
// the same, with any number of threads.
#include <csignal>
#include <fcntl.h>
#include <map>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "aerie/base/clock.h"
#include "aerie/base/testing/sanitized.h"
#include "aerie/data/speech/speech_assembler.h"
#include "aerie/data/speech/test_corpus.h"

namespace aerie::data {
namespace {

constexpr int kCorpusSize = 40;

struct Case {
  std::string name;
  config::DatasetConfig config;
  config::SpeechAerieConfig aerie;
};

class LoaderKillTest : public testing::Test {
 protected:
  LoaderKillTest() : corpus_(kCorpusSize) {
    corpus_.add_noise(3);
    corpus_.make_tar(4);
    config::DatasetConfig plain = corpus_.config(3);
    plain.batch_augmentor = config::BatchAugmentorConfig{};
    plain.batch_augmentor->prob = 0.7;
    plain.batch_augmentor->noise_ratio = 0.5;
    plain.augmentor = {{"gain", 0.5, config::GainPerturbation{}},
                       {"white_noise", 0.5, config::WhiteNoisePerturbation{}}};
    cases_.push_back({"plain", plain, TestCorpus::aerie()});
    Case buckets{"buckets", plain, TestCorpus::aerie()};
    buckets.config.use_bucketing = true;
    buckets.config.num_buckets = 4;
    buckets.config.batch_duration = 0.6;
    cases_.push_back(buckets);
    Case tarred{"tarred", plain, TestCorpus::aerie()};
    tarred.config.is_tarred = true;
    tarred.config.manifest_filepath = TestCorpus::paths(corpus_.tar_manifest);
    tarred.config.tarred_audio_filepaths = TestCorpus::paths(corpus_.tar_pattern);
    tarred.config.shuffle_n = 9;
    cases_.push_back(tarred);
    Case concat{"concat", plain, TestCorpus::aerie()};
    config::PathList two;
    two.groups = {{corpus_.manifest}, {corpus_.noise}};
    two.is_list = true;
    concat.config.manifest_filepath = two;
    concat.config.is_concat = true;
    cases_.push_back(concat);
    Case cached{"cached", plain, TestCorpus::aerie()};
    cached.aerie.audio.cache_dir = corpus_.dir.file("cache");
    cached.aerie.audio.build_cache = true;
    cases_.push_back(cached);
  }

  static std::shared_ptr<const AudioDataset> open(const Case& c) {
    AudioDataset::Options options;
    options.quiet = true;
    auto dataset = AudioDataset::open(c.config, c.aerie, options);
    EXPECT_TRUE(dataset.ok()) << dataset.status().to_string();
    return *dataset;
  }

  static std::unique_ptr<Loader> make(const Case& c, std::shared_ptr<const AudioDataset> dataset,
                                      int64_t workers, int64_t prefetch) {
    config::DatasetConfig config = c.config;
    config.num_workers = workers;
    if (workers > 0) config.prefetch_factor = prefetch;
    SpeechLoaderOptions options;
    options.seed = 11;
    options.quiet = true;
    auto loader = make_speech_loader(std::move(dataset), config, c.aerie, options);
    EXPECT_TRUE(loader.ok()) << loader.status().to_string();
    return std::move(loader).value();
  }

  // 0 at the end of an epoch, which is gone on from; errors: 1.
  static uint64_t next_hash(Loader& loader) {
    while (true) {
      Result<const Batch*> batch = loader.next();
      if (!batch.ok()) return 1;
      if (*batch == nullptr) {
        if (!loader.start_epoch(loader.cursor().epoch + 1).ok()) return 1;
        continue;
      }
      const uint64_t hash = (*batch)->content_hash();
      loader.release(*batch);
      return hash;
    }
  }

  std::vector<uint64_t> reference(const Case& c, size_t count) {
    auto loader = make(c, open(c), 0, 0);
    std::vector<uint64_t> out;
    while (out.size() < count) out.push_back(next_hash(*loader));
    return out;
  }

  TestCorpus corpus_;
  std::vector<Case> cases_;
};

TEST_F(LoaderKillTest, TheRestIsTheSameAfterTwoHundredKills) {
  constexpr int kKills = kSanitized ? 10 : 40;  // of each case
  RandomStream random(1, Purpose::kTest, 0, 0);
  for (const Case& c : cases_) {
    const std::vector<uint64_t> all = reference(c, 24);  // into the second epoch
    for (int kill = 0; kill < kKills; ++kill) {
      const auto dataset = open(c);
      const size_t done = random.below(20);
      std::string cursor;
      {
        auto loader = make(c, dataset, static_cast<int64_t>(random.below(5)),
                           1 + static_cast<int64_t>(random.below(3)));
        for (size_t b = 0; b < done; ++b) ASSERT_EQ(next_hash(*loader), all[b]) << c.name;
        cursor = loader->cursor_json();
        // Work on later batches goes on; one of them may be in the consumer's hands.
        if (random.below(2) == 0) Clock::real().sleep_ns(random.below(1'000'000));
        if (random.below(3) == 0) (void)loader->next();
      }
      auto resumed = make(c, dataset, static_cast<int64_t>(random.below(4)),
                          1 + static_cast<int64_t>(random.below(3)));
      ASSERT_TRUE(resumed->restore(cursor).ok());
      for (size_t b = done; b < all.size(); ++b)
        ASSERT_EQ(next_hash(*resumed), all[b]) << c.name << " batch " << b << " after " << done;
    }
  }
}

// The same with processes, killed as the kernel does it.
TEST_F(LoaderKillTest, TheRestIsTheSameAfterKilledProcesses) {
  struct Record {
    uint64_t hash;
    uint64_t cursor_bytes;
    char cursor[2000];
  };
  static_assert(sizeof(Record) <= 4096);  // written to a pipe in one piece
  RandomStream random(2, Purpose::kTest, 0, 0);
  for (const Case& c : cases_) {
    const std::vector<uint64_t> all = reference(c, 24);
    size_t done = 0;
    std::string cursor;
    for (int kill = 0; kill < 8; ++kill) {
      const int64_t workers = static_cast<int64_t>(random.below(4));
      int pipe_ends[2];
      ASSERT_EQ(::pipe(pipe_ends), 0);
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        ::close(pipe_ends[0]);
        {
          auto loader = make(c, open(c), workers, 2);
          if (!cursor.empty() && !loader->restore(cursor).ok()) ::_exit(2);
          for (size_t b = done; b < all.size(); ++b) {
            Record record{};
            record.hash = next_hash(*loader);
            const std::string now = loader->cursor_json();
            record.cursor_bytes = now.copy(record.cursor, sizeof(record.cursor));
            if (::write(pipe_ends[1], &record, sizeof(record)) != sizeof(record)) ::_exit(3);
          }
        }
        ::_exit(0);
      }
      ::close(pipe_ends[1]);
      // Killed after some batches and some time, or never.
      size_t wanted = random.below(all.size() - done + 1);
      if (kill % 4 == 3) wanted = all.size();
      size_t seen = 0;
      Record record;
      bool killed = false;
      while (true) {
        if (!killed && seen >= wanted) {
          Clock::real().sleep_ns(random.below(500'000));
          ::kill(child, SIGKILL);
          killed = true;
        }
        const ssize_t got = ::read(pipe_ends[0], &record, sizeof(record));
        if (got != sizeof(record)) {
          ASSERT_EQ(got, 0);
          break;
        }
        ++seen;
        ASSERT_LT(done, all.size());
        ASSERT_EQ(record.hash, all[done++]) << c.name << " after kill " << kill;
        cursor.assign(record.cursor, record.cursor_bytes);
      }
      ::close(pipe_ends[0]);
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, 0), child);
      if (!killed) {
        ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
      }
      if (done == all.size()) {
        done = 0;
        cursor.clear();
      }
    }
  }
}

}  // namespace
}  // namespace aerie::data
