#include "aerie/models/nest/engine/batch_tensors.h"

#include <stdexcept>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include "aerie/data/speech/speech_assembler.h"
#include "aerie/data/speech/test_corpus.h"
#include "aerie/device/gpu.h"
#include "aerie/kernels/testing/backend.h"
#include "aerie/nn/device_draws.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::train {
namespace {

class BatchTensorsTest : public ::testing::Test {
 protected:
  BatchTensorsTest() : corpus(9) {
    corpus.add_noise(3);
    config = corpus.config(4);
    config::BatchAugmentorConfig augmentor;
    augmentor.prob = 1.0;
    augmentor.noise_ratio = 0.5;
    config.batch_augmentor = augmentor;
  }
  std::unique_ptr<data::Loader> open(data::MixPlace mix, config::BatchDtype dtype) {
    config::SpeechAerieConfig aerie = corpus.aerie();
    aerie.audio.batch_dtype = dtype;
    aerie.max_bad_fraction = 0.5;
    data::AudioDataset::Options options;
    options.quiet = true;
    auto dataset = data::AudioDataset::open(config, aerie, options);
    EXPECT_TRUE(dataset.ok()) << dataset.status().to_string();
    data::SpeechLoaderOptions loader_options;
    loader_options.seed = 7;
    loader_options.quiet = true;
    loader_options.mix = mix;
    auto loader = data::make_speech_loader(*dataset, config, aerie, loader_options);
    EXPECT_TRUE(loader.ok()) << loader.status().to_string();
    return std::move(loader).value();
  }
  data::TestCorpus corpus;
  config::DatasetConfig config;
};

TEST_F(BatchTensorsTest, RowsAreTheBatch) {
  auto loader = open(data::MixPlace::kCpu, config::BatchDtype::kFloat32);
  const data::SpeechBatch* batch = data::speech_batch(*loader->next());
  nn::RandomKey random;
  random.micro_step = 5;
  auto tensors = to_nest_batch(*batch, random, at::kCPU);
  ASSERT_TRUE(tensors.ok()) << tensors.status().to_string();
  EXPECT_EQ(tensors->size(), 4);
  EXPECT_EQ(tensors->capacity(), batch->capacity());
  EXPECT_EQ(tensors->padded_samples, batch->padded_length());
  EXPECT_EQ(tensors->random.micro_step, 5u);
  EXPECT_EQ(tensors->audio.const_data_ptr(), batch->find("audio")->data);  // not copied
  EXPECT_EQ(tensors->noisy.const_data_ptr(), batch->find("noisy_audio")->data);
  for (int64_t b = 0; b < 4; ++b) {
    EXPECT_EQ(tensors->lengths[b].item<int64_t>(), batch->audio_len()[static_cast<size_t>(b)]);
    EXPECT_EQ(tensors->noisy_lengths[b].item<int64_t>(),
              batch->noisy_audio_len()[static_cast<size_t>(b)]);
  }
  EXPECT_FALSE(at::equal(tensors->audio, tensors->noisy));
  loader->release(batch);
}

TEST_F(BatchTensorsTest, MixingHereEqualsMixingInTheLoader) {
  auto mixed = open(data::MixPlace::kCpu, config::BatchDtype::kFloat32);
  for (const auto dtype : {config::BatchDtype::kFloat32, config::BatchDtype::kInt16}) {
    auto raw = open(data::MixPlace::kConsumer, dtype);
    ASSERT_TRUE(mixed->start_epoch(0).ok());
    for (int i = 0; i < 2; ++i) {
      const data::SpeechBatch* want = data::speech_batch(*mixed->next());
      const data::SpeechBatch* got = data::speech_batch(*raw->next());
      ASSERT_TRUE(want != nullptr && got != nullptr);
      EXPECT_EQ(got->find("noisy_audio"), nullptr);
      EXPECT_EQ(got->find("audio")->dtype,
                dtype == config::BatchDtype::kInt16 ? aerie::Dtype::kI16 : aerie::Dtype::kF32);
      auto a = to_nest_batch(*want, {}, at::kCPU);
      auto b = to_nest_batch(*got, {}, at::kCPU);
      ASSERT_TRUE(a.ok() && b.ok()) << a.status().to_string() << b.status().to_string();
      EXPECT_TRUE(at::equal(a->audio, b->audio));
      EXPECT_TRUE(at::allclose(a->noisy, b->noisy, 1e-6, 1e-7));
      EXPECT_TRUE(at::equal(a->noisy_lengths, b->noisy_lengths));
      EXPECT_FALSE(at::equal(b->audio, b->noisy));
      mixed->release(want);
      raw->release(got);
    }
  }
}

TEST_F(BatchTensorsTest, TheReferenceAndADevicesKernelMixAsTheLoaderDoes) {
  // The kernel's own source, run as a device's would be: rows and plan are sent to it.
  const auto backend = kernels::testing::emulated_backend();
  // Noise from very short (many repetitions) to longer than the utterances.
  for (const int64_t noise_length : {7, 300, 4000}) {
    corpus.add_noise(3, noise_length);
    for (const auto dtype : {config::BatchDtype::kFloat32, config::BatchDtype::kInt16}) {
      auto mixed = open(data::MixPlace::kCpu, dtype);
      auto raw = open(data::MixPlace::kConsumer, dtype);
      for (int i = 0; i < 2; ++i) {
        const data::SpeechBatch* want = data::speech_batch(*mixed->next());
        const data::SpeechBatch* got = data::speech_batch(*raw->next());
        const auto loaded = to_nest_batch(*want, {}, at::kCPU);
        const auto reference = to_nest_batch(*got, {}, at::kCPU);
        ASSERT_TRUE(loaded.ok() && reference.ok()) << reference.status().to_string();
        EXPECT_TRUE(at::equal(reference->audio, loaded->audio));
        EXPECT_LE((reference->noisy - loaded->noisy).abs().max().item<double>(), 1e-6)
            << noise_length;
        EXPECT_FALSE(at::equal(reference->audio, reference->noisy));
        const nn::DrawOnCpuWith device(backend->kernels());
        const auto kernel = to_nest_batch(*got, {}, at::kCPU);
        ASSERT_TRUE(kernel.ok()) << kernel.status().to_string();
        EXPECT_TRUE(at::equal(kernel->audio, reference->audio));
        EXPECT_TRUE(at::equal(kernel->noisy, reference->noisy));
        mixed->release(want);
        raw->release(got);
      }
    }
  }
}

TEST_F(BatchTensorsTest, DroppedClipsLeaveTheNoiseOfTheOthersWhereItIs) {
  // Every clip has noise of its own; the first and another of each batch cannot be read.
  config.shuffle = false;
  config.batch_augmentor->noise_ratio = 1.0;
  for (const int i : {0, 2, 5})
    data::write_file(corpus.dir.file(str_cat("utt", i, ".wav")), "broken");
  for (const auto dtype : {config::BatchDtype::kFloat32, config::BatchDtype::kInt16}) {
    auto mixed = open(data::MixPlace::kCpu, dtype);
    auto raw = open(data::MixPlace::kConsumer, dtype);
    for (int i = 0; i < 2; ++i) {
      const data::SpeechBatch* want = data::speech_batch(*mixed->next());
      const data::SpeechBatch* got = data::speech_batch(*raw->next());
      ASSERT_LT(got->num_samples(), 4);
      ASSERT_GT(got->find("noise")->shape[0], got->num_samples());
      auto a = to_nest_batch(*want, {}, at::kCPU);
      auto b = to_nest_batch(*got, {}, at::kCPU);
      ASSERT_TRUE(a.ok() && b.ok()) << a.status().to_string() << b.status().to_string();
      EXPECT_TRUE(at::equal(a->audio, b->audio));
      EXPECT_TRUE(at::allclose(a->noisy, b->noisy, 1e-4, 1e-4));
      EXPECT_FALSE(at::equal(b->audio, b->noisy));
      mixed->release(want);
      raw->release(got);
    }
  }
}

class BatchTensorsGpuTest : public BatchTensorsTest {
 protected:
  void SetUp() override {
    if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  }
};

TEST_F(BatchTensorsGpuTest, TheModuleMixesAsTheReferenceDoes) {
  for (const auto dtype : {config::BatchDtype::kFloat32, config::BatchDtype::kInt16}) {
    auto raw = open(data::MixPlace::kConsumer, dtype);
    for (int i = 0; i < 2; ++i) {
      const data::SpeechBatch* batch = data::speech_batch(*raw->next());
      const auto want = to_nest_batch(*batch, {}, at::kCPU);
      const auto got = to_nest_batch(*batch, {}, at::Device(at::kCUDA, 0));
      ASSERT_TRUE(want.ok() && got.ok()) << got.status().to_string();
      const int64_t samples = batch->padded_length();
      EXPECT_TRUE(at::equal(got->audio.cpu(), want->audio.narrow(1, 0, samples)));
      EXPECT_TRUE(at::equal(got->noisy.cpu(), want->noisy.narrow(1, 0, samples)));
      raw->release(batch);
    }
  }
}

TEST(TorchStatusTest, RecognisesExhaustedMemory) {
  EXPECT_EQ(torch_status(std::bad_alloc()).code(), StatusCode::kOutOfMemory);
  EXPECT_EQ(torch_status(std::runtime_error("CUDA out of memory. Tried ...")).code(),
            StatusCode::kOutOfMemory);
  EXPECT_EQ(torch_status(std::runtime_error("CUBLAS_STATUS_ALLOC_FAILED when calling x")).code(),
            StatusCode::kOutOfMemory);
  EXPECT_EQ(torch_status(std::runtime_error("shape mismatch")).code(), StatusCode::kInternal);
  // What the CPU allocator says when a tensor cannot be had.
  try {
    (void)at::empty({int64_t{1} << 50}, at::kFloat);
    FAIL() << "4 PiB of memory";
  } catch (const std::exception& error) {
    const Status status = torch_status(error);
    EXPECT_EQ(status.code(), StatusCode::kOutOfMemory) << status.to_string();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
    EXPECT_EQ(refine_torch_status(internal_error(error.what()).with_context("forward")).code(),
              StatusCode::kOutOfMemory);
  }
  EXPECT_EQ(refine_torch_status(data_error("out of memory")).code(), StatusCode::kDataError);
}

}  // namespace
}  // namespace aerie::train
