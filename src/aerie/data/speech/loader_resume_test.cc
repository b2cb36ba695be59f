// Going on with an epoch in other batches, and counting bad samples over restarts.
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/data/speech/loader_test_util.h"
#include "aerie/data/speech/speech_assembler.h"
#include "aerie/data/speech/test_corpus.h"

namespace aerie::data::loader_resume_test {
namespace {

using Counts = std::map<uint32_t, int>;

// Takes up to `batches` of the current epoch, -1: all that are left; how many came.
int64_t take(Loader& loader, int64_t batches, Counts& seen) {
  int64_t taken = 0;
  while (taken != batches) {
    const Result<const Batch*> batch = loader.next();
    EXPECT_TRUE(batch.ok()) << batch.status().to_string();
    if (!batch.ok() || *batch == nullptr) break;
    for (const uint32_t id : (*batch)->sample_ids()) ++seen[id];
    loader.release(*batch);
    ++taken;
  }
  return taken;
}

// As an earlier version would have written it.
std::string without_new_fields(const std::string& cursor) {
  nlohmann::json json = nlohmann::json::parse(cursor);
  for (const char* field : {"batching", "bad_list", "num_samples"}) json.erase(field);
  return json.dump();
}

struct Case {
  const char* name;
  bool tarred;
  bool drop_last;
  int64_t virtual_ranks;
  bool buckets;
  bool packed = false;  // to batch_duration, without buckets
};

config::DatasetConfig config_of(const TestCorpus& corpus, const Case& item, int64_t batch_size) {
  config::DatasetConfig config = corpus.config(batch_size);
  if (item.tarred) {
    config.manifest_filepath = TestCorpus::paths(corpus.tar_manifest);
    config.is_tarred = true;
    config.tarred_audio_filepaths = TestCorpus::paths(corpus.tar_pattern);
  }
  config.drop_last = item.drop_last;
  config.num_workers = 1;
  if (item.buckets) {
    config.use_lhotse = true;
    config.use_bucketing = true;
    config.num_buckets = 3;
  }
  if (item.packed) {
    config.use_lhotse = true;
    config.use_bucketing = false;
  }
  if (item.buckets || item.packed) {
    config.batch_size.reset();
    config.batch_duration = 0.25 * static_cast<double>(batch_size);
  }
  return config;
}

TEST(LoaderResumeTest, WithOtherBatchesEachSampleOfTheEpochComesOnce) {
  TestCorpus corpus(71);
  corpus.make_tar(3);
  const Case cases[] = {{"plain", false, false, 1, false},
                        {"plain, drop_last", false, true, 1, false},
                        {"tarred", true, false, 1, false},
                        {"tarred, drop_last", true, true, 1, false},
                        {"lanes", false, true, 2, false},
                        {"buckets", false, false, 1, true},
                        {"tarred buckets, drop_last", true, true, 1, true}};
  for (const Case& item : cases) {
    for (const auto& [before, after] :
         {std::pair<int64_t, int64_t>{3, 5}, {8, 3}, {4, 8}, {7, 2}, {2, 30}}) {
      for (const bool earlier_version : {false, true}) {
        if (item.buckets && after > 8) continue;  // more than the clips of a bucket
        config::SpeechAerieConfig aerie = TestCorpus::aerie();
        if (item.virtual_ranks > 1) aerie.data.virtual_ranks = item.virtual_ranks;
        const std::string what = str_cat(item.name, ", ", before, " then ", after);
        Counts seen;
        auto first = make(config_of(corpus, item, before), aerie);
        ASSERT_TRUE(first->start_epoch(2).ok());
        take(*first, 4 * item.virtual_ranks, seen);
        std::string cursor = first->cursor_json();
        if (earlier_version) cursor = without_new_fields(cursor);

        // Earlier versions say too little about buckets; the configuration of then does.
        SpeechLoaderOptions options = quiet();
        if (earlier_version && item.buckets)
          options.earlier_batching = {batching_of(config_of(corpus, item, after)),
                                      batching_of(config_of(corpus, item, before))};
        auto second = make(config_of(corpus, item, after), aerie, options);
        const Status restored = second->restore(cursor);
        ASSERT_TRUE(restored.ok()) << what << ": " << restored.to_string();
        const EpochPosition start = second->position();
        // Interrupted at once, and gone on with where nothing but the cursor is known.
        auto third = make(config_of(corpus, item, after), aerie);
        const Status again = third->restore(second->cursor_json());
        EXPECT_TRUE(again.ok()) << what << ": " << again.to_string();
        const int64_t came = take(*second, -1, seen);
        EXPECT_EQ(came, start.batches - start.batch) << what;
        EXPECT_EQ(second->position().batch, start.batches) << what;
        for (const auto& [id, count] : seen) EXPECT_EQ(count, 1) << what << ", sample " << id;
        const size_t lost = 71 - seen.size();
        if (!item.drop_last) {
          EXPECT_EQ(lost, 0u) << what;
        } else if (item.buckets) {
          EXPECT_LT(lost, second->sampler().buckets().back().batch_size) << what;
        } else {
          EXPECT_LT(lost, static_cast<size_t>(after * item.virtual_ranks)) << what;
        }
        // The next epoch is a whole one.
        Counts next;
        ASSERT_TRUE(second->start_epoch(3).ok());
        EXPECT_EQ(second->position().batch, 0);
        EXPECT_EQ(take(*second, -1, next), second->position().batches) << what;
      }
    }
  }
}

// Ranks of the next run, whatever their number, take what those of the last have left; `taken`: by
// each of them, also inside a step of virtual ranks.
TEST(LoaderResumeTest, WithAnotherNumberOfRanksEachSampleOfTheEpochComesOnce) {
  TestCorpus corpus(71);
  const Case item{"plain", false, false, 1, false};
  for (const int64_t virtual_ranks : {1, 4})
    for (const uint32_t before : {1u, 2u, 4u})
      for (const uint32_t after : {1u, 2u, 4u})
        for (const int64_t taken : {0, 3, 4}) {
          const std::string what = str_cat(virtual_ranks, " virtual ranks, ", before, " then ",
                                           after, " ranks, ", taken, " batches");
          config::SpeechAerieConfig aerie = TestCorpus::aerie();
          if (virtual_ranks > 1) aerie.data.virtual_ranks = virtual_ranks;
          const auto loader = [&](uint32_t rank, uint32_t world) {
            SpeechLoaderOptions options = quiet();
            options.rank = rank;
            options.world = world;
            return make(config_of(corpus, item, 3), aerie, options);
          };
          Counts seen;
          std::string cursor;
          for (uint32_t rank = 0; rank < before; ++rank) {
            auto first = loader(rank, before);
            ASSERT_TRUE(first->start_epoch(2).ok());
            take(*first, taken, seen);
            if (rank == 0) cursor = first->cursor_json();
          }
          for (uint32_t rank = 0; rank < after; ++rank) {
            auto second = loader(rank, after);
            const Status restored = second->restore(cursor);
            ASSERT_TRUE(restored.ok()) << what << ": " << restored.to_string();
            take(*second, -1, seen);
          }
          EXPECT_EQ(seen.size(), 71u) << what;
          for (const auto& [id, count] : seen) EXPECT_EQ(count, 1) << what << ", sample " << id;
        }
}

// The same for every kind of data, ranks that are more than shards among it. Ranks make equally
// many steps, of an epoch in one piece (`taken` 0) and of its rest.
TEST(LoaderResumeTest, AnyDataComesOnceOverRanksAlsoWhenTheirNumberChanges) {
  TestCorpus corpus(71);
  corpus.make_tar(3);
  const Case cases[] = {{"plain", false, false, 1, false},
                        {"tarred", true, false, 1, false},
                        {"buckets", false, false, 1, true},
                        {"tarred buckets", true, false, 1, true},
                        {"batch_duration", false, false, 1, false, true},
                        {"tarred, batch_duration", true, false, 1, false, true}};
  for (const Case& item : cases)
    for (const auto& [before, after] :
         {std::pair<uint32_t, uint32_t>{1, 3}, {2, 5}, {5, 2}, {4, 1}})
      for (const int64_t taken : {0, 2}) {
        SCOPED_TRACE(
            str_cat(item.name, ", ", before, " then ", after, " ranks, ", taken, " batches"));
        Counts seen;
        std::string cursor;
        int64_t steps = -1;
        const auto run = [&](uint32_t rank, uint32_t world, const std::string& from,
                             int64_t batches) {
          SpeechLoaderOptions options = quiet();
          options.rank = rank;
          options.world = world;
          auto loader = make(config_of(corpus, item, 3), TestCorpus::aerie(), options);
          if (from.empty()) {
            ASSERT_TRUE(loader->start_epoch(2).ok());
          } else {
            const Status restored = loader->restore(from);
            ASSERT_TRUE(restored.ok()) << restored.to_string();
          }
          const int64_t left = loader->position().batches - loader->position().batch;
          const int64_t came = take(*loader, batches, seen);
          EXPECT_EQ(came, batches < 0 ? left : batches) << "rank " << rank;
          EXPECT_EQ(steps < 0 ? left : steps, left) << "rank " << rank;
          steps = left;
          if (rank == 0) cursor = loader->cursor_json();
        };
        for (uint32_t rank = 0; rank < before; ++rank) run(rank, before, "", taken);
        steps = -1;
        const std::string from = cursor;
        for (uint32_t rank = 0; rank < after; ++rank) run(rank, after, from, -1);
        EXPECT_EQ(seen.size(), 71u);
        for (const auto& [id, count] : seen) EXPECT_EQ(count, 1) << "sample " << id;
      }
}

TEST(LoaderResumeTest, AConvertedEpochCanBeInterruptedAgain) {
  TestCorpus corpus(60);
  const Case item{"plain", false, true, 1, false};
  Counts seen;
  auto first = make(config_of(corpus, item, 4), corpus.aerie());
  take(*first, 5, seen);
  auto second = make(config_of(corpus, item, 7), corpus.aerie());
  ASSERT_TRUE(second->restore(first->cursor_json()).ok());
  take(*second, 2, seen);
  const std::string cursor = second->cursor_json();
  const EpochPosition position = second->position();
  // With the same batches: the same rest.
  auto again = make(config_of(corpus, item, 7), corpus.aerie());
  ASSERT_TRUE(again->restore(cursor).ok());
  EXPECT_EQ(again->position().batch, position.batch);
  EXPECT_EQ(again->position().batches, position.batches);
  const size_t left = static_cast<size_t>(position.batches - position.batch);
  EXPECT_EQ(hashes(*again, left + 3), hashes(*second, left + 3));
  // With others once more.
  auto third = make(config_of(corpus, item, 4), corpus.aerie());
  ASSERT_TRUE(third->restore(cursor).ok());
  take(*third, -1, seen);
  EXPECT_GT(seen.size(), 56u);
  for (const auto& [id, count] : seen) EXPECT_EQ(count, 1) << id;
}

TEST(LoaderResumeTest, BadSamplesCountOverRestarts) {
  TestCorpus corpus(40);
  for (const int i : {3, 17, 30})
    write_file(corpus.dir.file(str_cat("utt", i, ".wav")), "no audio");
  config::DatasetConfig config = corpus.config(4);
  config.num_workers = 1;
  config::SpeechAerieConfig aerie = corpus.aerie();
  aerie.max_bad_fraction = 0.06;  // two of forty
  std::vector<BadSample> reported;
  SpeechLoaderOptions options = quiet();
  options.on_bad_sample = [&](const BadSample& bad) { reported.push_back(bad); };
  // In one piece the third one ends the run.
  const auto run_to_limit = [&](Loader& loader) {
    for (int batches = 0;; ++batches) {
      const auto batch = loader.next();
      if (!batch.ok() || *batch == nullptr) return batches;
      loader.release(*batch);
    }
  };
  const int whole = run_to_limit(*make(config, aerie, options));
  ASSERT_LT(whole, 10);
  ASSERT_EQ(reported.size(), 3u);
  for (const bool earlier_version : {false, true}) {
    for (int cut = 1; cut <= whole; ++cut) {
      reported.clear();
      std::string cursor;
      {
        auto loader = make(config, aerie, options);
        Counts seen;
        take(*loader, cut, seen);
        cursor = loader->cursor_json();
        if (earlier_version) cursor = without_new_fields(cursor);
      }
      options.earlier_bad = reported;
      // An entry of a process that was killed after the checkpoint, and one of another data set.
      options.earlier_bad.push_back({99, "other.json:3 (x.wav)", "broken", 0, 0});
      auto resumed = make(config, aerie, options);
      ASSERT_TRUE(resumed->restore_counts(cursor).ok());
      ASSERT_TRUE(resumed->restore(cursor).ok());
      EXPECT_EQ(resumed->stats().bad_samples, reported.size());
      EXPECT_EQ(cut + run_to_limit(*resumed), whole) << cut;
      EXPECT_EQ(reported.size(), 3u) << "none is reported twice";
      options.earlier_bad.clear();
    }
  }
}

TEST(LoaderResumeTest, CountsSurviveTheEndOfAnEpochToo) {
  TestCorpus corpus(12);
  write_file(corpus.dir.file("utt5.wav"), "no audio");
  config::DatasetConfig config = corpus.config(4);
  config::SpeechAerieConfig aerie = corpus.aerie();
  aerie.max_bad_fraction = 1.0;
  auto first = make(config, aerie);
  Counts seen;
  take(*first, -1, seen);
  const std::string cursor = first->cursor_json();
  auto second = make(config, aerie);
  ASSERT_TRUE(second->restore_counts(cursor).ok());
  ASSERT_TRUE(second->start_epoch(1).ok());
  EXPECT_EQ(second->cursor().bad_samples, 1u);
  EXPECT_EQ(second->cursor().samples_done, first->cursor().samples_done);
  ASSERT_EQ(second->bad_samples().size(), 1u);
  EXPECT_NE(second->bad_samples()[0].place.find("utt5.wav"), std::string::npos);
}

}  // namespace
}  // namespace aerie::data::loader_resume_test
