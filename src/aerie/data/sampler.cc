#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <string>
#include <tuple>

#include <xxhash.h>

#include "aerie/base/check.h"
#include "aerie/base/strings.h"
#include "aerie/data/epoch_plan.h"

namespace aerie::data {

namespace {

// Streams of one epoch: groups and their repetitions, buckets, mixtures.
uint64_t stream_of(uint64_t kind, uint64_t index, uint64_t repeat) {
  return mix64((kind << 60) ^ (index << 30) ^ repeat);
}
constexpr uint64_t kGroupStream = 1;
constexpr uint64_t kBucketStream = 2;
constexpr uint64_t kMixStream = 3;
constexpr uint64_t kScheduleStream = 4;

template <typename T>
void append_list(std::string& out, const std::vector<T>& values) {
  for (const T& value : values) out += str_cat(value, ",");
  out += ";";
}

}  // namespace

std::vector<double> temperature_probabilities(std::span<const uint64_t> sizes, double temperature) {
  const double total =
      static_cast<double>(std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}));
  std::vector<double> p;
  double sum = 0.0;
  for (const uint64_t size : sizes) {
    p.push_back(std::pow(static_cast<double>(size) / total, 1 / temperature));
    sum += p.back();
  }
  for (double& value : p) value /= sum;
  return p;
}

Result<Sampler> Sampler::make(std::shared_ptr<const SampleSet> set, const SamplingConfig& config,
                              const Options& options) {
  Sampler out;
  out.set_ = std::move(set);
  out.config_ = config;
  out.options_ = options;
  if (options.virtual_ranks < 1) return invalid_argument("virtual_ranks must be at least 1");
  if (config.batch_size && (*config.batch_size < 1 || *config.batch_size > kMaxBatch))
    return invalid_argument(
        str_cat("batch_size must be 1 to ", kMaxBatch, ", got ", *config.batch_size));
  for (const double duration : out.set_->lengths)
    if (duration > out.longest_s_) out.longest_s_ = duration;
  if (out.longest_s_ <= 0) out.longest_s_ = config.unknown_length;

  const bool by_duration =
      config.use_bucketing || config.batch_duration || !config.bucket_batch_size.empty();
  out.batch_size_ = static_cast<uint32_t>(config.batch_size.value_or(1));
  if (config.shuffle)
    out.shuffle_n_ = static_cast<uint32_t>(
        std::clamp<int64_t>(config.shuffle_n.value_or(4 * int64_t{out.batch_size_}), 0, 1 << 30));
  if (by_duration) {
    out.mode_ = Mode::kDurationBuckets;
    AERIE_RETURN_IF_ERROR(out.set_up_durations());
  } else if (!config.batch_size) {
    return invalid_argument("batch_size is not set")
        .with_hint("set batch_size, or batch_duration with use_lhotse");
  } else if (config.is_concat) {
    out.mode_ = Mode::kConcat;
    AERIE_RETURN_IF_ERROR(out.set_up_concat());
  } else {
    AERIE_RETURN_IF_ERROR(out.set_up_classic());
  }

  // Everything the order depends on, as text: a cursor made under other rules is recognised.
  std::string key = str_cat(
      "1|", options.seed, "|", options.compat_nemo, "|", options.virtual_ranks, "|",
      static_cast<int>(options.shuffle_level), "|", static_cast<int>(out.mode_), "|",
      out.batch_size_, "|", config.shuffle, "|", config.drop_last, "|", out.shuffle_n_, "|",
      static_cast<int>(config.shard_strategy), "|", static_cast<int>(config.bucketing_strategy),
      "|", static_cast<int>(config.concat_sampling_technique), "|", config.concat_sampling_scale,
      "|", config.concat_shuffle, "|", config.concat_sampling_seed.value_or(-1), "|",
      config.batch_duration.value_or(0), "|", config.quadratic_duration.value_or(0), "|",
      out.set_->sharded, "|");
  append_list(key, out.concat_p_);
  append_list(key, config.bucketing_weights);
  append_list(key, out.bucket_batch_sizes_);
  append_list(key, out.buckets_.edges);
  for (const SampleGroup& group : out.set_->groups) {
    key += str_cat(group.begin, "-", group.end, ":");
    append_list(key, group.shard_starts);
  }
  // The rule of earlier versions has no name in the key: their cursors keep their fingerprints.
  if (out.packs_as_lhotse()) key += "lhotse";
  out.fingerprint_ = XXH3_64bits(key.data(), key.size());
  return out;
}

Status Sampler::set_up_concat() {
  max_batch_size_ = batch_size_;
  std::vector<uint64_t> sizes;
  for (size_t g = 0; g < set_->groups.size(); ++g) {
    sizes.push_back(set_->groups[g].end - set_->groups[g].begin);
    if (sizes.back() == 0)
      return data_error(str_cat("is_concat: data set ", g, " of ", set_->groups.size(),
                                " has no samples after filtering"))
          .with_hint("check min_duration and max_duration, or take it out of manifest_filepath");
  }
  if (config_.concat_sampling_scale < 1)
    return invalid_argument(
        str_cat("concat_sampling_scale must be at least 1, got ", config_.concat_sampling_scale));
  const size_t n = sizes.size();
  switch (config_.concat_sampling_technique) {
    case ConcatTechnique::kTemperature:
      if (!(config_.concat_sampling_temperature > 0))
        return invalid_argument(str_cat("concat_sampling_temperature must be positive, got ",
                                        config_.concat_sampling_temperature));
      concat_p_ = temperature_probabilities(sizes, config_.concat_sampling_temperature);
      break;
    case ConcatTechnique::kRandom: {
      concat_p_ = config_.concat_sampling_probabilities;
      if (concat_p_.empty()) concat_p_.assign(n, 1.0 / static_cast<double>(n));
      if (concat_p_.size() != n)
        return invalid_argument(str_cat("concat_sampling_probabilities has ", concat_p_.size(),
                                        " values for ", n, " data sets"));
      double sum = 0;
      for (const double p : concat_p_) {
        if (!(p >= 0))
          return invalid_argument(
              str_cat("concat_sampling_probabilities must not be negative, got ", p));
        sum += p;
      }
      if (!(std::abs(sum - 1) <= 1e-6))
        return invalid_argument(
            str_cat("concat_sampling_probabilities must sum to 1 (to 1e-6), they sum to ", sum));
      break;
    }
    case ConcatTechnique::kRoundRobin:
      break;
  }
  return ok_status();
}

Status Sampler::set_up_classic() {
  const size_t n = set_->groups.size();
  AERIE_ASSIGN_OR_RETURN(repeats_, repeat_buckets(config_.bucketing_weights, n));
  if (repeats_.size() > 1) mode_ = Mode::kClassicBuckets;
  if (mode_ == Mode::kClassicBuckets && !config_.bucketing_batch_size.empty()) {
    AERIE_ASSIGN_OR_RETURN(
        bucket_batch_sizes_,
        classic_batch_sizes(config_.bucketing_batch_size, config_.bucketing_batch_size_is_list, n,
                            repeats_.size(), batch_size_));
  } else {
    bucket_batch_sizes_.assign(n, batch_size_);
  }
  max_batch_size_ = 1;
  for (const uint32_t size : bucket_batch_sizes_) max_batch_size_ = std::max(max_batch_size_, size);
  return ok_status();
}

Status Sampler::set_up_durations() {
  const SamplingConfig& c = config_;
  if (c.batch_duration && !(*c.batch_duration > 0))
    return invalid_argument(str_cat("batch_duration must be positive, got ", *c.batch_duration));
  if (c.quadratic_duration && !(*c.quadratic_duration > 0))
    return invalid_argument(
        str_cat("quadratic_duration must be positive, got ", *c.quadratic_duration));
  if (!c.batch_size && !c.batch_duration && c.bucket_batch_size.empty())
    return invalid_argument("none of batch_size, batch_duration and bucket_batch_size is set")
        .with_hint("one of them must bound the batches");
  if (!std::is_sorted(c.bucket_duration_bins.begin(), c.bucket_duration_bins.end()))
    return invalid_argument("bucket_duration_bins must be in ascending order");
  if (c.use_bucketing && c.num_buckets < 1)
    return invalid_argument(str_cat("num_buckets must be at least 1, got ", c.num_buckets));
  if (!c.bucket_batch_size.empty()) {
    if (c.bucket_duration_bins.empty())
      return invalid_argument("bucket_batch_size needs bucket_duration_bins")
          .with_hint("`aerie data stats` prints bins for a manifest");
    const size_t bins = c.bucket_duration_bins.size();
    if (c.bucket_batch_size.size() != bins && c.bucket_batch_size.size() != bins + 1)
      return invalid_argument(str_cat("bucket_batch_size has ", c.bucket_batch_size.size(),
                                      " values, bucket_duration_bins ",
                                      c.bucket_duration_bins.size()));
    // One size more: the last bucket has no upper bound.
    buckets_.upper_bounds = c.bucket_batch_size.size() == bins;
  }
  if (c.use_bucketing || !c.bucket_batch_size.empty()) {
    buckets_.edges = c.bucket_duration_bins;
    if (buckets_.edges.empty()) {
      std::vector<double> known;
      for (const double d : set_->lengths)
        if (!std::isnan(d)) known.push_back(d);
      buckets_.edges = estimate_duration_bins(known, static_cast<uint32_t>(c.num_buckets));
    }
  }

  const size_t n = buckets_.size();
  std::vector<std::vector<uint32_t>> lists(n);
  bucket_info_.assign(n, {});
  for (uint32_t i = 0; i < set_->size(); ++i) {
    const double d = set_->length(i);
    const size_t b = buckets_.find(d);
    if (b >= n) {
      ++dropped_;
      continue;
    }
    lists[b].push_back(i);
    bucket_info_[b].longest_s = std::max(bucket_info_[b].longest_s, std::isnan(d) ? longest_s_ : d);
  }
  max_batch_size_ = 1;
  for (size_t b = 0; b < n; ++b) {
    BucketInfo& info = bucket_info_[b];
    info.low_s = b == 0 ? 0.0 : buckets_.edges[b - 1];
    info.samples = lists[b].size();
    int64_t size = c.batch_size.value_or(1 << 20);
    if (!c.bucket_batch_size.empty()) {
      size = c.bucket_batch_size[b];
      if (size < 1 || size > kMaxBatch)
        return invalid_argument(
            str_cat("bucket_batch_size must be 1 to ", kMaxBatch, ", got ", size));
    } else if (c.batch_duration && c.use_bucketing) {
      size = std::min<int64_t>(size, samples_per_batch(*c.batch_duration, info.longest_s,
                                                       c.quadratic_duration.value_or(0)));
    }
    info.batch_size = static_cast<uint32_t>(size);
    bucket_batch_sizes_.push_back(info.batch_size);
    bucket_samples_.push_back(std::make_shared<const std::vector<uint32_t>>(std::move(lists[b])));
    if (info.samples > 0) max_batch_size_ = std::max(max_batch_size_, info.batch_size);
  }
  if (c.batch_duration && !c.use_bucketing && c.bucket_batch_size.empty()) {
    // Packed one by one: at most as many as the shortest known sample allows.
    double shortest = longest_s_;
    for (const double d : set_->lengths)
      if (d > 0 && d < shortest) shortest = d;
    max_batch_size_ = static_cast<uint32_t>(std::min<int64_t>(
        c.batch_size.value_or(kMaxBatch),
        samples_per_batch(*c.batch_duration, shortest, c.quadratic_duration.value_or(0))));
  }
  return ok_status();
}

std::shared_ptr<const LaneOrder> Sampler::group_order(size_t g, uint32_t epoch, uint64_t stream,
                                                      bool shuffle) const {
  const SampleGroup& group = set_->groups[g];
  const OrderKey key{options_.seed, epoch, stream};
  if (!set_->sharded)
    return std::make_shared<MapOrder>(group.begin, group.end - group.begin, shuffle,
                                      options_.virtual_ranks, key);
  TarOrderOptions tar;
  tar.shuffle_n = shuffle_n_;
  tar.shuffle_samples = options_.shuffle_level == ShuffleLevel::kSample && !options_.compat_nemo;
  tar.split = config_.shard_strategy == ShardStrategy::kReplicate
                  ? ShardSplit::kReplicate
                  : (options_.compat_nemo ? ShardSplit::kNemoScatter : ShardSplit::kScatter);
  return make_tar_order(group.shard_starts, group.end, tar, options_.virtual_ranks, key);
}

// Each lane draws members and takes the next sample of the member drawn. A member that has run dry
// is shuffled anew and the draw is repeated, which in turn-taking gives the turn to the next member
// (NeMo's rule).
std::shared_ptr<const LaneOrder> Sampler::concat_order(uint32_t epoch) const {
  const size_t n = set_->groups.size();
  const uint32_t lanes = options_.virtual_ranks;
  uint64_t total = 0;
  for (const SampleGroup& group : set_->groups) total += group.end - group.begin;
  total *= static_cast<uint64_t>(config_.concat_sampling_scale);
  const uint64_t seed =
      config_.concat_sampling_seed
          ? mix64(options_.seed ^ mix64(static_cast<uint64_t>(*config_.concat_sampling_seed)))
          : options_.seed;
  const bool turns = config_.concat_sampling_technique == ConcatTechnique::kRoundRobin;
  std::vector<double> cumulative(n);
  if (!turns) std::partial_sum(concat_p_.begin(), concat_p_.end(), cumulative.begin());

  using Key = std::tuple<size_t, uint32_t, uint32_t>;
  std::map<Key, std::shared_ptr<const LaneOrder>> orders;
  struct Reader {
    std::shared_ptr<const LaneOrder> order;
    uint32_t lane = 0;
    uint32_t round = 0;
    uint64_t next = 0;
  };
  const auto open = [&](Reader& reader, size_t g, uint32_t lane, uint32_t round) {
    const SampleGroup& group = set_->groups[g];
    // A member with fewer samples than lanes cannot be dealt out: each lane has all of it.
    const bool own = group.end - group.begin < lanes ||
                     (set_->sharded && options_.compat_nemo && group.shard_starts.size() < lanes);
    auto& order = orders[{g, round, own ? lane + 1 : 0}];
    if (order == nullptr) {
      const uint64_t stream = stream_of(kGroupStream, g, round);
      order = own ? std::make_shared<MapOrder>(
                        group.begin, group.end - group.begin, config_.concat_shuffle, 1,
                        OrderKey{options_.seed, epoch, mix64(stream ^ (lane + 1))})
                  : group_order(g, epoch, stream, config_.concat_shuffle);
    }
    reader = {order, own ? 0 : lane, round, 0};
  };

  std::vector<std::vector<uint32_t>> out(lanes);
  for (uint32_t v = 0; v < lanes; ++v) {
    const uint64_t length = v < total ? (total - v - 1) / lanes + 1 : 0;
    out[v].reserve(length);
    std::vector<Reader> readers(n);
    for (size_t g = 0; g < n; ++g) open(readers[g], g, v, 0);
    RandomStream random(seed, Purpose::kSampling, epoch, stream_of(kMixStream, v, 0));
    size_t turn = 0;
    while (out[v].size() < length) {
      size_t g;
      if (turns) {
        g = turn++ % n;
      } else {
        const double u = random.uniform() * cumulative.back();
        g = static_cast<size_t>(std::upper_bound(cumulative.begin(), cumulative.end(), u) -
                                cumulative.begin());
        if (g >= n) g = n - 1;
      }
      Reader& reader = readers[g];
      if (reader.next >= reader.order->lane_size(reader.lane)) {
        open(reader, g, v, reader.round + 1);
        continue;
      }
      out[v].push_back(reader.order->at(reader.lane, reader.next++));
    }
  }
  return std::make_shared<TableOrder>(std::move(out));
}

void Sampler::plan_durations(EpochPlan& plan) const {
  // Tarred data: buckets keep the order of one pass over the shards, so that reading stays close to
  // sequential; otherwise each bucket is shuffled by itself.
  std::vector<std::vector<uint32_t>> passes;
  if (set_->sharded) {
    passes.resize(bucket_samples_.size());
    for (size_t g = 0; g < set_->groups.size(); ++g) {
      TarOrderOptions tar;
      tar.shuffle_n = shuffle_n_;
      tar.shuffle_samples =
          options_.shuffle_level == ShuffleLevel::kSample && !options_.compat_nemo;
      const SampleGroup& group = set_->groups[g];
      const auto order =
          make_tar_order(group.shard_starts, group.end, tar, 1,
                         {options_.seed, plan.epoch_, stream_of(kGroupStream, g, 0)});
      for (uint64_t j = 0; j < order->lane_size(0); ++j) {
        const uint32_t i = order->at(0, j);
        const size_t b = buckets_.find(set_->length(i));
        if (b < passes.size()) passes[b].push_back(i);
      }
    }
  }
  for (uint32_t b = 0; b < bucket_samples_.size(); ++b) {
    EpochPlan::Section section;
    section.bucket = b;
    section.batch_size = bucket_batch_sizes_[b];
    section.order = std::make_shared<MapOrder>(
        set_->sharded ? std::make_shared<const std::vector<uint32_t>>(std::move(passes[b]))
                      : bucket_samples_[b],
        config_.shuffle && !set_->sharded, plan.num_lanes_,
        OrderKey{options_.seed, plan.epoch_, stream_of(kBucketStream, b, 0)});
    if (packs_one_by_one()) pack(plan, section);
    plan.add_section(std::move(section), config_.drop_last);
  }
  interleave(plan);
}

void Sampler::interleave(EpochPlan& plan) const {
  if (!config_.shuffle || plan.sections_.size() < 2) {
    plan.chain_all();
    return;
  }
  // Batches of all buckets progress together: the s-th of S batches stands at a random place in the
  // s-th of S equal parts of the epoch.
  struct Step {
    double key;
    uint32_t section;
    uint32_t local;
  };
  std::vector<Step> steps;
  steps.reserve(plan.num_steps_);
  for (uint32_t s = 0; s < plan.sections_.size(); ++s) {
    RandomStream random(options_.seed, Purpose::kSampling, plan.epoch_,
                        stream_of(kScheduleStream, s, 0));
    const double count = static_cast<double>(plan.sections_[s].steps);
    for (uint32_t k = 0; k < plan.sections_[s].steps; ++k)
      steps.push_back({(k + random.uniform()) / count, s, k});
  }
  std::sort(steps.begin(), steps.end(), [](const Step& a, const Step& b) {
    return std::tie(a.key, a.section, a.local) < std::tie(b.key, b.section, b.local);
  });
  for (const Step& step : steps) {
    plan.step_section_.push_back(step.section);
    plan.step_local_.push_back(step.local);
  }
  if (steps.empty()) plan.chain_all();
}

std::shared_ptr<const EpochPlan> Sampler::plan(uint32_t epoch) const {
  auto plan = std::make_shared<EpochPlan>();
  plan->epoch_ = epoch;
  plan->num_lanes_ = options_.virtual_ranks;
  if (mode_ == Mode::kDurationBuckets) {
    plan_durations(*plan);
    return plan;
  }
  if (mode_ == Mode::kConcat) {
    EpochPlan::Section section;
    section.order = concat_order(epoch);
    section.batch_size = batch_size_;
    plan->add_section(std::move(section), config_.drop_last);
    plan->chain_all();
    return plan;
  }
  for (const BucketRepeat& repeat : repeats_) {
    EpochPlan::Section section;
    section.bucket = repeat.bucket;
    section.batch_size = bucket_batch_sizes_[repeat.bucket];
    section.order =
        group_order(repeat.bucket, epoch, stream_of(kGroupStream, repeat.bucket, repeat.repeat),
                    config_.shuffle);
    plan->add_section(std::move(section), config_.drop_last);
  }
  if (mode_ == Mode::kPlain) {
    plan->chain_all();
    return plan;
  }
  const uint32_t n = static_cast<uint32_t>(plan->sections_.size());
  const bool per_lane = config_.bucketing_strategy == BucketingStrategy::kFullyRandomized;
  for (uint32_t v = 0; v < (per_lane ? plan->num_lanes_ : 1); ++v) {
    EpochPlan::Chain chain;
    uint64_t step = 0;
    for (const uint32_t s : bucket_order(config_.bucketing_strategy, n, options_.seed, epoch, v,
                                         options_.compat_nemo)) {
      chain.sections.push_back(s);
      chain.first_step.push_back(step);
      step += plan->sections_[s].steps;
    }
    plan->chains_.push_back(std::move(chain));
  }
  return plan;
}

}  // namespace aerie::data
