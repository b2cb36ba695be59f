#include "aerie/data/speech/shard/shard_writer.h"

#include <algorithm>
#include <ctime>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "aerie/audio/audio_reader.h"
#include "aerie/audio/audio_writer.h"
#include "aerie/base/path.h"
#include "aerie/base/retry.h"
#include "aerie/base/thread_pool.h"
#include "aerie/data/speech/shard/python_format.h"
#include "aerie/tar/sample_key.h"
#include "aerie/tar/tar_writer.h"

namespace aerie::data {
namespace {

using Json = nlohmann::ordered_json;

// "0.25" -> "0_25", "12" -> "12_0": numbers in names must not hold a ".".
std::string number_in_name(const Json& number) {
  std::string text = number.is_number_float() ? python_repr(number.get<double>()) : number.dump();
  if (text.find('.') == std::string::npos) return text + "_0";
  std::replace(text.begin(), text.end(), '.', '_');
  return text;
}

// Replaces the path key in place, drops its synonyms, as {**entry, 'audio_filepath': name} would.
Json renamed_entry(const Json& entry, const std::string& name) {
  Json out = Json::object();
  bool placed = false;
  for (const auto& [key, value] : entry.items()) {
    if (key == "audio_filepath" || key == "audio_filename" || key == "audio_file") {
      if (!placed) out["audio_filepath"] = name;
      placed = true;
    } else {
      out[key] = value;
    }
  }
  return out;
}

// Names of the files whose squashed name already stands for another file: readers join archives and
// manifest by name, over all shards.
using OtherNames = std::unordered_map<std::string, std::string>;

OtherNames find_other_names(const std::vector<const ShardEntry*>& entries) {
  std::unordered_map<std::string, std::string_view> owners;  // of squashed names
  for (const ShardEntry* entry : entries)
    owners.emplace(squash_path(entry->audio_path).base, entry->audio_path);
  OtherNames out;
  for (const ShardEntry* entry : entries) {
    const std::string base = squash_path(entry->audio_path).base;
    if (owners[base] == entry->audio_path || out.contains(entry->audio_path)) continue;
    std::string name;
    int k = 2;
    do name = str_cat(base, "_", k++);
    while (!owners.emplace(name, entry->audio_path).second);
    out[entry->audio_path] = name;
  }
  return out;
}

audio::ReadOptions shard_read_options(const ShardOptions& options) {
  audio::ReadOptions read;
  read.sample_rate = 0;
  read.prefer_int16 = true;
  read.strict = true;
  read.env = options.env;
  return read;
}

// Makes one shard. One object per shard and thread.
class ShardMaker {
 public:
  ShardMaker(const ShardOptions& options, const ShardHooks& hooks, const OtherNames& other_names,
             std::string dir, int shard_id)
      : options_(options),
        hooks_(hooks),
        other_names_(other_names),
        env_(env_of(options)),
        dir_(std::move(dir)),
        shard_id_(shard_id),
        reader_(shard_read_options(options)) {}

  Status run(std::vector<const ShardEntry*> entries) {
    if (options_.sort_in_shards)
      std::stable_sort(
          entries.begin(), entries.end(),
          [](const ShardEntry* a, const ShardEntry* b) { return a->duration_s < b->duration_s; });
    std::unique_ptr<WritableFile> file;
    if (!options_.only_manifests) {
      const std::string path = join_path(dir_, str_cat("audio_", shard_id_, ".tar"));
      AERIE_ASSIGN_OR_RETURN(file, env_.open_writable(path));
    }
    tar::TarWriter writer(
        [&](std::span<const uint8_t> data) { return file->append(data.data(), data.size()); });
    writer_ = &writer;
    for (const ShardEntry* entry : entries) {
      if (hooks_.stop && hooks_.stop()) return cancelled("stopped on request");
      if (Status status = add(*entry); !status.ok())
        return std::move(status).with_context(
            str_cat(options_.manifest_path, ":", entry->line_number));
      if (hooks_.on_entry) hooks_.on_entry();
    }
    if (file == nullptr) return ok_status();
    AERIE_RETURN_IF_ERROR(writer.finish());
    bytes = writer.bytes_written();
    AERIE_RETURN_IF_ERROR(file->sync());
    return file->close();
  }

  std::vector<std::string> lines;  // of the new manifest
  uint64_t num_members = 0;
  uint64_t bytes = 0;

 private:
  // What goes into the archive under one name: a file, or a cut of it.
  struct Source {
    std::string member;  // without extension
    std::string key;     // what it is made of; equal keys share one member
    audio::Segment segment;
    bool cut = false;
  };

  Status add(const ShardEntry& entry) {
    Json json = Json::parse(entry.line, nullptr, false);
    const SquashedName squashed = squash_path(entry.audio_path);
    Source source;
    source.member = squashed.base;
    if (const auto found = other_names_.find(entry.audio_path); found != other_names_.end())
      source.member = found->second;
    source.key = entry.audio_path;
    if (options_.slice_with_offset) {
      const std::string suffix =
          str_cat("_", number_in_name(json["offset"]), "_", number_in_name(json["duration"]));
      source.member += suffix;
      source.key += suffix;
      source.segment.offset_s = json["offset"].get<double>();
      source.segment.duration_s = entry.duration_s;
      source.cut = true;
      json["source_audio_offset"] = json["offset"];
      json.erase("offset");
    } else if (tar::has_sub(source.member)) {
      // Readers take "-sub3" for the third segment of a file.
      source.member[source.member.rfind("-sub")] = '_';
    }
    AERIE_ASSIGN_OR_RETURN(const std::string name, write_member(entry, source, squashed));
    Json out = renamed_entry(json, name);
    if (options_.only_manifests) out["abs_audio_filepath"] = entry.audio_path;
    out["shard_id"] = shard_id_;
    AERIE_ASSIGN_OR_RETURN(std::string line, python_json(out));
    lines.push_back(std::move(line));
    return ok_status();
  }

  // Writes the member unless it is there, and returns the name for the manifest.
  Result<std::string> write_member(const ShardEntry& entry, Source& source,
                                   const SquashedName& squashed) {
    if (const auto known = written_.find(source.key); known != written_.end()) {
      if (source.cut) return known->second.name;
      const uint64_t count = known->second.count++;
      const std::string& name = known->second.name;
      const size_t dot = name.rfind('.') == std::string::npos ? name.size() : name.rfind('.');
      return str_cat(name.substr(0, dot), "-sub", count, name.substr(dot));
    }
    // Another file may have been squashed to the same text.
    std::string base = source.member;
    for (int k = 2; !bases_.insert(base).second; ++k) base = str_cat(source.member, "_", k);
    std::string name = base + squashed.extension;
    if (!options_.only_manifests) {
      if (Status status = write_audio(entry, source, base, &name); !status.ok())
        return std::move(status).with_context(entry.audio_path);
      ++num_members;
    }
    written_[source.key] = {name, 1};
    return name;
  }

  Status write_audio(const ShardEntry& entry, const Source& source, const std::string& base,
                     std::string* name) {
    const bool transcode = !options_.force_codec.empty() &&
                           !ends_with(entry.audio_path, str_cat(".", options_.force_codec));
    if (!transcode && !source.cut) return copy_file(entry.audio_path, *name);
    AERIE_ASSIGN_OR_RETURN(const audio::AudioView view,
                           reader_.read_file(entry.audio_path, source.segment));
    audio::FileFormat format = audio::FileFormat::kFlac;
    if (!options_.force_codec.empty()) {
      AERIE_ASSIGN_OR_RETURN(format, audio::parse_file_format(options_.force_codec));
    } else {
      switch (view.source.codec) {
        case audio::Codec::kWavPcm:
        case audio::Codec::kWavFloat:
        case audio::Codec::kWavOther:
          format = audio::FileFormat::kWav;
          break;
        case audio::Codec::kVorbis:
          format = audio::FileFormat::kVorbis;
          break;
        case audio::Codec::kOpus:
          format = audio::FileFormat::kOpus;
          break;
        case audio::Codec::kMp3:
          format = audio::FileFormat::kMp3;
          break;
        default:
          break;
      }
    }
    AERIE_RETURN_IF_ERROR(
        audio::encode_audio(view, audio::lossless_options(view.source, format), &encoded_));
    const std::string extension = audio::file_extension_of(format);
    if (to_lower(file_extension(*name)) != str_cat(".", extension))
      *name = str_cat(base, ".", extension);
    return writer_->add(*name, encoded_);
  }

  Status copy_file(const std::string& path, const std::string& name) {
    AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> in,
                           env_.open_random_access(path));
    const uint64_t size = in->size();
    AERIE_RETURN_IF_ERROR(writer_->begin(name, size));
    copy_buffer_.resize(1 << 20);
    for (uint64_t at = 0; at < size;) {
      const size_t now = static_cast<size_t>(std::min<uint64_t>(copy_buffer_.size(), size - at));
      AERIE_RETURN_IF_ERROR(in->read_exact_at(at, copy_buffer_.data(), now));
      AERIE_RETURN_IF_ERROR(writer_->write({copy_buffer_.data(), now}));
      at += now;
    }
    return writer_->end();
  }

  struct Written {
    std::string name;
    uint64_t count = 0;  // entries that use it
  };

  const ShardOptions& options_;
  const ShardHooks& hooks_;
  const OtherNames& other_names_;
  Env& env_;
  const std::string dir_;
  const int shard_id_;
  audio::AudioReader reader_;
  tar::TarWriter* writer_ = nullptr;
  std::unordered_map<std::string, Written> written_;
  std::unordered_set<std::string> bases_;
  std::vector<uint8_t> encoded_;
  std::vector<uint8_t> copy_buffer_;
};

std::string now_text() {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  char text[64];
  std::strftime(text, sizeof(text), "%m-%d-%Y %H-%M-%S", &local);
  return text;
}

// metadata.yaml as OmegaConf writes the converter's dataclasses.
std::string metadata_text(const ShardOptions& options, const ShardBucket& bucket,
                          uint64_t per_shard, const std::vector<double>* bins) {
  const auto boolean = [](bool value) { return value ? "true" : "false"; };
  const auto number = [](const std::optional<double>& value) {
    return value ? yaml_float(*value) : std::string("null");
  };
  std::string out =
      str_cat("created_datetime: ", now_text(), "\nversion: 0\nnum_samples_per_shard: ", per_shard,
              "\nis_concatenated_manifest: false\ndataset_config:\n");
  const bool seeded = options.shuffle || options.shuffle_seed;
  const std::string seed = seeded ? str_cat(options.shuffle_seed.value_or(0)) : std::string("null");
  out += str_cat("  num_shards: ", options.num_shards, "\n  shuffle: ", boolean(options.shuffle),
                 "\n  max_duration: ", number(bucket.max_duration_s),
                 "\n  min_duration: ", number(bucket.min_duration_s), "\n  shuffle_seed: ", seed);
  out += str_cat("\n  sort_in_shards: ", boolean(options.sort_in_shards),
                 "\n  slice_with_offset: ", boolean(options.slice_with_offset),
                 "\n  shard_manifests: ", boolean(options.shard_manifests),
                 "\n  keep_files_together: ", boolean(options.keep_files_together),
                 "\n  force_codec: ", options.force_codec.empty() ? "null" : options.force_codec);
  if (bins == nullptr) {
    out +=
        "\n  use_lhotse: false\n  use_bucketing: false\n  num_buckets: null\n"
        "  bucket_duration_bins: null\n";
  } else {
    out += str_cat("\n  use_lhotse: true\n  use_bucketing: true\n  num_buckets: ",
                   options.dynamic_buckets_num, "\n  bucket_duration_bins:");
    if (bins->empty()) out += " []";
    for (const double bin : *bins) out += str_cat("\n  - ", yaml_float(bin));
    out += "\n";
  }
  return out + "history: []\n";
}

Status write_synced(Env& env, const std::string& path, const std::vector<std::string>& lines) {
  AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, env.open_writable(path));
  for (const std::string& line : lines) {
    AERIE_RETURN_IF_ERROR(file->append(line));
    AERIE_RETURN_IF_ERROR(file->append("\n"));
  }
  AERIE_RETURN_IF_ERROR(file->sync());
  return file->close();
}

// Writes one bucket below `dir`, which is the staging folder's counterpart of bucket.target_dir.
Status write_bucket(const ShardOptions& options, const ShardHooks& hooks, const ShardBucket& bucket,
                    const ShardSelection& selection, const std::string& dir,
                    ShardBucketReport* report) {
  Env& env = env_of(options);
  AERIE_RETURN_IF_ERROR(env.create_dirs(dir));
  const uint64_t per_shard = selection.entries.size() / static_cast<uint64_t>(options.num_shards);
  const OtherNames other_names = find_other_names(selection.entries);
  std::vector<std::unique_ptr<ShardMaker>> makers;
  for (int i = 0; i < options.num_shards; ++i)
    makers.push_back(std::make_unique<ShardMaker>(options, hooks, other_names, dir, i));
  ThreadPool pool({.name = "shard", .num_threads = std::max(1, options.workers), .cpus = {}});
  AERIE_RETURN_IF_ERROR(pool.parallel_for(makers.size(), [&](size_t i) {
    const auto begin = selection.entries.begin() + static_cast<int64_t>(i * per_shard);
    return makers[i]->run({begin, begin + static_cast<int64_t>(per_shard)});
  }));
  std::vector<std::string> all;
  if (options.shard_manifests)
    AERIE_RETURN_IF_ERROR(env.create_dirs(join_path(dir, "sharded_manifests")));
  for (size_t i = 0; i < makers.size(); ++i) {
    ShardMaker& maker = *makers[i];
    report->num_members += maker.num_members;
    report->bytes += maker.bytes;
    report->num_written += maker.lines.size();
    if (options.shard_manifests)
      AERIE_RETURN_IF_ERROR(write_synced(
          env, join_path(dir, str_cat("sharded_manifests/manifest_", i, ".json")), maker.lines));
    all.insert(all.end(), maker.lines.begin(), maker.lines.end());
    makers[i].reset();
  }
  AERIE_RETURN_IF_ERROR(write_synced(env, join_path(dir, "tarred_audio_manifest.json"), all));
  std::vector<double> bins;
  bool have_bins = false;
  if (options.buckets_num == 1 && options.dynamic_buckets_num > 1) {
    std::vector<double> durations;
    for (uint64_t i = 0; i < per_shard * static_cast<uint64_t>(options.num_shards); ++i)
      durations.push_back(selection.entries[i]->duration_s);
    // The converter fails here on sets with fewer clips than bins; without bins all is usable.
    have_bins = durations.size() >= static_cast<size_t>(options.dynamic_buckets_num);
    if (have_bins) bins = estimate_duration_bins(durations, options.dynamic_buckets_num);
  }
  const std::string metadata =
      metadata_text(options, bucket, per_shard, have_bins ? &bins : nullptr);
  AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file,
                         env.open_writable(join_path(dir, "metadata.yaml")));
  AERIE_RETURN_IF_ERROR(file->append(metadata));
  AERIE_RETURN_IF_ERROR(file->sync());
  AERIE_RETURN_IF_ERROR(file->close());
  if (options.shard_manifests)
    AERIE_RETURN_IF_ERROR(env.fsync_dir(join_path(dir, "sharded_manifests")));
  return env.fsync_dir(dir);
}

// Whether the folder may be used: absent, empty, or to be overwritten.
Status check_target(Env& env, const ShardOptions& options) {
  const Result<std::vector<DirEntry>> entries = env.list_dir(options.target_dir);
  if (!entries.ok()) {
    if (env.exists(options.target_dir))
      return invalid_argument(str_cat("'", options.target_dir, "' is not a folder"));
    return ok_status();
  }
  if (entries->empty() || options.overwrite) return ok_status();
  return invalid_argument(str_cat("the folder '", options.target_dir, "' is not empty"))
      .with_hint("choose another, or replace it with --overwrite");
}

// Gives the finished folder its name.
Status publish(Env& env, const std::string& staging, const std::string& target) {
  const std::string old = target + ".old";
  AERIE_RETURN_IF_ERROR(env.remove_tree(old));
  const Result<std::vector<DirEntry>> entries = env.list_dir(target);
  const bool replace = entries.ok() && !entries->empty();
  if (replace) AERIE_RETURN_IF_ERROR(env.rename(target, old));
  if (entries.ok() && entries->empty()) AERIE_RETURN_IF_ERROR(env.remove_dir(target));
  AERIE_RETURN_IF_ERROR(env.rename(staging, target));
  AERIE_RETURN_IF_ERROR(env.fsync_dir(parent_path(target)));
  return replace ? env.remove_tree(old) : ok_status();
}

// Decodes what the buckets will hold, as training would, and takes the entries that cannot be read
// out of the list.
Status leave_out_bad(const ShardOptions& options, const ShardHooks& hooks,
                     const std::vector<ShardBucket>& buckets, std::vector<ShardEntry>* entries,
                     ShardReport* report) {
  constexpr size_t kMaxShown = 100;
  std::vector<size_t> wanted;
  for (size_t i = 0; i < entries->size(); ++i)
    if (std::any_of(buckets.begin(), buckets.end(),
                    [&](const ShardBucket& bucket) { return is_in_bucket((*entries)[i], bucket); }))
      wanted.push_back(i);
  if (hooks.on_check) hooks.on_check(wanted.size());
  // One reader per thread, taken from those that are free.
  std::mutex mutex;
  std::vector<std::unique_ptr<audio::AudioReader>> readers;
  std::vector<Status> found(entries->size());
  ThreadPool pool({.name = "check", .num_threads = std::max(1, options.workers), .cpus = {}});
  AERIE_RETURN_IF_ERROR(pool.parallel_for(wanted.size(), [&](size_t k) -> Status {
    if (hooks.stop && hooks.stop()) return cancelled("stopped on request");
    std::unique_ptr<audio::AudioReader> reader;
    {
      const std::lock_guard lock(mutex);
      if (!readers.empty()) {
        reader = std::move(readers.back());
        readers.pop_back();
      }
    }
    if (reader == nullptr)
      reader = std::make_unique<audio::AudioReader>(shard_read_options(options));
    const ShardEntry& entry = (*entries)[wanted[k]];
    const audio::Segment segment{entry.offset_s, entry.duration_s};
    found[wanted[k]] = retry_passing(
        RetryPolicy{}, [&] { return reader->read_file(entry.audio_path, segment).status(); });
    if (hooks.on_checked) hooks.on_checked();
    const std::lock_guard lock(mutex);
    readers.push_back(std::move(reader));
    return is_passing(found[wanted[k]]) ? found[wanted[k]] : ok_status();
  }));
  std::vector<ShardEntry> good;
  for (size_t i = 0; i < entries->size(); ++i) {
    if (found[i].ok()) {
      good.push_back(std::move((*entries)[i]));
      continue;
    }
    if (++report->num_bad <= kMaxShown)
      report->bad.push_back(str_cat(options.manifest_path, ":", (*entries)[i].line_number, ": ",
                                    found[i].to_string()));
  }
  if (report->num_bad > kMaxShown)
    report->bad.push_back(str_cat("... and ", report->num_bad - kMaxShown, " more"));
  if (static_cast<double>(report->num_bad) >
      options.max_bad_fraction * static_cast<double>(wanted.size()))
    return data_error(str_cat(report->num_bad, " of ", wanted.size(),
                              " recordings cannot be read, more than max_bad_fraction=",
                              options.max_bad_fraction, ":\n  ", join(report->bad, "\n  ")))
        .with_hint("repair them or take them out, or raise --max_bad_fraction to leave them out");
  *entries = std::move(good);
  return ok_status();
}

}  // namespace

Result<ShardReport> write_tarred_dataset(const ShardOptions& given, const ShardHooks& hooks) {
  ShardOptions options = given;
  while (options.target_dir.size() > 1 && ends_with(options.target_dir, "/"))
    options.target_dir.pop_back();
  Env& env = env_of(options);
  AERIE_ASSIGN_OR_RETURN(const std::vector<ShardBucket> buckets, plan_buckets(options));
  if (!options.dry_run) AERIE_RETURN_IF_ERROR(check_target(env, options));
  AERIE_ASSIGN_OR_RETURN(std::vector<ShardEntry> entries, read_shard_entries(options));
  std::vector<ShardSelection> selections;
  ShardReport report;
  if (options.check && !options.dry_run && !options.only_manifests)
    AERIE_RETURN_IF_ERROR(leave_out_bad(options, hooks, buckets, &entries, &report));
  uint64_t total = 0;
  const uint64_t num_shards = static_cast<uint64_t>(options.num_shards);
  for (const ShardBucket& bucket : buckets) {
    selections.push_back(select_entries(entries, bucket, options));
    const ShardSelection& selection = selections.back();
    ShardBucketReport one;
    one.target_dir = bucket.target_dir;
    one.num_entries = selection.entries.size();
    one.num_filtered = selection.num_filtered;
    one.kept_s = selection.kept_s;
    one.filtered_s = selection.filtered_s;
    total += one.num_entries / num_shards * num_shards;
    if (one.num_entries < num_shards && !options.dry_run)
      return data_error(str_cat("only ", one.num_entries, " entries for ", num_shards,
                                " shards in ", bucket.target_dir, " after the duration filter"))
          .with_hint("use fewer shards or buckets, or wider durations");
    report.buckets.push_back(std::move(one));
  }
  if (options.dry_run) return report;
  if (hooks.on_start) hooks.on_start(total);
  const std::string staging = options.target_dir + ".partial";
  AERIE_RETURN_IF_ERROR(env.remove_tree(staging));
  Status status;
  for (size_t b = 0; b < buckets.size() && status.ok(); ++b) {
    const std::string dir =
        buckets.size() == 1 ? staging : join_path(staging, str_cat("bucket", b + 1));
    status = write_bucket(options, hooks, buckets[b], selections[b], dir, &report.buckets[b]);
  }
  if (status.ok() && buckets.size() > 1) status = env.fsync_dir(staging);
  if (status.ok()) status = publish(env, staging, options.target_dir);
  if (!status.ok()) {
    (void)env.remove_tree(staging);
    return status;
  }
  return report;
}

}  // namespace aerie::data
