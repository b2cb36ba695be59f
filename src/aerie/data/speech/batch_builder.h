// Fills one batch: reads its samples into rows, then mixes. No threads of its own: the loader calls
// read_item() for different items from different threads, and finish() once all are done.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aerie/data/batch.h"
#include "aerie/data/loader.h"
#include "aerie/data/speech/audio_dataset.h"
#include "aerie/data/speech/augment.h"
#include "aerie/data/speech/noise.h"
#include "aerie/data/speech/padding.h"
#include "aerie/data/speech/perturb.h"

namespace aerie::data {

// Bytes set aside for batches. Any thread.
class MemoryBudget {
 public:
  explicit MemoryBudget(uint64_t limit_bytes) : limit_(limit_bytes) {}
  bool take(uint64_t bytes);
  void give(uint64_t bytes) { used_.fetch_sub(bytes); }
  uint64_t limit() const { return limit_; }
  uint64_t used() const { return used_.load(); }

 private:
  const uint64_t limit_;
  std::atomic<uint64_t> used_{0};
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
  DType dtype = DType::kFloat32;
  MixPlace mix = MixPlace::kCpu;
  bool noise_rows = false;  // there is a place for noise in the batch, as many rows as need it
  bool want_noise = false;
  Capacities capacities;
  HostAllocator* allocator = nullptr;
  MemoryBudget* budget = nullptr;
  NoiseStats* noise_stats = nullptr;
  // Raw noise for a consumer comes as the audio does; noise that is mixed here is kept exact.
  DType noise_dtype() const { return mix == MixPlace::kConsumer ? dtype : DType::kFloat32; }
  uint64_t usual_bytes = 0;  // of the largest planned batch: blocks are made for it at once
  uint64_t spare_bytes = 0;  // of the budget, beyond what the ring takes
};

// Samples a row needs for a clip of this duration, perturbed; 0 when the duration says nothing.
int64_t row_samples(double duration_s, int sample_rate, const Perturber& perturber);

// One thread's decoders and buffers.
struct BuildThread {
  explicit BuildThread(const BuildRules& rules);
  SampleReader reader;
  std::unique_ptr<NoiseReader> noise;
  Perturber perturber;
  std::vector<float> samples;
};

// A batch under construction and its memory.
class BatchBuilder {
 public:
  BatchBuilder() = default;

  // Takes over the plan in `batch.samples_`; needs its memory. An error is the batch's result.
  Status begin(const BuildRules& rules);
  size_t num_items() const { return items_.size(); }
  // Item i, any thread; the others may run at the same time.
  void read_item(const BuildRules& rules, size_t i, BuildThread& thread);
  // After all items: spilled rows, bad samples, mixing, arrays.
  Status finish(const BuildRules& rules, BuildThread& thread);
  void release_memory(const BuildRules& rules);
  // Bytes of a batch of rows x capacity with so many rows of noise.
  static uint64_t layout_bytes(const BuildRules& rules, int64_t rows, int64_t noise_rows,
                               int64_t capacity);

  Batch& batch() { return batch_; }
  const Batch& batch() const { return batch_; }

  struct BadItem {
    PlannedSample sample;
    Status status;
  };
  const std::vector<BadItem>& bad_items() const { return bad_; }

  // Of the last read_item of each item, for statistics.
  struct ItemFigures {
    int64_t bytes_read = 0;
    int64_t noise_bytes = 0;
    int64_t noise_ns = 0;
    int64_t samples = 0;
  };
  const ItemFigures& figures(size_t i) const { return items_[i].figures; }

 private:
  struct Item {
    int64_t length = 0;
    int64_t noise_len = 0;
    double energy = -1.0;  // sum of squares; negative: not computed
    bool has_noise = false;
    int32_t noise_row = -1;    // where its noise goes; -1: none is needed
    Status bad;                // why it could not be read
    std::vector<float> spill;  // samples of a row that is longer than the capacity
    ItemFigures figures;
  };
  Status allocate(const BuildRules& rules, int64_t rows, int64_t capacity, uint64_t bytes,
                  HostBlock& block) const;
  std::string longest_sample(const BuildRules& rules) const;
  void lay_out(const BuildRules& rules, int64_t rows, int64_t capacity);
  void write_row(const BuildRules& rules, size_t i, const audio::AudioView& view);
  void write_float_row(const BuildRules& rules, size_t i, const float* samples, int64_t n);
  void write_int16_row(const BuildRules& rules, size_t i, int64_t n);
  void close_row(size_t i, int64_t n);
  Status read_noise(const BuildRules& rules, size_t i, int64_t wanted, BuildThread& thread);
  void place_spills(const BuildRules& rules);
  void drop_bad_rows(const BuildRules& rules);
  Status mix(const BuildRules& rules, BuildThread& thread);
  void list_arrays(const BuildRules& rules);

  Batch batch_;
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
