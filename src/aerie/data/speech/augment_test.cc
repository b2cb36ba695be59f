#include "aerie/data/speech/augment.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <fstream>
#include <map>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/testing/paths.h"

namespace aerie::data::augment_test {
namespace {

using nlohmann::json;

const char* draw_name(MixDraw what) {
  switch (what) {
    case MixDraw::kSkip:
      return "skip";
    case MixDraw::kMode:
      return "mode";
    case MixDraw::kMixRate:
      return "mix_rate";
    case MixDraw::kMixLength:
      return "mix_length";
    case MixDraw::kNumSegments:
      return "num_segments";
    case MixDraw::kNumSpeakers:
      return "num_speakers";
    case MixDraw::kRatio:
      return "ratio";
    case MixDraw::kNextSpeaker:
      return "next_speaker";
    case MixDraw::kSourceStart:
      return "source_start";
    case MixDraw::kPlacement:
      return "placement";
  }
  return "";
}

// Hands out recorded decisions, one queue per name.
class ReplayedDraws final : public MixDraws {
 public:
  explicit ReplayedDraws(const json& draws) {
    for (const json& draw : draws) queues_[draw[0].get<std::string>()].push_back(draw[1]);
  }
  void begin_item(size_t, uint64_t) override {}
  double uniform(MixDraw what, double, double) override { return take(draw_name(what)); }
  int64_t randint(MixDraw what, int64_t low, int64_t high) override {
    const int64_t value = take(draw_name(what));
    EXPECT_GE(value, low) << draw_name(what);
    EXPECT_LE(value, high) << draw_name(what);
    return value;
  }
  void partition(int64_t total, int bins, std::vector<int64_t>& counts) override {
    counts = take("partition").get<std::vector<int64_t>>();
    int64_t sum = 0;
    for (const int64_t count : counts) sum += count;
    EXPECT_EQ(sum, total);
    EXPECT_LE(counts.size(), static_cast<size_t>(bins));
  }
  void choose(int n, int k, std::vector<int32_t>& chosen) override {
    chosen = take("choose").get<std::vector<int32_t>>();
    EXPECT_EQ(chosen.size(), static_cast<size_t>(k));
    for (const int32_t c : chosen) EXPECT_LT(c, n);
  }
  bool all_used() const {
    for (const auto& [name, queue] : queues_)
      if (!queue.empty()) return false;
    return true;
  }

 private:
  json take(const std::string& name) {
    auto& queue = queues_[name];
    EXPECT_FALSE(queue.empty()) << "no recorded draw left for " << name;
    if (queue.empty()) return 0;
    json value = queue.front();
    queue.pop_front();
    return value;
  }
  std::map<std::string, std::deque<json>> queues_;
};

AugmentConfig config_from(const json& j, const std::string& kind) {
  AugmentConfig config;
  config.kind = kind == "MultiSpeakerNoiseAugmentation" ? AugmentKind::kMultiSpeakerNoise
                                                        : AugmentKind::kSpeakerNoise;
  const auto number = [&](const char* key, double& to) { to = j.value(key, to); };
  const auto integer = [&](const char* key, int& to) { to = j.value(key, to); };
  number("prob", config.prob);
  number("noise_ratio", config.noise_ratio);
  number("min_r_speech", config.min_r_speech);
  number("max_r_speech", config.max_r_speech);
  number("min_r_noise", config.min_r_noise);
  number("max_r_noise", config.max_r_noise);
  number("min_mix_rate", config.min_mix_rate);
  number("max_mix_rate", config.max_mix_rate);
  integer("min_num_segments", config.min_num_segments);
  integer("max_num_segments", config.max_num_segments);
  integer("min_num_speakers", config.min_num_speakers);
  integer("max_num_speakers", config.max_num_speakers);
  return config;
}

// A batch in memory with its plan; audio and noise are rectangular.
struct Batch {
  std::vector<std::vector<float>> audio;
  std::vector<std::vector<float>> noise;
  std::vector<MixInput> inputs;
  std::vector<MixRow> audio_rows;
  std::vector<MixRow> noise_rows;
  MixPlan plan;

  void point() {
    audio_rows.clear();
    noise_rows.clear();
    for (auto& row : audio) audio_rows.push_back({row.data(), nullptr});
    for (auto& row : noise) noise_rows.push_back({row.data(), nullptr});
  }
  MixRows rows() const { return {inputs, audio_rows, noise_rows, {}}; }
  std::vector<float> noise_out(size_t i) const {
    std::vector<float> out(audio[i].size());
    write_noise(rows(), plan, i, out.data(), static_cast<int64_t>(out.size()));
    return out;
  }
  std::vector<float> noisy_out(size_t i) const {
    std::vector<float> out = audio[i];
    add_segments(rows(), plan, i, out.data());
    return out;
  }
};

Batch random_batch(std::vector<int64_t> lengths, uint64_t seed, double noise_share = 1.0) {
  Batch batch;
  int64_t longest = 0;
  for (const int64_t n : lengths) longest = std::max(longest, n);
  for (size_t i = 0; i < lengths.size(); ++i) {
    RandomStream random(seed, Purpose::kTest, 0, i);
    const int64_t noise_len = static_cast<int64_t>(static_cast<double>(lengths[i]) * noise_share);
    std::vector<float> audio(static_cast<size_t>(longest)), noise(static_cast<size_t>(longest));
    for (int64_t k = 0; k < lengths[i]; ++k) audio[k] = 0.1f * random.normal();
    for (int64_t k = 0; k < noise_len; ++k) noise[k] = 0.05f * random.normal();
    batch.audio.push_back(audio);
    batch.noise.push_back(noise);
    batch.inputs.push_back({lengths[i], noise_len, i});
  }
  batch.point();
  return batch;
}

AugmentConfig multi(double prob = 1.0, double noise_ratio = 0.5) {
  AugmentConfig config;
  config.kind = AugmentKind::kMultiSpeakerNoise;
  config.prob = prob;
  config.noise_ratio = noise_ratio;
  return config;
}

TEST(AugmentTest, RepeatsWhatNemoDid) {
  std::ifstream file(test_data("/engine/augment.json"));
  const json fixture = json::parse(file);
  ASSERT_GE(fixture["cases"].size(), 10u);
  for (const json& c : fixture["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    AugmentConfig config = config_from(c["config"], c["kind"]);
    ASSERT_TRUE(config.validate().ok());
    config.compat_nemo = true;
    Batch batch;
    batch.audio = c["audio"].get<std::vector<std::vector<float>>>();
    batch.noise = c["noise"].get<std::vector<std::vector<float>>>();
    for (size_t i = 0; i < batch.audio.size(); ++i)
      batch.inputs.push_back({c["audio_len"][i], c["noise_len"][i], i});
    batch.point();
    ReplayedDraws draws(c["draws"]);
    plan_mix(config, batch.inputs, draws, batch.plan);
    EXPECT_TRUE(draws.all_used());
    resolve_gains(batch.rows(), batch.plan);
    for (size_t i = 0; i < batch.audio.size(); ++i) {
      EXPECT_EQ(batch.plan.items[i].noise_len, c["out_noise_len"][i].get<int64_t>());
      EXPECT_EQ(batch.plan.items[i].noisy_len, c["out_noisy_len"][i].get<int64_t>());
      const std::vector<float> noise = batch.noise_out(i), noisy = batch.noisy_out(i);
      for (size_t k = 0; k < noise.size(); ++k) {
        ASSERT_NEAR(noise[k], c["out_noise"][i][k].get<float>(), 1e-6) << i << " " << k;
        ASSERT_NEAR(noisy[k], c["out_noisy"][i][k].get<float>(), 1e-6) << i << " " << k;
      }
    }
  }
}

TEST(AugmentTest, SignalToNoiseOverTheUtteranceIsTheOneDrawn) {
  for (const double noise_ratio : {0.0, 1.0}) {
    AugmentConfig config = multi(1.0, noise_ratio);
    config.min_mix_rate = 0.1;
    Batch batch = random_batch({16000, 9000, 12345, 4000}, 3);
    for (uint32_t epoch = 0; epoch < 20; ++epoch) {
      PhiloxMixDraws draws(1, epoch);
      plan_mix(config, batch.inputs, draws, batch.plan);
      resolve_gains(batch.rows(), batch.plan);
      for (size_t i = 0; i < batch.audio.size(); ++i) {
        const std::vector<float> noise = batch.noise_out(i);
        const double clean = sum_of_squares(batch.audio[i].data(), batch.inputs[i].audio_len);
        const double added = sum_of_squares(noise.data(), batch.inputs[i].audio_len);
        EXPECT_NEAR(10 * std::log10(clean / added), batch.plan.items[i].ratio_db, 1e-4);
      }
    }
  }
}

TEST(AugmentTest, SegmentsAreOrderedInsideTheUtteranceAndNeverOverlap) {
  AugmentConfig config = multi();
  config.max_num_segments = 7;
  Batch batch = random_batch({300, 17, 120, 1}, 5);
  for (uint32_t epoch = 0; epoch < 500; ++epoch) {
    PhiloxMixDraws draws(2, epoch);
    plan_mix(config, batch.inputs, draws, batch.plan);
    for (size_t i = 0; i < batch.plan.items.size(); ++i) {
      const MixItem& item = batch.plan.items[i];
      int64_t end = 0;
      for (int s = item.first_segment; s < item.first_segment + item.num_segments; ++s) {
        const MixSegment& segment = batch.plan.segments[s];
        EXPECT_GT(segment.length, 0);
        EXPECT_GE(segment.dest_begin, end);
        end = segment.dest_begin + segment.length;
        if (segment.source == MixSource::kSpeech) {
          EXPECT_NE(segment.row, static_cast<int32_t>(i));  // never oneself
          EXPECT_LT(segment.source_begin, segment.source_period);
        } else {
          EXPECT_EQ(segment.row, static_cast<int32_t>(i));
        }
      }
      EXPECT_LE(end, batch.inputs[i].audio_len);
      EXPECT_EQ(item.noisy_len, batch.inputs[i].audio_len);
    }
  }
}

TEST(AugmentTest, SkippedItemsStayCleanUnlessCompatible) {
  Batch batch = random_batch({1000, 800}, 7, 0.25);
  for (const bool compat : {false, true}) {
    AugmentConfig config = multi(0.0);
    config.compat_nemo = compat;
    PhiloxMixDraws draws(1, 0);
    EXPECT_EQ(mix_needs(config, draws, 2, batch.inputs[0]).noise_samples > 0, compat);
    plan_mix(config, batch.inputs, draws, batch.plan);
    resolve_gains(batch.rows(), batch.plan);
    for (size_t i = 0; i < 2; ++i) {
      const std::vector<float> noisy = batch.noisy_out(i);
      EXPECT_EQ(batch.plan.items[i].noisy_len,
                compat ? batch.inputs[i].noise_len : batch.inputs[i].audio_len);
      for (int64_t k = 0; k < batch.inputs[i].audio_len; ++k) {
        const float raw = k < batch.inputs[i].noise_len ? batch.noise[i][k] : 0.0f;
        ASSERT_FLOAT_EQ(noisy[k], batch.audio[i][k] + (compat ? raw : 0.0f));
      }
    }
  }
}

// NeMo's sample_noise() gives zeros of the utterance's length when there is no noise manifest, or
// none of 20 entries could be read.
TEST(AugmentTest, SkippedItemsWithoutNoiseKeepTheirLengthInBothModes) {
  for (const bool compat : {false, true}) {
    Batch batch = random_batch({1000, 800}, 7, 0.25);
    for (MixInput& input : batch.inputs) input.noise_len = 0;
    AugmentConfig config = multi(0.0);
    config.compat_nemo = compat;
    PhiloxMixDraws draws(1, 0);
    plan_mix(config, batch.inputs, draws, batch.plan);
    resolve_gains(batch.rows(), batch.plan);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(batch.plan.items[i].noisy_len, batch.inputs[i].audio_len);
      EXPECT_EQ(batch.plan.items[i].noise_len, batch.inputs[i].audio_len);
      EXPECT_EQ(batch.noisy_out(i), batch.audio[i]);
    }
  }
}

TEST(AugmentTest, WithoutAugmentorNoiseIsAddedAtItsLevel) {
  Batch batch = random_batch({50, 30}, 7, 0.5);
  AugmentConfig config;
  PhiloxMixDraws draws(1, 0);
  plan_mix(config, batch.inputs, draws, batch.plan);
  resolve_gains(batch.rows(), batch.plan);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(batch.plan.items[i].noisy_len, batch.inputs[i].audio_len);
    EXPECT_EQ(batch.plan.items[i].noise_len, batch.inputs[i].noise_len);
    const std::vector<float> noisy = batch.noisy_out(i);
    for (size_t k = 0; k < noisy.size(); ++k)
      ASSERT_FLOAT_EQ(noisy[k], batch.audio[i][k] + batch.noise[i][k]);
  }
}

TEST(AugmentTest, OneItemIsMixedWithNoiseOnly) {
  Batch batch = random_batch({1000}, 9);
  const AugmentConfig config = multi(1.0, 0.0);
  for (uint32_t epoch = 0; epoch < 50; ++epoch) {
    PhiloxMixDraws draws(1, epoch);
    EXPECT_GT(mix_needs(config, draws, 1, batch.inputs[0]).noise_samples, 0);
    plan_mix(config, batch.inputs, draws, batch.plan);
    ASSERT_GE(batch.plan.items[0].num_segments, 1);
    for (const MixSegment& segment : batch.plan.segments)
      EXPECT_EQ(segment.source, MixSource::kNoise);
  }
}

TEST(AugmentTest, SilentOrMissingNoiseAddsNothing) {
  for (const AugmentKind kind : {AugmentKind::kMultiSpeakerNoise, AugmentKind::kSpeakerNoise}) {
    AugmentConfig config = multi(1.0, 1.0);
    config.kind = kind;
    Batch batch = random_batch({500, 400}, 11);
    for (auto& row : batch.noise) std::fill(row.begin(), row.end(), 0.0f);
    batch.inputs[1].noise_len = 0;
    PhiloxMixDraws draws(1, 0);
    plan_mix(config, batch.inputs, draws, batch.plan);
    resolve_gains(batch.rows(), batch.plan);
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(batch.noisy_out(i), batch.audio[i]);
  }
}

TEST(AugmentTest, WholeUtteranceCanBeMixed) {
  for (const AugmentKind kind : {AugmentKind::kMultiSpeakerNoise, AugmentKind::kSpeakerNoise}) {
    AugmentConfig config = multi(1.0, 0.5);
    config.kind = kind;
    config.min_mix_rate = config.max_mix_rate = 1.0;
    Batch batch = random_batch({500, 400, 1}, 12);
    for (uint32_t epoch = 0; epoch < 50; ++epoch) {
      PhiloxMixDraws draws(1, epoch);
      plan_mix(config, batch.inputs, draws, batch.plan);
      for (size_t i = 0; i < 3; ++i) {
        int64_t total = 0;
        const MixItem& item = batch.plan.items[i];
        for (int s = item.first_segment; s < item.first_segment + item.num_segments; ++s)
          total += batch.plan.segments[s].length;
        EXPECT_EQ(total, batch.inputs[i].audio_len);
      }
    }
  }
}

TEST(AugmentTest, NoiseNeedIsKnownBeforeReading) {
  AugmentConfig config = multi(0.5, 0.5);
  for (const AugmentKind kind : {AugmentKind::kMultiSpeakerNoise, AugmentKind::kSpeakerNoise}) {
    config.kind = kind;
    Batch batch = random_batch(std::vector<int64_t>(64, 200), 13);
    PhiloxMixDraws draws(5, 3);
    plan_mix(config, batch.inputs, draws, batch.plan);
    int needed = 0;
    for (size_t i = 0; i < 64; ++i) {
      const MixItem& item = batch.plan.items[i];
      int64_t used = 0;  // how far into the noise segments reach
      for (int s = item.first_segment; s < item.first_segment + item.num_segments; ++s) {
        const MixSegment& segment = batch.plan.segments[s];
        if (segment.source == MixSource::kNoise)
          used = std::max(used, segment.source_begin + segment.length);
      }
      const MixNeeds needs = mix_needs(config, draws, 64, batch.inputs[i]);
      EXPECT_EQ(needs.mixed, item.num_segments > 0) << i;
      EXPECT_EQ(needs.noise_samples > 0, used > 0) << i;
      EXPECT_GE(needs.noise_samples, used) << i;
      if (kind == AugmentKind::kMultiSpeakerNoise) {
        EXPECT_EQ(needs.noise_samples, used) << i;
      }
      needed += used > 0;
    }
    EXPECT_GT(needed, 5);
    EXPECT_LT(needed, 30);
  }
}

TEST(AugmentTest, ItemsDoNotDependOnTheirNeighboursDraws) {
  // The plan of one item is the same in whatever row and batch it sits, as long as no other item's
  // length enters (noise mode).
  AugmentConfig config = multi(1.0, 1.0);
  Batch a = random_batch({500, 400, 300}, 12);
  Batch b = random_batch({300, 500}, 12);
  a.inputs[2].position = 77;
  b.inputs[0].position = 77;
  PhiloxMixDraws draws(1, 4);
  plan_mix(config, a.inputs, draws, a.plan);
  plan_mix(config, b.inputs, draws, b.plan);
  ASSERT_EQ(a.plan.items[2].num_segments, b.plan.items[0].num_segments);
  EXPECT_EQ(a.plan.items[2].ratio_db, b.plan.items[0].ratio_db);
  for (int s = 0; s < a.plan.items[2].num_segments; ++s) {
    const MixSegment& x = a.plan.segments[a.plan.items[2].first_segment + s];
    const MixSegment& y = b.plan.segments[b.plan.items[0].first_segment + s];
    EXPECT_EQ(x.dest_begin, y.dest_begin);
    EXPECT_EQ(x.length, y.length);
  }
}

TEST(AugmentTest, LengthsAreTruncatedInSinglePrecision) {
  EXPECT_EQ(scaled_length(240000, 0.5), 120000);
  // 0.7 in float is 0.699999988, the product rounds to 7.0 in float; in double it would be 6.
  EXPECT_EQ(scaled_length(10, 0.7), 7);
  EXPECT_EQ(scaled_length(10, 0.69999), 6);
  EXPECT_EQ(scaled_length(16777217, 1.0), 16777216);  // odd numbers beyond 2^24 are not floats
}

TEST(AugmentTest, BinsFollowTheMultinomial) {
  // Chi-square of the first ball's bin and of the counts' mean and variance.
  constexpr int kBins = 4;
  constexpr int kDraws = 4000;
  constexpr int64_t kTotal = 1000;
  double sum[kBins] = {}, square[kBins] = {};
  int sizes[kBins + 1] = {};
  std::vector<int64_t> counts;
  for (int i = 0; i < kDraws; ++i) {
    PhiloxMixDraws draws(17, 0);
    draws.begin_item(0, static_cast<uint64_t>(i));
    draws.partition(kTotal, kBins, counts);
    ASSERT_EQ(counts.size(), static_cast<size_t>(kBins));
    int64_t total = 0;
    for (int k = 0; k < kBins; ++k) {
      total += counts[k];
      sum[k] += static_cast<double>(counts[k]);
      square[k] += static_cast<double>(counts[k] * counts[k]);
    }
    ASSERT_EQ(total, kTotal);
    draws.partition(3, kBins, counts);  // few balls: some bins stay empty
    ++sizes[counts.size()];
  }
  // In the order of first hits the bins are exchangeable up to a tiny size bias.
  double all = 0, all_square = 0;
  for (int k = 0; k < kBins; ++k) {
    EXPECT_NEAR(sum[k] / kDraws, 250, 3.0);
    all += sum[k];
    all_square += square[k];
  }
  const double mean = all / (kBins * kDraws);
  const double variance = all_square / (kBins * kDraws) - mean * mean;
  EXPECT_NEAR(variance, 1000 * 0.25 * 0.75, 8.0);
  // Three balls in four bins: 1, 2, 3 different bins with probability 1/16, 9/16, 6/16.
  const double expected[] = {0, kDraws / 16.0, kDraws * 9 / 16.0, kDraws * 6 / 16.0};
  double chi2 = 0;
  for (int k = 1; k <= 3; ++k) chi2 += std::pow(sizes[k] - expected[k], 2) / expected[k];
  EXPECT_LT(chi2, 13.8);  // two degrees of freedom, p = 0.001
}

TEST(AugmentTest, FirstBinIsHitInProportionToItsCount) {
  // Two balls in two bins: counts (1,1) or (2). With three balls: (2,1) or (1,2) after the first
  // hit; the first ball is in the larger bin with probability 2/3.
  int larger_first = 0, split = 0;
  std::vector<int64_t> counts;
  for (int i = 0; i < 8000; ++i) {
    PhiloxMixDraws draws(18, 0);
    draws.begin_item(0, static_cast<uint64_t>(i));
    draws.partition(3, 2, counts);
    if (counts.size() < 2) continue;
    ++split;
    larger_first += counts[0] == 2;
  }
  EXPECT_NEAR(split / 8000.0, 0.75, 0.02);
  EXPECT_NEAR(static_cast<double>(larger_first) / split, 2.0 / 3.0, 0.025);
}

TEST(AugmentTest, BinomialHasItsDistribution) {
  struct Case {
    int64_t n;
    double p;
  };
  for (const Case c : {Case{20, 0.3}, Case{100, 0.4}, Case{200, 0.7}, Case{1000000, 0.5}}) {
    constexpr int kDraws = 20000;
    double sum = 0, square = 0, cube = 0;
    const double mean = static_cast<double>(c.n) * c.p;
    const double sigma = std::sqrt(mean * (1 - c.p));
    for (int i = 0; i < kDraws; ++i) {
      RandomStream random(19, Purpose::kTest, 0, static_cast<uint64_t>(i));
      const int64_t k = binomial(random, c.n, c.p);
      ASSERT_GE(k, 0);
      ASSERT_LE(k, c.n);
      const double z = (static_cast<double>(k) - mean) / sigma;
      sum += z;
      square += z * z;
      cube += z * z * z;
    }
    EXPECT_NEAR(sum / kDraws, 0, 0.035) << c.n;
    EXPECT_NEAR(square / kDraws, 1, 0.05) << c.n;
    EXPECT_NEAR(cube / kDraws, (1 - 2 * c.p) / sigma, 0.12) << c.n;
  }
}

TEST(AugmentTest, SpeakersAreChosenEvenly) {
  int hits[5] = {};
  std::vector<int32_t> chosen;
  for (int i = 0; i < 5000; ++i) {
    PhiloxMixDraws draws(20, 0);
    draws.begin_item(0, static_cast<uint64_t>(i));
    draws.choose(5, 3, chosen);
    ASSERT_EQ(chosen.size(), 3u);
    EXPECT_TRUE(chosen[0] != chosen[1] && chosen[1] != chosen[2] && chosen[0] != chosen[2]);
    for (const int32_t c : chosen) ++hits[c];
  }
  double chi2 = 0;
  for (const int hit : hits) chi2 += std::pow(hit - 3000.0, 2) / 1200.0;
  EXPECT_LT(chi2, 22);
}

TEST(AugmentTest, IntegerRowsMixLikeFloats) {
  AugmentConfig config = multi(1.0, 0.5);
  for (const AugmentKind kind : {AugmentKind::kMultiSpeakerNoise, AugmentKind::kSpeakerNoise}) {
    config.kind = kind;
    Batch batch = random_batch({3000, 2000, 1500, 2500}, 21, 0.6);
    std::vector<std::vector<int16_t>> audio, noise;
    const auto quantize = [](std::vector<float>& row) {
      std::vector<int16_t> out;
      for (float& sample : row) {
        out.push_back(static_cast<int16_t>(std::lround(sample * 32768.0f)));
        sample = static_cast<float>(out.back()) / 32768.0f;
      }
      return out;
    };
    for (auto& row : batch.audio) audio.push_back(quantize(row));
    for (auto& row : batch.noise) noise.push_back(quantize(row));
    PhiloxMixDraws draws(3, 0);
    plan_mix(config, batch.inputs, draws, batch.plan);
    resolve_gains(batch.rows(), batch.plan);
    std::vector<std::vector<float>> expected;
    for (size_t i = 0; i < 4; ++i) expected.push_back(batch.noisy_out(i));
    for (size_t i = 0; i < 4; ++i) {
      batch.audio_rows[i] = {nullptr, audio[i].data()};
      batch.noise_rows[i] = {nullptr, noise[i].data()};
    }
    resolve_gains(batch.rows(), batch.plan);
    for (size_t i = 0; i < 4; ++i) {
      const std::vector<float> got = batch.noisy_out(i);
      for (size_t k = 0; k < got.size(); ++k) ASSERT_NEAR(got[k], expected[i][k], 1e-6);
    }
  }
}

TEST(AugmentTest, RefusesImpossibleRanges) {
  AugmentConfig config = multi();
  config.prob = 1.5;
  EXPECT_FALSE(config.validate().ok());
  config = multi();
  config.noise_ratio = -0.1;
  EXPECT_FALSE(config.validate().ok());
  config = multi();
  config.min_r_speech = 6;
  EXPECT_NE(config.validate().to_string().find("min_r_speech"), std::string::npos);
  config = multi();
  config.max_mix_rate = 1.1;
  EXPECT_FALSE(config.validate().ok());
  config = multi();
  config.min_num_segments = 0;
  EXPECT_FALSE(config.validate().ok());
  config = multi();
  config.min_num_speakers = 9;
  EXPECT_FALSE(config.validate().ok());
  EXPECT_TRUE(multi().validate().ok());
}

}  // namespace
}  // namespace aerie::data::augment_test
