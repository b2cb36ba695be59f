#include "aerie/models/nest/config/nest_tuning.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "aerie/base/strings.h"

namespace aerie::config {

namespace {

using advisor::knob_at;
using advisor::TuneBatch;
using advisor::TuneKnob;

constexpr int64_t kFirstBatch = 8;        // where a search for `auto` begins
constexpr double kUsualLongest_s = 20.0;  // where max_duration says nothing
constexpr int64_t kMostRows = 1 << 20;
constexpr int64_t kMostSeconds = int64_t{1} << 24;

std::string list_text(const std::vector<int64_t>& values) {
  std::vector<std::string> items;
  for (const int64_t value : values) items.push_back(str_cat(value));
  return str_cat("[", join(items, ","), "]");
}

int64_t scaled(int64_t value, int64_t size, int64_t start) {
  const double exact =
      static_cast<double>(value) * static_cast<double>(size) / static_cast<double>(start);
  return std::max<int64_t>(1, static_cast<int64_t>(exact));
}

// Seconds of padded audio in a batch: every bucket then has as many clips as its longest allows.
TuneBatch seconds_batch(const DatasetConfig& set, double seconds) {
  TuneBatch out;
  out.key = "model.train_ds.batch_duration";
  out.unit = "seconds of padded audio";
  out.start = std::max<int64_t>(1, std::llround(seconds));
  out.most = kMostSeconds;
  const bool sized = set.batch_size.has_value() || set.auto_batch_size;
  out.changes = [sized](int64_t size) {
    std::vector<std::string> changes{str_cat("model.train_ds.batch_duration=", size)};
    if (sized) changes.emplace_back("model.train_ds.batch_size=null");
    return changes;
  };
  return out;
}

// A list of sizes, one a bucket, by the seconds that the longest clips of each bucket add up to.
TuneBatch listed_batch(const DatasetConfig& set) {
  TuneBatch out;
  out.key = "model.train_ds.bucket_batch_size";
  out.unit = "seconds of padded audio in each bucket";
  out.most = kMostSeconds;
  const std::vector<double> bins = set.bucket_duration_bins;
  const std::vector<int64_t> sizes = set.bucket_batch_size;
  double most = 1.0;
  for (size_t i = 0; i < std::min(bins.size(), sizes.size()); ++i)
    most = std::max(most, bins[i] * static_cast<double>(sizes[i]));
  out.start = std::llround(most);
  out.bucket_sizes = [bins, sizes, start = out.start](int64_t size) {
    std::vector<int64_t> list;
    for (size_t i = 0; i < sizes.size(); ++i) {
      // The open bucket has no bound: it grows as the whole does.
      const int64_t rows = i < bins.size()
                               ? static_cast<int64_t>(static_cast<double>(size) / bins[i] + 1e-9)
                               : scaled(sizes[i], size, start);
      list.push_back(std::clamp<int64_t>(rows, 1, kMostRows));
    }
    return list;
  };
  out.bucket_changes = [](const std::vector<int64_t>& list) {
    return std::vector<std::string>{str_cat("model.train_ds.bucket_batch_size=", list_text(list))};
  };
  out.changes = [of = out.bucket_sizes, text = out.bucket_changes](int64_t size) {
    return text(of(size));
  };
  return out;
}

// NeMo's tarred buckets: a number for the linear rule or a list.
TuneBatch classic_batch(const DatasetConfig& set) {
  TuneBatch out;
  out.key = "model.train_ds.bucketing_batch_size";
  out.unit = set.bucketing_batch_size_is_list ? "clips in the largest bucket" : "clips a bucket";
  out.start = *std::max_element(set.bucketing_batch_size.begin(), set.bucketing_batch_size.end());
  out.most = kMostRows;
  const auto sizes_of = [sizes = set.bucketing_batch_size, start = out.start](int64_t size) {
    std::vector<int64_t> values;
    for (const int64_t value : sizes) values.push_back(scaled(value, size, start));
    return values;
  };
  const auto text = [list = set.bucketing_batch_size_is_list](const std::vector<int64_t>& values) {
    return std::vector<std::string>{str_cat("model.train_ds.bucketing_batch_size=",
                                            list ? list_text(values) : str_cat(values[0]))};
  };
  out.changes = [sizes_of, text](int64_t size) { return text(sizes_of(size)); };
  if (set.bucketing_batch_size_is_list) {
    out.bucket_sizes = sizes_of;
    out.bucket_changes = text;
  }
  return out;
}

TuneBatch batch_of(const DatasetConfig& set) {
  const double longest =
      set.max_duration && *set.max_duration > 0.0 && std::isfinite(*set.max_duration)
          ? *set.max_duration
          : kUsualLongest_s;
  const auto rows = static_cast<double>(set.batch_size.value_or(kFirstBatch));
  TuneBatch out;
  if (!set.bucket_batch_size.empty()) {
    out = listed_batch(set);
  } else if (set.batch_duration) {
    out = seconds_batch(set, *set.batch_duration);
  } else if (set.use_bucketing) {
    out = seconds_batch(set, rows * longest);
    out.explanation =
        "model.train_ds.use_bucketing: batch_duration gives every bucket its own batch size, "
        "batch_size is the same for all";
  } else if (!set.bucketing_batch_size.empty()) {
    out = classic_batch(set);
  } else {
    out.key = "model.train_ds.batch_size";
    out.unit = "clips";
    out.start = set.batch_size.value_or(kFirstBatch);
    out.most = kMostRows;
    out.changes = [](int64_t size) {
      return std::vector<std::string>{str_cat("model.train_ds.batch_size=", size)};
    };
  }
  out.automatic = set.auto_batch_size;
  return out;
}

}  // namespace

advisor::TuneSpace nest_tune_space(const RunConfig& run, const advisor::TuneMachine& machine) {
  const DatasetConfig& set = run.model.train_ds;
  advisor::TuneSpace out;
  out.batch = batch_of(set);
  out.rate = {"model.optim.lr", run.model.optim.lr, ""};
  out.throughput_unit = "audio-s/s";

  if (set.num_workers != DatasetConfig::kAutoWorkers)
    out.knobs.push_back(
        advisor::worker_knob("model.train_ds.num_workers", set.num_workers, machine.cpus));
  out.knobs.push_back(advisor::prefetch_knob("model.train_ds.prefetch_factor", set.prefetch_factor,
                                             "model.train_ds.num_workers"));
  if (!machine.gpu) return out;

  if (!set.pin_memory)
    out.knobs.push_back(knob_at("model.train_ds.pin_memory", "false", {"false", "true"}));
  const MixOn mix = run.aerie.audio.mix_on;
  out.knobs.push_back(mix == MixOn::kCpu   ? knob_at("aerie.data.mix_on", "cpu", {"cpu", "gpu"})
                      : mix == MixOn::kGpu ? knob_at("aerie.data.mix_on", "gpu", {"gpu", "cpu"})
                                           : knob_at("aerie.data.mix_on", "auto", {"auto", "cpu"}));
  if (run.aerie.engine == Engine::kReference)
    out.knobs.push_back(knob_at("aerie.engine", "reference", {"reference", "auto"}));
  out.knobs.push_back(advisor::precision_knob(precision_name(run.trainer.precision), machine.bf16));
  out.knobs.push_back(advisor::recompute_knob("aerie.activation_checkpointing",
                                              run.aerie.activation_checkpointing));
  return out;
}

}  // namespace aerie::config
