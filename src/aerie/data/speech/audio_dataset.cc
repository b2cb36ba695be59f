#include "aerie/data/speech/audio_dataset.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/hash.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/data/speech/manifest_path.h"
#include "aerie/tar/brace_expand.h"

namespace aerie::data {

namespace {

audio::ChannelSelector convert(const config::ChannelSelector& selector) {
  using Kind = config::ChannelSelector::Kind;
  if (selector.kind == Kind::kAverage) return audio::ChannelSelector::average();
  if (selector.kind == Kind::kAll) return audio::ChannelSelector::all();
  std::vector<int> channels;
  for (const int64_t c : selector.indices) channels.push_back(static_cast<int>(c));
  return channels.size() == 1 ? audio::ChannelSelector::index(channels[0])
                              : audio::ChannelSelector::list(channels);
}

bool is_shard_pattern(const std::string& name) {
  return name.find("_OP_") != std::string::npos && name.find("_CL_") != std::string::npos;
}

// The names of one group. A list element is a name; a plain string may be a comma list. Manifests
// written as a shard pattern are expanded.
Status append_manifests(const std::string& text, bool split_commas, bool tarred,
                        std::vector<std::string>& out) {
  for (const std::string& name :
       split_commas ? split_manifest_list(text) : std::vector<std::string>{text}) {
    if (name.empty()) return invalid_argument("manifest_filepath has an empty name");
    if (tarred && is_shard_pattern(name)) {
      AERIE_ASSIGN_OR_RETURN(const std::vector<std::string> names, tar::expand_shard_pattern(name));
      out.insert(out.end(), names.begin(), names.end());
    } else {
      out.push_back(name);
    }
  }
  return ok_status();
}

// Groups of a tarred or concatenated data set are the outer elements; otherwise all is one group,
// unless lists of lists ask for buckets.
bool has_groups(const config::DatasetConfig& config, const config::PathList& paths) {
  return paths.is_nested || (config.is_concat && paths.is_list);
}

// "a.tar,b_{0,1}.tar" -> "a.tar", "b_{0,1}.tar".
std::vector<std::string> split_outside_braces(const std::string& text) {
  const std::string braces = tar::normalize_shard_braces(text);
  std::vector<std::string> out(1);
  int depth = 0;
  for (const char c : braces) {
    if (c == '{') ++depth;
    if (c == '}') --depth;
    if (c == ',' && depth <= 0)
      out.emplace_back();
    else
      out.back().push_back(c);
  }
  return out;
}

Result<std::vector<std::vector<std::string>>> expand_archives(const config::DatasetConfig& config) {
  const config::PathList& paths = config.tarred_audio_filepaths;
  std::vector<std::vector<std::string>> groups;
  if (has_groups(config, paths)) {
    groups = paths.groups;
  } else {
    std::vector<std::string> all = paths.flat();
    // A plain string is a comma list, too.
    if (!paths.is_list && all.size() == 1) all = split_outside_braces(all[0]);
    groups.push_back(std::move(all));
  }
  for (std::vector<std::string>& group : groups) {
    // A single name may be a pattern; NeMo takes several as they are, which only ever helped names
    // that contain braces.
    std::vector<std::string> expanded;
    for (const std::string& name : group) {
      if (group.size() > 1 && name.find_first_of("{(<[") == std::string::npos &&
          !is_shard_pattern(name)) {
        expanded.push_back(name);
        continue;
      }
      AERIE_ASSIGN_OR_RETURN(const std::vector<std::string> names, tar::expand_shard_pattern(name));
      expanded.insert(expanded.end(), names.begin(), names.end());
    }
    group = std::move(expanded);
  }
  return groups;
}

// A data set without samples: what took them away.
Status nothing_left(const ManifestTotals& totals) {
  if (totals.kept > 0)
    return data_error("no line of the manifest has a member in the archives")
        .with_hint(
            "a line and its member have the same file name up to its extension; are these the "
            "archives of this manifest?");
  if (totals.filtered == 0) return data_error("the manifest has no entries");
  return data_error("no samples are left after filtering")
      .with_hint("check min_duration, max_duration and the manifest's durations");
}

}  // namespace

Result<std::vector<std::vector<std::string>>> expand_manifests(
    const config::DatasetConfig& config) {
  const config::PathList& paths = config.manifest_filepath;
  if (paths.empty() || paths.is_missing)
    return invalid_argument("manifest_filepath is not set")
        .with_context(paths.origin.empty() ? "config" : paths.origin);
  std::vector<std::vector<std::string>> out;
  if (has_groups(config, paths)) {
    for (const std::vector<std::string>& group : paths.groups) {
      out.emplace_back();
      for (const std::string& name : group)
        AERIE_RETURN_IF_ERROR(
            append_manifests(name, group.size() == 1, config.is_tarred, out.back()));
    }
  } else {
    out.emplace_back();
    for (const std::string& name : paths.flat())
      AERIE_RETURN_IF_ERROR(append_manifests(name, !paths.is_list, config.is_tarred, out.back()));
  }
  return out;
}

Result<std::vector<std::string>> expand_noise_manifests(const config::DatasetConfig& config) {
  std::vector<std::string> out;
  for (const std::string& name : config.noise_manifest.flat())
    AERIE_RETURN_IF_ERROR(append_manifests(name, !config.noise_manifest.is_list, false, out));
  return out;
}

Result<std::shared_ptr<const AudioDataset>> AudioDataset::open(
    const config::DatasetConfig& config, const config::SpeechAerieConfig& aerie,
    const Options& options) {
  std::shared_ptr<AudioDataset> out(new AudioDataset);
  const bool compat = aerie.compat_nemo_2_6;
  AERIE_ASSIGN_OR_RETURN(const auto manifest_groups, expand_manifests(config));
  std::vector<std::string> files;
  std::vector<size_t> group_files;  // end of each group in files
  for (const std::vector<std::string>& group : manifest_groups) {
    files.insert(files.end(), group.begin(), group.end());
    group_files.push_back(files.size());
  }
  ManifestOptions manifest_options;
  manifest_options.min_duration_s = config.min_duration;
  manifest_options.max_duration_s = config.max_duration;
  manifest_options.skip_bad_lines = aerie.audio.skip_bad_lines;
  manifest_options.index_dir = aerie.audio.index_dir;
  manifest_options.quiet = options.quiet;
  manifest_options.env = options.env;
  AERIE_ASSIGN_OR_RETURN(out->manifest_, Manifest::open(files, manifest_options));
  // Also of a quiet one: a validation set that has lost a part is worth a line.
  if (const std::string warning = filter_warning(out->manifest_.totals(), manifest_options);
      !warning.empty())
    log_warn("data", join(files, ","), ": ", warning);

  auto set = std::make_shared<SampleSet>();
  set->sharded = config.is_tarred;
  if (config.is_tarred) {
    AERIE_ASSIGN_OR_RETURN(const auto archives, expand_archives(config));
    if (archives.size() != manifest_groups.size())
      return invalid_argument(str_cat("manifest_filepath has ", manifest_groups.size(),
                                      " buckets, tarred_audio_filepaths ", archives.size()))
          .with_hint("both must be lists of equal length");
    std::vector<TarShards::Group> groups;
    size_t first_file = 0;
    for (size_t g = 0; g < archives.size(); ++g) {
      if (archives[g].empty()) return invalid_argument("tarred_audio_filepaths is empty");
      groups.push_back({archives[g], out->manifest_.first_of_file(first_file),
                        out->manifest_.first_of_file(group_files[g])});
      first_file = group_files[g];
    }
    TarShards::Options tar_options;
    tar_options.index_dir = aerie.audio.index_dir;
    tar_options.compat_nemo = compat;
    tar_options.quiet = options.quiet;
    tar_options.keep_names = !aerie.audio.cache_dir.empty();
    tar_options.num_threads = options.num_threads;
    tar_options.env = options.env;
    AERIE_ASSIGN_OR_RETURN(out->shards_, TarShards::open(groups, out->manifest_, tar_options));
    for (size_t g = 0; g < out->shards_->num_groups(); ++g)
      set->groups.push_back({static_cast<uint32_t>(out->shards_->group_begin(g)),
                             static_cast<uint32_t>(out->shards_->group_end(g)),
                             out->shards_->shard_starts(g)});
  } else {
    size_t first_file = 0;
    for (const size_t end : group_files) {
      set->groups.push_back({static_cast<uint32_t>(out->manifest_.first_of_file(first_file)),
                             static_cast<uint32_t>(out->manifest_.first_of_file(end)),
                             {}});
      first_file = end;
    }
  }
  if (set->size() == 0) return nothing_left(out->manifest_.totals()).with_context(join(files, ","));

  const uint64_t n = set->size();
  set->lengths.resize(n);
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t row = out->shards_ == nullptr ? static_cast<uint32_t>(i) : out->shards_->row(i);
    const double d = out->manifest_.duration_s(row);
    set->lengths[i] = d;
    if (std::isnan(d))
      ++out->num_unknown_;
    else
      out->longest_s_ = std::max(out->longest_s_, d);
  }
  if (out->longest_s_ <= 0) out->longest_s_ = config.max_duration.value_or(60.0);
  for (size_t f = 0; f < out->manifest_.num_files(); ++f)
    out->has_channels_ |= out->manifest_.file(f).has_channels();

  AERIE_ASSIGN_OR_RETURN(const std::vector<std::string> noise_files,
                         expand_noise_manifests(config));
  if (!noise_files.empty()) {
    ManifestOptions noise_options = manifest_options;
    noise_options.min_duration_s.reset();
    noise_options.max_duration_s.reset();
    noise_options.quiet = true;
    auto noise = Manifest::open(noise_files, noise_options);
    if (!noise.ok()) return noise.status().with_context("noise_manifest");
    out->noise_ = std::make_shared<const Manifest>(std::move(noise).value());
    if (!options.quiet)
      log_info("data", "noise: ", out->noise_->size(), " entries, ",
               out->noise_->totals().kept_s / 3600, " hours");
    if (out->noise_->size() == 0)
      log_warn("data", "noise_manifest has no entries: nothing will be mixed in");
  }

  audio::ReadOptions& read = out->read_options_;
  read.sample_rate = static_cast<int>(config.sample_rate);
  read.int_values = config.int_values;
  read.trim_silence = config.trim_silence;
  read.channels = convert(config.channel_selector);
  read.memory_ignores_channels = compat;
  read.prefer_int16 = !config.int_values;
  read.strict = true;
  read.env = options.env;
  // Several channels and nobody to choose: NeMo fails when the batch is put together, we take the
  // mean and say so.
  if (config.channel_selector.kind == config::ChannelSelector::Kind::kAll && !compat) {
    read.channels = audio::ChannelSelector::average();
    out->warn_channels_ = true;
  }
  out->env_ = options.env != nullptr ? options.env : &Env::real();
  out->retry_ = options.retry;
  out->selector_ = convert(config.channel_selector);
  const uint64_t key[3] = {out->manifest_.fingerprint(), n, set->sharded ? 1u : 0u};
  out->fingerprint_ = xxhash64({reinterpret_cast<const char*>(key), sizeof(key)});
  out->set_ = std::move(set);
  if (!aerie.audio.cache_dir.empty()) AERIE_RETURN_IF_ERROR(out->open_pack(aerie, options));
  return std::shared_ptr<const AudioDataset>(std::move(out));
}

SampleReader::SampleReader(const AudioDataset& dataset) : audio(dataset.read_options()) {}

Status AudioDataset::open_pack(const config::SpeechAerieConfig& aerie, const Options& options) {
  PackCache::Options cache;
  cache.dir = expand_user(aerie.audio.cache_dir);
  cache.settings = pack_settings(read_options_);
  cache.sample_rate = read_options_.sample_rate;
  cache.build = aerie.audio.build_cache;
  cache.encoding = aerie.audio.cache_format == config::CacheFormat::kFlac ? PackEncoding::kFlac
                                                                          : PackEncoding::kPcm16;
  cache.num_samples = set_->size();
  for (const double duration : set_->lengths)
    if (!std::isnan(duration)) cache.total_s += duration;
  cache.quiet = options.quiet;
  cache.env = options.env;
  auto opened = PackCache::open(cache);
  if (!opened.ok()) return opened.status().with_context("aerie.data.cache_dir");
  cache_ = std::move(opened).value();
  if (options.quiet) return ok_status();
  const auto packed = cache_->set();
  if (packed->size() > 0)
    log_info("data", "packed cache: ", packed->size(), " samples, ", packed->total_s() / 3600,
             " hours");
  else if (packed->num_skipped() > 0)
    log_warn("data", aerie.audio.cache_dir, " holds audio packed with other settings only (",
             packed->num_skipped(), " shards): not used");
  else if (!cache.build)
    log_info("data", aerie.audio.cache_dir,
             " holds no packed audio; `aerie data pack` or aerie.data.build_cache=true makes it");
  return ok_status();
}

PackKey AudioDataset::pack_key_of(uint64_t i, const std::string& source) const {
  const uint32_t row = sample_id(i);
  const int32_t channel = has_channels_ ? manifest_.channel(row) : -1;
  const double duration = set_->lengths[i];
  return pack_key(source, manifest_.offset_s(row), std::isnan(duration) ? 0.0 : duration,
                  channel >= 0 ? audio::ChannelSelector::index(channel) : selector_);
}

std::optional<audio::AudioView> AudioDataset::read_packed(uint64_t i, SampleReader& reader) const {
  if (reader.pack_version != cache_->version()) {
    reader.pack_version = cache_->version();
    const std::shared_ptr<const PackSet> set = cache_->set();
    PackReader::Options options;
    options.prefer_int16 = read_options_.prefer_int16;
    reader.pack = set->size() > 0 ? std::make_unique<PackReader>(set, options) : nullptr;
    reader.packed = set;
  }
  if (reader.pack == nullptr) return std::nullopt;
  const PackSet& set = *reader.packed;
  const uint32_t row = sample_id(i);
  std::optional<PackLocation> at;
  std::string stamped;  // the file whose change would make the packed samples old
  if (shards_ != nullptr) {
    stamped = shards_->archive_path(i);
    at = set.find(pack_key_of(i, pack_tar_source(stamped, shards_->member_name(i))));
  } else if (manifest_.is_list(row)) {
    const std::vector<std::string> paths = manifest_.resolve_paths(row);
    stamped = paths[0];
    at = set.find(pack_key_of(i, pack_source(paths)));
  } else {
    // The recording may have been deleted since: every place it can have been in counts.
    for (const std::string& path : manifest_.path_candidates(row)) {
      stamped = path;
      at = set.find(pack_key_of(i, pack_source({&path, 1})));
      if (at) break;
    }
  }
  if (!at) return std::nullopt;
  // Sources that are gone cannot have changed.
  const PackSourceStamp& stamp = set.entry(*at).source;
  const Result<FileStat> now = env_->stat(stamped);
  if (now.ok() && (now->size != stamp.size || now->mtime_ns != stamp.mtime_ns)) {
    AERIE_LOG_ONCE(warn, "data", stamped,
                   " has changed since it was packed: read from the source; run `aerie data pack` "
                   "again");
    return std::nullopt;
  }
  Result<audio::AudioView> view = reader.pack->read(*at);
  // Older versions packed recordings without audio, too: the source says what is wrong with them.
  if (view.ok() && view->frames == 0) return std::nullopt;
  if (!view.ok()) {
    AERIE_LOG_ONCE(warn, "data", "packed cache: ", view.status().to_string());
    return std::nullopt;
  }
  return std::move(view).value();
}

void AudioDataset::add_to_cache(uint64_t i, SampleReader& reader, audio::AudioView& view) const {
  const uint32_t row = sample_id(i);
  // The mean of channels nobody chose belongs to no key.
  if (view.source.channels > 1 && selector_.kind() == audio::ChannelSelector::Kind::kAll &&
      (!has_channels_ || manifest_.channel(row) < 0))
    return;
  audio::AudioView ints = view;
  float scale = kPackUnit;
  if (view.pcm16 == nullptr) {
    scale = quantize_pack_samples(view, &reader.pcm16);
    ints.samples = nullptr;
    ints.pcm16 = reader.pcm16.data();
  }
  if (cache_->wants(i)) {
    std::string source, stamped;
    if (shards_ != nullptr) {
      stamped = shards_->archive_path(i);
      source = pack_tar_source(stamped, shards_->member_name(i));
    } else if (manifest_.is_list(row)) {
      const std::vector<std::string> paths = manifest_.resolve_paths(row);
      stamped = paths[0];
      source = pack_source(paths);
    } else {
      stamped = reader.path;
      source = pack_source({&reader.path, 1});
    }
    cache_->add(i, pack_key_of(i, source), describe(i), stamped, ints, scale);
  }
  if (read_options_.prefer_int16 && scale == kPackUnit) {
    view = ints;
  } else {
    reader.floats.resize(static_cast<size_t>(view.frames));
    for (int64_t k = 0; k < view.frames; ++k)
      reader.floats[static_cast<size_t>(k)] = static_cast<float>(ints.pcm16[k]) * scale;
    view.pcm16 = nullptr;
    view.samples = reader.floats.data();
  }
}

Result<audio::AudioView> AudioDataset::read(uint64_t i, SampleReader& reader) const {
  return retry_passing(retry_, [&] { return read_once(i, reader); });
}

Result<audio::AudioView> AudioDataset::read_once(uint64_t i, SampleReader& reader) const {
  if (cache_ == nullptr) return read_source(i, reader);
  if (std::optional<audio::AudioView> view = read_packed(i, reader)) return *view;
  Result<audio::AudioView> view = read_source(i, reader);
  if (view.ok() && cache_->fills()) add_to_cache(i, reader, *view);
  return view;
}

Result<audio::AudioView> AudioDataset::read_source(uint64_t i, SampleReader& reader) const {
  const uint64_t row = sample_id(i);
  audio::Segment segment;
  segment.offset_s = manifest_.offset_s(row);
  segment.duration_s = set_->lengths[i];
  segment.room_samples = reader.room_samples;
  audio::ChannelSelector own;
  if (has_channels_) {
    if (const int32_t channel = manifest_.channel(row); channel >= 0) {
      own = audio::ChannelSelector::index(channel);
      segment.channels = &own;
    }
  }
  Result<audio::AudioView> view = [&]() -> Result<audio::AudioView> {
    if (shards_ != nullptr && shards_->encoded_bytes(i) <= TarShards::kWholeBytes) {
      AERIE_RETURN_IF_ERROR(shards_->read(i, reader.bytes));
      return reader.audio.read_memory(reader.bytes, manifest_.base_name(row), segment);
    }
    if (shards_ != nullptr) {
      AERIE_ASSIGN_OR_RETURN(std::unique_ptr<RandomAccessFile> member, shards_->open_member(i));
      auto read = reader.audio.read_stream(std::move(member), manifest_.base_name(row), segment);
      if (is_passing(read.status())) shards_->forget(i);
      return read;
    }
    if (manifest_.resolve_path(row, reader.path))
      return reader.audio.read_file(reader.path, segment);
    return reader.audio.read_file_list(manifest_.resolve_paths(row), segment);
  }();
  if (!view.ok()) return view;
  if (view->frames == 0)  // trimmed away
    return data_error(std::string(audio::kNoAudio)).with_context(describe(i));
  if (view->channels > 1)
    return data_error(str_cat("has ", view->channels, " channels"))
        .with_context(describe(i))
        .with_hint("set channel_selector, or a channel in the manifest line");
  if (warn_channels_ && view->source.channels > 1 && segment.channels == nullptr)
    AERIE_LOG_ONCE(warn, "data", describe(i), " has ", view->source.channels,
                   " channels: their mean is used; set channel_selector to choose");
  return view;
}

std::string AudioDataset::describe(uint64_t i) const {
  const uint32_t row = sample_id(i);
  if (shards_ != nullptr)
    return str_cat(manifest_.place(row), " (", manifest_.written_path(row), " in ",
                   shards_->archive_path(i), ")");
  return str_cat(manifest_.place(row), " (", manifest_.written_path(row), ")");
}

std::string AudioDataset::storage_advice(const StorageInfo& storage) const {
  return storage.network
             ? "copy the data to a local disk, use tar shards (is_tarred), or set "
               "aerie.data.cache_dir to a local folder"
             : "use tar shards (is_tarred) or set aerie.data.cache_dir to a folder on an SSD";
}

uint64_t AudioDataset::left_out() const {
  return manifest_.totals().bad_lines + (shards_ != nullptr ? shards_->report().unmatched_rows : 0);
}

std::string AudioDataset::example_path() const {
  if (shards_ != nullptr) return shards_->archive_path(0);
  return manifest_.resolve_paths(0)[0];
}

}  // namespace aerie::data
