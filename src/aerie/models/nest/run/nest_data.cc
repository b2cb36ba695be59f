#include "aerie/models/nest/run/nest_data.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "aerie/base/progress.h"
#include "aerie/base/system.h"
#include "aerie/data/speech/audio_dataset.h"
#include "aerie/data/speech/speech_assembler.h"
#include "aerie/train/run_data.h"

namespace aerie::train {

namespace {

class Opener {
 public:
  Opener(const config::RunConfig& run, const NestDataOptions& options)
      : run_(run), options_(options) {}

  Result<std::unique_ptr<LoaderSource>> open(const config::DatasetConfig& dataset, uint64_t seed,
                                             bool quiet, bool read_ahead) const {
    Env& env = *options_.env;
    data::AudioDataset::Options open_options;
    open_options.env = &env;
    open_options.num_threads = cpu_count();
    open_options.quiet = quiet;
    AERIE_ASSIGN_OR_RETURN(auto samples,
                           data::AudioDataset::open(dataset, run_.aerie, open_options));
    data::SpeechLoaderOptions loader_options;
    loader_options.seed = seed;
    loader_options.quiet = quiet;
    loader_options.read_ahead = read_ahead;
    set_loader_options(options_, run_.trainer, dataset.pin_memory, loader_options);
    // Whoever takes the batches mixes; the samples are the same.
    const config::MixOn mix = run_.aerie.audio.mix_on;
    if (mix == config::MixOn::kGpu || (mix == config::MixOn::kAuto && options_.gpu))
      loader_options.mix = data::MixPlace::kConsumer;
    loader_options.packing = options_.packing;
    loader_options.earlier_batching = options_.earlier_batching;
    AERIE_ASSIGN_OR_RETURN(auto loader, data::make_speech_loader(std::move(samples), dataset,
                                                                 run_.aerie, loader_options));
    return std::make_unique<LoaderSource>(std::move(loader));
  }

 private:
  const config::RunConfig& run_;
  const NestDataOptions& options_;
};

// "12,345 utterances, 20 h 31 min", after filters.
std::string amount_of_data(std::span<const std::unique_ptr<BatchSource>> sources) {
  uint64_t utterances = 0, unknown = 0;
  double seconds = 0.0;
  for (const auto& source : sources) {
    const data::SampleSet& set = loader_of(source).sampler().set();
    utterances += set.size();
    for (const double duration : set.lengths) {
      if (std::isfinite(duration))
        seconds += duration;
      else
        ++unknown;
    }
  }
  std::string out = str_cat(group_digits(utterances), " utterances, ", human_duration(seconds));
  if (unknown > 0) out += str_cat(" and ", group_digits(unknown), " of unknown length");
  return out;
}

}  // namespace

Result<JobData> open_nest_data(const config::RunConfig& run, const NestDataOptions& options) {
  JobData out;
  const Opener opener(run, options);
  const bool overfit = overfits(run.trainer);
  if (options.train) {
    config::DatasetConfig train = run.model.train_ds;
    if (overfit) train.shuffle = false;
    auto source = opener.open(train, run.aerie.seed, options.quiet, /*read_ahead=*/true);
    if (!source.ok()) return data_status(source.status(), "model.train_ds");
    out.train = std::move(source).value();
    out.loader = loader_of(out.train).description();
    out.training_amount = amount_of_data({&out.train, 1});
    out.changes = changes_of(loader_of(out.train));
  }
  if (!options.validation && !options.test) return out;
  const auto& datasets = options.test ? run.model.test_ds : run.model.validation_ds;
  const char* node = options.test ? "model.test_ds" : "model.validation_ds";
  for (size_t i = 0; i < datasets.size(); ++i) {
    const uint64_t seed = evaluation_seed(run.aerie.seed) + i;
    config::DatasetConfig dataset = datasets[i];
    if (overfit) dataset.shuffle = false;
    // Beside training, whose first batch would otherwise share the processors with this.
    auto source = opener.open(dataset, seed, /*quiet=*/true, /*read_ahead=*/!options.train);
    if (!source.ok()) return data_status(source.status(), node);
    out.evaluation.push_back(std::move(source).value());
    BatchSource* set = out.evaluation.back().get();
    AERIE_ASSIGN_OR_RETURN(
        const int64_t batches,
        evaluation_batches(run.trainer, options.test, set->batches_per_epoch(), node));
    out.sets.push_back({dataset.name, set, batches});
  }
  if (!out.evaluation.empty()) out.validation_amount = amount_of_data(out.evaluation);
  return out;
}

}  // namespace aerie::train
