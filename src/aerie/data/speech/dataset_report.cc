#include "aerie/data/speech/dataset_report.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <mutex>

#include <nlohmann/json.hpp>

#include "aerie/base/progress.h"
#include "aerie/base/strings.h"
#include "aerie/base/thread_pool.h"
#include "aerie/data/bucketing.h"
#include "aerie/data/epoch_plan.h"
#include "aerie/data/loader_setup.h"
#include "aerie/data/speech/speech_assembler.h"

namespace aerie::data {

namespace {

using nlohmann::ordered_json;

std::string fixed(double value, int digits) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

double quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return 0.0;
  const double at = q * static_cast<double>(sorted.size() - 1);
  const size_t low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

std::vector<HistogramBin> make_histogram(const std::vector<double>& sorted, int num_bins) {
  std::vector<HistogramBin> bins;
  if (sorted.empty() || num_bins < 1) return bins;
  // Edges on whole steps of 1, 2 or 5 times a power of ten.
  const double range = std::max(1e-3, sorted.back() - sorted.front());
  const double raw = range / num_bins;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  double step = power * 10;
  for (const double factor : {1.0, 2.0, 5.0})
    if (factor * power >= raw) {
      step = factor * power;
      break;
    }
  const double first = std::floor(sorted.front() / step) * step;
  for (const double d : sorted) {
    const size_t k = static_cast<size_t>(std::max(0.0, std::floor((d - first) / step)));
    while (bins.size() <= k) {
      const double low = first + static_cast<double>(bins.size()) * step;
      bins.push_back({low, low + step, 0, 0.0});
    }
    ++bins[k].count;
    bins[k].total_s += d;
  }
  return bins;
}

// What a loader with this configuration would do, by the loader's own reckoning.
Result<PaddingEstimate> estimate_padding(const AudioDataset& dataset,
                                         const config::DatasetConfig& config, std::string strategy,
                                         const config::SpeechAerieConfig& aerie) {
  SpeechLoaderOptions loader;
  loader.seed = aerie.seed;
  AERIE_ASSIGN_OR_RETURN(const Sampler::Options options,
                         loader_sampler_options(loader_config(config, aerie), loader));
  AERIE_ASSIGN_OR_RETURN(const Sampler sampler,
                         Sampler::make(dataset.samples(), sampling_config(config), options));
  const int rate = dataset.read_options().sample_rate;
  AERIE_ASSIGN_OR_RETURN(const Perturber perturber, Perturber::make(config.augmentor, rate));
  const auto plan = sampler.plan(0);
  const PlanShapes shapes = plan_shapes(*plan, dataset, perturber, loader_min_samples(aerie, rate),
                                        aerie.data.max_shapes, loader.capacity_multiple);
  PaddingEstimate out;
  out.strategy = std::move(strategy);
  out.padding_share = shapes.padding_share;
  out.shapes = shapes.capacities.lengths().size();
  out.steps = plan->num_steps();
  return out;
}

// Readers handed out to whichever thread needs one.
class Readers {
 public:
  explicit Readers(const AudioDataset& dataset) : dataset_(dataset) {}
  std::unique_ptr<SampleReader> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<SampleReader>(dataset_);
    auto reader = std::move(free_.back());
    free_.pop_back();
    return reader;
  }
  void give_back(std::unique_ptr<SampleReader> reader) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(reader));
  }

 private:
  const AudioDataset& dataset_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<SampleReader>> free_;
};

ThreadPoolOptions pool_options(const char* name, int threads) {
  ThreadPoolOptions out;
  out.name = name;
  out.num_threads = std::max(1, threads);
  return out;
}

Result<audio::AudioInfo> probe(const AudioDataset& dataset, uint64_t i) {
  return retry_passing(RetryPolicy{}, [&]() -> Result<audio::AudioInfo> {
    if (dataset.shards() != nullptr) {
      AERIE_ASSIGN_OR_RETURN(auto member, dataset.shards()->open_member(i));
      auto info = audio::probe_stream(std::move(member), dataset.describe(i));
      if (is_passing(info.status())) dataset.shards()->forget(i);
      return info;
    }
    return audio::probe_file(dataset.manifest().resolve_paths(dataset.sample_id(i))[0]);
  });
}

// What is wrong with a recording; an error when it is the machine that has a problem.
Result<BrokenSample> broken_sample(const std::string& place, const Status& status) {
  if (is_passing(status)) return status.with_context(place);
  const char* kind = starts_with(status.message(), audio::kNoAudio)    ? "empty"
                     : starts_with(status.message(), audio::kCutShort) ? "cut"
                                                                       : "unreadable";
  return BrokenSample{place, kind, status.to_string()};
}

template <typename Key>
ordered_json counts_json(const std::map<Key, uint64_t>& counts) {
  ordered_json out = ordered_json::object();
  for (const auto& [key, count] : counts) {
    if constexpr (std::is_same_v<Key, std::string>)
      out[key] = count;
    else
      out[std::to_string(key)] = count;
  }
  return out;
}

template <typename Key>
std::string counts_text(const std::map<Key, uint64_t>& counts, const char* unit) {
  std::vector<std::pair<uint64_t, Key>> sorted;
  for (const auto& [key, count] : counts) sorted.emplace_back(count, key);
  std::sort(sorted.rbegin(), sorted.rend());
  std::vector<std::string> parts;
  for (const auto& [count, key] : sorted) parts.push_back(str_cat(key, unit, " (", count, ")"));
  return join(parts, ", ");
}

}  // namespace

Result<DatasetReport> report_dataset(const AudioDataset& dataset,
                                     const config::DatasetConfig& config,
                                     const ReportOptions& options) {
  DatasetReport out;
  out.totals = dataset.manifest().totals();
  out.samples = dataset.size();
  std::vector<double> sorted;
  double total = 0;
  for (uint64_t i = 0; i < dataset.size(); ++i) {
    const double d = dataset.duration_s(i);
    if (std::isnan(d)) continue;
    sorted.push_back(d);
    total += d;
  }
  std::sort(sorted.begin(), sorted.end());
  if (!sorted.empty()) out.mean_s = total / static_cast<double>(sorted.size());
  out.median_s = quantile(sorted, 0.5);
  out.p05_s = quantile(sorted, 0.05);
  out.p95_s = quantile(sorted, 0.95);
  out.histogram = make_histogram(sorted, options.num_bins);
  // Short clips are as long as they are filled up to: edges below that would part nothing.
  std::vector<double> filled = sorted;
  for (double& d : filled) d = std::max(d, options.aerie.audio.min_audio_len_secs);
  out.duration_bins = estimate_duration_bins(filled, 8);

  const uint64_t probes = std::min<uint64_t>(options.probes, dataset.size());
  if (probes > 0) {
    std::mutex mutex;
    double bytes = 0, seconds = 0;
    ThreadPool pool(pool_options("probe", options.num_threads));
    AERIE_RETURN_IF_ERROR(pool.parallel_for(probes, [&](size_t k) -> Status {
      const Result<audio::AudioInfo> info = probe(dataset, k * dataset.size() / probes);
      const std::lock_guard lock(mutex);
      ++out.probed;
      if (!info.ok()) {
        ++out.probe_failures;
        return ok_status();
      }
      ++out.codecs[audio::codec_name(info->codec)];
      ++out.sample_rates[info->sample_rate];
      ++out.channels[info->channels];
      if (info->duration_s() > 0) {
        bytes += static_cast<double>(info->bytes);
        seconds += info->duration_s();
      }
      return ok_status();
    }));
    out.bytes_per_s = seconds > 0 ? bytes / seconds : 0.0;
  }

  // The configured way first, then what else could be done with the same batch size.
  const auto add = [&](const config::DatasetConfig& variant, std::string name) -> Status {
    auto estimate = estimate_padding(dataset, variant, std::move(name), options.aerie);
    if (estimate.ok()) out.padding.push_back(std::move(estimate).value());
    return ok_status();
  };
  AERIE_RETURN_IF_ERROR(add(config, "as configured"));
  config::DatasetConfig plain;
  plain.batch_size = config.batch_size.value_or(16);
  plain.shuffle = true;
  plain.augmentor = config.augmentor;
  AERIE_RETURN_IF_ERROR(add(plain, str_cat("shuffled, batch_size ", *plain.batch_size)));
  for (const int64_t buckets : {4, 8, 16, 30}) {
    config::DatasetConfig bucketed = plain;
    bucketed.use_bucketing = true;
    bucketed.num_buckets = buckets;
    AERIE_RETURN_IF_ERROR(add(bucketed, str_cat("use_bucketing, num_buckets ", buckets)));
  }
  return out;
}

std::string DatasetReport::to_json() const {
  ordered_json out;
  out["samples"] = samples;
  out["kept"] = totals.kept;
  out["hours"] = totals.kept_s / 3600;
  out["filtered"] = totals.filtered;
  out["filtered_hours"] = totals.filtered_s / 3600;
  out["unknown_duration"] = totals.unknown;
  out["bad_lines"] = totals.bad_lines;
  out["duration_s"] = {{"shortest", totals.shortest_s},
                       {"p05", p05_s},
                       {"median", median_s},
                       {"mean", mean_s},
                       {"p95", p95_s},
                       {"longest", totals.longest_s}};
  out["histogram"] = ordered_json::array();
  for (const HistogramBin& bin : histogram)
    out["histogram"].push_back({{"low_s", bin.low_s},
                                {"high_s", bin.high_s},
                                {"count", bin.count},
                                {"hours", bin.total_s / 3600}});
  out["probed"] = probed;
  out["probe_failures"] = probe_failures;
  out["codecs"] = counts_json(codecs);
  out["sample_rates"] = counts_json(sample_rates);
  out["channels"] = counts_json(channels);
  out["bytes_per_audio_s"] = bytes_per_s;
  out["padding"] = ordered_json::array();
  for (const PaddingEstimate& estimate : padding)
    out["padding"].push_back({{"strategy", estimate.strategy},
                              {"padding_share", estimate.padding_share},
                              {"shapes", estimate.shapes},
                              {"steps_per_epoch", estimate.steps}});
  out["bucket_duration_bins_8"] = duration_bins;
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string DatasetReport::to_text(int width) const {
  std::string out;
  out += str_cat("samples      ", group_digits(samples), ", ", fixed(totals.kept_s / 3600, 2),
                 " hours");
  if (totals.unknown > 0) out += str_cat(" (", totals.unknown, " without a duration)");
  out += str_cat("\nfiltered     ", group_digits(totals.filtered), ", ",
                 fixed(totals.filtered_s / 3600, 2), " hours");
  if (totals.filtered > 0)
    out += str_cat(" (", group_digits(totals.filtered_short), " too short, ",
                   group_digits(totals.filtered - totals.filtered_short), " too long)");
  out += "\n";
  if (totals.bad_lines > 0) out += str_cat("bad lines    ", totals.bad_lines, "\n");
  out += str_cat("duration s   shortest ", fixed(totals.shortest_s, 2), ", 5% ", fixed(p05_s, 2),
                 ", median ", fixed(median_s, 2), ", mean ", fixed(mean_s, 2), ", 95% ",
                 fixed(p95_s, 2), ", longest ", fixed(totals.longest_s, 2), "\n");
  uint64_t most = 1;
  for (const HistogramBin& bin : histogram) most = std::max(most, bin.count);
  const int room = std::max(10, width - 44);
  for (const HistogramBin& bin : histogram) {
    char label[64];
    std::snprintf(label, sizeof(label), "%8.2f-%-8.2f %10s %7.2fh ", bin.low_s, bin.high_s,
                  group_digits(bin.count).c_str(), bin.total_s / 3600);
    const int bar = static_cast<int>(std::lround(
        static_cast<double>(room) * static_cast<double>(bin.count) / static_cast<double>(most)));
    out += str_cat("  ", label, std::string(static_cast<size_t>(bar), '#'), "\n");
  }
  if (probed > 0) {
    out += str_cat("looked at    ", group_digits(probed), " recordings, ", probe_failures,
                   " could not be read\n");
    out += str_cat("codecs       ", counts_text(codecs, ""), "\n");
    out += str_cat("rates        ", counts_text(sample_rates, " Hz"), "\n");
    out += str_cat("channels     ", counts_text(channels, ""), "\n");
    out += str_cat("size         ", fixed(bytes_per_s / 1000, 1), " kB per second of audio\n");
  }
  if (!padding.empty()) {
    char head[96];
    std::snprintf(head, sizeof(head), "%-36s %8s %7s %10s\n", "batches", "padding", "shapes",
                  "steps");
    out += str_cat("\n", head);
    for (const PaddingEstimate& estimate : padding) {
      char line[128];
      std::snprintf(line, sizeof(line), "%-36s %7.1f%% %7llu %10s\n", estimate.strategy.c_str(),
                    100 * estimate.padding_share, static_cast<unsigned long long>(estimate.shapes),
                    group_digits(estimate.steps).c_str());
      out += line;
    }
  }
  if (!duration_bins.empty()) {
    // Edges that are one in print would be refused by the loader.
    std::vector<std::string> edges;
    for (const double edge : duration_bins)
      if (std::string text = fixed(edge, 2); edges.empty() || edges.back() != text)
        edges.push_back(std::move(text));
    out += str_cat("\nbucket_duration_bins: [", join(edges, ", "), "]   (", edges.size() + 1,
                   " buckets)\n");
  }
  return out;
}

Result<ValidateReport> validate_dataset(const AudioDataset& dataset,
                                        const ValidateOptions& options) {
  const uint64_t noise = dataset.noise() != nullptr ? dataset.noise()->size() : 0;
  const uint64_t total = dataset.size() + noise;
  if (options.on_start) options.on_start(total);
  ValidateReport out;
  Readers readers(dataset);
  std::mutex mutex;
  std::map<uint64_t, BrokenSample> broken, warnings;  // by number, so that threads do not matter
  ThreadPool pool(pool_options("validate", options.num_threads));
  const int rate = dataset.read_options().sample_rate;
  // Where rows take pieces of long recordings, a long recording is what is meant.
  const auto takes_pieces = [](const Manifest& manifest) {
    for (uint64_t i = 0; i < manifest.size(); ++i)
      if (manifest.offset_s(i) > 0) return true;
    return false;
  };
  const bool pieces = takes_pieces(dataset.manifest());
  const bool noise_pieces = noise > 0 && takes_pieces(*dataset.noise());

  const auto check = [&](uint64_t k, SampleReader& reader) -> Result<BrokenSample> {
    const bool is_noise = k >= dataset.size();
    const uint64_t i = is_noise ? k - dataset.size() : k;
    const Manifest& manifest = is_noise ? *dataset.noise() : dataset.manifest();
    const std::string place = is_noise
                                  ? str_cat(manifest.place(i), " (", manifest.written_path(i), ")")
                                  : dataset.describe(i);
    const double listed_s = is_noise ? manifest.duration_s(i) : dataset.duration_s(i);
    const double offset_s =
        is_noise ? manifest.offset_s(i) : dataset.manifest().offset_s(dataset.sample_id(i));
    double found_s = 0, whole_s = -1;
    bool silent = false;
    if (options.quick) {
      const Result<audio::AudioInfo> info =
          is_noise ? audio::probe_file(manifest.resolve_paths(i)[0]) : probe(dataset, i);
      if (!info.ok()) return broken_sample(place, info.status());
      whole_s = info->duration_s();
      found_s = whole_s < 0 ? listed_s : whole_s - offset_s;
      if (info->missing_frames > 0 && !(listed_s > 0))
        return BrokenSample{
            place, "cut",
            str_cat("the header promises ",
                    fixed(static_cast<double>(info->missing_frames) / info->sample_rate, 3),
                    " s more than the file holds")};
    } else {
      const Result<audio::AudioView> view =
          is_noise ? retry_passing(RetryPolicy{},
                                   [&] {
                                     return reader.audio.read_file(
                                         manifest.resolve_paths(i)[0],
                                         {offset_s, listed_s, nullptr, reader.room_samples});
                                   })
                   : dataset.read(i, reader);
      if (!view.ok()) return broken_sample(place, view.status());
      whole_s = view->source.duration_s();
      found_s = static_cast<double>(view->frames) / rate;
      double energy = 0;
      if (view->pcm16 != nullptr)
        energy = sum_of_squares(view->pcm16, view->size());
      else if (view->samples != nullptr)
        energy = sum_of_squares(view->samples, view->size());
      silent = energy == 0;
    }
    const std::lock_guard lock(mutex);
    out.audio_s += std::max(0.0, found_s);
    if (!(found_s > 0)) return BrokenSample{place, "empty", std::string(audio::kNoAudio)};
    if (listed_s > 0 && found_s < listed_s - options.tolerance_s)
      return BrokenSample{place, "short",
                          str_cat("the manifest says ", fixed(listed_s, 3),
                                  " s, the recording has ", fixed(found_s, 3), " s")};
    constexpr double kManyTimes = 10, kMuch_s = 60;
    if (silent)
      warnings[k] = {place, "silent", "all samples are zero"};
    else if (!(is_noise ? noise_pieces : pieces) && listed_s > 0 &&
             whole_s > kManyTimes * listed_s && whole_s > listed_s + kMuch_s)
      warnings[k] = {place, "long",
                     str_cat("the manifest takes ", fixed(listed_s, 3), " s of a recording of ",
                             fixed(whole_s, 3), " s")};
    return BrokenSample{};
  };
  AERIE_RETURN_IF_ERROR(pool.parallel_for(total, [&](size_t k) -> Status {
    if (options.stop && options.stop()) return cancelled("stopped on request");
    auto reader = readers.take();
    Result<BrokenSample> found = check(k, *reader);
    readers.give_back(std::move(reader));
    if (!found.ok()) return found.status();
    if (options.on_sample) options.on_sample();
    const std::lock_guard lock(mutex);
    ++out.checked;
    if (!found->kind.empty()) broken[k] = std::move(found).value();
    return ok_status();
  }));
  if (dataset.shards() != nullptr) {
    const Manifest& manifest = dataset.manifest();
    for (const uint32_t row : dataset.shards()->report().unmatched) {
      ++out.checked;
      out.broken.push_back({str_cat(manifest.place(row), " (", manifest.written_path(row), ")"),
                            "missing", "no archive has a member of this name"});
    }
  }
  for (auto& [k, sample] : broken) out.broken.push_back(std::move(sample));
  for (auto& [k, sample] : warnings) out.warnings.push_back(std::move(sample));
  return out;
}

std::string ValidateReport::to_json() const {
  const auto list = [](const std::vector<BrokenSample>& samples) {
    ordered_json out = ordered_json::array();
    for (const BrokenSample& sample : samples)
      out.push_back({{"place", sample.place}, {"kind", sample.kind}, {"reason", sample.reason}});
    return out;
  };
  ordered_json out;
  out["checked"] = checked;
  out["hours"] = audio_s / 3600;
  out["broken"] = list(broken);
  out["warnings"] = list(warnings);
  return out.dump(1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace aerie::data
