#include "aerie/data/speech/pack_cache.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/log.h"

namespace aerie::data {

namespace {
double gib(double bytes) {
  return std::ceil(bytes / 1073741824.0 * 100) / 100;
}
}  // namespace

PackCache::PackCache(const Options& options)
    : options_(options),
      building_(options.build),
      added_(options.build ? options.num_samples : 0) {}

PackCache::~PackCache() {
  if (writer_ == nullptr) return;
  if (const Status status = writer_->finish(); !status.ok()) give_up(status);
}

Result<std::unique_ptr<PackCache>> PackCache::open(const Options& options) {
  std::unique_ptr<PackCache> cache(new PackCache(options));
  AERIE_RETURN_IF_ERROR(cache->reopen());
  if (options.build) cache->check_space();
  return cache;
}

// Checkpoints may live on the same disk: it is better not to begin than to fill it up.
void PackCache::check_space() {
  Env& env = options_.env != nullptr ? *options_.env : Env::real();
  const double bytes_per_s =
      options_.sample_rate * (options_.encoding == PackEncoding::kFlac ? 1.2 : 2.0);
  const double missing_s = std::max(0.0, options_.total_s - set_->total_s());
  const double needed = missing_s * bytes_per_s;
  if (needed <= 0) return;
  if (const Status made = env.create_dirs(options_.dir); !made.ok()) return give_up(made);
  const Result<uint64_t> available = env.free_space(options_.dir);
  if (available.ok() && static_cast<double>(*available) < needed * 1.05)
    return give_up(data_error(str_cat("it needs about ", gib(needed), " GiB, ",
                                      gib(static_cast<double>(*available)), " are free"))
                       .with_context(options_.dir)
                       .with_hint("free some space, name another folder, or set "
                                  "aerie.data.cache_format=flac"));
  if (!options_.quiet)
    log_info("data", "the packed cache is filled as samples are read: about ", gib(needed),
             " GiB in ", options_.dir,
             "; what is resampled or finer than 16 bits is rounded to 16 bits (`aerie data pack "
             "--encoding float32` keeps it)");
}

Status PackCache::reopen() {
  PackSet::Options set_options;
  set_options.settings = options_.settings;
  set_options.sample_rate = options_.sample_rate;
  set_options.skip_others = true;  // of another data set of this run
  set_options.env = options_.env;
  AERIE_ASSIGN_OR_RETURN(auto set, PackSet::open(options_.dir, set_options));
  const std::lock_guard lock(mutex_);
  set_ = std::move(set);
  version_.fetch_add(1, std::memory_order_release);
  return ok_status();
}

std::shared_ptr<const PackSet> PackCache::set() const {
  const std::lock_guard lock(mutex_);
  return set_;
}

bool PackCache::wants(uint64_t i) const {
  return building_.load(std::memory_order_relaxed) && i < added_.size() &&
         added_[i].load(std::memory_order_relaxed) == 0;
}

void PackCache::give_up(const Status& status) {
  if (!building_.exchange(false)) return;
  log_warn("data", "the packed cache is not built any further: ", status.to_string());
}

void PackCache::add(uint64_t i, const PackKey& key, const std::string& name,
                    const std::string& source_file, const audio::AudioView& view, float scale) {
  if (added_[i].exchange(1) != 0) return;
  PackItem item;
  item.key = key;
  item.name = name;
  Env& env = options_.env != nullptr ? *options_.env : Env::real();
  if (const Result<FileStat> stat = env.stat(source_file); stat.ok())
    item.source = {stat->size, stat->mtime_ns};
  Status status = encode_pack_item(view, options_.encoding, &item);
  if (!status.ok()) return give_up(status);
  item.scale = scale;
  const std::lock_guard lock(mutex_);
  if (writer_ == nullptr) {
    PackWriterOptions writer;
    writer.dir = options_.dir;
    writer.encoding = options_.encoding;
    writer.sample_rate = options_.sample_rate;
    writer.settings = options_.settings;
    writer.env = options_.env;
    auto made = PackWriter::create(writer);
    if (!made.ok()) return give_up(made.status());
    writer_ = std::move(made).value();
  }
  status = writer_->append(item);
  if (!status.ok()) {
    writer_.reset();
    return give_up(status);
  }
  ++num_added_;
}

void PackCache::publish() {
  std::unique_ptr<PackWriter> writer;
  uint64_t added = 0;
  if (!building_) return;
  {
    const std::lock_guard lock(mutex_);
    writer = std::move(writer_);
    added = num_added_;
  }
  // Completing a shard waits for the disk: others read and add meanwhile.
  Status status = writer != nullptr ? writer->finish() : ok_status();
  if (status.ok()) status = reopen();
  if (!status.ok()) return give_up(status);
  if (writer != nullptr && !options_.quiet)
    log_info("data", "packed cache: ", added, " samples added");
  if (set()->size() >= options_.num_samples) building_ = false;
}

}  // namespace aerie::data
