#include "aerie/data/speech/synthetic_batch.h"

#include <gtest/gtest.h>

namespace aerie::data {
namespace {

TEST(SyntheticBatchTest, LengthsAreSpreadAsAskedFor) {
  SyntheticBatchOptions options;
  options.rows = 5;
  options.samples = 1001;
  const auto made = SyntheticBatch::make(options);
  ASSERT_TRUE(made.ok());
  const SpeechBatch& batch = made->batch();
  EXPECT_EQ(batch.num_samples(), 5);
  EXPECT_EQ(batch.padded_length(), 1001);
  EXPECT_EQ(batch.capacity() % 64, 0);
  EXPECT_EQ(batch.audio_len()[0], 1001);
  EXPECT_EQ(batch.audio_len()[2], 900);
  EXPECT_EQ(batch.audio_len()[4], 800);
  EXPECT_NEAR(batch.amount(), (1001 + 950 + 900 + 850 + 800) / 16000.0, 1e-9);
  const HostArray* audio = batch.find("audio");
  const HostArray* noisy = batch.find("noisy_audio");
  ASSERT_NE(audio, nullptr);
  ASSERT_NE(noisy, nullptr);
  const float* row = audio->as<float>() + 4 * batch.capacity();
  EXPECT_NE(row[799], 0.0f);
  EXPECT_EQ(row[800], 0.0f);
  EXPECT_NE(row[10], (noisy->as<float>() + 4 * batch.capacity())[10]);
}

TEST(SyntheticBatchTest, SeedsGiveOtherAudioAndMovingKeepsIt) {
  SyntheticBatchOptions options;
  options.rows = 1;
  options.samples = 100;
  auto first = SyntheticBatch::make(options);
  const uint64_t hash = first->batch().content_hash();
  const SyntheticBatch moved = std::move(first).value();
  EXPECT_EQ(moved.batch().content_hash(), hash);
  options.seed = 1;
  EXPECT_NE(SyntheticBatch::make(options)->batch().content_hash(), hash);
}

TEST(SyntheticBatchTest, ImpossibleShapesAreRefused) {
  for (const auto& [rows, samples] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 100}, {1, 0}, {-1, 100}, {1 << 20, int64_t{1} << 40}}) {
    SyntheticBatchOptions options;
    options.rows = rows;
    options.samples = samples;
    EXPECT_EQ(SyntheticBatch::make(options).status().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace aerie::data
