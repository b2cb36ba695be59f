#include "aerie/data/speech/shard/shard_plan.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include <nlohmann/json.hpp>

#include "aerie/audio/audio_writer.h"
#include "aerie/base/path.h"
#include "aerie/data/speech/manifest_line.h"
#include "aerie/data/speech/shard/python_format.h"

namespace aerie::data {
namespace {

constexpr size_t kMaxBadLinesShown = 20;

bool is_file(Env& env, const std::string& path) {
  const Result<FileStat> info = env.stat(path);
  return info.ok() && info->is_regular;
}

// Fills path and duration of one line.
Status parse_entry(Env& env, const ShardOptions& options, ShardEntry* entry) {
  const nlohmann::json line = nlohmann::json::parse(entry->line, nullptr, false);
  if (!line.is_object()) return data_error("is not a JSON object");
  const nlohmann::json* path = nullptr;
  for (const char* key : {"audio_filename", "audio_filepath", "audio_file"})
    if (const auto it = line.find(key); it != line.end() && path == nullptr) path = &*it;
  if (path == nullptr) return data_error("has no audio_filepath");
  if (path->is_array()) return data_error("lists several files; tarred sets hold one per entry");
  if (!path->is_string() || path->get_ref<const std::string&>().empty())
    return data_error("has an audio_filepath that is no text");
  const auto duration = line.find("duration");
  if (duration == line.end() || !duration->is_number()) return data_error("has no duration");
  entry->duration_s = duration->get<double>();
  if (!std::isfinite(entry->duration_s)) return data_error("has an infinite duration");
  AERIE_RETURN_IF_ERROR(check_duration(entry->duration_s));
  const auto offset = line.find("offset");
  const bool has_offset = offset != line.end() && offset->is_number();
  if (has_offset) entry->offset_s = offset->get<double>();
  if (options.slice_with_offset && !has_offset)
    return data_error("has no offset, which slice_with_offset needs");
  entry->audio_path = path->get<std::string>();
  if (options.only_manifests && is_absolute_path(entry->audio_path)) return ok_status();
  if (is_file(env, entry->audio_path)) return ok_status();
  if (!is_absolute_path(entry->audio_path)) {
    const std::string beside = join_path(parent_path(options.manifest_path), entry->audio_path);
    // The converter keeps "dir/../a.wav" as it is: names of members depend on the text.
    if (is_file(env, beside)) {
      const std::string dir = parent_path(options.manifest_path);
      entry->audio_path = options.manifest_path.find('/') == std::string::npos
                              ? entry->audio_path
                              : join_path(dir, entry->audio_path);
      return ok_status();
    }
  }
  return not_found(str_cat("names '", entry->audio_path, "', which is not there"));
}

}  // namespace

Result<std::vector<ShardBucket>> plan_buckets(const ShardOptions& options) {
  if (options.num_shards <= 0)
    return invalid_argument("num_shards must be at least 1").with_hint("give --num_shards N");
  if (options.buckets_num < 1) return invalid_argument("buckets_num must be at least 1");
  if (!options.force_codec.empty())
    AERIE_RETURN_IF_ERROR(audio::parse_file_format(options.force_codec).status());
  if (options.buckets_num == 1)
    return std::vector<ShardBucket>{
        {options.target_dir, options.min_duration_s, options.max_duration_s}};
  if (!options.max_duration_s)
    return invalid_argument("buckets need max_duration").with_hint("give --max_duration SECONDS");
  const double low = options.min_duration_s.value_or(0.0);
  const double width = (*options.max_duration_s - low) / options.buckets_num;
  if (!(width > 0)) return invalid_argument("min_duration must be below max_duration");
  std::vector<ShardBucket> buckets;
  for (int i = 0; i < options.buckets_num; ++i) {
    ShardBucket bucket;
    bucket.target_dir = join_path(options.target_dir, str_cat("bucket", i + 1));
    bucket.min_duration_s = low + i * width;
    bucket.max_duration_s = *bucket.min_duration_s + width;
    // So that clips of exactly max_duration are in the last bucket.
    if (i == options.buckets_num - 1) *bucket.max_duration_s += 1e-5;
    buckets.push_back(std::move(bucket));
  }
  return buckets;
}

Result<std::vector<ShardEntry>> read_shard_entries(const ShardOptions& options) {
  Env& env = env_of(options);
  AERIE_ASSIGN_OR_RETURN(const MappedFile file, env.map_file(options.manifest_path));
  std::vector<ShardEntry> entries;
  std::vector<std::string> bad;
  size_t num_bad = 0;
  std::string_view rest = file.text();
  for (uint32_t number = 1; !rest.empty(); ++number) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    const std::string_view line = trim(rest.substr(0, end));
    rest.remove_prefix(std::min(rest.size(), end + 1));
    if (line.empty()) continue;
    ShardEntry entry;
    entry.line = line;
    entry.line_number = number;
    const Status status = parse_entry(env, options, &entry);
    if (status.ok()) {
      entries.push_back(std::move(entry));
    } else if (++num_bad <= kMaxBadLinesShown) {
      bad.push_back(str_cat("line ", number, " ", status.message()));
    }
  }
  if (num_bad > bad.size()) bad.push_back(str_cat("and ", num_bad - bad.size(), " more"));
  if (num_bad > 0)
    return data_error(str_cat(num_bad, " bad lines: ", join(bad, "; ")))
        .with_context(options.manifest_path);
  return entries;
}

bool is_in_bucket(const ShardEntry& entry, const ShardBucket& bucket) {
  return (!bucket.max_duration_s || entry.duration_s < *bucket.max_duration_s) &&
         (!bucket.min_duration_s || entry.duration_s >= *bucket.min_duration_s);
}

ShardSelection select_entries(const std::vector<ShardEntry>& entries, const ShardBucket& bucket,
                              const ShardOptions& options) {
  ShardSelection selection;
  for (const ShardEntry& entry : entries) {
    if (is_in_bucket(entry, bucket)) {
      selection.entries.push_back(&entry);
      selection.kept_s += entry.duration_s;
    } else {
      ++selection.num_filtered;
      selection.filtered_s += entry.duration_s;
    }
  }
  if (!options.shuffle) return selection;
  PythonRandom random(options.shuffle_seed.value_or(0));
  std::vector<const ShardEntry*> shuffled;
  shuffled.reserve(selection.entries.size());
  if (!options.keep_files_together) {
    for (const uint64_t i : random.shuffled(selection.entries.size()))
      shuffled.push_back(selection.entries[i]);
  } else {
    std::unordered_map<std::string_view, size_t> place;
    std::vector<std::vector<const ShardEntry*>> files;
    for (const ShardEntry* entry : selection.entries) {
      const auto [it, is_new] = place.try_emplace(entry->audio_path, files.size());
      if (is_new) files.emplace_back();
      files[it->second].push_back(entry);
    }
    for (const uint64_t i : random.shuffled(files.size()))
      shuffled.insert(shuffled.end(), files[i].begin(), files[i].end());
  }
  selection.entries = std::move(shuffled);
  return selection;
}

SquashedName squash_path(const std::string& audio_path) {
  SquashedName name;
  name.extension = file_extension(audio_path);
  name.base = audio_path.substr(0, audio_path.size() - name.extension.size());
  // Members are flat, and readers take everything behind the first "." for the extension.
  std::replace(name.base.begin(), name.base.end(), '/', '_');
  std::replace(name.base.begin(), name.base.end(), '.', '_');
  return name;
}

namespace {

// NumPy's pairwise summation, so that bins come out as lhotse's do.
double pairwise_sum(const double* values, size_t n) {
  if (n < 8) {
    double sum = 0.0;
    for (size_t i = 0; i < n; ++i) sum += values[i];
    return sum;
  }
  if (n <= 128) {
    double part[8];
    std::copy(values, values + 8, part);
    size_t i = 8;
    for (; i + 8 <= n; i += 8)
      for (size_t k = 0; k < 8; ++k) part[k] += values[i + k];
    double sum =
        ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
    for (; i < n; ++i) sum += values[i];
    return sum;
  }
  size_t half = n / 2;
  half -= half % 8;
  return pairwise_sum(values, half) + pairwise_sum(values + half, n - half);
}

}  // namespace

std::vector<double> estimate_duration_bins(std::vector<double> durations_s, int num_buckets) {
  if (num_buckets < 2 || durations_s.size() < static_cast<size_t>(num_buckets)) return {};
  std::sort(durations_s.begin(), durations_s.end());
  const double per_bucket = pairwise_sum(durations_s.data(), durations_s.size()) / num_buckets;
  std::vector<double> bins;
  double total = 0.0;
  for (const double duration : durations_s) {
    if (total > per_bucket) {
      bins.push_back(duration);
      total = 0.0;
    }
    total += duration;
  }
  return bins;
}

}  // namespace aerie::data
