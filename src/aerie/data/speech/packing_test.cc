// batch_duration without buckets: Lhotse's rule, and the one that runs of earlier versions keep.
#include <cmath>
#include <fstream>
#include <numeric>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/testing/paths.h"
#include "aerie/data/speech/loader_test_util.h"
#include "aerie/data/speech/speech_assembler.h"
#include "aerie/data/speech/test_corpus.h"

namespace aerie::data::packing_test {
namespace {

std::shared_ptr<SampleSet> set_of(std::vector<double> durations) {
  auto out = std::make_shared<SampleSet>();
  out->groups.push_back({0, static_cast<uint32_t>(durations.size()), {}});
  out->lengths = std::move(durations);
  return out;
}

// Made with the real sampler by tests/golden/gen/lhotse_batches.py.
TEST(PackingTest, BatchesAreLhotses) {
  std::ifstream file(test_data("/lhotse/batches.json"));
  const nlohmann::json cases = nlohmann::json::parse(file);
  ASSERT_GE(cases.size(), 60u);
  size_t over_budget = 0;
  for (size_t c = 0; c < cases.size(); ++c) {
    SCOPED_TRACE(c);
    const nlohmann::json& item = cases[c];
    config::DatasetConfig config;
    config.use_lhotse = true;
    config.shuffle = false;
    config.batch_duration = item["batch_duration"].get<double>();
    if (!item["batch_size"].is_null()) config.batch_size = item["batch_size"].get<int64_t>();
    if (!item["quadratic_duration"].is_null())
      config.quadratic_duration = item["quadratic_duration"].get<double>();
    config.drop_last = item["drop_last"].get<bool>();
    const auto set = set_of(item["durations"].get<std::vector<double>>());
    Sampler::Options options;
    options.virtual_ranks = item["world_size"].get<uint32_t>();
    const Result<Sampler> sampler = Sampler::make(set, sampling_config(config), options);
    ASSERT_TRUE(sampler.ok()) << sampler.status().to_string();
    const auto plan = sampler->plan(0);
    const auto ranks = item["ranks"].get<std::vector<std::vector<size_t>>>();
    uint32_t next = 0;
    std::vector<std::vector<size_t>> got(ranks.size());
    std::vector<PlannedSample> batch;
    for (uint64_t step = 0; step < plan->num_steps(); ++step)
      for (uint32_t lane = 0; lane < plan->num_lanes(); ++lane) {
        plan->batch(step, lane, batch);
        got[lane].push_back(batch.size());
        double longest = 0;
        for (const PlannedSample& sample : batch) {
          EXPECT_EQ(sample.sample, next++);
          longest = std::max(longest, set->lengths[sample.sample]);
        }
        over_budget +=
            batch.size() > 1 && static_cast<double>(batch.size()) * longest > config.batch_duration;
        EXPECT_LE(batch.size(), sampler->max_batch_size());
      }
    EXPECT_EQ(got, ranks);
  }
  // The clip that goes over the limit is in the batch: the cases that tell this rule from others.
  EXPECT_GT(over_budget, 20u);
}

config::DatasetConfig packed(const TestCorpus& corpus, double batch_duration) {
  config::DatasetConfig out = corpus.config(4);
  out.use_lhotse = true;
  out.batch_size.reset();
  out.batch_duration = batch_duration;
  out.num_workers = 1;
  return out;
}

TEST(PackingTest, FingerprintsOfTheEarlierRuleStay) {
  config::DatasetConfig config;
  config.shuffle = true;
  config.batch_duration = 20;
  const auto set = set_of({1, 2, 3, 4, 5, 6, 7, 8});
  const auto fingerprint = [&](Packing packing) {
    Sampler::Options options;
    options.packing = packing;
    return Sampler::make(set, sampling_config(config), options)->fingerprint();
  };
  EXPECT_NE(fingerprint(Packing::kLhotse), fingerprint(Packing::kWithinBudget));
  // Where clips are not packed one by one the rule is none, and the fingerprint the same.
  config.use_bucketing = true;
  EXPECT_EQ(fingerprint(Packing::kLhotse), fingerprint(Packing::kWithinBudget));
  config.use_bucketing = false;
  config.batch_duration.reset();
  config.batch_size = 4;
  EXPECT_EQ(fingerprint(Packing::kLhotse), fingerprint(Packing::kWithinBudget));
}

TEST(PackingTest, ACursorSaysWhichRuleItsRunHas) {
  const TestCorpus corpus(50);
  SpeechLoaderOptions options = quiet();
  EXPECT_EQ(make(packed(corpus, 1), corpus.aerie(), options)->cursor().packing, Packing::kLhotse);
  options.packing = Packing::kWithinBudget;
  auto loader = make(packed(corpus, 1), corpus.aerie(), options);
  EXPECT_EQ(loader->cursor_json().find("packing"), std::string::npos);
  const auto back = Cursor::parse(loader->cursor_json());
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(back->packing, Packing::kWithinBudget);
  nlohmann::json json = nlohmann::json::parse(loader->cursor_json());
  json["packing"] = "later";
  EXPECT_FALSE(Cursor::parse(json.dump()).ok());
}

TEST(PackingTest, GoesOnUnderEitherRuleAndOverToTheOther) {
  const TestCorpus corpus(90);
  for (const Packing before : {Packing::kLhotse, Packing::kWithinBudget}) {
    SpeechLoaderOptions options = quiet();
    options.packing = before;
    auto whole = make(packed(corpus, 1), corpus.aerie(), options);
    auto first = make(packed(corpus, 1), corpus.aerie(), options);
    EXPECT_EQ(hashes(*whole, 5), hashes(*first, 5));
    const std::string cursor = first->cursor_json();
    // The same rule, read from the cursor: the same bits, also in the next epoch.
    options.packing = Cursor::parse(cursor)->packing;
    auto second = make(packed(corpus, 1), corpus.aerie(), options);
    ASSERT_TRUE(second->restore(cursor).ok());
    EXPECT_EQ(hashes(*second, 60), hashes(*whole, 60));
    // The other rule: each sample that is left comes once.
    options.packing = before == Packing::kLhotse ? Packing::kWithinBudget : Packing::kLhotse;
    auto other = make(packed(corpus, 1), corpus.aerie(), options);
    const Status restored = other->restore(cursor);
    ASSERT_TRUE(restored.ok()) << restored.to_string();
    uint64_t left = 0;
    while (true) {
      const auto batch = other->next();
      ASSERT_TRUE(batch.ok()) << batch.status().to_string();
      if (*batch == nullptr) break;
      left += (*batch)->sample_ids().size();
      other->release(*batch);
    }
    EXPECT_EQ(left, 90 - first->cursor().samples_done);
  }
}

// Short clips before a long one make a batch many times batch_duration: in some epoch it comes.
TEST(PackingTest, BatchesLargerThanTheFirstEpochsFitTheBudget) {
  TestCorpus corpus(1);
  std::string lines;
  for (int i = 0; i < 25; ++i) {
    const std::string name = str_cat("c", i, ".wav");
    const int64_t n = i == 0 ? 16000 * 60 : 1600;
    write_file(corpus.dir.file(name), wav_bytes(noise_samples(n, static_cast<uint64_t>(i))));
    lines += TestCorpus::line(name, static_cast<double>(n) / 16000);
  }
  write_file(corpus.manifest, lines);
  config::DatasetConfig config = packed(corpus, 3);
  config.max_duration.reset();
  // Clips in the batch of the long one.
  const auto rows = [](const Loader& loader, uint32_t epoch) {
    const auto plan = loader.sampler().plan(epoch);
    std::vector<PlannedSample> batch;
    for (uint64_t step = 0; step < plan->num_steps(); ++step) {
      plan->batch(step, 0, batch);
      if (batch.back().sample == 0) return batch.size();
    }
    return size_t{0};
  };
  for (uint64_t seed = 0; seed < 1000; ++seed) {
    auto loader = make(config, corpus.aerie(), quiet(seed));
    if (rows(*loader, 0) > 2 || rows(*loader, 1) < 20) continue;
    ASSERT_TRUE(loader->start_epoch(1).ok());
    while (true) {
      const auto batch = loader->next();
      ASSERT_TRUE(batch.ok()) << batch.status().to_string();
      if (*batch == nullptr) break;
      loader->release(*batch);
    }
    EXPECT_EQ(loader->stats().bad_samples, 0u);
    return;
  }
  FAIL() << "no seed gives a large batch after a small one";
}

}  // namespace
}  // namespace aerie::data::packing_test
