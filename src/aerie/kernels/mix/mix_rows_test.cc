#include "aerie/kernels/mix/mix_rows.h"

#include "aerie/data/speech/speech_assembler.h"
#include "aerie/data/speech/test_corpus.h"
#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::mix_rows_test {
namespace {

using testing::Backend;

std::unique_ptr<data::Loader> open(const data::TestCorpus& corpus, data::MixPlace mix,
                                   config::BatchDtype dtype) {
  config::DatasetConfig config = corpus.config(6);
  config.batch_augmentor = config::BatchAugmentorConfig{};
  config.batch_augmentor->prob = 0.8;
  config.batch_augmentor->noise_ratio = 0.5;
  config::SpeechAerieConfig aerie = data::TestCorpus::aerie();
  aerie.audio.batch_dtype = dtype;
  data::AudioDataset::Options open_options;
  open_options.quiet = true;
  data::SpeechLoaderOptions options;
  options.seed = 3;
  options.quiet = true;
  options.mix = mix;
  return *data::make_speech_loader(*data::AudioDataset::open(config, aerie, open_options), config,
                                   aerie, options);
}

template <typename T>
std::vector<T> copy_of(const data::HostArray& array) {
  return {array.as<T>(), array.as<T>() + array.size()};
}

struct Mixed {
  std::vector<float> audio, noisy;
};

// What a training step does: rows and plan of one batch to the device, one kernel.
Mixed run(Backend& b, const data::SpeechBatch& batch) {
  MixRows a;
  const data::HostArray* clean = batch.find("audio");
  const data::HostArray* noise = batch.find("noise");
  a.rows = clean->shape[0];
  a.stride = clean->shape[1];
  if (clean->dtype == aerie::Dtype::kI16)
    a.clean_i16 = b.upload(copy_of<int16_t>(*clean));
  else
    a.clean_f32 = b.upload(copy_of<float>(*clean));
  if (noise != nullptr && noise->dtype == aerie::Dtype::kI16)
    a.noise_i16 = b.upload(copy_of<int16_t>(*noise));
  else if (noise != nullptr)
    a.noise_f32 = b.upload(copy_of<float>(*noise));
  std::vector<MixRowsItem> items;
  std::vector<MixRowsSegment> segments;
  for (const data::MixItem& item : batch.mix_plan().items)
    items.push_back({item.first_segment, item.num_segments, item.gain});
  for (const data::MixSegment& s : batch.mix_plan().segments)
    segments.push_back({s.dest_begin, s.length, s.source_begin, s.source_period, s.row,
                        s.source == data::MixSource::kSpeech ? 1 : 0});
  a.items = b.upload(items);
  a.segments = b.upload(segments);
  const size_t cells = static_cast<size_t>(a.rows * a.stride);
  a.audio = b.scratch<float>(cells);
  a.noisy = b.scratch<float>(cells);
  EXPECT_EQ(b.kernels().mix_rows(a, nullptr), kOk);
  return {b.download(a.audio, cells), b.download(a.noisy, cells)};
}

TEST(MixRowsReferenceTest, ThePlanGivesTheLoadersSamples) {
  const auto reference = testing::reference_backend();
  data::TestCorpus corpus(24);
  corpus.add_noise(5, 900);  // shorter than the utterances: repeated
  for (const auto dtype : {config::BatchDtype::kFloat32, config::BatchDtype::kInt16}) {
    auto mixed = open(corpus, data::MixPlace::kCpu, dtype);
    auto planned = open(corpus, data::MixPlace::kConsumer, dtype);
    size_t segments = 0;
    while (const data::SpeechBatch* want = data::speech_batch(*mixed->next())) {
      const data::SpeechBatch* got = data::speech_batch(*planned->next());
      ASSERT_NE(got, nullptr);
      ASSERT_EQ(got->find("noisy_audio"), nullptr);
      segments += got->mix_plan().segments.size();
      const Mixed out = run(*reference, *got);
      const float* noisy = want->find("noisy_audio")->as<float>();
      const data::HostArray* clean = want->find("audio");
      for (size_t k = 0; k < out.noisy.size(); ++k) {
        ASSERT_NEAR(out.noisy[k], noisy[k], 1e-6) << k;
        ASSERT_EQ(out.audio[k], clean->dtype == aerie::Dtype::kI16
                                    ? static_cast<float>(clean->as<int16_t>()[k]) / 32768.0f
                                    : clean->as<float>()[k]);
      }
      mixed->release(want);
      planned->release(got);
    }
    EXPECT_GT(segments, 10u);
  }
}

AERIE_KERNEL_TEST(MixRows, EqualsTheReferenceBitwise) {
  const auto reference = testing::reference_backend();
  data::TestCorpus corpus(9);
  corpus.add_noise(3, 900);
  for (const auto dtype : {config::BatchDtype::kFloat32, config::BatchDtype::kInt16}) {
    auto planned = open(corpus, data::MixPlace::kConsumer, dtype);
    while (const data::SpeechBatch* batch = data::speech_batch(*planned->next())) {
      const Mixed expected = run(*reference, *batch), actual = run(backend, *batch);
      EXPECT_EQ(actual.audio, expected.audio);
      EXPECT_EQ(actual.noisy, expected.noisy);
      planned->release(batch);
    }
  }
}

AERIE_KERNEL_TEST(MixRows, SegmentsMayOverlapAndRepeat) {
  MixRows a;
  a.rows = 2;
  a.stride = 4;
  a.clean_f32 = backend.upload(std::vector<float>{1, 2, 3, 4, 10, 20, 30, 40});
  a.noise_f32 = backend.upload(std::vector<float>{0.5f, 0.25f, 9, 9});
  a.items = backend.upload(std::vector<MixRowsItem>{{0, 2, 2.0f}, {2, 0, 1.0f}});
  a.segments = backend.upload(std::vector<MixRowsSegment>{{0, 3, 1, 2, 0, 0}, {2, 2, 0, 4, 1, 1}});
  a.noisy = backend.scratch<float>(8);
  ASSERT_EQ(backend.kernels().mix_rows(a, nullptr), kOk);
  EXPECT_EQ(backend.download(a.noisy, 8), (std::vector<float>{1.5f, 3, 23.5f, 44, 10, 20, 30, 40}));
  a.rows = 0;
  EXPECT_EQ(backend.kernels().mix_rows(a, nullptr), kUnsupported);
}

}  // namespace
}  // namespace aerie::kernels::mix_rows_test
