// The search over machines that are made up: memory that grows with the batch, throughput that
// levels off, noise, time that runs out.
#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/advisor/tune_search.h"
#include "aerie/advisor/tune_text.h"
#include "aerie/base/philox.h"
#include "aerie/base/strings.h"

namespace aerie::advisor::tune_test {
namespace {

constexpr const char* kBatch = "model.train_ds.batch_size";
constexpr const char* kWorkers = "model.train_ds.num_workers";
constexpr const char* kPrefetch = "model.train_ds.prefetch_factor";
constexpr const char* kPrecision = "trainer.precision";
constexpr const char* kRecompute = "aerie.activation_checkpointing";

TuneSpace space_of(int64_t batch) {
  TuneSpace out;
  out.batch.key = kBatch;
  out.batch.unit = "clips";
  out.batch.start = batch;
  out.batch.changes = [](int64_t size) {
    return std::vector<std::string>{str_cat(kBatch, "=", size)};
  };
  TuneKnob workers = knob_at(kWorkers, "0", {"0", "1", "2", "4", "8"});
  workers.ordered = workers.loader = true;
  TuneKnob prefetch = knob_at(kPrefetch, "2", {"2", "4", "8"});
  prefetch.ordered = prefetch.loader = true;
  prefetch.idle_with_key = kWorkers;
  prefetch.idle_with_value = "0";
  TuneKnob recompute = knob_at(kRecompute, "false", {"false", "true"});
  recompute.saves_memory = recompute.costs_time = true;
  TuneKnob precision = knob_at(kPrecision, "32", {"32", "bf16-mixed"});
  precision.saves_memory = true;
  out.knobs = {workers, prefetch, precision, recompute};
  out.rate = {"model.optim.lr", 0.5, ""};
  out.throughput_unit = "audio-s/s";
  return out;
}

// Time of a step: a fixed part, one per clip, and what the loader adds.
class Machine final : public TuneTrials {
 public:
  explicit Machine(const TuneSpace& space) : space_(space) {}

  double fixed_ms = 10.0, clip_ms = 1.0, load_ms = 0.0;  // load_ms: of a clip, over all workers
  double fixed_gib = 4.0, clip_gib = 0.5, total_gib = 80.0;
  double noise = 0.0;  // relative, uniform
  double trial_s = 5.0;
  int64_t samples = 1 << 20;
  int64_t fails_from = 1 << 30;  // batches from here on end in an error that is none of memory
  std::function<double(const TuneSettings&)> factor;  // of the throughput
  std::map<int64_t, int> speed_trials;

  TrialOutcome speed(const TuneSettings& settings) override { return run(settings, false); }
  TrialOutcome memory(const TuneSettings& settings) override { return run(settings, true); }
  double elapsed_s() const override { return elapsed_s_; }

  std::string value(const TuneSettings& settings, const char* key) const {
    return value_of(space_, settings, key);
  }
  double used_gib(const TuneSettings& settings) const {
    const double half = value(settings, kPrecision) == "32" ? 1.0 : 0.5;
    const double kept = value(settings, kRecompute) == "true" ? 0.25 : 1.0;
    return fixed_gib + clip_gib * half * kept * static_cast<double>(settings.batch);
  }

 private:
  TrialOutcome run(const TuneSettings& settings, bool memory) {
    elapsed_s_ += trial_s;
    TrialOutcome out;
    out.wall_s = trial_s;
    out.memory_used_gib = used_gib(settings);
    out.memory_total_gib = total_gib;
    out.batches_per_epoch = samples / settings.batch;
    if (settings.batch >= fails_from) {
      out.end = TrialOutcome::End::kFailed;
      out.message = "no such luck";
      return out;
    }
    if (out.memory_used_gib > total_gib) {
      out.end = TrialOutcome::End::kOutOfMemory;
      out.memory_used_gib = 0.0;
      return out;
    }
    if (!memory) ++speed_trials[settings.batch];
    const double clips = static_cast<double>(settings.batch);
    const double half = value(settings, kPrecision) == "32" ? 1.0 : 0.5;
    const double again = value(settings, kRecompute) == "true" ? 1.3 : 1.0;
    const double step = fixed_ms + clips * clip_ms * half * again;
    const double workers = std::stod(value(settings, kWorkers));
    const double load = clips * load_ms / std::max(1.0, workers);
    const double wait = workers == 0.0 ? load : std::max(0.0, load - step);
    out.step_ms = step + wait;
    out.data_wait_share = wait / out.step_ms;
    out.throughput = 1e3 * clips / out.step_ms;
    if (factor) out.throughput *= factor(settings);
    const double draw =
        static_cast<double>(philox_u32({7, 7}, 0, draws_++, 0)) / 4294967296.0 - 0.5;
    out.throughput *= 1.0 + 2.0 * noise * draw;
    return out;
  }

  const TuneSpace& space_;
  double elapsed_s_ = 0.0;
  uint64_t draws_ = 0;
};

TuneRules fill(double budget_s = 1e6) {
  TuneRules rules;
  rules.batch = BatchRule::kFillMemory;
  rules.budget_s = budget_s;
  return rules;
}
TuneRules climb(double budget_s = 1e6) {
  TuneRules rules;
  rules.budget_s = budget_s;
  return rules;
}

// Buckets of 2, 8 and 20 s; attention's memory grows with the square of the duration.
class BucketMachine final : public TuneTrials {
 public:
  static std::vector<int64_t> sizes_of(int64_t seconds) {
    return {seconds / 2, seconds / 8, seconds / 20};
  }
  static double gib(size_t bucket, int64_t size) {
    const double seconds[] = {2.0, 8.0, 20.0};
    const double s = seconds[bucket];
    return 4.0 + static_cast<double>(size) * (0.02 * s + 0.004 * s * s);
  }
  TrialOutcome speed(const TuneSettings& settings) override { return run(settings); }
  TrialOutcome memory(const TuneSettings& settings) override {
    ++memory_trials;
    return run(settings);
  }
  double elapsed_s() const override { return 0.0; }
  int memory_trials = 0;
  double surprise = 0.0;  // GiB more than each bucket alone takes, once sizes are chosen one by one

 private:
  TrialOutcome run(const TuneSettings& settings) const {
    const std::vector<int64_t> sizes =
        settings.buckets.empty() ? sizes_of(settings.batch) : settings.buckets;
    TrialOutcome out;
    out.memory_total_gib = 80.0;
    out.memory_before_gib = 4.0;
    out.wall_s = 1.0;
    out.batches_per_epoch = 1000;
    for (size_t i = 0; i < sizes.size(); ++i) {
      out.memory_used_gib = std::max(out.memory_used_gib, gib(i, sizes[i]));
      out.buckets.push_back({i, sizes[i], 2.0, out.memory_used_gib});
      out.throughput += static_cast<double>(sizes[i]);
    }
    if (!settings.buckets.empty()) out.memory_used_gib += surprise;
    if (out.memory_used_gib > 80.0) out.end = TrialOutcome::End::kOutOfMemory;
    return out;
  }
};

TuneSpace bucket_space() {
  TuneSpace out = space_of(40);
  out.knobs.clear();
  out.batch.key = "model.train_ds.bucket_batch_size";
  out.batch.unit = "seconds of padded audio in each bucket";
  out.batch.bucket_sizes = BucketMachine::sizes_of;
  out.batch.bucket_changes = [](const std::vector<int64_t>& sizes) {
    std::string list;
    for (const int64_t size : sizes) list += str_cat(list.empty() ? "" : ",", size);
    return std::vector<std::string>{str_cat("model.train_ds.bucket_batch_size=[", list, "]")};
  };
  out.batch.changes = [text = out.batch.bucket_changes](int64_t size) {
    return text(BucketMachine::sizes_of(size));
  };
  return out;
}

TEST(TuneSearchTest, FillsEveryBucketByItself) {
  const TuneSpace space = bucket_space();
  BucketMachine machine;
  const auto result = tune(space, fill(), machine);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  ASSERT_EQ(result->chosen.buckets.size(), 3u) << join(result->reasons, "\n");
  for (size_t i = 0; i < 3; ++i) {
    const double used = BucketMachine::gib(i, result->chosen.buckets[i]) / 80.0;
    EXPECT_LE(used, 0.90) << i;
    EXPECT_GE(used, 0.78) << i;
  }
  // The longest clips are what limited the seconds.
  EXPECT_EQ(result->chosen.buckets[2], BucketMachine::sizes_of(result->chosen.batch)[2]);
  EXPECT_GT(result->chosen.buckets[0], 2 * BucketMachine::sizes_of(result->chosen.batch)[0]);
  EXPECT_EQ(final_changes(space, *result, RateRule::kKeep),
            space.batch.bucket_changes(result->chosen.buckets));
  TuneStory story;
  const auto json = nlohmann::json::parse(tune_json(space, *result, story));
  EXPECT_EQ(json["batch"]["buckets"].size(), 3u);
  EXPECT_NE(tune_text(space, *result, story).find("by bucket"), std::string::npos);
}

TEST(TuneSearchTest, BucketsThatDoNotFitTogetherStayAsTheyWere) {
  const TuneSpace space = bucket_space();
  BucketMachine machine;
  machine.surprise = 30.0;
  const auto result = tune(space, fill(), machine);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_TRUE(result->chosen.buckets.empty());
  EXPECT_GT(result->chosen.batch, 40);
  // For `batch_size: auto` one number is found and no more is tried.
  BucketMachine alone;
  const auto batch = find_batch(space, fill(), alone);
  ASSERT_TRUE(batch.ok());
  EXPECT_TRUE(batch->chosen.buckets.empty());
}

TEST(TuneSearchTest, FillsMemoryToTheAskedShare) {
  for (const double clip_gib : {0.011, 0.09, 0.5, 3.1}) {
    for (const int64_t start : {int64_t{1}, int64_t{2}, int64_t{16}}) {
      const TuneSpace space = space_of(start);
      Machine machine(space);
      machine.clip_gib = clip_gib;
      const auto result = tune(space, fill(), machine);
      ASSERT_TRUE(result.ok()) << result.status().to_string();
      const double used = machine.used_gib(result->chosen) / machine.total_gib;
      EXPECT_LE(used, 0.90 + 1e-9) << clip_gib << " from " << start;
      EXPECT_GE(used, 0.80 - 1e-9) << clip_gib << " from " << start;
      EXPECT_GT(result->speedup(), 1.0);
      // A handful of trials, not one for each size.
      EXPECT_LE(std::count_if(result->tried.begin(), result->tried.end(),
                              [](const TriedRow& row) { return row.memory; }),
                20);
    }
  }
}

TEST(TuneSearchTest, SurvivesRunningOutOfMemory) {
  const TuneSpace space = space_of(128);
  Machine machine(space);
  machine.clip_gib = 1.0;  // 128 take 132 of 80 GiB
  const auto result = tune(space, fill(), machine);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_LE(machine.used_gib(result->chosen), 0.9 * machine.total_gib);
  EXPECT_GE(machine.used_gib(result->chosen), 0.8 * machine.total_gib);
  EXPECT_TRUE(std::any_of(result->tried.begin(), result->tried.end(), [](const TriedRow& row) {
    return row.outcome.end == TrialOutcome::End::kOutOfMemory && row.verdict == "out of memory";
  }));
  EXPECT_TRUE(result->before.empty());
  EXPECT_NE(tune_text(space, *result, {}).find("the start does not fit into memory"),
            std::string::npos);

  const TuneSpace one = space_of(1);
  Machine tiny(one);
  tiny.fixed_gib = 100.0;
  EXPECT_EQ(tune(one, fill(), tiny).status().code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(find_batch(one, fill(), tiny).status().code(), StatusCode::kOutOfMemory);
}

TEST(TuneSearchTest, AFailingStartIsAnError) {
  const TuneSpace space = space_of(4);
  Machine machine(space);
  machine.fails_from = 4;
  const auto result = tune(space, climb(), machine);
  ASSERT_FALSE(result.ok());
  EXPECT_NE(result.status().to_string().find("no such luck"), std::string::npos);
  // A larger batch that fails is a row of the table.
  machine.fails_from = 8;
  const auto limited = tune(space, climb(), machine);
  ASSERT_TRUE(limited.ok());
  EXPECT_EQ(limited->chosen.batch, 4);
}

TEST(TuneSearchTest, StopsWhereThroughputLevelsOff) {
  const TuneSpace space = space_of(2);
  Machine machine(space);
  machine.fixed_ms = 20.0;
  machine.clip_ms = 1.0;
  machine.clip_gib = 0.0;
  const auto result = tune(space, climb(), machine);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  // Doubling 1024 gains 1 %.
  EXPECT_GE(result->chosen.batch, 256);
  EXPECT_LE(result->chosen.batch, 1024);
  EXPECT_EQ(value_of(space, result->chosen, kPrecision), "bf16-mixed");
  EXPECT_EQ(value_of(space, result->chosen, kRecompute), "false");
  EXPECT_GT(result->speedup(), 5.0);
}

TEST(TuneSearchTest, OnTheHostMemoryIsForeseenNotExhausted) {
  const TuneSpace space = space_of(2);
  Machine machine(space);
  machine.fixed_ms = 1000.0;
  machine.fixed_gib = 1.0;
  machine.clip_gib = 0.5;
  machine.total_gib = 16.0;
  const auto result = tune(space, climb(), machine);
  ASSERT_TRUE(result.ok());
  EXPECT_LE(machine.used_gib(result->chosen), 0.9 * 16.0);
  for (const TriedRow& row : result->tried)
    EXPECT_NE(row.outcome.end, TrialOutcome::End::kOutOfMemory);
}

TEST(TuneSearchTest, FindsLoaderThreadsAndLeavesIdleOnesAlone) {
  const TuneSpace space = space_of(16);
  Machine machine(space);
  machine.load_ms = 4.0;
  machine.clip_gib = 4.0;  // the batch stays where it is
  const auto slow = tune(space, fill(), machine);
  ASSERT_TRUE(slow.ok()) << slow.status().to_string();
  EXPECT_EQ(value_of(space, slow->chosen, kWorkers), "8") << tune_text(space, *slow, {});
  Machine quick(space);
  quick.load_ms = 0.001;
  const auto idle = tune(space, fill(), quick);
  ASSERT_TRUE(idle.ok());
  EXPECT_EQ(value_of(space, idle->chosen, kWorkers), "0");
  EXPECT_NE(join(idle->reasons, "\n").find("nothing to gain"), std::string::npos);
  EXPECT_NE(join(idle->reasons, "\n").find("means nothing with"), std::string::npos);
}

TEST(TuneSearchTest, RecomputesOnlyWhereMemoryKeepsTheBatchSmall) {
  const TuneSpace space = space_of(1);
  Machine small(space);
  small.fixed_ms = 100.0;
  small.clip_gib = 30.0;  // two clips, four in bf16
  const auto result = tune(space, fill(), small);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  EXPECT_EQ(value_of(space, result->chosen, kRecompute), "true");
  EXPECT_GT(result->chosen.batch, 4);
  Machine large(space);
  const auto roomy = tune(space, fill(), large);
  ASSERT_TRUE(roomy.ok());
  EXPECT_EQ(value_of(space, roomy->chosen, kRecompute), "false");
}

TEST(TuneSearchTest, NeverSlowerThanTheStartWhateverTheNoise) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const TuneSpace space = space_of(8);
    Machine machine(space);
    machine.noise = 0.15;
    machine.fixed_ms = 0.0;  // nothing gains anything
    machine.factor = [seed](const TuneSettings& settings) {
      // Every change costs a little.
      return settings == TuneSettings{8, {0, 0, 0, 0}} ? 1.0 + 0.001 * static_cast<double>(seed % 3)
             : settings.values[2] == 1                 ? 0.45
                                                       : 0.9;
    };
    for (uint64_t i = 0; i < seed; ++i) (void)machine.speed(start_settings(space));
    const auto result = tune(space, climb(), machine);
    ASSERT_TRUE(result.ok());
    // What is chosen was faster in the trials that count.
    if (!(result->chosen == result->start)) {
      EXPECT_GE(result->measured_speedup(), 1.01);
    }
    if (result->kept_start) {
      EXPECT_EQ(result->chosen, result->start);
      EXPECT_TRUE(final_changes(space, *result, RateRule::kLinear).empty());
    }
  }
}

TEST(TuneSearchTest, KeepsTheStartWhereTheChoiceDoesNotHold) {
  const TuneSpace space = space_of(8);
  Machine machine(space);
  machine.fixed_ms = 0.0;
  // bf16 looks fast for a while.
  machine.factor = [&machine](const TuneSettings& settings) {
    return settings.values[2] == 1 && machine.elapsed_s() > 12.0 ? 0.3 : 1.0;
  };
  const auto result = tune(space, climb(), machine);
  ASSERT_TRUE(result.ok());
  EXPECT_TRUE(result->kept_start);
  EXPECT_EQ(result->chosen, result->start);
  EXPECT_EQ(result->speedup(), 1.0);
  EXPECT_LT(result->measured_speedup(), 1.0);
  EXPECT_NE(tune_text(space, *result, {}).find("not better, so the start is kept"),
            std::string::npos);
}

TEST(TuneSearchTest, EndsInTime) {
  for (const double budget : {20.0, 40.0, 60.0, 150.0}) {
    const TuneSpace space = space_of(2);
    Machine machine(space);
    machine.load_ms = 3.0;
    machine.trial_s = 7.0;
    const auto result = tune(space, climb(budget), machine);
    ASSERT_TRUE(result.ok());
    EXPECT_LE(machine.elapsed_s(), std::max(budget, 3 * machine.trial_s)) << budget;
    EXPECT_EQ(result->out_of_time, budget < 150.0) << budget;
  }
}

TEST(TuneSearchTest, LeavesAnEpochItsBatches) {
  const TuneSpace space = space_of(2);
  for (const TuneRules& rules : {fill(), climb()}) {
    Machine machine(space);
    machine.samples = 200;
    machine.fixed_ms = 1e4;
    const auto result = tune(space, rules, machine);
    ASSERT_TRUE(result.ok());
    EXPECT_LE(result->chosen.batch, 50);
    EXPECT_GE(result->chosen.batch, 25);
  }
}

TEST(TuneSearchTest, FindsABatchAlone) {
  TuneSpace space = space_of(8);
  space.batch.automatic = true;
  Machine machine(space);
  const auto result = find_batch(space, fill(), machine);
  ASSERT_TRUE(result.ok());
  EXPECT_LE(machine.used_gib(result->chosen), 0.9 * 80.0);
  EXPECT_GE(machine.used_gib(result->chosen), 0.8 * 80.0);
  EXPECT_TRUE(machine.speed_trials.empty());
  EXPECT_EQ(changes_of(space, result->chosen).size(), 1u);
  EXPECT_EQ(result->chosen.values, result->start.values);
}

// A trial that another program disturbs would be kept for good.
TEST(TuneSearchTest, OneBadTrialDoesNotDecideForAuto) {
  TuneSpace space = space_of(2);
  space.batch.automatic = true;
  for (const int64_t disturbed : {4, 8, 16}) {
    Machine machine(space);
    machine.clip_gib = 0.0;
    machine.factor = [&](const TuneSettings& settings) {
      return settings.batch == disturbed && machine.speed_trials[disturbed] == 1 ? 0.4 : 1.0;
    };
    const auto result = find_batch(space, climb(), machine);
    ASSERT_TRUE(result.ok());
    EXPECT_GE(result->chosen.batch, 128) << disturbed;
  }
  // What is slower is slower twice.
  Machine machine(space);
  machine.factor = [](const TuneSettings& settings) { return settings.batch > 8 ? 0.5 : 1.0; };
  EXPECT_EQ(find_batch(space, climb(), machine)->chosen.batch, 8);
}

TEST(TuneTextTest, OffersBothLearningRatesAndAppliesWhatIsAsked) {
  const TuneSpace space = space_of(2);
  TuneResult result;
  result.start = result.chosen = start_settings(space);
  EXPECT_EQ(rate_sentence(space, result, RateRule::kKeep), "");
  result.chosen.batch = 32;
  result.before = {100.0, 110.0};
  result.after = {1000.0, 1100.0};
  const std::string offered = rate_sentence(space, result, RateRule::kKeep);
  EXPECT_NE(offered.find("model.optim.lr=8, the square-root rule 2; it stays 0.5"),
            std::string::npos)
      << offered;
  EXPECT_EQ(final_changes(space, result, RateRule::kKeep),
            std::vector<std::string>{str_cat(kBatch, "=32")});
  EXPECT_EQ(final_changes(space, result, RateRule::kSqrt)[1], "model.optim.lr=2");
  EXPECT_EQ(final_changes(space, result, RateRule::kLinear)[1], "model.optim.lr=8");
  // A configuration that scales by itself is not scaled twice.
  TuneSpace scaled = space;
  scaled.rate.scaled_by_config = "lr_scaling does it";
  EXPECT_EQ(final_changes(scaled, result, RateRule::kLinear).size(), 1u);
  EXPECT_EQ(rate_sentence(scaled, result, RateRule::kKeep), "lr_scaling does it");

  TuneStory story;
  story.command = "aerie tune x\ny";
  story.rate = RateRule::kSqrt;
  const std::string header = tune_header(space, result, story);
  for (const std::string& line : split(header, '\n'))
    EXPECT_TRUE(line.empty() || line[0] == '#') << line;
  EXPECT_NE(header.find("105 -> 1050 audio-s/s, 10.00 x"), std::string::npos) << header;
  const auto json = nlohmann::json::parse(tune_json(space, result, story));
  EXPECT_EQ(json["chosen"][kBatch], "32");
  EXPECT_EQ(json["chosen"]["model.optim.lr"], "2");
  EXPECT_EQ(json["learning_rate"]["linear"], 8.0);
  EXPECT_NEAR(json["measured_speedup"].get<double>(), 10.0, 1e-9);
}

}  // namespace
}  // namespace aerie::advisor::tune_test
