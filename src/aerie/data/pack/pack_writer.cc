#include "aerie/data/pack/pack_writer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include <xxhash.h>

#include "aerie/base/clock.h"
#include "aerie/base/log.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/process.h"

namespace aerie::data {

namespace {
constexpr std::string_view kTemporary = ".tmp";
}

std::string pack_file_name(uint64_t shard) {
  char text[64];
  std::snprintf(text, sizeof(text), "pack_%05llu", static_cast<unsigned long long>(shard));
  return str_cat(text, kPackSuffix);
}

PackItem bytes_pack_item(const PackKey& key, std::string name, std::vector<uint8_t> bytes,
                         const PackSourceStamp& source) {
  PackItem out;
  out.key = key;
  out.name = std::move(name);
  out.bytes = std::move(bytes);
  out.frames = out.bytes.size();
  out.data_hash = XXH3_64bits(out.bytes.data(), out.bytes.size());
  out.source = source;
  return out;
}

PackWriter::PackWriter(const PackWriterOptions& options)
    : options_(options), env_(options.env != nullptr ? *options.env : Env::real()) {}

Result<std::unique_ptr<PackWriter>> PackWriter::create(const PackWriterOptions& options) {
  std::unique_ptr<PackWriter> writer(new PackWriter(options));
  if (!writer->env_.exists(options.dir)) {
    AERIE_RETURN_IF_ERROR(writer->env_.create_dirs(options.dir));
    // Or a power cut takes the folder with all that was synced in it.
    AERIE_RETURN_IF_ERROR(writer->env_.fsync_dir(parent_path(options.dir)));
  }
  AERIE_ASSIGN_OR_RETURN(const std::vector<DirEntry> entries, writer->env_.list_dir(options.dir));
  writer->remove_abandoned(entries);
  for (const DirEntry& entry : entries) {
    if (!starts_with(entry.name, "pack_") || !ends_with(entry.name, kPackSuffix)) continue;
    const std::string digits = entry.name.substr(5, entry.name.size() - 5 - kPackSuffix.size());
    if (const Result<uint64_t> number = parse_uint64(digits); number.ok())
      writer->next_shard_ = std::max(writer->next_shard_, *number + 1);
  }
  return writer;
}

// What killed processes left: at once where the owner is known to be gone, else after a day.
void PackWriter::remove_abandoned(const std::vector<DirEntry>& entries) {
  constexpr int64_t kDayNs = int64_t{86400} * 1000000000;
  const std::string temporary_end = str_cat(kPackSuffix, kTemporary);
  for (const DirEntry& entry : entries) {
    if (entry.is_dir || !starts_with(entry.name, "pack_")) continue;
    const size_t end = entry.name.find(temporary_end);
    if (end == std::string::npos) continue;
    const std::string shard = entry.name.substr(0, end + temporary_end.size());
    const std::string path = join_path(options_.dir, entry.name);
    // "<shard>.<tag>" names the owner of "<shard>".
    const bool is_owner = entry.name.size() > shard.size() && entry.name[shard.size()] == '.';
    if (!is_owner && entry.name != shard) continue;
    const bool dead =
        is_owner && tag_life(entry.name.substr(shard.size() + 1)) == ProcessLife::kDead;
    const Result<FileStat> stat = env_.stat(path);
    const bool old = stat.ok() && stat->mtime_ns < Clock::real().wall_ns() - kDayNs;
    if (!dead && (!old || is_owner)) continue;
    if (dead) {
      log_info("data", "removing ", join_path(options_.dir, shard),
               ", left by a process that was killed");
      (void)env_.remove_file(join_path(options_.dir, shard));
    }
    (void)env_.remove_file(path);
  }
}

PackWriter::~PackWriter() {
  if (file_ == nullptr) return;
  file_.reset();
  (void)env_.remove_file(temporary_);
  (void)env_.remove_file(owner_);
}

uint32_t PackWriter::version() const {
  if (options_.encoding == PackEncoding::kBytes) return kBytesPackVersion;
  return options_.encoding == PackEncoding::kFloat32 ? kFloatPackVersion : kPackVersion;
}

uint64_t PackWriter::num_entries() const {
  const std::lock_guard lock(mutex_);
  return num_entries_;
}

uint64_t PackWriter::bytes_written() const {
  const std::lock_guard lock(mutex_);
  return bytes_written_;
}

Status PackWriter::begin_shard() {
  // Several processes may fill the folder: a number belongs to whoever makes its temporary file.
  constexpr int kMaxTries = 10000;
  for (int tries = 0; file_ == nullptr; ++tries) {
    final_ = join_path(options_.dir, pack_file_name(next_shard_++));
    temporary_ = str_cat(final_, kTemporary);
    if (env_.exists(final_)) continue;
    auto file = env_.open_writable(temporary_, WriteMode::kCreateNew);
    if (file.ok() && env_.exists(final_)) {  // finished by another in between
      (void)env_.remove_file(temporary_);
      continue;
    }
    if (file.ok()) {
      file_ = std::move(file).value();
      // Who writes it, so that it need not stay for a day when that process is killed.
      owner_ = str_cat(temporary_, ".", process_tag(this_process()));
      (void)env_.write_file(owner_, "");
    }
    if (file_ == nullptr &&
        ((!env_.exists(temporary_) && !env_.exists(final_)) || tries >= kMaxTries))
      return file.status();  // nobody has it, or has finished it meanwhile: a refusal of its own
  }
  PackHead head{};
  std::memcpy(head.magic, kPackMagic, sizeof(kPackMagic));
  head.version = version();
  head.encoding = static_cast<uint32_t>(options_.encoding);
  head.sample_rate = static_cast<uint32_t>(options_.sample_rate);
  position_ = sizeof(head);
  shard_frames_ = 0;
  entries_.clear();
  names_.clear();
  return file_->append(&head, sizeof(head));
}

Status PackWriter::append(const PackItem& item) {
  static const char kZeros[kPackAlignment] = {};
  const std::lock_guard lock(mutex_);
  AERIE_CHECK(!finished_, "append after finish");
  if (!seen_.insert(item.key).second) return ok_status();
  if (file_ != nullptr && position_ > sizeof(PackHead) &&
      (position_ + item.bytes.size() > options_.shard_bytes ||
       names_.size() + item.name.size() > UINT32_MAX))
    AERIE_RETURN_IF_ERROR(finish_shard());
  if (file_ == nullptr) AERIE_RETURN_IF_ERROR(begin_shard());
  PackEntry entry{};
  entry.key = item.key;
  entry.offset = position_;
  entry.bytes = item.bytes.size();
  entry.frames = item.frames;
  entry.data_hash = item.data_hash;
  entry.source = item.source;
  entry.scale = item.scale;
  entry.name_offset = static_cast<uint32_t>(names_.size());
  AERIE_RETURN_IF_ERROR(file_->append(item.bytes.data(), item.bytes.size()));
  const uint64_t padding = (kPackAlignment - item.bytes.size() % kPackAlignment) % kPackAlignment;
  AERIE_RETURN_IF_ERROR(file_->append(kZeros, padding));
  position_ += item.bytes.size() + padding;
  bytes_written_ += item.bytes.size() + padding;
  shard_frames_ += item.frames;
  names_ += item.name;
  entries_.push_back(entry);
  ++num_entries_;
  return ok_status();
}

Status PackWriter::finish_shard() {
  PackFooter footer{};
  footer.num_entries = entries_.size();
  footer.index_offset = position_;
  footer.names_bytes = names_.size();
  footer.settings_bytes = options_.settings.size();
  footer.total_frames = shard_frames_;
  footer.encoding = static_cast<uint32_t>(options_.encoding);
  footer.sample_rate = static_cast<uint32_t>(options_.sample_rate);
  footer.version = version();
  std::memcpy(footer.magic, kPackMagic, sizeof(kPackMagic));
  XXH3_state_t* state = XXH3_createState();
  if (state == nullptr) return out_of_memory("no memory to hash an index");
  XXH3_64bits_reset(state);
  XXH3_64bits_update(state, entries_.data(), entries_.size() * sizeof(PackEntry));
  XXH3_64bits_update(state, names_.data(), names_.size());
  XXH3_64bits_update(state, options_.settings.data(), options_.settings.size());
  footer.index_hash = XXH3_64bits_digest(state);
  XXH3_freeState(state);
  footer.footer_hash = XXH3_64bits(&footer, offsetof(PackFooter, footer_hash));
  AERIE_RETURN_IF_ERROR(file_->append(entries_.data(), entries_.size() * sizeof(PackEntry)));
  AERIE_RETURN_IF_ERROR(file_->append(names_));
  AERIE_RETURN_IF_ERROR(file_->append(options_.settings));
  AERIE_RETURN_IF_ERROR(file_->append(&footer, sizeof(footer)));
  AERIE_RETURN_IF_ERROR(file_->sync());
  AERIE_RETURN_IF_ERROR(file_->close());
  AERIE_RETURN_IF_ERROR(env_.rename(temporary_, final_));
  (void)env_.remove_file(owner_);
  file_.reset();
  return env_.fsync_dir(options_.dir);
}

Status PackWriter::finish() {
  const std::lock_guard lock(mutex_);
  AERIE_CHECK(!finished_, "finish twice");
  if (file_ != nullptr) AERIE_RETURN_IF_ERROR(finish_shard());
  finished_ = true;
  return ok_status();
}

}  // namespace aerie::data
