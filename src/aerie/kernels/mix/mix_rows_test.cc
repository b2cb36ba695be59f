#include "aerie/kernels/mix/mix_rows.h"

#include <cmath>
#include <cstring>

#include <gtest/gtest.h>

#include "aerie/data/loader.h"
#include "aerie/data/test_corpus.h"
#include "aerie/device/gpu.h"

namespace aerie::kernels {
namespace {

// What a training step would hand to the GPU: rows and plan of one batch.
struct Case {
  MixRowsArgs args;
  std::vector<RowItem> items;
  std::vector<RowSegment> segments;
  int64_t noise_rows = 0;

  explicit Case(const data::Batch& batch) {
    const auto rows_of = [&](const char* name, const float** f32, const int16_t** i16) {
      const data::HostArray* array = batch.find(name);
      if (array == nullptr) return int64_t{0};
      if (array->dtype == data::DType::kInt16)
        *i16 = array->as<int16_t>();
      else
        *f32 = array->as<float>();
      return array->shape[0];
    };
    args.rows = rows_of("audio", &args.clean_f32, &args.clean_i16);
    noise_rows = rows_of("noise", &args.noise_f32, &args.noise_i16);
    args.stride = batch.capacity();
    for (const data::MixItem& item : batch.mix_plan().items)
      items.push_back({item.first_segment, item.num_segments, item.gain});
    for (const data::MixSegment& s : batch.mix_plan().segments)
      segments.push_back({s.dest_begin, s.length, s.source_begin, s.source_period, s.row,
                          s.source == data::MixSource::kSpeech ? 1 : 0});
    args.items = items.data();
    args.segments = segments.data();
  }
  size_t cells() const { return static_cast<size_t>(args.rows * args.stride); }
};

class MixRowsTest : public testing::Test {
 protected:
  MixRowsTest() : corpus_(24) {
    corpus_.add_noise(5, 900);  // shorter than the utterances: repeated
    config_ = corpus_.config(6);
    config_.batch_augmentor = config::BatchAugmentorConfig{};
    config_.batch_augmentor->prob = 0.8;
    config_.batch_augmentor->noise_ratio = 0.5;
  }
  std::unique_ptr<data::Loader> open(data::MixPlace mix, config::BatchDtype dtype) {
    config::AerieConfig aerie = data::TestCorpus::aerie();
    aerie.data.batch_dtype = dtype;
    data::AudioDataset::Options open_options;
    open_options.quiet = true;
    data::LoaderOptions options;
    options.seed = 3;
    options.quiet = true;
    options.mix = mix;
    return *data::Loader::make(*data::AudioDataset::open(config_, aerie, open_options), config_,
                               aerie, options);
  }
  data::TestCorpus corpus_;
  config::DatasetConfig config_;
};

TEST_F(MixRowsTest, ThePlanGivesTheLoadersSamples) {
  for (const auto dtype : {config::BatchDtype::kFloat32, config::BatchDtype::kInt16}) {
    auto mixed = open(data::MixPlace::kCpu, dtype);
    auto planned = open(data::MixPlace::kConsumer, dtype);
    size_t segments = 0;
    while (const data::Batch* want = *mixed->next()) {
      const data::Batch* got = *planned->next();
      ASSERT_NE(got, nullptr);
      ASSERT_EQ(got->find("noisy_audio"), nullptr);
      const Case c(*got);
      segments += c.segments.size();
      std::vector<float> audio(c.cells()), noisy(c.cells());
      mix_rows_ref(audio.data(), noisy.data(), c.args);
      const float* expected = want->find("noisy_audio")->as<float>();
      const data::HostArray* clean = want->find("audio");
      for (size_t k = 0; k < noisy.size(); ++k) {
        ASSERT_NEAR(noisy[k], expected[k], 1e-6) << k;
        ASSERT_EQ(audio[k], clean->dtype == data::DType::kInt16
                                ? static_cast<float>(clean->as<int16_t>()[k]) / 32768.0f
                                : clean->as<float>()[k]);
      }
      mixed->release(want);
      planned->release(got);
    }
    EXPECT_GT(segments, 10u);
  }
}

TEST_F(MixRowsTest, SegmentsMayOverlapAndRepeat) {
  const std::vector<float> clean = {1, 2, 3, 4, 10, 20, 30, 40};
  const std::vector<float> noise = {0.5f, 0.25f, 9, 9};
  const std::vector<RowItem> items = {{0, 2, 2.0f}, {2, 0, 1.0f}};
  const std::vector<RowSegment> segments = {{0, 3, 1, 2, 0, 0}, {2, 2, 0, 4, 1, 1}};
  MixRowsArgs args;
  args.rows = 2;
  args.stride = 4;
  args.clean_f32 = clean.data();
  args.noise_f32 = noise.data();
  args.items = items.data();
  args.segments = segments.data();
  std::vector<float> noisy(8);
  mix_rows_ref(nullptr, noisy.data(), args);
  EXPECT_EQ(noisy, (std::vector<float>{1.5f, 3, 23.5f, 44, 10, 20, 30, 40}));
}

using MixRowsGpuTest = MixRowsTest;

TEST_F(MixRowsGpuTest, AgreesBitwiseWithTheReference) {
  const auto module = device::gpu_module();
  if (!module.ok()) GTEST_SKIP() << module.status().to_string();
  for (const auto dtype : {config::BatchDtype::kFloat32, config::BatchDtype::kInt16}) {
    auto planned = open(data::MixPlace::kConsumer, dtype);
    while (const data::Batch* batch = *planned->next()) {
      const Case c(*batch);
      std::vector<float> audio(c.cells()), noisy(c.cells()), gpu_audio(c.cells()),
          gpu_noisy(c.cells());
      mix_rows_ref(audio.data(), noisy.data(), c.args);
      const Status status =
          (*module)->mix_rows(gpu_audio, gpu_noisy, c.args, c.noise_rows, c.segments.size());
      ASSERT_TRUE(status.ok()) << status.to_string();
      EXPECT_EQ(std::memcmp(gpu_audio.data(), audio.data(), audio.size() * sizeof(float)), 0);
      EXPECT_EQ(std::memcmp(gpu_noisy.data(), noisy.data(), noisy.size() * sizeof(float)), 0);
      planned->release(batch);
    }
  }
}

}  // namespace
}  // namespace aerie::kernels
