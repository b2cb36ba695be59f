#include "aerie/data/speech/perturb.h"

#include <cmath>
#include <deque>
#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/testing/paths.h"

namespace aerie::data {
namespace {

using nlohmann::json;

class ReplayedDraws final : public PerturbDraws {
 public:
  ReplayedDraws(const json& draws, const json& normals) : normals_(normals.begin(), normals.end()) {
    for (const json& draw : draws) queues_[draw[0].get<std::string>()].push_back(draw[1]);
  }
  double uniform(PerturbDraw what, double, double) override { return take(what); }
  int64_t below(PerturbDraw what, int64_t n) override {
    const int64_t value = static_cast<int64_t>(take(what));
    EXPECT_LT(value, n);
    return value;
  }
  float normal() override {
    const float value = normals_.front();
    normals_.pop_front();
    return value;
  }

 private:
  double take(PerturbDraw what) {
    static const char* const kNames[] = {"apply", "speed_rate", "gain", "shift", "noise_level"};
    auto& queue = queues_[kNames[static_cast<int>(what)]];
    EXPECT_FALSE(queue.empty()) << kNames[static_cast<int>(what)];
    if (queue.empty()) return 0;
    const double value = queue.front();
    queue.pop_front();
    return value;
  }
  std::map<std::string, std::deque<double>> queues_;
  std::deque<float> normals_;
};

config::PerturbationConfig perturbation_from(const std::string& name, const json& j) {
  config::PerturbationConfig out;
  out.name = name;
  out.prob = j.value("prob", 0.0);
  if (name == "speed") {
    config::SpeedPerturbation p;
    p.sr = j.value("sr", p.sr);
    p.resample_type = j.value("resample_type", p.resample_type);
    p.min_speed_rate = j.value("min_speed_rate", p.min_speed_rate);
    p.max_speed_rate = j.value("max_speed_rate", p.max_speed_rate);
    p.num_rates = j.value("num_rates", p.num_rates);
    out.params = p;
  } else if (name == "gain") {
    config::GainPerturbation p;
    p.min_gain_dbfs = j.value("min_gain_dbfs", p.min_gain_dbfs);
    p.max_gain_dbfs = j.value("max_gain_dbfs", p.max_gain_dbfs);
    out.params = p;
  } else if (name == "shift") {
    config::ShiftPerturbation p;
    p.min_shift_ms = j.value("min_shift_ms", p.min_shift_ms);
    p.max_shift_ms = j.value("max_shift_ms", p.max_shift_ms);
    out.params = p;
  } else {
    config::WhiteNoisePerturbation p;
    p.min_level = j.value("min_level", p.min_level);
    p.max_level = j.value("max_level", p.max_level);
    out.params = p;
  }
  return out;
}

TEST(PerturbTest, RepeatsWhatNemoDid) {
  std::ifstream file(test_data("/engine/perturb.json"));
  // Order of the perturbations is the order of the keys.
  const auto fixture = nlohmann::ordered_json::parse(file);
  ASSERT_GE(fixture["cases"].size(), 15u);
  for (const auto& c : fixture["cases"]) {
    SCOPED_TRACE(c["name"].get<std::string>());
    std::vector<config::PerturbationConfig> list;
    for (const auto& [name, params] : c["config"].items())
      list.push_back(perturbation_from(name, json(params)));
    Result<Perturber> perturber = Perturber::make(list, c["sample_rate"].get<int>());
    ASSERT_TRUE(perturber.ok()) << perturber.status().to_string();
    std::vector<float> samples = c["samples"].get<std::vector<float>>();
    const json recorded(c["draws"]), normals(c["normals"]);
    ReplayedDraws draws(recorded, normals);
    perturber->apply(samples, draws);
    const std::vector<float> expected = c["out"].get<std::vector<float>>();
    ASSERT_EQ(samples.size(), expected.size());
    for (size_t i = 0; i < samples.size(); ++i) ASSERT_NEAR(samples[i], expected[i], 1e-6) << i;
  }
}

TEST(PerturbTest, ShiftKeepsTheLengthAndFillsWithZeros) {
  std::vector<float> x{1, 2, 3, 4, 5};
  shift_samples(x.data(), 5, 2);
  EXPECT_EQ(x, (std::vector<float>{3, 4, 5, 0, 0}));
  x = {1, 2, 3, 4, 5};
  shift_samples(x.data(), 5, -3);
  EXPECT_EQ(x, (std::vector<float>{0, 0, 0, 1, 2}));
  shift_samples(x.data(), 5, 0);
  EXPECT_EQ(x, (std::vector<float>{0, 0, 0, 1, 2}));
  shift_samples(x.data(), 5, 9);
  EXPECT_EQ(x, (std::vector<float>{0, 0, 0, 0, 0}));
}

TEST(PerturbTest, RefusesWhatItCannotDo) {
  config::PerturbationConfig gain = perturbation_from("gain", json{{"prob", 1.5}});
  EXPECT_FALSE(Perturber::make({gain}, 16000).ok());
  config::PerturbationConfig fft =
      perturbation_from("speed", json{{"prob", 1.0}, {"resample_type", "fft"}});
  const Status status = Perturber::make({fft}, 16000).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.to_string().find("kaiser_best"), std::string::npos);
  config::PerturbationConfig backwards =
      perturbation_from("speed", json{{"prob", 1.0}, {"min_speed_rate", -0.5}});
  EXPECT_FALSE(Perturber::make({backwards}, 16000).ok());
  config::PerturbationConfig levels =
      perturbation_from("white_noise", json{{"prob", 1.0}, {"min_level", -40}, {"max_level", -40}});
  EXPECT_FALSE(Perturber::make({levels}, 16000).ok());
}

TEST(PerturbTest, DrawsDependOnThePositionOnly) {
  std::vector<config::PerturbationConfig> list{
      perturbation_from("gain", json{{"prob", 0.5}}),
      perturbation_from("white_noise", json{{"prob", 0.5}}),
      perturbation_from("speed", json{{"prob", 0.5}})};
  Perturber first = *Perturber::make(list, 16000);
  Perturber second = *Perturber::make(list, 16000);
  std::vector<std::vector<float>> results;
  for (uint64_t position = 0; position < 20; ++position) {
    std::vector<float> x(300, 0.5f);
    PhiloxPerturbDraws draws(1, 2, position);
    first.apply(x, draws);
    results.push_back(x);
  }
  for (uint64_t position = 20; position-- > 0;) {
    std::vector<float> x(300, 0.5f);
    PhiloxPerturbDraws draws(1, 2, position);
    second.apply(x, draws);
    EXPECT_EQ(x, results[position]);
    EXPECT_LE(static_cast<double>(x.size()), 300 * second.max_length_factor() + 1);
  }
}

}  // namespace
}  // namespace aerie::data
