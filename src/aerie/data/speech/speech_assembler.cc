#include "aerie/data/speech/speech_assembler.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "aerie/base/check.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"

namespace aerie::data {

namespace {

// Batches of an epoch that are looked at to choose row lengths.
constexpr uint64_t kProbedBatches = 4096;

// Decoded and resampled audio of one worker, at most: 16-bit, float, resampled, perturbed copies,
// at twice the wanted rate.
constexpr double kWorkerBytesPerSample = 24.0;

// Rows of noise a batch needs: all, or (with the augmentor) not more than six standard deviations
// above their mean number.
int64_t noise_rows_of(const BuildRules& rules, int64_t rows) {
  const AugmentConfig& augment = rules.augment;
  if (rules.want_noise || augment.kind == AugmentKind::kNone || augment.compat_nemo || rows <= 1)
    return rows;
  const double p = augment.prob * augment.noise_ratio;
  const double n = static_cast<double>(rows);
  return std::min(rows, static_cast<int64_t>(n * p + 6 * std::sqrt(n * p * (1 - p)) + 2));
}

// "train.json:17 (a.wav), 3600 s".
std::string longest_line(const AudioDataset& dataset) {
  uint64_t longest = 0;
  for (uint64_t i = 0; i < dataset.size(); ++i)
    if (dataset.duration_s(i) > 0 && !(dataset.duration_s(i) <= dataset.duration_s(longest)))
      longest = i;
  return str_cat(dataset.describe(longest), ", ", dataset.duration_s(longest), " s");
}

}  // namespace

Batching batching_of(const config::DatasetConfig& config) {
  return {config.batch_size,
          config.shuffle_n,
          config.drop_last,
          config.bucketing_batch_size,
          config.bucketing_batch_size_is_list,
          config.batch_duration,
          config.quadratic_duration,
          config.use_bucketing,
          config.num_buckets,
          config.bucket_duration_bins,
          config.bucket_batch_size};
}

SamplingConfig sampling_config(const config::DatasetConfig& config) {
  SamplingConfig out;
  static_cast<Batching&>(out) = batching_of(config);
  out.shuffle = config.shuffle;
  out.unknown_length = config.max_duration.value_or(out.unknown_length);
  out.is_concat = config.is_concat;
  switch (config.concat_sampling_technique) {
    case config::ConcatTechnique::kTemperature:
      out.concat_sampling_technique = ConcatTechnique::kTemperature;
      break;
    case config::ConcatTechnique::kRandom:
      out.concat_sampling_technique = ConcatTechnique::kRandom;
      break;
    case config::ConcatTechnique::kRoundRobin:
      out.concat_sampling_technique = ConcatTechnique::kRoundRobin;
      break;
  }
  out.concat_sampling_temperature = config.concat_sampling_temperature;
  out.concat_sampling_probabilities = config.concat_sampling_probabilities;
  out.concat_sampling_scale = config.concat_sampling_scale;
  out.concat_shuffle = config.concat_shuffle;
  out.concat_sampling_seed = config.concat_sampling_seed;
  out.shard_strategy = config.tarred_shard_strategy == config::ShardStrategy::kReplicate
                           ? ShardStrategy::kReplicate
                           : ShardStrategy::kScatter;
  switch (config.bucketing_strategy) {
    case config::BucketingStrategy::kFixedOrder:
      out.bucketing_strategy = BucketingStrategy::kFixedOrder;
      break;
    case config::BucketingStrategy::kSyncedRandomized:
      out.bucketing_strategy = BucketingStrategy::kSyncedRandomized;
      break;
    case config::BucketingStrategy::kFullyRandomized:
      out.bucketing_strategy = BucketingStrategy::kFullyRandomized;
      break;
  }
  out.bucketing_weights = config.bucketing_weights;
  return out;
}

LoaderConfig loader_config(const config::DatasetConfig& config,
                           const config::SpeechAerieConfig& aerie) {
  static_assert(config::DatasetConfig::kAutoWorkers == LoaderConfig::kAutoWorkers);
  LoaderConfig out;
  out.num_workers = config.num_workers;
  out.prefetch_factor = config.prefetch_factor;
  out.persistent_workers = config.persistent_workers;
  out.virtual_ranks = aerie.data.virtual_ranks;
  out.memory_budget_gib = aerie.data.memory_budget_gib;
  out.max_bad_fraction = aerie.max_bad_fraction;
  out.shuffle_level = aerie.audio.shuffle_level == config::ShuffleLevel::kShard
                          ? ShuffleLevel::kShard
                          : ShuffleLevel::kSample;
  out.compat_nemo = aerie.compat_nemo_2_6;
  return out;
}

AugmentConfig augment_config(const config::DatasetConfig& config, bool compat_nemo) {
  AugmentConfig out;
  out.compat_nemo = compat_nemo;
  if (!config.batch_augmentor) return out;
  const config::BatchAugmentorConfig& c = *config.batch_augmentor;
  out.kind = c.kind == config::BatchAugmentorConfig::Kind::kSpeakerNoise
                 ? AugmentKind::kSpeakerNoise
                 : AugmentKind::kMultiSpeakerNoise;
  out.prob = c.prob;
  out.noise_ratio = c.noise_ratio;
  out.min_r_speech = c.min_r_speech;
  out.max_r_speech = c.max_r_speech;
  out.min_r_noise = c.min_r_noise;
  out.max_r_noise = c.max_r_noise;
  out.min_mix_rate = c.min_mix_rate;
  out.max_mix_rate = c.max_mix_rate;
  const auto count = [](int64_t value) {
    return static_cast<int>(std::clamp<int64_t>(value, -1, 1 << 20));
  };
  out.min_num_segments = count(c.min_num_segments);
  out.max_num_segments = count(c.max_num_segments);
  out.min_num_speakers = count(c.min_num_speakers);
  out.max_num_speakers = count(c.max_num_speakers);
  return out;
}

int64_t loader_min_samples(const config::SpeechAerieConfig& aerie, int sample_rate) {
  return std::max<int64_t>(1,
                           audio::min_length_samples(aerie.audio.min_audio_len_secs, sample_rate));
}

PlanShapes plan_shapes(const EpochPlan& plan, const AudioDataset& dataset,
                       const Perturber& perturber, int64_t min_samples, int64_t max_shapes,
                       int64_t capacity_multiple) {
  PlanShapes out;
  const int rate = dataset.read_options().sample_rate;
  const double mean_factor = perturber.mean_length_factor();
  const uint64_t total = plan.num_steps() * plan.num_lanes();
  const uint64_t stride = std::max<uint64_t>(1, total / kProbedBatches);
  double valid = 0.0;
  std::vector<PlannedSample> batch;
  for (uint64_t k = 0; k < total; k += stride) {
    plan.batch(k / plan.num_lanes(), static_cast<uint32_t>(k % plan.num_lanes()), batch);
    if (batch.empty()) continue;
    int64_t need = min_samples;
    for (const PlannedSample& sample : batch) {
      const double d = dataset.duration_s(sample.sample);
      if (d > 0) {
        need = std::max(need, row_samples(d, rate, perturber));
        valid += std::max(static_cast<double>(min_samples), std::floor(d * rate) * mean_factor);
      } else {
        valid += static_cast<double>(min_samples);
      }
    }
    out.needs.push_back(need);
    out.rows.push_back(static_cast<int64_t>(batch.size()));
  }
  const int64_t longest = std::max(min_samples, row_samples(dataset.longest_s(), rate, perturber));
  out.capacities = Capacities::choose(out.needs, longest, max_shapes, capacity_multiple);
  double cells = 0.0;
  for (size_t k = 0; k < out.needs.size(); ++k)
    cells += static_cast<double>(out.capacities.fit(out.needs[k]) * out.rows[k]);
  out.padding_share = cells > 0 ? std::max(0.0, 1 - valid / cells) : 0.0;
  return out;
}

Result<std::unique_ptr<SpeechAssembler>> SpeechAssembler::make(
    std::shared_ptr<const AudioDataset> dataset, const config::DatasetConfig& config,
    const config::SpeechAerieConfig& aerie, const SpeechLoaderOptions& options) {
  std::unique_ptr<SpeechAssembler> out(new SpeechAssembler());
  BuildRules& rules = out->rules_;
  const int rate = dataset->read_options().sample_rate;
  rules.dataset = dataset;
  rules.augment = augment_config(config, aerie.compat_nemo_2_6);
  AERIE_RETURN_IF_ERROR(rules.augment.validate());
  rules.noise.sample_rate = rate;
  rules.noise.compat_nemo = aerie.compat_nemo_2_6;
  AERIE_ASSIGN_OR_RETURN(rules.perturber, Perturber::make(config.augmentor, rate));
  rules.seed = options.seed;
  rules.min_samples = loader_min_samples(aerie, rate);
  rules.pad_mode = aerie.audio.pad_audio_mode == config::PadAudioMode::kRepeat
                       ? audio::PadMode::kRepeat
                       : audio::PadMode::kZero;
  rules.on_bad = aerie.on_bad_audio;
  rules.dtype = aerie.audio.batch_dtype == config::BatchDtype::kInt16 ? Dtype::kI16 : Dtype::kF32;
  rules.mix = options.mix;
  rules.want_noise = options.want_noise;
  rules.has_noise = dataset->noise() != nullptr && dataset->noise()->size() > 0;
  rules.noise_rows = rules.has_noise || options.want_noise;
  rules.noise_stats = &out->noise_stats_;
  rules.finished_cells = &out->finished_cells_;
  out->max_shapes_ = aerie.data.max_shapes;
  out->capacity_multiple_ = options.capacity_multiple;
  return out;
}

uint64_t SpeechAssembler::batch_bytes(int64_t rows, double longest_s) const {
  const int rate = rules_.dataset->read_options().sample_rate;
  const int64_t need = std::max(rules_.min_samples, row_samples(longest_s, rate, rules_.perturber));
  return BatchBuilder::layout_bytes(rules_, rows, noise_rows_of(rules_, rows),
                                    rules_.capacities.fit(need));
}

// The largest batch any epoch can ask for, in bytes.
uint64_t SpeechAssembler::largest_batch(const Sampler& sampler, const PlanShapes& shapes) const {
  const double longest_s = rules_.dataset->longest_s();
  if (sampler.buckets().empty()) return batch_bytes(sampler.max_batch_size(), longest_s);
  uint64_t out = 0;
  for (const Sampler::BucketInfo& bucket : sampler.buckets()) {
    // Packed one by one there is one bucket without a fixed size: take what was seen.
    if (bucket.samples == 0 || bucket.batch_size >= (1u << 20)) continue;
    out = std::max(
        out, batch_bytes(std::min<int64_t>(bucket.batch_size, static_cast<int64_t>(bucket.samples)),
                         bucket.longest_s));
  }
  for (size_t k = 0; k < shapes.needs.size(); ++k)
    out = std::max(out, BatchBuilder::layout_bytes(rules_, shapes.rows[k],
                                                   noise_rows_of(rules_, shapes.rows[k]),
                                                   rules_.capacities.fit(shapes.needs[k])));
  return std::max(out, batch_bytes(1, longest_s));
}

Result<BatchSizes> SpeechAssembler::measure(const Sampler& sampler, const EpochPlan& first_epoch) {
  const AudioDataset& dataset = *rules_.dataset;
  const PlanShapes shapes = plan_shapes(first_epoch, dataset, rules_.perturber, rules_.min_samples,
                                        max_shapes_, capacity_multiple_);
  rules_.capacities = shapes.capacities;
  const int64_t longest = std::max(
      rules_.min_samples,
      row_samples(dataset.longest_s(), dataset.read_options().sample_rate, rules_.perturber));
  BatchSizes out;
  out.usual_bytes = largest_batch(sampler, shapes);
  out.most_bytes =
      batch_bytes(std::min<int64_t>(sampler.max_batch_size(), static_cast<int64_t>(dataset.size())),
                  dataset.longest_s());
  out.worker_bytes =
      kWorkerBytesPerSample * static_cast<double>(longest) * (rules_.has_noise ? 2 : 1) + (1 << 20);
  out.unknown_lengths = dataset.num_unknown_durations() > 0;
  char padding[16];
  std::snprintf(padding, sizeof(padding), "%.1f%%", 100 * shapes.padding_share);
  out.note =
      str_cat(rules_.capacities.lengths().size(), " row lengths, about ", padding, " padding");
  return out;
}

std::unique_ptr<BatchSlot> SpeechAssembler::make_slot() {
  return std::make_unique<BatchBuilder>(rules_, memory());
}

std::unique_ptr<AssemblerThread> SpeechAssembler::make_thread() {
  return std::make_unique<BuildThread>(rules_);
}

bool SpeechAssembler::wants_epoch_end() const {
  const PackCache* cache = rules_.dataset->cache();
  return cache != nullptr && cache->building();
}

void SpeechAssembler::epoch_end() {
  rules_.dataset->cache()->publish();
}

LoaderWords SpeechAssembler::words() const {
  return {"audio_s", "noise", "noise_failures", "mix", "mixing"};
}

void SpeechAssembler::add_stats(LoaderStats& stats) const {
  const double cells = static_cast<double>(finished_cells_);
  stats.side.bytes = static_cast<double>(noise_stats_.bytes);
  stats.side_failures = noise_stats_.failed;
  stats.finish.bytes = cells * 4.0;
  stats.finish.amount = cells / rules_.dataset->read_options().sample_rate;
}

Status SpeechAssembler::too_large(uint64_t batch_bytes, uint64_t machine_bytes) const {
  return data_error(str_cat("batches of ", human_bytes(static_cast<double>(batch_bytes)),
                            " do not fit into this machine's ",
                            human_bytes(static_cast<double>(machine_bytes)),
                            "; the longest recording is ", longest_line(*rules_.dataset)))
      .with_hint("correct its duration in the manifest, or lower max_duration or batch_size");
}

Result<std::unique_ptr<Loader>> make_speech_loader(std::shared_ptr<const AudioDataset> dataset,
                                                   const config::DatasetConfig& config,
                                                   const config::SpeechAerieConfig& aerie,
                                                   const SpeechLoaderOptions& options) {
  if (config.auto_batch_size)
    return invalid_argument("batch_size is auto: `aerie train` finds it, nothing else does")
        .with_hint("set batch_size to a number here");
  AERIE_ASSIGN_OR_RETURN(auto assembler, SpeechAssembler::make(dataset, config, aerie, options));
  return Loader::make(std::move(dataset), std::move(assembler), sampling_config(config),
                      loader_config(config, aerie), options);
}

std::vector<int64_t> row_lengths(const Loader& loader) {
  const auto* assembler = dynamic_cast<const SpeechAssembler*>(&loader.assembler());
  AERIE_CHECK(assembler != nullptr, "not a loader of speech");
  const auto lengths = assembler->capacities().lengths();
  return {lengths.begin(), lengths.end()};
}

}  // namespace aerie::data
