#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <set>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/logspace.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/philox.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/data/speech/synth/corpus.h"
#include "aerie/models/nest/probe/linear_probe.h"
#include "aerie/models/nest/probe/probe_data.h"
#include "aerie/models/nest/probe/run_probe.h"

namespace aerie::probe {
namespace {

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// Points around the corners of a simplex, `spread` wide, on axes of very different scales.
struct Blobs {
  at::Tensor x, y;
  Blobs(int64_t rows, int64_t classes, int64_t width, double spread, uint64_t position) {
    x = at::zeros({rows, width}, at::kFloat);
    y = at::zeros({rows}, at::kLong);
    RandomStream random(7, Purpose::kTest, 0, position);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t label = i % classes;
      y.data_ptr<int64_t>()[i] = label;
      for (int64_t d = 0; d < width; ++d) {
        const double value = (d == label ? 1.0 : 0.0) + spread * random.normal();
        x.data_ptr<float>()[i * width + d] =
            static_cast<float>(100.0 + std::pow(10.0, static_cast<double>(d % 5) - 2.0) * value);
      }
    }
  }
};

LinearProbe fit(const Blobs& blobs, int64_t classes, double l2 = 1e-4,
                const MinimizeOptions& options = {}) {
  return ProbeFitter::create(blobs.x, blobs.y, classes).value().fit(l2, options).value();
}

TEST(LinearProbeTest, SeparatesWhatIsSeparable) {
  const Blobs train(2000, 6, 12, 0.2, 0), test(1000, 6, 12, 0.2, 1);
  const LinearProbe probe = fit(train, 6);
  EXPECT_GT(probe.accuracy(train.x, train.y).value(), 0.95);
  EXPECT_GT(probe.accuracy(test.x, test.y).value(), 0.95);
}

TEST(LinearProbeTest, KnowsNothingWhereThereIsNothing) {
  Blobs train(2000, 4, 8, 0.2, 0);
  train.x.copy_(Blobs(2000, 1, 8, 1.0, 3).x);
  const at::Tensor labels = Blobs(2000, 4, 8, 1.0, 5).y;
  EXPECT_NEAR(fit(train, 4).accuracy(Blobs(2000, 1, 8, 1.0, 4).x, labels).value(), 0.25, 0.05);
}

TEST(LinearProbeTest, GivesTheSameBitsAgain) {
  const Blobs train(1500, 5, 20, 0.8, 0);
  const at::Tensor test = Blobs(500, 5, 20, 0.8, 1).x;
  const LinearProbe one = fit(train, 5);
  const LinearProbe two = fit(train, 5);
  EXPECT_EQ(one.loss(), two.loss());
  EXPECT_EQ(one.iterations(), two.iterations());
  EXPECT_TRUE(at::equal(one.predict(test), two.predict(test)));
}

TEST(LinearProbeTest, FindsTheMinimum) {
  // At the minimum fitting longer changes nothing, and neither does shifting and scaling the
  // features, which standardising takes away.
  Blobs train(600, 3, 5, 1.0, 0);
  MinimizeOptions longer;
  longer.max_iterations = 500;
  longer.gradient_tolerance = longer.change_tolerance = 0.0;
  const double exact = fit(train, 3, 1e-2, longer).loss();
  const LinearProbe quick = fit(train, 3, 1e-2);
  EXPECT_NEAR(quick.loss(), exact, 1e-4);
  EXPECT_LT(quick.iterations(), 30);
  train.x.mul_(3.0).sub_(50.0);
  EXPECT_NEAR(fit(train, 3, 1e-2, longer).loss(), exact, 1e-4);
  EXPECT_GT(fit(train, 3, 1.0).loss(), exact + 0.01);
}

TEST(LinearProbeTest, RegularisesAsMuchAsTheDevelopmentPartWants) {
  // Hardly more rows than features: little regularisation learns the noise.
  const Blobs train(150, 3, 60, 0.7, 0), dev(900, 3, 60, 0.7, 1), test(900, 3, 60, 0.7, 2);
  ProbeFitter fitter = ProbeFitter::create(train.x, train.y, 3).value();
  const LinearProbe chosen = fitter.fit_and_choose({1e-5, 0.1, 1e-3}, dev.x, dev.y).value();
  EXPECT_EQ(chosen.l2(), 0.1);
  EXPECT_GT(chosen.accuracy(test.x, test.y).value(),
            fit(train, 3, 1e-5).accuracy(test.x, test.y).value() + 0.02);
}

TEST(LinearProbeTest, TakesOddInput) {
  Blobs train(40, 2, 3, 0.1, 0);
  train.x = at::cat({train.x, at::full({40, 1}, 5.0)}, 1);  // a column that says nothing
  const LinearProbe probe = fit(train, 2);
  EXPECT_GT(probe.accuracy(train.x, train.y).value(), 0.95);
  // A class that no probe knows is never right; no rows give no number.
  EXPECT_EQ(probe.accuracy(train.x, at::full({40}, 2, at::kLong)).value(), 0.0);
  EXPECT_TRUE(std::isnan(probe.accuracy(train.x.narrow(0, 0, 0), train.y.narrow(0, 0, 0)).value()));
  train.x.data_ptr<float>()[0] = NAN;
  EXPECT_FALSE(ProbeFitter::create(train.x, train.y, 2).ok());
}

TEST(MinimizeTest, SolvesABadlyScaledQuadratic) {
  const at::Tensor scale = at::logspace(-2, 2, 10, 10.0, at::kFloat);
  const auto function = [&](const at::Tensor& x, at::Tensor& gradient) {
    gradient.copy_(scale * (x - 1.0));
    return 0.5 * at::dot(scale, (x - 1.0).square()).item<double>();
  };
  MinimizeOptions options;
  options.max_iterations = 500;
  options.change_tolerance = 0.0;
  const Minimum plain = minimize(function, {}, at::zeros({10}), options);
  EXPECT_LT((plain.x - 1.0).abs().max().item<double>(), 1e-2);
  EXPECT_LT(plain.value, 1e-6);
  // The right preconditioner, up to a factor, makes it easy.
  const auto precondition = [&](const at::Tensor& v) { return v / scale * 0.1; };
  const Minimum quick = minimize(function, precondition, at::zeros({10}), options);
  EXPECT_LT(quick.value, 1e-6);
  EXPECT_LT(quick.iterations, 5);
}

TEST(ProbeDataTest, FramesAreLabelledAtTheirCentre) {
  EXPECT_EQ(num_centred_frames(0, 1280), 0);
  EXPECT_EQ(num_centred_frames(640, 1280), 0);  // the centre is not inside
  EXPECT_EQ(num_centred_frames(641, 1280), 1);
  EXPECT_EQ(num_centred_frames(1920, 1280), 1);
  EXPECT_EQ(num_centred_frames(1921, 1280), 2);
  EXPECT_EQ(num_centred_frames(16000, 1280), 12);

  Utterance utterance;
  utterance.samples.resize(16000);  // centres at 0.04, 0.12, 0.20, ... 0.92
  ASSERT_TRUE(parse_labels(R"({"speaker": 7, "phonemes": [["a", 0.0, 0.12], ["b", 0.12, 0.2],
      ["c", 0.25, 0.3], ["z", 0.3, 0.37]]})",
                           utterance)
                  .ok());
  EXPECT_EQ(utterance.speaker, "7");
  const LabelSet set({"c", "a", "b", "a"});
  EXPECT_EQ(set.size(), 3);
  EXPECT_EQ(frame_labels(utterance, set, 1280, 16000),
            (std::vector<int64_t>{0, 1, -1, 2, 3, -1, -1, -1, -1, -1, -1, -1}));
}

TEST(ProbeDataTest, RefusesMalformedLabels) {
  Utterance out;
  EXPECT_TRUE(parse_labels(R"({"audio_filepath": "x"})", out).ok());
  EXPECT_TRUE(parse_labels(R"({"phonemes": null, "speaker": null})", out).ok());
  for (const char* bad : {"[]", "x", R"({"phonemes": "a"})", R"({"phonemes": [["a", 0]]})",
                          R"({"phonemes": [["a", "0", 1]]})", R"({"phonemes": [[1, 0, 1]]})",
                          R"({"phonemes": [["a", 1, 0]]})",
                          R"({"phonemes": [["a", 0, 1], ["b", 0.5, 2]]})", R"({"speaker": [1]})"})
    EXPECT_EQ(parse_labels(bad, out).code(), StatusCode::kDataError) << bad;
}

TEST(ProbeDataTest, LinesAreDrawnWithoutOverlap) {
  const auto fit = choose_lines(100, 0, 40, 5, 0);
  const auto rest = choose_lines(100, 40, 30, 5, 0);
  std::set<uint64_t> all(fit.begin(), fit.end());
  all.insert(rest.begin(), rest.end());
  EXPECT_EQ(all.size(), 70u);
  EXPECT_LT(*all.rbegin(), 100u);
  EXPECT_EQ(choose_lines(100, 0, 40, 5, 0), fit);
  EXPECT_NE(choose_lines(100, 0, 40, 6, 0), fit);
  EXPECT_NE(choose_lines(100, 0, 40, 5, 1), fit);
  EXPECT_EQ(choose_lines(10, 0, 400, 5, 0).size(), 10u);
  EXPECT_TRUE(choose_lines(10, 10, 5, 5, 0).empty());
  // Every line has its turn, whatever its remainder.
  std::vector<int> counts(24);
  for (const uint64_t line : choose_lines(2400, 0, 400, 1, 0)) ++counts[line % 24];
  for (const int count : counts) EXPECT_GT(count, 3);
}

TEST(ProbeDataTest, NoiseHasTheWantedLevel) {
  RandomStream random(1, Purpose::kTest, 0, 0);
  std::vector<float> speech(8000), noise(8000);
  for (float& x : speech) x = 0.1f * random.normal();
  for (float& x : noise) x = random.normal();
  const std::vector<float> before = speech;
  add_noise(speech, noise, 7.0);
  double signal = 0.0, added = 0.0;
  for (size_t i = 0; i < speech.size(); ++i) {
    signal += std::pow(before[i], 2);
    added += std::pow(speech[i] - before[i], 2);
  }
  EXPECT_NEAR(10.0 * std::log10(signal / added), 7.0, 1e-3);
  std::vector<float> silent(10, 0.0f);
  add_noise(silent, noise, 7.0);
  EXPECT_EQ(silent, std::vector<float>(10, 0.0f));
}

// A small corpus and a small model that NeMo initialised: the whole command in a few seconds.
class RunProbeTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TempDir>();
    data::synth::CorpusOptions options;
    options.out = folder_->file("corpus");
    options.hours = 0.06;
    options.num_speakers = 5;
    options.min_duration_s = 1.0;
    options.max_duration_s = 3.0;
    options.dev_share = 0.2;
    options.test_share = 0.2;
    options.noise_hours = 0.03;
    const auto report = data::synth::write_corpus(options);
    ASSERT_TRUE(report.ok()) << report.status().to_string();
  }
  static void TearDownTestSuite() { folder_.reset(); }

  static std::string manifest(const std::string& name) {
    return folder_->file("corpus/" + name + ".json");
  }
  static ProbeOptions options() {
    ProbeOptions out;
    out.model = test_data("/golden/plain/init.nemo");
    out.train = manifest("train");
    out.dev = manifest("dev");
    out.test = manifest("test");
    out.noise = manifest("noise");
    out.noise_test = manifest("noise_test");
    out.train_utterances = 40;
    out.dev_utterances = 12;
    out.test_utterances = 12;
    out.speaker_utterances = 10;
    out.max_iterations = 40;
    out.device = "cpu";
    return out;
  }
  static nlohmann::json json_of(const ProbeOptions& options) {
    auto report = run_probe(options);
    EXPECT_TRUE(report.ok()) << report.status().to_string();
    if (!report.ok()) return {};
    report->elapsed_s = 0.0;
    return nlohmann::json::parse(report_json(*report));
  }

  static std::unique_ptr<TempDir> folder_;
};
std::unique_ptr<TempDir> RunProbeTest::folder_;

TEST_F(RunProbeTest, MeasuresEveryLayerAndTheBaselines) {
  const auto result = run_probe(options());
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  const ProbeReport& report = *result;
  ASSERT_EQ(report.tasks.size(), 2u);
  EXPECT_NEAR(report.frame_s, 0.08, 1e-12);
  const TaskReport& phoneme = report.tasks[0];
  EXPECT_TRUE(phoneme.skipped.empty()) << phoneme.skipped;
  EXPECT_EQ(phoneme.num_unseen_speakers, 1);
  EXPECT_GT(phoneme.num_train, 800);
  ASSERT_EQ(phoneme.sources.size(), 4u);
  for (const char* name : {"trained", "random"}) {
    const SourceScore& source = *phoneme.find(name);
    EXPECT_EQ(source.dev.size(), static_cast<size_t>(report.num_layers));
    EXPECT_EQ(source.best_dev(), *std::max_element(source.dev.begin(), source.dev.end()));
    EXPECT_GT(source.best_test(), phoneme.largest_class);
  }
  // Noise is loud and the training part tiny, yet the spectrum says far more than energy does.
  EXPECT_GT(phoneme.find("log_mel")->best_test(), phoneme.find("energy")->best_test() + 0.1);
  EXPECT_GT(phoneme.find("energy")->best_test(), 0.05);
  const TaskReport& speaker = report.tasks[1];
  EXPECT_TRUE(speaker.skipped.empty()) << speaker.skipped;
  EXPECT_EQ(speaker.num_classes, 4);
  EXPECT_EQ(speaker.num_test, 10);
  EXPECT_GT(speaker.find("log_mel")->best_test(), 0.3);

  const std::string text = report_text(report);
  for (const char* part : {"trained model", "random weights", "8 log-mel frames", "frame energy",
                           "largest class", "1 of 1 test voices unseen", "noise at 0 to 15 dB"})
    EXPECT_HAS(text, part);
}

TEST_F(RunProbeTest, IsDeterministicAndFollowsTheSeed) {
  ProbeOptions o = options();
  o.random_weights = false;
  const nlohmann::json first = json_of(o);
  EXPECT_EQ(json_of(o), first);
  o.seed = 77;
  EXPECT_NE(json_of(o)["tasks"]["phoneme"]["train"], first["tasks"]["phoneme"]["train"]);
}

TEST_F(RunProbeTest, LeavesOutWhatHasNoLabels) {
  const auto strip = [&](const std::string& name, const std::string& key) {
    std::string out;
    for (const std::string& line : split(Env::real().read_file(manifest(name)).value(), '\n')) {
      if (line.empty()) continue;
      auto json = nlohmann::json::parse(line);
      json.erase(key);
      out += json.dump() + "\n";
    }
    const std::string path = folder_->file("corpus/" + name + "_without_" + key + ".json");
    EXPECT_TRUE(Env::real().write_file(path, out).ok());
    return path;
  };
  ProbeOptions o = options();
  o.random_weights = o.log_mel = false;
  o.noise.clear();
  o.noise_test.clear();
  o.train = strip("train", "phonemes");
  const nlohmann::json speaker_only = json_of(o);
  EXPECT_TRUE(speaker_only["tasks"]["phoneme"].contains("skipped"));
  EXPECT_TRUE(speaker_only["tasks"]["speaker"].contains("features"));
  EXPECT_TRUE(speaker_only["snr_db"].is_null());
  o.train = strip("train", "speaker");
  const nlohmann::json phoneme_only = json_of(o);
  EXPECT_TRUE(phoneme_only["tasks"]["speaker"].contains("skipped"));
  EXPECT_TRUE(phoneme_only["tasks"]["phoneme"].contains("features"));
  o.train = manifest("noise");  // neither
  const auto neither = run_probe(o);
  ASSERT_FALSE(neither.ok());
  EXPECT_EQ(neither.status().code(), StatusCode::kDataError);
  EXPECT_HAS(neither.status().to_string(), "nothing to probe");
}

// A field of the manifests that aerie knows nothing of.
TEST_F(RunProbeTest, ProbesAnyLabelOfTheManifests) {
  const auto with_label = [&](const std::string& name) {
    std::string out;
    int64_t line_number = 0;
    for (const std::string& line : split(Env::real().read_file(manifest(name)).value(), '\n')) {
      if (line.empty()) continue;
      auto json = nlohmann::json::parse(line);
      json["long"] = json["duration"].get<double>() > 2.0;
      json["number"] = line_number++;
      out += json.dump() + "\n";
    }
    const std::string path = folder_->file("corpus/" + name + "_labelled.json");
    EXPECT_TRUE(Env::real().write_file(path, out).ok());
    return path;
  };
  ProbeOptions o = options();
  o.random_weights = false;
  o.train = with_label("train");
  o.dev = with_label("dev");
  o.test = with_label("test");
  o.labels = {"long", "speaker", "number", "absent"};
  const auto result = run_probe(o);
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  ASSERT_EQ(result->tasks.size(), 5u);
  const TaskReport& label = result->tasks[1];
  EXPECT_EQ(label.name, "long");
  EXPECT_TRUE(label.skipped.empty()) << label.skipped;
  EXPECT_EQ(label.num_classes, 2);
  EXPECT_TRUE(label.on_test_part);
  EXPECT_EQ(label.num_test, result->num_test);
  EXPECT_EQ(label.num_unseen_speakers, 1);
  EXPECT_FALSE(label.comparable("log_mel"));
  EXPECT_FALSE(result->tasks[2].on_test_part) << "voices of the test part have no name to tell";
  EXPECT_HAS(result->tasks[3].skipped, "too few of each");
  EXPECT_HAS(result->tasks[4].skipped, "`absent`");
  EXPECT_HAS(report_text(*result), "long of an utterance (mean over its frames), 2 classes");
  EXPECT_EQ(nlohmann::json::parse(report_json(*result))["tasks"]["long"]["tested_on"], "test");

  // The speaker row does not depend on what else is asked for.
  o.labels = {"speaker"};
  const auto alone = run_probe(o);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(alone->tasks[1].find("trained")->test, result->tasks[2].find("trained")->test);
}

TEST_F(RunProbeTest, NamesWhatIsWrong) {
  const auto error = [&](const std::function<void(ProbeOptions&)>& change) {
    ProbeOptions o = options();
    change(o);
    const auto report = run_probe(o);
    EXPECT_FALSE(report.ok());
    return str_cat(status_code_name(report.status().code()), ": ", report.status().to_string());
  };
  EXPECT_HAS(error([](auto& o) { o.train = "nowhere.json"; }), "invalid argument: --train");
  EXPECT_HAS(error([](auto& o) { o.noise = "nowhere.json"; }), "invalid argument: --noise");
  EXPECT_HAS(error([](auto& o) { o.model = "nowhere"; }), "invalid argument: there is no");
  EXPECT_HAS(error([](auto& o) { o.dev_utterances = 0; }), "--dev-utterances 0");
  EXPECT_HAS(error([](auto& o) { o.min_snr_db = 20.0; }), "--snr-min 20");
  EXPECT_HAS(error([](auto& o) { o.noise.clear(); }), "--noise-test without --noise");
  EXPECT_HAS(error([](auto& o) { o.labels = {"phonemes"}; }), "--label 'phonemes'");
  EXPECT_HAS(error([](auto& o) { o.labels = {"a", "a"}; }), "each once");
}

}  // namespace
}  // namespace aerie::probe
