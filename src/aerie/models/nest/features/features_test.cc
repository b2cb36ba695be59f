// Names, inputs and whole extractions, against features that NeMo computed.
#include <cmath>
#include <functional>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/archive/npy.h"
#include "aerie/audio/audio_writer.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/checkpoint/tensor_io.h"
#include "aerie/models/nest/features/extract.h"
#include "aerie/models/nest/features/input_list.h"

namespace aerie::features {
namespace {

using Json = nlohmann::json;

const std::string kFolder = test_data("/golden/plain");

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(FeatureNameTest, IsThePathWithUnderscores) {
  EXPECT_EQ(feature_stem("/data/a.b/clip.wav"), "_data_a_b_clip_wav");
  EXPECT_EQ(feature_stem("clip.flac"), "clip_flac");
  const std::string stem = feature_stem(std::string(300, 'x') + "/end.wav");
  EXPECT_EQ(stem.size(), 251u);  // with ".npy" what a file system takes
  EXPECT_TRUE(ends_with(stem, "xx_end_wav"));
  // 3 bytes per character: a whole number of them stays.
  std::string euros;
  for (int i = 0; i < 100; ++i) euros += "\xE2\x82\xAC";
  EXPECT_EQ(feature_stem(euros).size(), 249u);
}

TEST(FeatureNameTest, DiffersForDifferentPaths) {
  const std::vector<Recording> recordings{{{"a/b.wav"}, false, "", ""},
                                          {{"a_b.wav"}, false, "", ""},
                                          {{"a/b.wav"}, false, "", ""},
                                          {{"a.b.wav"}, false, "", ""}};
  const std::vector<std::string> stems = feature_stems(recordings);
  EXPECT_EQ(stems, (std::vector<std::string>{"a_b_wav", "a_b_wav-2", "a_b_wav", "a_b_wav-3"}));
}

TEST(LayersTest, AreAllLastOrNumbers) {
  EXPECT_EQ(parse_layers("all", 3).value(), (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(parse_layers("last", 3).value(), (std::vector<int64_t>{2}));
  EXPECT_EQ(parse_layers("2, 0,-1", 3).value(), (std::vector<int64_t>{2, 0, 2}));
  for (const char* bad : {"3", "-4", "first", "0,", "", "1.5"}) {
    const Status status = parse_layers(bad, 3).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << bad;
    EXPECT_HAS(status.to_string(), "0 to 2");
  }
}

class ExtractTest : public ::testing::Test {
 protected:
  ExtractOptions golden() const {
    ExtractOptions options;
    options.model_path = kFolder + "/init.nemo";
    options.input = kFolder + "/val.json";
    options.output = temp_.file("out");
    options.device = "cpu";
    options.workers = 2;
    return options;
  }

  // feature_path by the base name of the recording.
  std::vector<Json> lines(const ExtractReport& report) {
    folder_ = parent_path(report.manifest);
    std::vector<Json> out;
    for (const std::string& line : split(env_.read_file(report.manifest).value(), '\n'))
      if (!line.empty()) out.push_back(Json::parse(line));
    return out;
  }

  at::Tensor load(const std::string& path) {
    EXPECT_FALSE(is_absolute_path(path)) << path;
    const archive::TensorArchive file = archive::read_npy(env_, join_path(folder_, path)).value();
    EXPECT_EQ(file.tensors().at(0).dtype, Dtype::kF32);
    return ckpt::read_tensor(file, "array").value();
  }

  void write_clip(const std::string& path, size_t samples) {
    std::vector<float> x(samples);
    for (size_t i = 0; i < samples; ++i)
      x[i] = 0.2f * static_cast<float>(std::sin(0.05 * static_cast<double>(i)));
    audio::AudioView view;
    view.samples = x.data();
    view.frames = static_cast<int64_t>(samples);
    view.sample_rate = 16000;
    std::vector<uint8_t> bytes;
    ASSERT_TRUE(audio::encode_audio(view, {}, &bytes).ok());
    ASSERT_TRUE(
        env_.write_file(path, {reinterpret_cast<const char*>(bytes.data()), bytes.size()}).ok());
  }

  Env& env_ = Env::real();
  TempDir temp_;
  std::string folder_;  // of the manifest read last
};

TEST_F(ExtractTest, EqualsWhatNemoComputed) {
  const archive::TensorArchive want =
      archive::read_npz(env_, kFolder + "/features_init.npz").value();
  for (const int64_t batch_size : {1, 3}) {
    ExtractOptions options = golden();
    options.batch_size = batch_size;
    options.output = temp_.file(str_cat("out", batch_size));
    const ExtractReport report = extract_features(options).value();
    EXPECT_TRUE(report.bad.empty());
    const std::vector<Json> found = lines(report);
    ASSERT_EQ(found.size(), 4u);
    EXPECT_EQ(report.num_files, 4u);
    for (int i = 0; i < 3; ++i) {
      const Json& line = found[static_cast<size_t>(i)];
      const std::string audio = line.at("audio_filepath");
      EXPECT_TRUE(is_absolute_path(audio));
      EXPECT_EQ(line.at("duration"), 1.59);
      EXPECT_EQ(line.at("text"), "-");
      const std::string path = line.at("feature_path");
      EXPECT_EQ(path, feature_stem(audio) + ".npy");
      const at::Tensor got = load(path);
      EXPECT_EQ(got.size(0), report.num_layers);
      EXPECT_EQ(got.size(1), report.width);
      const at::Tensor expected = ckpt::read_tensor(want, str_cat("enc", i)).value();  // (T',d)
      const at::Tensor last = got[got.size(0) - 1].t();
      ASSERT_LE(last.size(0), expected.size(0));
      EXPECT_LE((last - expected.narrow(0, 0, last.size(0))).abs().max().item<float>(), 1e-4f);
      EXPECT_GE(last.size(0), 19);  // 159 mel frames
    }
  }
}

TEST_F(ExtractTest, ChoosesLayers) {
  ExtractOptions options = golden();
  options.layers = "-1,0";
  options.include_final_output = true;
  const ExtractReport report = extract_features(options).value();
  const at::Tensor chosen = load(lines(report)[0].at("feature_path"));
  EXPECT_EQ(report.num_layers, 3);
  EXPECT_TRUE(at::equal(chosen[0], chosen[2]));  // the last layer is the encoder's output
  options.output = temp_.file("all");
  options.layers = "all";
  options.include_final_output = false;
  const at::Tensor all = load(lines(extract_features(options).value())[0].at("feature_path"));
  EXPECT_TRUE(at::equal(all[0], chosen[1]));
  EXPECT_TRUE(at::equal(all[all.size(0) - 1], chosen[0]));
}

TEST_F(ExtractTest, MixedPrecisionIsNear) {
  ExtractOptions options = golden();
  options.layers = "last";
  const at::Tensor exact = load(lines(extract_features(options).value())[0].at("feature_path"));
  options.output = temp_.file("amp");
  options.use_amp = true;
  options.amp_dtype = "bfloat16";
  const at::Tensor mixed = load(lines(extract_features(options).value())[0].at("feature_path"));
  const float difference = (exact - mixed).abs().max().item<float>();
  EXPECT_GT(difference, 0.0f);
  EXPECT_LT(difference, 0.2f);
}

TEST_F(ExtractTest, FoldersAndFiles) {
  const std::string folder = temp_.file("clips");
  ASSERT_TRUE(env_.create_dirs(folder + "/below").ok());
  write_clip(folder + "/b.wav", 8000);
  write_clip(folder + "/below/a.wav", 20000);
  write_clip(folder + "/c.wave", 8000);
  ExtractOptions options = golden();
  options.input = folder;
  const ExtractReport report = extract_features(options).value();
  const std::vector<Json> found = lines(report);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].at("audio_filepath"), folder + "/b.wav");
  EXPECT_EQ(found[1].at("audio_filepath"), folder + "/below/a.wav");
  EXPECT_TRUE(found[0].at("duration").is_null());
  EXPECT_EQ(load(found[0].at("feature_path")).size(2), 7);   // 50 frames
  EXPECT_EQ(load(found[1].at("feature_path")).size(2), 16);  // 125 frames

  options.input = folder + "/c.wave";
  options.output = temp_.file("single");
  EXPECT_EQ(lines(extract_features(options).value()).at(0).at("audio_filepath"),
            folder + "/c.wave");
  options.input = folder;
  options.type = ".ogg, mp3";
  const Status none = extract_features(options).status();
  EXPECT_EQ(none.code(), StatusCode::kDataError);
  EXPECT_HAS(none.to_string(), "*.ogg or *.mp3");
}

TEST_F(ExtractTest, BadRecordingsAreLeftOutAndNamed) {
  const std::string good = temp_.file("good.wav");
  write_clip(good, 16000);
  write_clip(temp_.file("empty.wav"), 0);
  ASSERT_TRUE(env_.write_file(temp_.file("torn.wav"), "RIFF").ok());
  const std::string manifest = temp_.file("in.json");
  ASSERT_TRUE(env_.write_file(manifest, R"({"audio_filepath": "torn.wav", "duration": 1.0}
{"audio_filepath": "good.wav", "duration": 0.25, "offset": 0.5, "speaker": "x", "n": [1, 2]}
{"audio_filepath": "missing.wav", "duration": 1.0}

{"audio_filepath": "empty.wav"}
{"audio_filepath": "good.wav", "text": "again"}
)")
                  .ok());
  ExtractOptions options = golden();
  options.input = manifest;
  options.batch_size = 2;
  const ExtractReport report = extract_features(options).value();
  EXPECT_EQ(report.num_recordings, 5u);
  EXPECT_EQ(report.num_files, 1u);
  ASSERT_EQ(report.bad.size(), 3u);
  EXPECT_HAS(report.bad[0].place, "in.json:1");
  EXPECT_HAS(report.bad[1].place, "in.json:3");
  EXPECT_HAS(report.bad[2].place, "in.json:5");
  EXPECT_HAS(report.bad[1].status.to_string(), "missing.wav");
  const std::vector<Json> found = lines(report);
  ASSERT_EQ(found.size(), 2u);
  // All fields of the line are carried; the whole file was read.
  EXPECT_EQ(found[0].at("speaker"), "x");
  EXPECT_EQ(found[0].at("n"), Json({1, 2}));
  EXPECT_EQ(found[0].at("audio_filepath"), good);
  EXPECT_EQ(found[1].at("text"), "again");
  EXPECT_EQ(found[0].at("feature_path"), found[1].at("feature_path"));
  EXPECT_EQ(load(found[0].at("feature_path")).size(2), 13);
  EXPECT_NEAR(report.audio_s, 1.0, 1e-9);
}

TEST_F(ExtractTest, RefusesWrongArguments) {
  const auto error = [&](const std::function<void(ExtractOptions&)>& change) {
    ExtractOptions options = golden();
    change(options);
    const auto report = extract_features(options);
    EXPECT_FALSE(report.ok());
    EXPECT_EQ(report.status().code(), StatusCode::kInvalidArgument) << report.status().to_string();
    return report.status().to_string();
  };
  EXPECT_HAS(error([](auto& o) { o.input = "nowhere.json"; }), "nowhere.json");
  EXPECT_HAS(error([](auto& o) { o.model_path = "nowhere.nemo"; }), "nowhere.nemo");
  EXPECT_HAS(error([](auto& o) { o.layers = "17"; }), "no layer 17");
  EXPECT_HAS(error([](auto& o) { o.device = "tpu"; }), "tpu");
  EXPECT_HAS(error([](auto& o) { o.amp_dtype = "int8"; }), "int8");
  EXPECT_HAS(error([](auto& o) { o.batch_size = 0; }), "--batch_size 0");
  EXPECT_HAS(error([](auto& o) { o.workers = -1; }), "--workers -1");
  EXPECT_HAS(error([](auto& o) { o.channel_selector = "left"; }), "left");
}

}  // namespace
}  // namespace aerie::features
