#include "aerie/data/speech/tar_shards.h"

#include <algorithm>
#include <list>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include <nlohmann/json.hpp>

#include "aerie/base/check.h"
#include "aerie/base/hash.h"
#include "aerie/base/log.h"
#include "aerie/base/parse.h"
#include "aerie/base/path.h"
#include "aerie/base/retry.h"
#include "aerie/base/strings.h"
#include "aerie/base/thread_pool.h"
#include "aerie/data/speech/manifest_path.h"
#include "aerie/tar/sample_key.h"

namespace aerie::data {

namespace {

constexpr size_t kMaxOpenFiles = 256;
constexpr size_t kExamples = 5;

std::string examples(const std::vector<std::string>& names, uint64_t count) {
  return names.empty() ? std::string()
                       : str_cat(" (", join(names, ", "), count > names.size() ? ", ...)" : ")");
}

// 12 of "folder/audio_12.tar".
std::optional<uint64_t> shard_number(const std::string& path) {
  std::string name = base_name(path);
  name = name.substr(0, name.find('.'));
  size_t digits = name.size();
  while (digits > 0 && name[digits - 1] >= '0' && name[digits - 1] <= '9') --digits;
  const Result<uint64_t> number = parse_uint64(name.substr(digits));
  return number.ok() ? std::optional(*number) : std::nullopt;
}

std::optional<uint64_t> shard_id(const Manifest& manifest, uint64_t row) {
  const Result<std::string> line = manifest.raw_line(row);
  if (!line.ok()) return std::nullopt;
  const nlohmann::json json = nlohmann::json::parse(*line, nullptr, false);
  if (!json.is_object() || !json.contains("shard_id") || !json["shard_id"].is_number_unsigned())
    return std::nullopt;
  return json["shard_id"].get<uint64_t>();
}

}  // namespace

namespace {

// [offset, offset + size) of an archive.
class FileRange final : public RandomAccessFile {
 public:
  FileRange(std::shared_ptr<const RandomAccessFile> file, uint64_t offset, uint64_t size)
      : RandomAccessFile(file->path()), file_(std::move(file)), offset_(offset), size_(size) {}
  uint64_t size() const override { return size_; }

 protected:
  Result<size_t> read_some(uint64_t offset, void* out, size_t n) const override {
    if (offset >= size_) return size_t{0};
    return file_->read_at(offset_ + offset, out,
                          static_cast<size_t>(std::min<uint64_t>(n, size_ - offset)));
  }

 private:
  std::shared_ptr<const RandomAccessFile> file_;
  uint64_t offset_, size_;
};

}  // namespace

struct TarShards::OpenFiles {
  struct Entry {
    size_t shard;
    std::shared_ptr<const RandomAccessFile> file;
    std::shared_ptr<tar::TarArchive> archive;
  };
  std::mutex mutex;
  std::list<Entry> entries;  // most recently used first
  std::unordered_map<size_t, std::list<Entry>::iterator> by_shard;

  Result<Entry> get(const Archive& archive, size_t shard, Env& env) {
    {
      const std::lock_guard lock(mutex);
      if (const auto found = by_shard.find(shard); found != by_shard.end()) {
        entries.splice(entries.begin(), entries, found->second);
        return entries.front();
      }
    }
    // Two threads may open the same file; the second one is dropped.
    Entry entry{shard, nullptr, nullptr};
    if (archive.index != nullptr) {
      tar::TarOptions options;
      options.env = &env;
      AERIE_ASSIGN_OR_RETURN(entry.archive,
                             tar::TarArchive::open(archive.path, archive.index, options));
    } else {
      AERIE_ASSIGN_OR_RETURN(auto file, env.open_random_access(archive.path));
      if (file->size() != archive.bytes)
        return data_error("the archive has changed since it was indexed")
            .with_context(archive.path);
      entry.file = std::move(file);
    }
    const std::lock_guard lock(mutex);
    if (const auto found = by_shard.find(shard); found != by_shard.end()) return *found->second;
    entries.push_front(entry);
    by_shard[shard] = entries.begin();
    if (entries.size() > kMaxOpenFiles) {
      by_shard.erase(entries.back().shard);
      entries.pop_back();
    }
    return entry;
  }
  // After an error that passes: a stale handle must be opened anew.
  void forget(size_t shard) {
    const std::lock_guard lock(mutex);
    const auto found = by_shard.find(shard);
    if (found == by_shard.end()) return;
    entries.erase(found->second);
    by_shard.erase(found);
  }
};

TarShards::TarShards() : open_(std::make_unique<OpenFiles>()) {}
TarShards::~TarShards() = default;

Result<std::unique_ptr<TarShards>> TarShards::open(const std::vector<Group>& groups,
                                                   const Manifest& manifest,
                                                   const Options& options) {
  std::unique_ptr<TarShards> out(new TarShards);
  out->env_ = options.env != nullptr ? options.env : &Env::real();
  out->repeats_ = options.compat_nemo;
  tar::TarOptions tar_options;
  tar_options.env = out->env_;
  ThreadPoolOptions pool_options;
  pool_options.name = "tar-index";
  pool_options.num_threads = std::max(1, options.num_threads);
  ThreadPool pool(pool_options);
  for (const Group& group : groups) {
    AERIE_ASSIGN_OR_RETURN(std::vector<tar::TarIndex> indexes,
                           pool.parallel_map<tar::TarIndex>(
                               group.archives.size(), [&](size_t k) -> Result<tar::TarIndex> {
                                 auto index = retry_passing(RetryPolicy{}, [&] {
                                   return tar::TarIndex::open(group.archives[k], options.index_dir,
                                                              tar_options);
                                 });
                                 if (names_no_file(*out->env_, index.status(), group.archives[k]))
                                   return data_error(index.status().message())
                                       .with_context("tar shard")
                                       .with_hint("check tarred_audio_filepaths");
                                 return std::move(index).with_context("tar shard");
                               }));
    AERIE_RETURN_IF_ERROR(out->join_group(group, manifest, options, indexes));
  }
  if (!options.quiet) out->log_report();
  return out;
}

// Members and manifest lines meet by id: the file's name without folders and extension. Lines named
// "<id>-subN" belong to the member "<id>" unless there is a member of that very name.
Status TarShards::join_group(const Group& group, const Manifest& manifest, const Options& options,
                             std::vector<tar::TarIndex>& indexes) {
  std::vector<std::vector<tar::TarSample>> members(indexes.size());
  std::vector<uint64_t> member_hashes;
  for (size_t k = 0; k < indexes.size(); ++k) {
    auto samples = tar::group_samples(indexes[k]);
    if (!samples.ok()) return samples.status().with_context(group.archives[k]);
    members[k] = std::move(samples).value();
    for (const tar::TarSample& member : members[k]) member_hashes.push_back(xxhash64(member.id));
  }
  std::sort(member_hashes.begin(), member_hashes.end());

  struct Line {
    uint64_t hash;
    uint32_t row;
    bool stripped;
  };
  std::vector<Line> lines;
  lines.reserve(group.last_row - group.first_row);
  for (uint64_t row = group.first_row; row < group.last_row; ++row) {
    const std::string_view id = tar::manifest_id(manifest.base_name(row));
    const uint64_t hash = xxhash64(id);
    const bool strip = !options.compat_nemo && tar::has_sub(id) &&
                       !std::binary_search(member_hashes.begin(), member_hashes.end(), hash);
    lines.push_back(
        {strip ? xxhash64(tar::strip_sub(id)) : hash, static_cast<uint32_t>(row), strip});
  }
  std::sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) {
    return a.hash != b.hash ? a.hash < b.hash : a.row < b.row;
  });
  const auto matches = [&](const Line& line, std::string_view id) {
    const std::string_view own = tar::manifest_id(manifest.base_name(line.row));
    return line.stripped ? tar::strip_sub(own) == id : own == id;
  };

  // Lines of a member, in the order of the manifest.
  const auto for_each_line = [&](const tar::TarSample& member, const auto& visit) {
    const uint64_t hash = xxhash64(member.id);
    auto line = std::lower_bound(lines.begin(), lines.end(), hash,
                                 [](const Line& a, uint64_t h) { return a.hash < h; });
    for (; line != lines.end() && line->hash == hash; ++line)
      if (matches(*line, member.id)) visit(line->row);
  };

  // A file whose segments were dealt to several shards is in each of them, under one name: a line
  // belongs to the shard it names.
  std::vector<uint8_t> uses(group.last_row - group.first_row, 0);
  for (const auto& shard : members)
    for (const tar::TarSample& member : shard)
      for_each_line(member, [&](uint32_t row) {
        uint8_t& count = uses[row - group.first_row];
        if (count == 1) ++report_.repeated_rows;
        if (count < 2) ++count;
      });
  std::unordered_map<uint32_t, size_t> chosen;  // of lines with a choice
  const bool choose = report_.repeated_rows > 0 && !options.compat_nemo;
  if (choose) {
    std::unordered_map<uint32_t, std::optional<uint64_t>> wanted;
    for (size_t k = 0; k < members.size(); ++k) {
      const std::optional<uint64_t> number = shard_number(group.archives[k]);
      for (const tar::TarSample& member : members[k])
        for_each_line(member, [&](uint32_t row) {
          if (uses[row - group.first_row] < 2) return;
          if (!wanted.contains(row)) wanted[row] = shard_id(manifest, row);
          if (wanted[row].has_value() && wanted[row] == number)
            chosen[row] = k;
          else
            chosen.emplace(row, k);
        });
    }
  }

  std::unordered_set<uint32_t> taken;
  for (size_t k = 0; k < indexes.size(); ++k) {
    const bool plain = indexes[k].compression() == tar::Compression::kNone;
    archives_.push_back({group.archives[k], rows_.size(), indexes[k].stamp().size, nullptr});
    for (const tar::TarSample& member : members[k]) {
      bool matched = false;
      for_each_line(member, [&](uint32_t row) {
        matched = true;
        if (choose && uses[row - group.first_row] > 1 &&
            (chosen[row] != k || !taken.insert(row).second))
          return;
        const tar::TarIndex::Entry& entry = indexes[k].entry(member.audio_member);
        rows_.push_back(row);
        offsets_.push_back(plain ? entry.offset : member.audio_member);
        sizes_.push_back(entry.size);
        if (options.keep_names) {
          names_.append(indexes[k].name(member.audio_member));
          name_ends_.push_back(names_.size());
        }
      });
      if (matched) continue;
      ++report_.unmatched_members;
      if (report_.member_examples.size() < kExamples)
        report_.member_examples.push_back(str_cat(group.archives[k], ":", member.key));
    }
    if (!plain)
      archives_.back().index = std::make_shared<const tar::TarIndex>(std::move(indexes[k]));
  }
  for (size_t r = 0; r < uses.size(); ++r) {
    if (uses[r] > 0) continue;
    ++report_.unmatched_rows;
    report_.unmatched.push_back(static_cast<uint32_t>(group.first_row + r));
    if (report_.row_examples.size() < kExamples)
      report_.row_examples.push_back(manifest.place(group.first_row + r));
  }
  group_end_.push_back(rows_.size());
  group_archive_end_.push_back(archives_.size());
  if (rows_.size() >= std::numeric_limits<uint32_t>::max())
    return unsupported("more than 2^32 - 2 samples in one data set");
  return ok_status();
}

void TarShards::log_report() const {
  log_info("data", rows_.size(), " samples in ", archives_.size(), " tar shards");
  if (report_.unmatched_rows > 0)
    log_warn("data", report_.unmatched_rows, " manifest lines have no member in the archives",
             examples(report_.row_examples, report_.unmatched_rows), "; they are left out");
  if (report_.unmatched_members > 0)
    log_warn("data", report_.unmatched_members, " members of the archives have no manifest line",
             examples(report_.member_examples, report_.unmatched_members),
             "; they are left out (filtered or missing)");
  if (report_.repeated_rows > 0)
    log_info(
        "data", report_.repeated_rows, " manifest lines match several members; ",
        repeats_ ? "each of them is used (aerie.compat)" : "the one of their shard_id is used");
}

size_t TarShards::shard_of(uint64_t i) const {
  const auto after = std::upper_bound(
      archives_.begin(), archives_.end(), i,
      [](uint64_t value, const Archive& archive) { return value < archive.first_sample; });
  return static_cast<size_t>(after - archives_.begin()) - 1;
}

std::vector<uint32_t> TarShards::shard_starts(size_t g) const {
  std::vector<uint32_t> out;
  for (size_t k = g == 0 ? 0 : group_archive_end_[g - 1]; k < group_archive_end_[g]; ++k)
    out.push_back(static_cast<uint32_t>(archives_[k].first_sample));
  return out;
}

std::string_view TarShards::member_name(uint64_t i) const {
  AERIE_CHECK(!name_ends_.empty(), "member names were not kept");
  const uint64_t begin = i == 0 ? 0 : name_ends_[i - 1];
  return std::string_view(names_).substr(begin, name_ends_[i] - begin);
}

Status TarShards::read(uint64_t i, std::vector<uint8_t>& out) const {
  const size_t shard = shard_of(i);
  AERIE_ASSIGN_OR_RETURN(const OpenFiles::Entry entry, open_->get(archives_[shard], shard, *env_));
  Status status;
  if (entry.archive != nullptr) {
    status = entry.archive->read(offsets_[i], &out);
  } else {
    out.resize(sizes_[i]);
    status = entry.file->read_exact_at(offsets_[i], out.data(), out.size());
  }
  if (is_passing(status)) open_->forget(shard);
  return status;
}

Result<std::unique_ptr<RandomAccessFile>> TarShards::open_member(uint64_t i) const {
  const size_t shard = shard_of(i);
  AERIE_ASSIGN_OR_RETURN(const OpenFiles::Entry entry, open_->get(archives_[shard], shard, *env_));
  if (entry.archive != nullptr) return tar::TarArchive::open_member(entry.archive, offsets_[i]);
  return std::unique_ptr<RandomAccessFile>(
      std::make_unique<FileRange>(entry.file, offsets_[i], sizes_[i]));
}

void TarShards::forget(uint64_t i) const {
  open_->forget(shard_of(i));
}

}  // namespace aerie::data
