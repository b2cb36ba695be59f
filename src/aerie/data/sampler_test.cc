#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <gtest/gtest.h>

#include "aerie/base/philox.h"
#include "aerie/data/epoch_plan.h"

namespace aerie::data {
namespace {

// Groups of the given sizes with random durations of 1 to 20 s; tarred: shards of random size.
std::shared_ptr<SampleSet> make_set(const std::vector<uint32_t>& sizes, bool tarred = false,
                                    uint32_t shards = 5, uint64_t seed = 1) {
  auto set = std::make_shared<SampleSet>();
  set->sharded = tarred;
  RandomStream random(seed, Purpose::kTest, 0, 0);
  uint32_t begin = 0;
  for (const uint32_t size : sizes) {
    SampleGroup group{begin, begin + size, {}};
    if (tarred) {
      std::set<uint32_t> starts{begin};
      while (size > 0 && starts.size() < std::min(shards, size))
        starts.insert(begin + static_cast<uint32_t>(random.below(size)));
      group.shard_starts.assign(starts.begin(), starts.end());
    }
    set->groups.push_back(group);
    begin += size;
  }
  for (uint32_t i = 0; i < begin; ++i)
    set->lengths.push_back(std::round(random.uniform(1, 20) * 10) / 10);
  return set;
}

SamplingConfig plain(int64_t batch_size, bool shuffle = true, bool drop_last = false) {
  SamplingConfig config;
  config.batch_size = batch_size;
  config.shuffle = shuffle;
  config.drop_last = drop_last;
  return config;
}

Sampler make(std::shared_ptr<const SampleSet> set, const SamplingConfig& config, uint32_t lanes = 1,
             uint64_t seed = 1, bool compat = false) {
  Sampler::Options options;
  options.seed = seed;
  options.virtual_ranks = lanes;
  options.compat_nemo = compat;
  Result<Sampler> sampler = Sampler::make(std::move(set), config, options);
  EXPECT_TRUE(sampler.ok()) << sampler.status().to_string();
  return std::move(sampler).value();
}

Status refuse(std::shared_ptr<const SampleSet> set, const SamplingConfig& config) {
  return Sampler::make(std::move(set), config, {}).status();
}

using Batches = std::vector<std::vector<uint32_t>>;  // lane after lane in every step

Batches all_batches(const EpochPlan& plan) {
  Batches out;
  std::vector<PlannedSample> batch;
  for (uint64_t step = 0; step < plan.num_steps(); ++step)
    for (uint32_t lane = 0; lane < plan.num_lanes(); ++lane) {
      plan.batch(step, lane, batch);
      std::vector<uint32_t> ids;
      for (const PlannedSample& sample : batch) ids.push_back(sample.sample);
      out.push_back(ids);
    }
  return out;
}

std::vector<uint32_t> flat(const Batches& batches) {
  std::vector<uint32_t> out;
  for (const auto& batch : batches) out.insert(out.end(), batch.begin(), batch.end());
  return out;
}

std::vector<uint32_t> counts_of(const EpochPlan& plan, uint32_t size) {
  std::vector<uint32_t> counts(size);
  for (const uint32_t i : flat(all_batches(plan))) ++counts.at(i);
  return counts;
}

// Every promise of epoch_plan.h that holds without repetition by design.
void check_promises(const Sampler& sampler, const SamplingConfig& config, uint32_t epoch) {
  const auto plan = sampler.plan(epoch);
  const SampleSet& set = sampler.set();
  std::vector<uint32_t> seen(set.size());
  std::set<uint64_t> positions;
  std::vector<PlannedSample> batch;
  std::map<uint32_t, uint64_t> per_bucket;
  std::map<uint32_t, uint32_t> batch_size;
  uint64_t total = 0;
  for (uint64_t step = 0; step < plan->num_steps(); ++step) {
    for (uint32_t lane = 0; lane < plan->num_lanes(); ++lane) {
      const uint32_t bucket = plan->batch(step, lane, batch);
      total += batch.size();
      per_bucket[bucket] += batch.size();
      auto& size = batch_size[bucket];
      size = std::max<uint32_t>(size, static_cast<uint32_t>(batch.size()));
      ASSERT_LE(batch.size(), sampler.max_batch_size());
      for (const PlannedSample& sample : batch) {
        ASSERT_LT(sample.sample, set.size());
        ++seen[sample.sample];
        ASSERT_TRUE(positions.insert(sample.position).second) << "position twice";
      }
    }
  }
  EXPECT_EQ(total, plan->num_samples());
  uint64_t lost = 0;
  for (uint32_t i = 0; i < set.size(); ++i) {
    ASSERT_LE(seen[i], 1u) << "sample " << i << " twice";
    lost += seen[i] == 0;
  }
  if (!config.drop_last) {
    EXPECT_EQ(lost, 0u);
    return;
  }
  // Less than one batch per bucket and lane.
  uint64_t bound = 0;
  if (!sampler.buckets().empty() && (config.use_bucketing || !config.bucket_batch_size.empty())) {
    for (const auto& info : sampler.buckets()) bound += uint64_t{info.batch_size};
  } else {
    bound = uint64_t{sampler.max_batch_size()} * set.groups.size();
  }
  EXPECT_LT(lost, bound * plan->num_lanes() + 1);
}

TEST(SamplerTest, EverySampleOnceForAnyCombination) {
  RandomStream random(3, Purpose::kTest, 0, 0);
  for (int round = 0; round < 400; ++round) {
    SCOPED_TRACE(round);
    const bool tarred = random.below(2) == 0;
    const uint32_t groups = static_cast<uint32_t>(1 + random.below(4));
    std::vector<uint32_t> sizes;
    for (uint32_t g = 0; g < groups; ++g)
      sizes.push_back(static_cast<uint32_t>(1 + random.below(random.below(2) == 0 ? 20 : 300)));
    const auto set = make_set(sizes, tarred, static_cast<uint32_t>(1 + random.below(9)),
                              static_cast<uint64_t>(round));
    SamplingConfig config = plain(static_cast<int64_t>(1 + random.below(17)), random.below(3) != 0,
                                  random.below(2) == 0);
    config.shuffle_n = static_cast<int64_t>(random.below(3) == 0 ? 0 : random.below(200));
    config.bucketing_strategy = static_cast<BucketingStrategy>(random.below(3));
    const uint64_t kind = random.below(5);
    if (kind == 1 && groups > 1) {
      config.bucketing_batch_size = {static_cast<int64_t>(1 + random.below(6))};
      config.batch_size = 1;
    } else if (kind == 2) {
      config.use_bucketing = true;
      config.num_buckets = static_cast<int64_t>(1 + random.below(12));
      if (random.below(2) == 0) config.batch_duration = random.uniform(5, 200);
      if (random.below(2) == 0) config.quadratic_duration = random.uniform(5, 40);
    } else if (kind == 3) {
      config.batch_duration = random.uniform(5, 200);
      if (random.below(2) == 0) config.batch_size.reset();
    } else if (kind == 4) {
      config.bucket_duration_bins = {5, 10, 20};
      config.bucket_batch_size = {9, 5, 3};
    }
    const uint32_t lanes = static_cast<uint32_t>(1 + random.below(6));
    const Sampler sampler = make(set, config, lanes);
    check_promises(sampler, config, 0);
    check_promises(sampler, config, 3);
  }
}

TEST(SamplerTest, WithoutShufflingTheOrderIsTheManifests) {
  const auto plan = make(make_set({10}), plain(4, false)).plan(5);
  EXPECT_EQ(all_batches(*plan), (Batches{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}}));
  const auto dropped = make(make_set({10}), plain(4, false, true)).plan(0);
  EXPECT_EQ(all_batches(*dropped), (Batches{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  // Two ranks: dealt out like a distributed sampler does.
  const auto two = make(make_set({10}), plain(2, false), 2).plan(0);
  EXPECT_EQ(all_batches(*two), (Batches{{0, 2}, {1, 3}, {4, 6}, {5, 7}, {8}, {9}}));
}

TEST(SamplerTest, EpochsAndSeedsDiffer) {
  const auto set = make_set({100});
  const Sampler a = make(set, plain(10));
  EXPECT_EQ(all_batches(*a.plan(1)), all_batches(*make(set, plain(10)).plan(1)));
  EXPECT_NE(all_batches(*a.plan(1)), all_batches(*a.plan(2)));
  EXPECT_NE(all_batches(*a.plan(1)), all_batches(*make(set, plain(10), 1, 2).plan(1)));
}

TEST(SamplerTest, AnyBatchCanBeAskedForByItself) {
  const auto set = make_set({200, 150}, true);
  const Sampler sampler = make(set, plain(7), 3);
  const auto plan = sampler.plan(2);
  const Batches all = all_batches(*plan);
  const auto again = sampler.plan(2);
  std::vector<PlannedSample> batch;
  for (size_t k = all.size(); k-- > 0;) {
    again->batch(k / 3, static_cast<uint32_t>(k % 3), batch);
    std::vector<uint32_t> ids;
    for (const PlannedSample& sample : batch) ids.push_back(sample.sample);
    EXPECT_EQ(ids, all[k]);
  }
}

TEST(SamplerTest, GlobalBatchesAreDealtFromOneOrder) {
  // Plain data: step s is the next lanes * batch samples of one permutation, for any lane count.
  const auto set = make_set({960});
  const auto order = flat(all_batches(*make(set, plain(960)).plan(0)));
  for (const uint32_t lanes : {1u, 2u, 4u, 8u}) {
    const Sampler sampler = make(set, plain(6), lanes);
    const auto plan = sampler.plan(0);
    std::vector<PlannedSample> batch;
    size_t done = 0;
    for (uint64_t step = 0; step < plan->num_steps(); ++step) {
      std::multiset<uint32_t> got, expected(order.begin() + done, order.begin() + done + 6 * lanes);
      for (uint32_t lane = 0; lane < lanes; ++lane) {
        plan->batch(step, lane, batch);
        for (const PlannedSample& sample : batch) got.insert(sample.sample);
      }
      ASSERT_EQ(got, expected);
      done += 6 * lanes;
    }
  }
}

// ---- tar ----

TEST(TarOrderTest, ScatterReadsEverySampleOnceInRunsOfShards) {
  const auto set = make_set({103}, true, 7);
  SamplingConfig config = plain(5, false);
  const auto plan = make(set, config, 4).plan(0);
  const std::vector<uint32_t> counts = counts_of(*plan, 103);
  EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](uint32_t c) { return c == 1; }));
  // Unshuffled lanes are contiguous.
  std::vector<PlannedSample> batch;
  plan->batch(0, 1, batch);
  EXPECT_EQ(batch[0].sample, 26u);
  EXPECT_EQ(batch[4].sample, 30u);
}

TEST(TarOrderTest, NemosSplitLosesTheRemainder) {
  EXPECT_EQ(nemo_shard_range(10, 3, 0, true).first, 0u);
  EXPECT_EQ(nemo_shard_range(10, 3, 0, true).last, 3u);
  EXPECT_EQ(nemo_shard_range(10, 3, 2, true).first, 6u);
  EXPECT_EQ(nemo_shard_range(10, 3, 2, true).last, 9u);
  EXPECT_EQ(nemo_shard_range(10, 3, 2, false).first, 0u);
  EXPECT_EQ(nemo_shard_range(10, 3, 2, false).last, 10u);
  // Five shards of ten samples for two lanes: the fifth is never read.
  SampleSet set;
  set.sharded = true;
  set.groups = {{0, 50, {0, 10, 20, 30, 40}}};
  set.lengths.assign(50, 1.0);
  const auto shared = std::make_shared<SampleSet>(set);
  const auto compat = make(shared, plain(4, false), 2, 1, true).plan(0);
  std::vector<uint32_t> counts = counts_of(*compat, 50);
  for (uint32_t i = 0; i < 50; ++i) EXPECT_EQ(counts[i], i < 40 ? 1u : 0u);
  counts = counts_of(*make(shared, plain(4, false), 2).plan(0), 50);
  EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](uint32_t c) { return c == 1; }));
}

TEST(TarOrderTest, ReplicateGivesEveryLaneAllShards) {
  const auto set = make_set({400}, true, 8);
  SamplingConfig config = plain(10);
  config.shuffle_n = 2048;
  config.shard_strategy = ShardStrategy::kReplicate;
  const auto plan = make(set, config, 4).plan(0);
  EXPECT_EQ(plan->num_steps(), 10u);  // one epoch over all lanes
  std::vector<PlannedSample> batch;
  for (uint32_t lane = 0; lane < 4; ++lane) {
    std::set<uint32_t> quarter;
    for (uint64_t step = 0; step < 10; ++step) {
      plan->batch(step, lane, batch);
      for (const PlannedSample& s : batch) quarter.insert(s.sample / 100);
    }
    EXPECT_EQ(quarter.size(), 4u);  // not confined to its own part
  }
}

TEST(TarOrderTest, ShuffleLevelDecidesWhatIsShuffled) {
  const auto set = make_set({1000}, true, 20);
  SamplingConfig config = plain(1);
  config.shuffle_n = 100;
  Sampler::Options options;
  options.shuffle_level = ShuffleLevel::kShard;
  const Sampler by_shard = *Sampler::make(set, config, options);
  const std::vector<uint32_t> order = flat(all_batches(*by_shard.plan(0)));
  // Inside a shard the archive's order stays: the number of jumps is that of the shards.
  int jumps = 0;
  for (size_t i = 1; i < order.size(); ++i) jumps += order[i] != order[i - 1] + 1;
  EXPECT_LE(jumps, 20);
  EXPECT_GE(jumps, 10);
  const std::vector<uint32_t> mixed = flat(all_batches(*make(set, config).plan(0)));
  jumps = 0;
  for (size_t i = 1; i < mixed.size(); ++i) jumps += mixed[i] != mixed[i - 1] + 1;
  EXPECT_GT(jumps, 900);
  // shuffle_n 0 or shuffle false: the archive's order.
  config.shuffle_n = 0;
  const std::vector<uint32_t> none = flat(all_batches(*make(set, config).plan(0)));
  EXPECT_TRUE(std::is_sorted(none.begin(), none.end()));
}

TEST(TarOrderTest, BufferKeepsSamplesNearTheirPlace) {
  std::vector<uint32_t> items(5000);
  for (uint32_t i = 0; i < 5000; ++i) items[i] = i;
  RandomStream random(1, Purpose::kTest, 0, 0);
  shuffle_through_buffer(items, 64, random);
  std::vector<bool> seen(5000);
  for (uint32_t i = 0; i < 5000; ++i) {
    ASSERT_FALSE(seen[items[i]]);
    seen[items[i]] = true;
    ASSERT_LE(items[i], i + 64);  // nothing comes out before it went in
  }
}

// ---- mixtures ----

TEST(ConcatTest, TemperatureFlattensTheShares) {
  const std::vector<uint64_t> sizes{900, 90, 10};
  const std::vector<double> one = temperature_probabilities(sizes, 1.0);
  EXPECT_DOUBLE_EQ(one[0], 0.9);
  EXPECT_DOUBLE_EQ(one[2], 0.01);
  const std::vector<double> five = temperature_probabilities(sizes, 5.0);
  // (0.9^0.2, 0.09^0.2, 0.01^0.2), normalised.
  const double a = std::pow(0.9, 0.2), b = std::pow(0.09, 0.2), c = std::pow(0.01, 0.2);
  EXPECT_DOUBLE_EQ(five[0], a / (a + b + c));
  EXPECT_DOUBLE_EQ(five[1], b / (a + b + c));
  EXPECT_DOUBLE_EQ(five[2], c / (a + b + c));
}

TEST(ConcatTest, SharesFollowTheProbabilities) {
  const auto set = make_set({5000, 3000, 2000});
  SamplingConfig config = plain(10);
  config.is_concat = true;
  config.concat_sampling_technique = ConcatTechnique::kRandom;
  config.concat_sampling_probabilities = {0.2, 0.5, 0.3};
  for (const uint32_t lanes : {1u, 4u}) {
    const auto plan = make(set, config, lanes).plan(0);
    EXPECT_EQ(plan->num_samples(), 10000u);
    const std::vector<uint32_t> counts = counts_of(*plan, 10000);
    double hits[3] = {};
    for (uint32_t i = 0; i < 10000; ++i) hits[i < 5000 ? 0 : i < 8000 ? 1 : 2] += counts[i];
    double chi2 = 0;
    const double expected[] = {2000, 5000, 3000};
    for (int k = 0; k < 3; ++k) chi2 += std::pow(hits[k] - expected[k], 2) / expected[k];
    EXPECT_LT(chi2, 13.8);
    // Inside a member nothing repeats before it has run dry.
    for (uint32_t i = 5000; i < 8000; ++i) EXPECT_GE(counts[i], 1u);
    for (uint32_t i = 0; i < 5000; ++i) EXPECT_LE(counts[i], 1u);
  }
}

TEST(ConcatTest, RoundRobinTakesTurnsAndARestartLosesTheTurn) {
  const auto set = make_set({2, 4});
  SamplingConfig config = plain(1);
  config.is_concat = true;
  config.concat_shuffle = false;
  config.concat_sampling_technique = ConcatTechnique::kRoundRobin;
  const auto plan = make(set, config).plan(0);
  // 0, 2, 1, 3; the first member is empty: restarted, the turn goes to the second.
  EXPECT_EQ(flat(all_batches(*plan)), (std::vector<uint32_t>{0, 2, 1, 3, 4, 0}));
}

TEST(ConcatTest, ScaleMultipliesTheEpoch) {
  SamplingConfig config = plain(5);
  config.is_concat = true;
  config.concat_sampling_scale = 3;
  EXPECT_EQ(make(make_set({20, 10}), config).plan(0)->num_samples(), 90u);
  EXPECT_EQ(make(make_set({20, 10}), config, 4).plan(0)->num_samples(), 90u);  // not divided twice
}

TEST(ConcatTest, TinyMembersServeAllLanes) {
  SamplingConfig config = plain(3);
  config.is_concat = true;
  config.concat_sampling_technique = ConcatTechnique::kRoundRobin;
  for (const bool tarred : {false, true}) {
    const auto plan = make(make_set({2, 50}, tarred), config, 8).plan(0);
    EXPECT_EQ(plan->num_samples(), 52u);
    const std::vector<uint32_t> counts = counts_of(*plan, 52);
    EXPECT_GE(counts[0] + counts[1], 20u);
  }
}

TEST(ConcatTest, RefusesImpossibleMixtures) {
  SamplingConfig config = plain(1);
  config.is_concat = true;
  config.concat_sampling_technique = ConcatTechnique::kRandom;
  config.concat_sampling_probabilities = {0.5, 0.4};
  EXPECT_NE(refuse(make_set({5, 5}), config).to_string().find("sum to 1"), std::string::npos);
  config.concat_sampling_probabilities = {0.5, 0.5 + 5e-7};
  EXPECT_TRUE(refuse(make_set({5, 5}), config).ok());
  config.concat_sampling_probabilities = {0.5, 0.3, 0.2};
  EXPECT_FALSE(refuse(make_set({5, 5}), config).ok());
  config.concat_sampling_probabilities = {-0.5, 1.5};
  EXPECT_FALSE(refuse(make_set({5, 5}), config).ok());
  config.concat_sampling_probabilities.clear();
  EXPECT_EQ(refuse(make_set({5, 0}), config).code(), StatusCode::kDataError);
  config.concat_sampling_technique = ConcatTechnique::kTemperature;
  config.concat_sampling_temperature = 0;
  EXPECT_FALSE(refuse(make_set({5, 5}), config).ok());
}

TEST(ConcatTest, SeedChangesTheDraws) {
  SamplingConfig config = plain(4);
  config.is_concat = true;
  const auto set = make_set({300, 300});
  const Batches base = all_batches(*make(set, config).plan(0));
  config.concat_sampling_seed = 7;
  EXPECT_NE(all_batches(*make(set, config).plan(0)), base);
}

// ---- classic buckets ----

TEST(ClassicBucketTest, OrderIsNumpysAndAdvancesEveryEpoch) {
  using List = std::vector<uint32_t>;
  const auto order = [](uint32_t n, uint32_t epoch, bool compat) {
    return bucket_order(BucketingStrategy::kSyncedRandomized, n, 1, epoch, 3, compat);
  };
  EXPECT_EQ(order(2, 0, false), (List{1, 0}));
  EXPECT_EQ(order(3, 0, false), (List{2, 1, 0}));
  EXPECT_EQ(order(4, 0, false), (List{2, 3, 1, 0}));
  EXPECT_EQ(order(8, 0, false), (List{6, 2, 1, 7, 3, 0, 5, 4}));
  EXPECT_NE(order(8, 1, false), order(8, 0, false));
  EXPECT_EQ(order(8, 1, true), order(8, 0, true));  // NeMo with workers repeats the first
  EXPECT_EQ(bucket_order(BucketingStrategy::kFixedOrder, 3, 1, 5, 0, false), (List{0, 1, 2}));
}

TEST(ClassicBucketTest, BucketsFollowEachOther) {
  const auto set = make_set({20, 30, 10, 40}, true);
  SamplingConfig config = plain(5, false);
  const auto buckets = [&](const Sampler& sampler, uint32_t lane) {
    const auto plan = sampler.plan(0);
    std::vector<PlannedSample> batch;
    std::vector<uint32_t> out;
    for (uint64_t step = 0; step < plan->num_steps(); ++step) {
      const uint32_t bucket = plan->batch(step, lane, batch);
      if (out.empty() || out.back() != bucket) out.push_back(bucket);
    }
    return out;
  };
  EXPECT_EQ(buckets(make(set, config), 0), (std::vector<uint32_t>{2, 3, 1, 0}));
  config.bucketing_strategy = BucketingStrategy::kFixedOrder;
  EXPECT_EQ(buckets(make(set, config), 0), (std::vector<uint32_t>{0, 1, 2, 3}));
  config.bucketing_strategy = BucketingStrategy::kFullyRandomized;
  const auto many = make_set({20, 20, 20, 20, 20, 20, 20, 20}, true);
  std::set<std::vector<uint32_t>> different;
  for (uint32_t lane = 0; lane < 4; ++lane) different.insert(buckets(make(many, config, 4), lane));
  EXPECT_GE(different.size(), 3u);  // each rank its own order
}

TEST(ClassicBucketTest, WeightsRepeatBuckets) {
  const auto set = make_set({20, 30}, true);
  SamplingConfig config = plain(5);
  config.bucketing_weights = {3, 1};
  const auto plan = make(set, config).plan(0);
  const std::vector<uint32_t> counts = counts_of(*plan, 50);
  for (uint32_t i = 0; i < 50; ++i) EXPECT_EQ(counts[i], i < 20 ? 3u : 1u);
  config.bucketing_weights = {1};
  EXPECT_FALSE(refuse(set, config).ok());
  config.bucketing_weights = {0, 1};
  EXPECT_FALSE(refuse(set, config).ok());
}

TEST(ClassicBucketTest, BatchSizesAreLinearOrListed) {
  using List = std::vector<uint32_t>;
  const std::vector<int64_t> one{4}, listed{9, 7, 5};
  EXPECT_EQ(*classic_batch_sizes(one, false, 3, 3, 1), (List{12, 8, 4}));
  EXPECT_EQ(*classic_batch_sizes(one, false, 3, 5, 1), (List{20, 16, 12}));  // repeated buckets
  EXPECT_EQ(*classic_batch_sizes(listed, true, 3, 3, 1), (List{9, 7, 5}));
  EXPECT_FALSE(classic_batch_sizes(listed, true, 4, 4, 1).ok());
  EXPECT_FALSE(classic_batch_sizes(one, false, 3, 3, 8).ok());  // batch_size must be 1
  const auto set = make_set({36, 32, 20}, true);
  SamplingConfig config = plain(1);
  config.bucketing_batch_size = {4};
  const auto plan = make(set, config).plan(0);
  std::vector<PlannedSample> batch;
  for (uint64_t step = 0; step < plan->num_steps(); ++step) {
    const uint32_t bucket = plan->batch(step, 0, batch);
    EXPECT_EQ(batch.size(), (3 - bucket) * 4u);
  }
  EXPECT_EQ(plan->num_steps(), 3u + 4u + 5u);
}

// ---- buckets by duration ----

TEST(DurationBucketTest, BinsHoldEqualTotals) {
  std::vector<double> durations;
  RandomStream random(1, Purpose::kTest, 0, 0);
  for (int i = 0; i < 5000; ++i) durations.push_back(random.uniform(1, 20));
  const std::vector<double> copy = durations;
  const std::vector<double> bins = estimate_duration_bins(durations, 10);
  ASSERT_EQ(bins.size(), 9u);
  double totals[10] = {};
  DurationBuckets buckets{bins, false};
  double sum = 0;
  for (const double d : copy) {
    totals[buckets.find(d)] += d;
    sum += d;
  }
  for (const double total : totals) EXPECT_NEAR(total, sum / 10, sum / 10 * 0.02);
}

TEST(DurationBucketTest, EqualDurationsNeedOneBucket) {
  std::vector<double> same(100, 15.0);
  EXPECT_TRUE(estimate_duration_bins(same, 30).empty());
  std::vector<double> none;
  EXPECT_TRUE(estimate_duration_bins(none, 30).empty());
}

TEST(DurationBucketTest, EdgesBelongToTheRightBucket) {
  DurationBuckets interior{{5, 10}, false};
  EXPECT_EQ(interior.size(), 3u);
  EXPECT_EQ(interior.find(4.9), 0u);
  EXPECT_EQ(interior.find(5.0), 1u);
  EXPECT_EQ(interior.find(10.0), 2u);
  EXPECT_EQ(interior.find(std::nan("")), 2u);
  DurationBuckets upper{{5, 10}, true};
  EXPECT_EQ(upper.size(), 2u);
  EXPECT_EQ(upper.find(5.0), 0u);
  EXPECT_EQ(upper.find(5.1), 1u);
  EXPECT_EQ(upper.find(10.0), 1u);
  EXPECT_EQ(upper.find(10.1), 2u);  // none
}

TEST(DurationBucketTest, BatchesStayInsideOneBucketAndItsBudget) {
  const auto set = make_set({3000});
  SamplingConfig config;
  config.use_bucketing = true;
  config.shuffle = true;
  config.num_buckets = 8;
  config.batch_duration = 120;
  for (const double quadratic : {0.0, 20.0}) {
    if (quadratic > 0) config.quadratic_duration = quadratic;
    const Sampler sampler = make(set, config, 2);
    ASSERT_EQ(sampler.buckets().size(), 8u);
    const auto plan = sampler.plan(0);
    std::vector<PlannedSample> batch;
    std::set<uint32_t> first_steps;
    for (uint64_t step = 0; step < plan->num_steps(); ++step) {
      for (uint32_t lane = 0; lane < 2; ++lane) {
        const uint32_t bucket = plan->batch(step, lane, batch);
        if (step < 20) first_steps.insert(bucket);
        double longest = 0;
        for (const PlannedSample& s : batch) {
          const double d = set->lengths[s.sample];
          longest = std::max(longest, d);
          EXPECT_GE(d, sampler.buckets()[bucket].low_s);
          EXPECT_LE(d, sampler.buckets()[bucket].longest_s);
        }
        EXPECT_LE(static_cast<double>(batch.size()) * effective_duration(longest, quadratic),
                  120.0 + 1e-6);
      }
    }
    EXPECT_GE(first_steps.size(), 5u);  // interleaved, not one after another
  }
}

TEST(DurationBucketTest, EveryKeyChangesTheBatches) {
  const auto set = make_set({2000});
  SamplingConfig base = plain(16);
  base.use_bucketing = true;
  base.num_buckets = 5;
  const Batches plan = all_batches(*make(set, base).plan(0));
  SamplingConfig other = base;
  other.num_buckets = 6;
  EXPECT_NE(all_batches(*make(set, other).plan(0)), plan);
  other = base;
  other.bucket_duration_bins = {4, 9};
  EXPECT_EQ(make(set, other).buckets().size(), 3u);
  other = base;
  other.batch_duration = 60;
  EXPECT_NE(all_batches(*make(set, other).plan(0)), plan);
  SamplingConfig quadratic = other;
  quadratic.quadratic_duration = 10;
  EXPECT_NE(all_batches(*make(set, quadratic).plan(0)), all_batches(*make(set, other).plan(0)));
  other = base;
  other.bucket_duration_bins = {5, 10, 15};
  other.bucket_batch_size = {20, 10, 5};
  const Sampler fixed = make(set, other);
  EXPECT_GT(fixed.dropped_too_long(), 0u);
  const auto fixed_plan = fixed.plan(0);
  std::vector<PlannedSample> batch;
  for (uint64_t step = 0; step < fixed_plan->num_steps(); ++step) {
    const uint32_t bucket = fixed_plan->batch(step, 0, batch);
    EXPECT_LE(batch.size(), static_cast<size_t>(other.bucket_batch_size[bucket]));
  }
  other.bucket_batch_size = {20, 10, 5, 2};  // the last one for what is longer
  const Sampler open = make(set, other);
  EXPECT_EQ(open.dropped_too_long(), 0u);
  ASSERT_EQ(open.buckets().size(), 4u);
  EXPECT_EQ(open.buckets()[3].batch_size, 2u);
  other = base;
  other.batch_size = 8;
  EXPECT_NE(all_batches(*make(set, other).plan(0)), plan);
}

// Runs that began with an earlier version.
TEST(DurationBucketTest, TheEarlierRuleKeepsTheBudgetAndTheOrder) {
  const auto set = make_set({500});
  Sampler::Options options;
  options.packing = Packing::kWithinBudget;
  SamplingConfig config;
  config.batch_duration = 100;
  config.shuffle = false;
  const auto plan = Sampler::make(set, config, options)->plan(0);
  std::vector<uint32_t> order = flat(all_batches(*plan));
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  const Batches batches = all_batches(*plan);
  for (size_t k = 0; k < batches.size(); ++k) {
    double longest = 0;
    for (const uint32_t i : batches[k]) longest = std::max(longest, set->lengths[i]);
    EXPECT_LE(static_cast<double>(batches[k].size()) * longest, 100 + 1e-6);
    if (k + 1 < batches.size()) {
      // One more would not have fitted.
      const double next = std::max(longest, set->lengths[batches[k + 1][0]]);
      EXPECT_GT(static_cast<double>(batches[k].size() + 1) * next, 100);
    }
  }
}

TEST(DurationBucketTest, UnknownDurationsAreKeptInTheLastBucket) {
  auto set = make_set({100});
  set->lengths[17] = std::nan("");
  SamplingConfig config = plain(4);
  config.use_bucketing = true;
  config.num_buckets = 4;
  const Sampler sampler = make(set, config);
  check_promises(sampler, config, 0);
  const auto plan = sampler.plan(0);
  std::vector<PlannedSample> batch;
  for (uint64_t step = 0; step < plan->num_steps(); ++step) {
    const uint32_t bucket = plan->batch(step, 0, batch);
    for (const PlannedSample& s : batch) {
      if (s.sample != 17) continue;
      EXPECT_EQ(bucket, sampler.buckets().size() - 1);
    }
  }
}

TEST(DurationBucketTest, RefusesContradictions) {
  const auto set = make_set({100});
  SamplingConfig config;
  config.use_bucketing = true;
  EXPECT_FALSE(refuse(set, config).ok());  // nothing bounds a batch
  config.batch_size = 4;
  EXPECT_TRUE(refuse(set, config).ok());
  config.bucket_batch_size = {4};
  EXPECT_FALSE(refuse(set, config).ok());  // no bins
  config.bucket_duration_bins = {10, 5};
  config.bucket_batch_size = {4, 4};
  EXPECT_FALSE(refuse(set, config).ok());  // not ascending
  config.bucket_duration_bins = {5, 10, 15};
  EXPECT_FALSE(refuse(set, config).ok());  // lengths differ
  config.bucket_batch_size = {4, 4, 4, 4, 4};
  EXPECT_FALSE(refuse(set, config).ok());
  SamplingConfig empty;
  EXPECT_FALSE(refuse(set, empty).ok());  // no batch_size
}

TEST(SamplerTest, FingerprintSeesWhatChangesTheOrder) {
  const auto set = make_set({100});
  const uint64_t base = make(set, plain(4)).fingerprint();
  EXPECT_EQ(make(make_set({100}), plain(4)).fingerprint(), base);
  EXPECT_NE(make(set, plain(5)).fingerprint(), base);
  EXPECT_NE(make(set, plain(4, false)).fingerprint(), base);
  EXPECT_NE(make(set, plain(4, true, true)).fingerprint(), base);
  EXPECT_NE(make(set, plain(4), 2).fingerprint(), base);
  EXPECT_NE(make(set, plain(4), 1, 9).fingerprint(), base);
  EXPECT_NE(make(make_set({101}), plain(4)).fingerprint(), base);
}

}  // namespace
}  // namespace aerie::data
