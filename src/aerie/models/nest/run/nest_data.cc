#include "aerie/models/nest/run/nest_data.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/philox.h"
#include "aerie/base/progress.h"
#include "aerie/base/system.h"
#include "aerie/data/speech/audio_dataset.h"
#include "aerie/data/speech/speech_assembler.h"
#include "aerie/train/pinned_memory.h"

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
    loader_options.rank = options_.rank;
    loader_options.world = options_.world;
    loader_options.quiet = quiet;
    loader_options.read_ahead = read_ahead;
    loader_options.consumer_batches =
        static_cast<int>(std::max<int64_t>(2, run_.trainer.accumulate_grad_batches + 1));
    // Whoever takes the batches mixes; the samples are the same.
    const config::MixOn mix = run_.aerie.audio.mix_on;
    if (mix == config::MixOn::kGpu || (mix == config::MixOn::kAuto && options_.gpu))
      loader_options.mix = data::MixPlace::kConsumer;
    loader_options.packing = options_.packing;
    loader_options.earlier_batching = options_.earlier_batching;
    if (options_.gpu && dataset.pin_memory)
      loader_options.allocator = pinned_memory(options_.gpu_index);
    if (options_.bad_samples != nullptr) {
      loader_options.earlier_bad = options_.bad_samples->earlier();
      loader_options.on_bad_sample = [log = options_.bad_samples](const data::BadSample& bad) {
        log->add(bad);
      };
    }
    AERIE_ASSIGN_OR_RETURN(auto loader, data::make_speech_loader(std::move(samples), dataset,
                                                                 run_.aerie, loader_options));
    return std::make_unique<LoaderSource>(std::move(loader));
  }

 private:
  const config::RunConfig& run_;
  const NestDataOptions& options_;
};

// What the config names and nobody finds is wrong data, not a failed run.
Status data_status(const Status& status, const char* node) {
  if (status.code() != StatusCode::kNotFound) return Status(status).with_context(node);
  Status out = data_error(status.message()).with_hint(status.hint());
  for (const std::string& where : status.context()) out = std::move(out).with_context(where);
  return std::move(out).with_context(node);
}

config::BatchLimit evaluation_limit(const config::TrainerConfig& trainer, bool test) {
  if (trainer.fast_dev_run > 0) return {false, 0.0, trainer.fast_dev_run};
  if (test) return trainer.limit_test_batches;
  return overfits(trainer) ? trainer.overfit_batches : trainer.limit_val_batches;
}

}  // namespace

// "12,345 utterances, 20 h 31 min", after filters.
std::string amount_of_data(const std::vector<LoaderSource*>& sources) {
  uint64_t utterances = 0, unknown = 0;
  double seconds = 0.0;
  for (LoaderSource* source : sources) {
    const data::SampleSet& set = source->loader().sampler().set();
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

bool overfits(const config::TrainerConfig& trainer) {
  const config::BatchLimit& limit = trainer.overfit_batches;
  return limit.is_fraction ? limit.fraction > 0.0 : limit.count > 0;
}

Result<NestData> open_nest_data(const config::RunConfig& run, const NestDataOptions& options) {
  NestData out;
  const Opener opener(run, options);
  const bool overfit = overfits(run.trainer);
  if (options.train) {
    config::DatasetConfig train = run.model.train_ds;
    if (overfit) train.shuffle = false;
    auto source = opener.open(train, run.aerie.seed, options.quiet, /*read_ahead=*/true);
    if (!source.ok()) return data_status(source.status(), "model.train_ds");
    out.train = std::move(source).value();
  }
  if (!options.validation && !options.test) return out;
  const auto& datasets = options.test ? run.model.test_ds : run.model.validation_ds;
  const char* node = options.test ? "model.test_ds" : "model.validation_ds";
  const config::BatchLimit limit = evaluation_limit(run.trainer, options.test);
  const char* limit_key = options.test ? "limit_test_batches"
                          : overfit    ? "overfit_batches"
                                       : "limit_val_batches";
  for (size_t i = 0; i < datasets.size(); ++i) {
    // Validation draws (mixing) come from streams of their own.
    const uint64_t seed =
        mix64(run.aerie.seed ^ (static_cast<uint64_t>(Purpose::kValidation) << 32)) + i;
    config::DatasetConfig dataset = datasets[i];
    if (overfit) dataset.shuffle = false;
    // Beside training, whose first batch would otherwise share the processors with this.
    auto source = opener.open(dataset, seed, /*quiet=*/true, /*read_ahead=*/!options.train);
    if (!source.ok()) return data_status(source.status(), node);
    out.evaluation.push_back(std::move(source).value());
    LoaderSource* set = out.evaluation.back().get();
    const int64_t available = set->batches_per_epoch();
    const int64_t batches = limit.of(available);
    // Lightning's rule: a share that leaves nothing is a mistake, a plain 0 is a wish.
    if (batches == 0 && available > 0 && limit.is_fraction && limit.fraction > 0.0)
      return invalid_argument(str_cat("trainer.", limit_key, " ", limit.fraction, " of the ",
                                      available, " batches of ", node, " is less than one batch"))
          .with_hint(str_cat("set it to at least ", 1.0 / static_cast<double>(available),
                             ", or to 0 for none"));
    out.sets.push_back({dataset.name, set, batches});
  }
  return out;
}

}  // namespace aerie::train
