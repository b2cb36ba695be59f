#include "aerie/data/loader_setup.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/data/storage.h"

namespace aerie::data {

namespace {

// Batches of an epoch that are looked at to choose row lengths.
constexpr uint64_t kProbedBatches = 4096;
constexpr int kMaxWorkers = 1024;
constexpr int kAutoSlots = 8;

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

// The largest batch any epoch can ask for, in bytes.
uint64_t largest_batch(const Sampler& sampler, const AudioDataset& dataset, const BuildRules& rules,
                       const PlanShapes& probe) {
  const int rate = dataset.read_options().sample_rate;
  const auto bytes = [&](int64_t rows, double longest_s) {
    const int64_t need = std::max(rules.min_samples, row_samples(longest_s, rate, rules.perturber));
    return BatchBuilder::layout_bytes(rules, rows, noise_rows_of(rules, rows),
                                      rules.capacities.fit(need));
  };
  if (sampler.buckets().empty()) return bytes(sampler.max_batch_size(), dataset.longest_s());
  uint64_t out = 0;
  for (const Sampler::BucketInfo& bucket : sampler.buckets()) {
    // Packed clip by clip there is one bucket without a fixed size: take what was seen.
    if (bucket.samples == 0 || bucket.batch_size >= (1u << 20)) continue;
    out = std::max(out,
                   bytes(std::min<int64_t>(bucket.batch_size, static_cast<int64_t>(bucket.samples)),
                         bucket.longest_s));
  }
  for (size_t k = 0; k < probe.needs.size(); ++k)
    out = std::max(
        out, BatchBuilder::layout_bytes(rules, probe.rows[k], noise_rows_of(rules, probe.rows[k]),
                                        rules.capacities.fit(probe.needs[k])));
  return std::max(out, bytes(1, dataset.longest_s()));
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

Result<Sampler::Options> loader_sampler_options(const config::AerieConfig& aerie,
                                                const LoaderOptions& options) {
  Sampler::Options out;
  out.seed = options.seed;
  out.compat_nemo = aerie.compat_nemo_2_6;
  out.shuffle_level = aerie.data.shuffle_level;
  out.packing = options.packing;
  constexpr int64_t kMaxLanes = 1 << 20;
  const int64_t lanes = aerie.data.virtual_ranks.value_or(options.world);
  if (lanes < 1 || lanes > kMaxLanes)
    return invalid_argument(
        str_cat("aerie.data.virtual_ranks must be 1 to ", kMaxLanes, ", got ", lanes));
  if (lanes % options.world != 0)
    return invalid_argument(str_cat("aerie.data.virtual_ranks=", lanes,
                                    " is no multiple of the number of ranks, ", options.world));
  out.virtual_ranks = static_cast<uint32_t>(lanes);
  return out;
}

int64_t loader_min_samples(const config::AerieConfig& aerie, int sample_rate) {
  return std::max<int64_t>(1,
                           audio::min_length_samples(aerie.data.min_audio_len_secs, sample_rate));
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

Status check_loader_keys(const config::DatasetConfig& config) {
  const bool automatic = config.num_workers == config::DatasetConfig::kAutoWorkers;
  if (!automatic && (config.num_workers < 0 || config.num_workers > kMaxWorkers))
    return invalid_argument(
        str_cat("num_workers must be 0 to ", kMaxWorkers, " or auto, got ", config.num_workers));
  if (config.num_workers == 0 && config.prefetch_factor)
    return invalid_argument("prefetch_factor must be null when num_workers is 0")
        .with_hint(
            "batches are then loaded in the training thread; set num_workers to use "
            "prefetching");
  if (config.num_workers == 0 && config.persistent_workers)
    return invalid_argument("persistent_workers must be false when num_workers is 0")
        .with_hint("there are no workers to keep; set num_workers or persistent_workers=false");
  if (config.prefetch_factor && (*config.prefetch_factor < 1 || *config.prefetch_factor > 1024))
    return invalid_argument(
        str_cat("prefetch_factor must be 1 to 1024, got ", *config.prefetch_factor));
  return ok_status();
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

Result<LoaderSetup> set_up_loader(std::shared_ptr<const AudioDataset> dataset,
                                  const config::DatasetConfig& config,
                                  const config::AerieConfig& aerie, const LoaderOptions& options,
                                  const Sampler& sampler, BuildRules& rules) {
  LoaderSetup setup;
  setup.lanes_per_rank = sampler.num_lanes() / options.world;
  rules.dataset = dataset;
  rules.augment = augment_config(config, aerie.compat_nemo_2_6);
  AERIE_RETURN_IF_ERROR(rules.augment.validate());
  rules.noise.sample_rate = dataset->read_options().sample_rate;
  rules.noise.compat_nemo = aerie.compat_nemo_2_6;
  AERIE_ASSIGN_OR_RETURN(rules.perturber,
                         Perturber::make(config.augmentor, dataset->read_options().sample_rate));
  rules.seed = options.seed;
  rules.min_samples = loader_min_samples(aerie, dataset->read_options().sample_rate);
  rules.pad_mode = aerie.data.pad_audio_mode == config::PadAudioMode::kRepeat
                       ? audio::PadMode::kRepeat
                       : audio::PadMode::kZero;
  rules.on_bad = aerie.on_bad_audio;
  rules.dtype =
      aerie.data.batch_dtype == config::BatchDtype::kInt16 ? DType::kInt16 : DType::kFloat32;
  rules.mix = options.mix;
  rules.want_noise = options.want_noise;
  const bool has_noise = dataset->noise() != nullptr && dataset->noise()->size() > 0;
  rules.noise_rows = has_noise || options.want_noise;
  rules.allocator = options.allocator != nullptr ? options.allocator : &HostAllocator::pageable();

  setup.first_plan = sampler.plan(0);
  if (setup.first_plan->num_steps() == 0)
    return invalid_argument(str_cat("no batch can be made of ", dataset->size(),
                                    " samples: ", sampler.max_batch_size(), " per batch, ",
                                    sampler.num_lanes(), " ranks, drop_last"))
        .with_hint("lower batch_size or set drop_last=false");
  const PlanShapes probe =
      plan_shapes(*setup.first_plan, *dataset, rules.perturber, rules.min_samples,
                  aerie.data.max_shapes, options.capacity_multiple);
  rules.capacities = probe.capacities;
  setup.expected_padding = probe.padding_share;
  const int64_t longest = std::max(
      rules.min_samples,
      row_samples(dataset->longest_s(), dataset->read_options().sample_rate, rules.perturber));

  setup.auto_workers = config.num_workers == config::DatasetConfig::kAutoWorkers;
  setup.num_workers = setup.auto_workers ? cpu_count() : static_cast<int>(config.num_workers);
  setup.prefetch_factor = static_cast<int>(config.prefetch_factor.value_or(2));
  rules.usual_bytes = largest_batch(sampler, *dataset, rules, probe);
  setup.worker_bytes = static_cast<uint64_t>(
      std::max(1, setup.num_workers) *
      (kWorkerBytesPerSample * static_cast<double>(longest) * (has_noise ? 2 : 1) + (1 << 20)));

  const int consumer = std::max(1, options.consumer_batches);
  int ahead = setup.num_workers == 0 ? 0 : setup.num_workers * setup.prefetch_factor;
  if (setup.auto_workers) ahead = std::min(ahead, std::max(kAutoSlots, setup.prefetch_factor));
  const uint64_t available = memory_info().available_bytes;
  const uint64_t limit =
      aerie.data.memory_budget_gib
          ? static_cast<uint64_t>(std::max(0.0, *aerie.data.memory_budget_gib) * 1073741824.0)
          : (available > 0 ? available / 2 : ~uint64_t{0});
  const auto total = [&](int slots) {
    return static_cast<uint64_t>(slots) * rules.usual_bytes + setup.worker_bytes;
  };
  const int least = setup.num_workers == 0 ? consumer : consumer + 1;
  const int wanted = std::max(least, ahead + consumer);
  int slots = wanted;
  while (slots > least && total(slots) > limit) --slots;
  if (total(slots) > limit && aerie.data.memory_budget_gib)
    return invalid_argument(str_cat("aerie.data.memory_budget_gib=", *aerie.data.memory_budget_gib,
                                    " is too little: ", slots, " batches of ",
                                    human_bytes(static_cast<double>(rules.usual_bytes)), " and ",
                                    setup.num_workers, " workers need ",
                                    human_bytes(static_cast<double>(total(slots)))))
        .with_hint("raise it, or lower batch_size, max_duration or num_workers");
  // Not one batch would fit, however the ring is cut.
  const uint64_t memory = memory_info().total_bytes;
  if (!aerie.data.memory_budget_gib && memory > 0 && total(least) > memory)
    return data_error(str_cat("batches of ", human_bytes(static_cast<double>(rules.usual_bytes)),
                              " do not fit into this machine's ",
                              human_bytes(static_cast<double>(memory)),
                              "; the longest recording is ", longest_line(*dataset)))
        .with_hint("correct its duration in the manifest, or lower max_duration or batch_size");
  if (slots < wanted && !options.quiet)
    log_warn("data", "the ring holds ", slots, " batches instead of ", wanted, " (",
             human_bytes(static_cast<double>(total(wanted))),
             "): ", aerie.data.memory_budget_gib ? "aerie.data.memory_budget_gib" : "free memory",
             " allows no more; lower num_workers or prefetch_factor");
  setup.num_slots = slots;
  // Clips whose duration the manifest does not tell may need more than planned, and so may those
  // that are packed in another order in the next epoch.
  uint64_t spare = dataset->num_unknown_durations() > 0
                       ? std::max<uint64_t>(total(slots), uint64_t{1} << 30)
                       : std::max<uint64_t>(rules.usual_bytes, 64 << 20);
  if (sampler.packs_as_lhotse()) {
    const int64_t rows =
        std::min<int64_t>(sampler.max_batch_size(), static_cast<int64_t>(dataset->size()));
    const uint64_t most = BatchBuilder::layout_bytes(rules, rows, noise_rows_of(rules, rows),
                                                     rules.capacities.fit(longest));
    const uint64_t room = limit - std::min(limit, total(slots));
    spare = std::max(spare, std::min(room, static_cast<uint64_t>(slots) * most));
  }
  setup.budget_bytes =
      aerie.data.memory_budget_gib ? std::max(limit, total(slots)) : total(slots) + spare;
  return setup;
}

void warn_about_machine(const AudioDataset& dataset, const LoaderSetup& setup) {
  const std::string path = dataset.example_path();
  const StorageInfo storage = storage_info(path);
  if (storage.network)
    log_warn("data", parent_path(path), " is on a network file system (", storage.filesystem,
             "): copy the data to a local disk, use tar shards (is_tarred), or set "
             "aerie.data.cache_dir to a local folder");
  else if (storage.rotational)
    log_warn("data", parent_path(path),
             " is on a rotating disk: use tar shards (is_tarred) or set aerie.data.cache_dir to a "
             "folder on an SSD");
  const int cores = cpu_count();
  if (!setup.auto_workers && setup.num_workers > cores)
    log_warn("data", "num_workers=", setup.num_workers, " is more than the ", cores,
             " CPU cores of this process: set num_workers=", cores, " or auto");
  const uint64_t available = memory_info().available_bytes;
  if (available > 0 && setup.budget_bytes > available)
    log_warn("data", "the loader may use ", human_bytes(static_cast<double>(setup.budget_bytes)),
             " but only ", human_bytes(static_cast<double>(available)),
             " are free: lower num_workers, prefetch_factor or batch_size, or set "
             "aerie.data.memory_budget_gib");
}

}  // namespace aerie::data
