// Batches of speech for a loader: row lengths, memory, threads and builders. loader_config() and
// its kin read the keys of a dataset node.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/batch_assembler.h"
#include "aerie/data/loader.h"
#include "aerie/data/speech/audio_dataset.h"
#include "aerie/data/speech/batch_builder.h"
#include "aerie/data/speech/config/dataset_config.h"
#include "aerie/data/speech/config/speech_aerie_config.h"

namespace aerie::data {

struct SpeechLoaderOptions : LoaderOptions {
  MixPlace mix = MixPlace::kCpu;
  bool want_noise = false;         // also deliver "noise" when mixing here
  int64_t capacity_multiple = 64;  // samples; row lengths are multiples of this
};

// --- the keys of a dataset node and of `aerie:` as the data engine's core takes them ---
Batching batching_of(const config::DatasetConfig& config);
SamplingConfig sampling_config(const config::DatasetConfig& config);
LoaderConfig loader_config(const config::DatasetConfig& config,
                           const config::SpeechAerieConfig& aerie);
AugmentConfig augment_config(const config::DatasetConfig& config, bool compat_nemo);
// Samples that shorter recordings are filled up to.
int64_t loader_min_samples(const config::SpeechAerieConfig& aerie, int sample_rate);

// The batches of an epoch as the manifest lets expect them (of a large one, evenly spaced ones).
struct PlanShapes {
  std::vector<int64_t> needs;  // longest row of each batch, in samples
  std::vector<int64_t> rows;
  Capacities capacities;
  double padding_share = 0.0;  // of rows x capacity
};
PlanShapes plan_shapes(const EpochPlan& plan, const AudioDataset& dataset,
                       const Perturber& perturber, int64_t min_samples, int64_t max_shapes,
                       int64_t capacity_multiple);

class SpeechAssembler final : public BatchAssembler {
 public:
  static Result<std::unique_ptr<SpeechAssembler>> make(std::shared_ptr<const AudioDataset> dataset,
                                                       const config::DatasetConfig& config,
                                                       const config::SpeechAerieConfig& aerie,
                                                       const SpeechLoaderOptions& options);

  Result<BatchSizes> measure(const Sampler& sampler, const EpochPlan& first_epoch) override;
  std::unique_ptr<BatchSlot> make_slot() override;
  std::unique_ptr<AssemblerThread> make_thread() override;
  // What the epoch added to the packed cache becomes readable.
  bool wants_epoch_end() const override;
  void epoch_end() override;
  LoaderWords words() const override;
  void add_stats(LoaderStats& stats) const override;
  std::string size_keys() const override { return "batch_size, max_duration"; }
  Status too_large(uint64_t batch_bytes, uint64_t machine_bytes) const override;

  const Capacities& capacities() const { return rules_.capacities; }

 private:
  SpeechAssembler() = default;
  uint64_t batch_bytes(int64_t rows, double longest_s) const;
  uint64_t largest_batch(const Sampler& sampler, const PlanShapes& shapes) const;

  BuildRules rules_;
  int64_t max_shapes_ = 1;
  int64_t capacity_multiple_ = 1;
  NoiseStats noise_stats_;
  std::atomic<uint64_t> finished_cells_{0};
};

// A loader of speech by the keys of its configuration.
Result<std::unique_ptr<Loader>> make_speech_loader(std::shared_ptr<const AudioDataset> dataset,
                                                   const config::DatasetConfig& config,
                                                   const config::SpeechAerieConfig& aerie,
                                                   const SpeechLoaderOptions& options);

// Row lengths that the batches of such a loader are padded to.
std::vector<int64_t> row_lengths(const Loader& loader);

}  // namespace aerie::data
