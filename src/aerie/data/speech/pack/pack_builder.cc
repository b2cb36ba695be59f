#include "aerie/data/speech/pack/pack_builder.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "aerie/base/retry.h"
#include "aerie/base/thread_pool.h"
#include "aerie/data/pack/pack_store.h"
#include "aerie/data/pack/pack_writer.h"
#include "aerie/data/speech/manifest.h"
#include "aerie/data/speech/pack/audio_pack.h"
#include "aerie/data/speech/pack/pack_reader.h"
#include "aerie/tar/sample_key.h"
#include "aerie/tar/tar_archive.h"

namespace aerie::data {
namespace {

// Samples are decoded in parallel a group at a time and stored in order; a group holds about this
// much audio, which bounds the memory in use.
constexpr double kGroupSeconds = 3600.0;
constexpr size_t kGroupSamples = 1024;
constexpr size_t kMaxBadShown = 100;
// Members of archives up to this size are read whole.
constexpr uint64_t kWholeBytes = uint64_t{16} << 20;

// One sample to be packed.
struct Task {
  PackKey key;
  std::string source;
  std::vector<std::string> paths;  // files, or empty for a member
  std::shared_ptr<const tar::TarArchive> archive;
  size_t member = 0;
  double offset_s = 0.0;
  double duration_s = 0.0;
  audio::ChannelSelector channels;
  std::string place;  // manifest line
};

// Readers handed out to whichever thread needs one.
class ReaderPool {
 public:
  explicit ReaderPool(const audio::ReadOptions& options) : options_(options) {}
  std::unique_ptr<audio::AudioReader> take() {
    const std::lock_guard lock(mutex_);
    if (free_.empty()) return std::make_unique<audio::AudioReader>(options_);
    auto reader = std::move(free_.back());
    free_.pop_back();
    return reader;
  }
  void give_back(std::unique_ptr<audio::AudioReader> reader) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(reader));
  }

 private:
  const audio::ReadOptions options_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<audio::AudioReader>> free_;
};

class Builder {
 public:
  Builder(const PackBuildOptions& options, const PackBuildHooks& hooks)
      : options_(options),
        hooks_(hooks),
        readers_(reader_options(options)),
        pool_({.name = "pack", .num_threads = std::max(1, options.workers), .cpus = {}}) {}

  Result<PackBuildReport> run() {
    if (options_.read.sample_rate <= 0) return invalid_argument("a pack needs a sample rate");
    ManifestOptions manifest_options;
    manifest_options.min_duration_s = options_.min_duration_s;
    manifest_options.max_duration_s = options_.max_duration_s;
    manifest_options.skip_bad_lines = options_.skip_bad_lines;
    manifest_options.index_dir = options_.index_dir;
    manifest_options.env = options_.read.env;
    manifest_options.quiet = true;  // the report says it all
    AERIE_ASSIGN_OR_RETURN(const Manifest manifest,
                           Manifest::open(options_.manifests, manifest_options));
    const std::string settings = pack_settings(options_.read);
    PackSet::Options set_options;
    set_options.settings = settings;
    set_options.sample_rate = options_.read.sample_rate;
    set_options.exact_only = options_.encoding == PackEncoding::kFloat32;
    set_options.env = options_.read.env;
    AERIE_ASSIGN_OR_RETURN(present_, PackSet::open(options_.out_dir, set_options));
    PackWriterOptions writer_options;
    writer_options.dir = options_.out_dir;
    writer_options.encoding = options_.encoding;
    writer_options.sample_rate = options_.read.sample_rate;
    writer_options.settings = settings;
    writer_options.shard_bytes = options_.shard_bytes;
    writer_options.env = options_.read.env;
    AERIE_ASSIGN_OR_RETURN(writer_, PackWriter::create(writer_options));
    total_ = manifest.size();
    if (hooks_.on_start) hooks_.on_start(total_);
    Status status = options_.tar_paths.empty() ? pack_files(manifest) : pack_archives(manifest);
    if (status.ok()) status = flush();
    // What was packed so far is worth keeping in either case.
    const Status finished = writer_->finish();
    AERIE_RETURN_IF_ERROR(status);
    AERIE_RETURN_IF_ERROR(finished);
    report_.num_packed = writer_->num_entries();
    report_.bytes = writer_->bytes_written();
    return report_;
  }

 private:
  static audio::ReadOptions reader_options(const PackBuildOptions& options) {
    audio::ReadOptions read = options.read;
    read.prefer_int16 = true;
    read.strict = true;
    return read;
  }

  audio::ChannelSelector channels_of(const Manifest& manifest, uint64_t i) const {
    const int32_t channel = manifest.channel(i);
    return channel >= 0 ? audio::ChannelSelector::index(channel) : options_.read.channels;
  }

  Status pack_files(const Manifest& manifest) {
    for (uint64_t i = 0; i < manifest.size(); ++i) {
      Task task;
      task.paths = manifest.resolve_paths(i);
      task.source = pack_source(task.paths);
      AERIE_RETURN_IF_ERROR(add(manifest, i, std::move(task)));
    }
    return ok_status();
  }

  Status pack_archives(const Manifest& manifest) {
    // Manifest lines by the id members are found by.
    std::unordered_map<std::string, std::vector<uint64_t>> lines;
    for (uint64_t i = 0; i < manifest.size(); ++i)
      lines[tar::strip_sub(tar::manifest_id(manifest.base_name(i)))].push_back(i);
    std::vector<bool> matched(manifest.size(), false);
    tar::TarOptions tar_options;
    tar_options.env = options_.read.env;
    for (const std::string& path : options_.tar_paths) {
      AERIE_ASSIGN_OR_RETURN(const std::shared_ptr<tar::TarArchive> archive,
                             tar::TarArchive::open(path, options_.index_dir, tar_options));
      Result<std::vector<tar::TarSample>> samples = tar::group_samples(archive->index());
      if (!samples.ok()) return samples.status().with_context(path);
      for (const tar::TarSample& sample : *samples) {
        const auto found = lines.find(std::string(sample.id));
        if (found == lines.end()) continue;
        for (const uint64_t i : found->second) {
          matched[i] = true;
          Task task;
          task.archive = archive;
          task.member = sample.audio_member;
          task.source = pack_tar_source(path, archive->index().name(sample.audio_member));
          AERIE_RETURN_IF_ERROR(add(manifest, i, std::move(task)));
        }
      }
    }
    report_.num_unmatched =
        static_cast<uint64_t>(std::count(matched.begin(), matched.end(), false));
    return ok_status();
  }

  Status add(const Manifest& manifest, uint64_t i, Task task) {
    const double duration = manifest.duration_s(i);
    task.offset_s = manifest.offset_s(i);
    task.duration_s = std::isnan(duration) ? 0.0 : duration;
    task.channels = channels_of(manifest, i);
    task.key = pack_key(task.source, task.offset_s, task.duration_s, task.channels);
    if (present_->find(task.key)) {
      ++report_.num_reused;
      if (hooks_.on_sample) hooks_.on_sample();
      return ok_status();
    }
    task.place = manifest.place(i);
    group_s_ += task.duration_s > 0 ? task.duration_s : length_of(task);
    group_.push_back(std::move(task));
    if (group_s_ < kGroupSeconds && group_.size() < kGroupSamples) return ok_status();
    return flush();
  }

  // What a recording without a duration holds, by its header; where that is silent, enough to be
  // packed by itself, as it may hold anything up to kGroupSeconds.
  double length_of(const Task& task) const {
    Env& env = options_.read.env != nullptr ? *options_.read.env : Env::real();
    const Result<audio::AudioInfo> info =
        task.archive != nullptr
            ? audio::probe_stream(tar::TarArchive::open_member(task.archive, task.member),
                                  task.source)
            : audio::probe_file(task.paths[0], {}, env);
    if (!info.ok()) return 0.0;  // found to be bad when it is read
    return info->frames < 0 ? kGroupSeconds : info->duration_s();
  }

  Status flush() {
    if (group_.empty()) return ok_status();
    std::vector<PackItem> items(group_.size());
    std::vector<Status> failed(group_.size());
    AERIE_RETURN_IF_ERROR(pool_.parallel_for(group_.size(), [&](size_t i) -> Status {
      if (hooks_.stop && hooks_.stop()) return cancelled("stopped on request");
      std::unique_ptr<audio::AudioReader> reader = readers_.take();
      failed[i] =
          retry_passing(RetryPolicy{}, [&] { return pack_one(group_[i], *reader, &items[i]); });
      readers_.give_back(std::move(reader));
      if (hooks_.on_sample) hooks_.on_sample();
      return is_passing(failed[i]) ? failed[i] : ok_status();
    }));
    for (size_t i = 0; i < items.size(); ++i) {
      if (!failed[i].ok()) {
        AERIE_RETURN_IF_ERROR(note_bad(group_[i], failed[i]));
        continue;
      }
      AERIE_RETURN_IF_ERROR(writer_->append(items[i]));
      report_.num_rounded += items[i].rounded;
      report_.packed_s += static_cast<double>(items[i].frames) / options_.read.sample_rate;
    }
    group_.clear();
    group_s_ = 0.0;
    return ok_status();
  }

  Status pack_one(const Task& task, audio::AudioReader& reader, PackItem* item) const {
    audio::Segment segment;
    segment.offset_s = task.offset_s;
    segment.duration_s = task.duration_s;
    segment.channels = &task.channels;
    segment.room_samples = static_cast<int64_t>(kGroupSeconds * options_.read.sample_rate);
    item->key = task.key;
    item->name = str_cat(task.source, "@", task.offset_s, "+", task.duration_s);
    Env& env = options_.read.env != nullptr ? *options_.read.env : Env::real();
    const std::string& stamped = task.archive != nullptr ? task.archive->path() : task.paths[0];
    AERIE_ASSIGN_OR_RETURN(const FileStat info, env.stat(stamped));
    item->source = {info.size, info.mtime_ns};
    std::vector<uint8_t> bytes;
    const auto read = [&]() -> Result<audio::AudioView> {
      if (task.archive != nullptr && task.archive->index().entry(task.member).size > kWholeBytes)
        return reader.read_stream(tar::TarArchive::open_member(task.archive, task.member),
                                  task.source, segment);
      if (task.archive != nullptr) {
        AERIE_RETURN_IF_ERROR(task.archive->read(task.member, &bytes));
        return reader.read_memory(bytes, task.source, segment);
      }
      if (task.paths.size() > 1) return reader.read_file_list(task.paths, segment);
      return reader.read_file(task.paths[0], segment);
    };
    AERIE_ASSIGN_OR_RETURN(const audio::AudioView view, read());
    if (Status status = encode_pack_item(view, options_.encoding, item); !status.ok())
      return std::move(status).with_context(task.source);
    return ok_status();
  }

  Status note_bad(const Task& task, const Status& status) {
    ++report_.num_bad;
    if (report_.bad.size() < kMaxBadShown)
      report_.bad.push_back(str_cat(task.place, ": ", status.to_string()));
    const double allowed = options_.max_bad_fraction * static_cast<double>(total_);
    if (static_cast<double>(report_.num_bad) <= allowed) return ok_status();
    return data_error(str_cat(report_.num_bad, " of ", total_,
                              " recordings cannot be read, more than max_bad_fraction=",
                              options_.max_bad_fraction, ":\n  ", join(report_.bad, "\n  ")))
        .with_hint(
            "`aerie data validate` lists all of them; repair the data or raise "
            "--max_bad_fraction");
  }

  const PackBuildOptions& options_;
  const PackBuildHooks& hooks_;
  ReaderPool readers_;
  ThreadPool pool_;
  std::shared_ptr<const PackSet> present_;
  std::unique_ptr<PackWriter> writer_;
  std::vector<Task> group_;
  double group_s_ = 0.0;
  uint64_t total_ = 0;
  PackBuildReport report_;
};

}  // namespace

Result<PackBuildReport> build_pack(const PackBuildOptions& options, const PackBuildHooks& hooks) {
  return Builder(options, hooks).run();
}

}  // namespace aerie::data
