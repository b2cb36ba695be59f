// The loader in its steady state allocates nothing per sample. Replaces operator new, hence a
// program of its own.
#include <atomic>
#include <cstdlib>
#include <new>

#include <gtest/gtest.h>

#include "aerie/data/speech/speech_assembler.h"
#include "aerie/data/speech/test_corpus.h"

namespace {

std::atomic<uint64_t> g_allocations{0};

void* counted_alloc(size_t bytes) {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  void* data = std::malloc(bytes == 0 ? 1 : bytes);
  if (data == nullptr) throw std::bad_alloc();
  return data;
}

}  // namespace

void* operator new(size_t bytes) {
  return counted_alloc(bytes);
}
void* operator new[](size_t bytes) {
  return counted_alloc(bytes);
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  g_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void operator delete(void* data) noexcept {
  std::free(data);
}
void operator delete[](void* data) noexcept {
  std::free(data);
}
void operator delete(void* data, size_t) noexcept {
  std::free(data);
}
void operator delete[](void* data, size_t) noexcept {
  std::free(data);
}

namespace aerie::data {
namespace {

double allocations_per_sample(const config::DatasetConfig& config,
                              const config::SpeechAerieConfig& aerie, MixPlace mix) {
  AudioDataset::Options open;
  open.quiet = true;
  const auto dataset = *AudioDataset::open(config, aerie, open);
  SpeechLoaderOptions options;
  options.quiet = true;
  options.seed = 3;
  options.mix = mix;
  auto loader = *make_speech_loader(dataset, config, aerie, options);
  uint64_t samples = 0, before = 0;
  for (int batches = 0; batches < 60;) {
    const Batch* batch = *loader->next();
    if (batch == nullptr) {
      EXPECT_TRUE(loader->start_epoch(int64_t{loader->cursor().epoch} + 1).ok());
      continue;
    }
    if (++batches == 30) before = g_allocations;
    if (batches > 30) samples += static_cast<uint64_t>(batch->num_samples());
    loader->release(batch);
  }
  return static_cast<double>(g_allocations - before) / static_cast<double>(samples);
}

TEST(LoaderAllocationTest, NothingPerSampleInTheSteadyState) {
  TestCorpus corpus(640);
  corpus.add_noise(8);
  config::DatasetConfig config = corpus.config(64);
  config::BatchAugmentorConfig augmentor;
  augmentor.prob = 0.5;
  augmentor.noise_ratio = 0.5;
  config.batch_augmentor = augmentor;
  config.augmentor = {{"gain", 0.5, config::GainPerturbation{}}};
  config::SpeechAerieConfig aerie = TestCorpus::aerie();
  aerie.data.max_shapes = 1;
  for (const int64_t workers : {0, 2}) {
    config.num_workers = workers;
    // A few per batch of 64 (plans of mixes and epochs), none per sample.
    EXPECT_LT(allocations_per_sample(config, aerie, MixPlace::kCpu), 0.5) << workers;
    aerie.audio.batch_dtype = config::BatchDtype::kInt16;
    EXPECT_LT(allocations_per_sample(config, aerie, MixPlace::kConsumer), 0.5) << workers;
    aerie.audio.batch_dtype = config::BatchDtype::kAuto;
  }
  corpus.make_tar(4);
  config.is_tarred = true;
  config.manifest_filepath = TestCorpus::paths(corpus.tar_manifest);
  config.tarred_audio_filepaths = TestCorpus::paths(corpus.tar_pattern);
  EXPECT_LT(allocations_per_sample(config, aerie, MixPlace::kCpu), 0.5);
}

}  // namespace
}  // namespace aerie::data
