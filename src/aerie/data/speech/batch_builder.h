// Fills one batch of speech: reads its recordings into rows, then mixes. No threads of its own: the
// loader calls read_item() for different items from different threads, and finish() once all are
// done.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aerie/data/batch_assembler.h"
#include "aerie/data/speech/audio_dataset.h"
#include "aerie/data/speech/augment.h"
#include "aerie/data/speech/config/speech_aerie_config.h"
#include "aerie/data/speech/noise.h"
#include "aerie/data/speech/padding.h"
#include "aerie/data/speech/perturb.h"
#include "aerie/data/speech/speech_batch.h"

namespace aerie::data {

enum class MixPlace : uint8_t {
  kCpu,       // "noisy_audio" is made here
  kConsumer,  // raw rows and the plan are handed over; only gains are computed here
};

// What all threads of a loader share.
struct BuildRules {
  std::shared_ptr<const AudioDataset> dataset;
  AugmentConfig augment;
  NoiseOptions noise;
  Perturber perturber;  // copied by every thread
  uint64_t seed = 0;
  int64_t min_samples = 0;
  audio::PadMode pad_mode = audio::PadMode::kRepeat;
  config::OnBadAudio on_bad = config::OnBadAudio::kSkip;
  Dtype dtype = Dtype::kF32;
  MixPlace mix = MixPlace::kCpu;
  bool has_noise = false;   // there is noise to be read
  bool noise_rows = false;  // there is a place for noise in the batch, as many rows as need it
  bool want_noise = false;
  Capacities capacities;
  NoiseStats* noise_stats = nullptr;
  std::atomic<uint64_t>* finished_cells = nullptr;  // rows x capacity of all batches
  // Raw noise for a consumer comes as the audio does; noise that is mixed here is kept exact.
  Dtype noise_dtype() const { return mix == MixPlace::kConsumer ? dtype : Dtype::kF32; }
};

// Samples a row needs for a clip of this duration, perturbed; 0 when the duration says nothing.
int64_t row_samples(double duration_s, int sample_rate, const Perturber& perturber);

// One thread's decoders and buffers.
struct BuildThread final : AssemblerThread {
  explicit BuildThread(const BuildRules& rules);
  SampleReader reader;
  std::unique_ptr<NoiseReader> noise;
  Perturber perturber;
  std::vector<float> samples;
};

// A batch under construction and its memory.
class BatchBuilder final : public BatchSlot {
 public:
  BatchBuilder(const BuildRules& rules, const BatchMemory& memory);
  ~BatchBuilder() override;
  BatchBuilder(const BatchBuilder&) = delete;
  BatchBuilder& operator=(const BatchBuilder&) = delete;

  SpeechBatch& batch() override { return batch_; }
  Status begin() override;
  ItemFigures read_item(size_t i, AssemblerThread& thread) override;
  // Spilled rows, bad samples, mixing, arrays.
  Status finish(AssemblerThread& thread) override;
  std::span<const BadItem> bad_items() const override { return bad_; }

  // Bytes of a batch of rows x capacity with so many rows of noise.
  static uint64_t layout_bytes(const BuildRules& rules, int64_t rows, int64_t noise_rows,
                               int64_t capacity);

 private:
  struct Item {
    int64_t length = 0;
    int64_t noise_len = 0;
    double energy = -1.0;  // sum of squares; negative: not computed
    bool has_noise = false;
    int32_t noise_row = -1;    // where its noise goes; -1: none is needed
    Status bad;                // why it could not be read
    std::vector<float> spill;  // samples of a row that is longer than the capacity
    int64_t bytes_read = 0, samples = 0, noise_ns = 0;  // of reading it
  };
  SpeechBatch::Audio& audio() { return batch_.mutable_audio(); }
  MemoryWords memory_words(int64_t rows, int64_t capacity) const;
  std::string longest_sample() const;
  void lay_out(int64_t rows, int64_t capacity);
  void read(size_t i, BuildThread& thread);
  void write_row(size_t i, const audio::AudioView& view);
  void write_float_row(size_t i, const float* samples, int64_t n);
  void write_int16_row(size_t i, int64_t n);
  void close_row(size_t i, int64_t n);
  Status read_noise(size_t i, int64_t wanted, BuildThread& thread);
  void place_spills();
  void drop_bad_rows();
  Status mix(BuildThread& thread);
  void list_arrays();

  const BuildRules& rules_;
  const BatchMemory& memory_;
  SpeechBatch batch_;
  HostBlock block_;
  int64_t stride_ = 0;
  float* audio_ = nullptr;  // float32 batches
  int16_t* audio16_ = nullptr;
  float* noisy_ = nullptr;
  float* noise_ = nullptr;
  int16_t* noise16_ = nullptr;
  int64_t noise_rows_planned_ = 0;
  int64_t room_samples_ = 0;  // for a recording whose duration nobody knows
  std::vector<Item> items_;
  std::vector<BadItem> bad_;
  std::vector<MixInput> inputs_;
  std::vector<MixRow> audio_rows_, noise_rows_;
  std::vector<double> energies_;
};

}  // namespace aerie::data
