#include "aerie/data/speech/manifest_index.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <xxhash.h>

#include "aerie/base/cache_dir.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/data/speech/manifest_index_builder.h"
#include "aerie/data/speech/manifest_index_format.h"
#include "aerie/data/speech/manifest_path.h"

namespace aerie::data {

namespace fmt = index_format;

namespace {

// The builder's many small strings would stay with the process otherwise.
void give_back_memory() {
#ifdef __GLIBC__
  ::malloc_trim(0);
#endif
}

Status broken(std::string_view what) {
  return data_error(str_cat("manifest index is damaged: ", what));
}

template <typename T>
Status take_section(std::string_view bytes, const fmt::Section& section, uint64_t count,
                    std::span<const T>& out) {
  if (section.element_bytes != sizeof(T)) return broken("element size");
  if (count > bytes.size() || section.bytes != count * sizeof(T)) return broken("section size");
  out = {reinterpret_cast<const T*>(bytes.data() + section.offset), count};
  return ok_status();
}

// Ends never go back and the last one is the blob's size.
Status check_ends(std::span<const uint64_t> ends, uint64_t blob_bytes, const char* what) {
  uint64_t last = 0;
  for (const uint64_t end : ends) {
    if (end < last || end > blob_bytes) return broken(what);
    last = end;
  }
  if (last != blob_bytes) return broken(what);
  return ok_status();
}

Status parse_bad_lines(std::string_view blob, uint64_t count, std::vector<BadLine>& out) {
  size_t at = 0;
  for (uint64_t i = 0; i < count; ++i) {
    uint32_t head[2];
    if (blob.size() - at < sizeof(head)) return broken("bad lines");
    std::memcpy(head, blob.data() + at, sizeof(head));
    at += sizeof(head);
    if (blob.size() - at < head[1]) return broken("bad lines");
    out.push_back({head[0], std::string(blob.substr(at, head[1]))});
    at += head[1];
  }
  return at == blob.size() ? ok_status() : broken("bad lines");
}

std::string absolute(const std::string& path) {
  if (is_absolute_path(path)) return path;
  char* resolved = ::realpath(path.c_str(), nullptr);
  std::string out = resolved != nullptr ? resolved : path;
  std::free(resolved);
  return out;
}

}  // namespace

std::string ManifestIndex::cache_file(const std::string& path, const std::string& index_dir) {
  if (index_dir.empty())
    return join_path(parent_path(path), str_cat(".", aerie::base_name(path), ".aerie-index"));
  const std::string full = absolute(path);
  const uint64_t hash = XXH3_64bits(full.data(), full.size());
  char hex[17];
  std::snprintf(hex, sizeof(hex), "%016llx", static_cast<unsigned long long>(hash));
  return join_path(index_dir, str_cat(aerie::base_name(path), "-", hex, ".aerie-index"));
}

Result<std::shared_ptr<ManifestIndex>> ManifestIndex::parse(std::string_view bytes,
                                                            std::shared_ptr<const void> owner) {
  fmt::Header header;
  if (bytes.size() < sizeof(header)) return broken("shorter than its header");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, fmt::kMagic, sizeof(fmt::kMagic)) != 0)
    return broken("not a manifest index");
  if (header.version != fmt::kVersion)
    return unsupported(str_cat("manifest index of version ", header.version));
  if (header.file_bytes != bytes.size()) return broken("wrong length");
  if (header.num_sections > fmt::kNumSections) return broken("too many sections");
  const size_t table_bytes = header.num_sections * sizeof(fmt::Section);
  if (bytes.size() - sizeof(header) < table_bytes) return broken("section table");
  fmt::Section sections[fmt::kNumSections + 1] = {};
  {
    std::string head(bytes.substr(0, sizeof(header) + table_bytes));
    std::memset(head.data() + offsetof(fmt::Header, table_hash), 0, sizeof(header.table_hash));
    if (XXH3_64bits(head.data(), head.size()) != header.table_hash)
      return broken("header checksum");
  }
  for (uint32_t i = 0; i < header.num_sections; ++i) {
    fmt::Section section;
    std::memcpy(&section, bytes.data() + sizeof(header) + i * sizeof(section), sizeof(section));
    if (section.id == 0 || section.id > fmt::kNumSections || sections[section.id].id != 0)
      return broken("section number");
    if (section.offset % fmt::kAlignment != 0 || section.offset > bytes.size() ||
        section.bytes > bytes.size() - section.offset)
      return broken("section outside the file");
    if (XXH3_64bits(bytes.data() + section.offset, section.bytes) != section.hash)
      return broken("section checksum");
    sections[section.id] = section;
  }

  const uint64_t rows = header.num_rows;
  if (rows >= kNoDir) return broken("too many rows");
  auto index = std::shared_ptr<ManifestIndex>(new ManifestIndex);
  const auto text = [&](fmt::SectionId id) {
    return bytes.substr(sections[id].offset, sections[id].bytes);
  };
  AERIE_RETURN_IF_ERROR(take_section(bytes, sections[fmt::kDurations], rows, index->durations_));
  if (sections[fmt::kOffsets].id != 0)
    AERIE_RETURN_IF_ERROR(take_section(bytes, sections[fmt::kOffsets], rows, index->offsets_));
  AERIE_RETURN_IF_ERROR(take_section(bytes, sections[fmt::kNameEnds], rows, index->name_ends_));
  AERIE_RETURN_IF_ERROR(take_section(bytes, sections[fmt::kDirIds], rows, index->dir_ids_));
  AERIE_RETURN_IF_ERROR(
      take_section(bytes, sections[fmt::kDirEnds], header.num_dirs, index->dir_ends_));
  AERIE_RETURN_IF_ERROR(
      take_section(bytes, sections[fmt::kLineOffsets], rows, index->line_offsets_));
  AERIE_RETURN_IF_ERROR(
      take_section(bytes, sections[fmt::kLineNumbers], rows, index->line_numbers_));
  AERIE_RETURN_IF_ERROR(take_section(bytes, sections[fmt::kFlags], rows, index->flags_));
  const uint64_t channels = sections[fmt::kChannelRows].bytes / sizeof(uint32_t);
  AERIE_RETURN_IF_ERROR(
      take_section(bytes, sections[fmt::kChannelRows], channels, index->channel_rows_));
  AERIE_RETURN_IF_ERROR(take_section(bytes, sections[fmt::kChannels], channels, index->channels_));
  index->names_ = text(fmt::kNames);
  index->dirs_ = text(fmt::kDirs);
  AERIE_RETURN_IF_ERROR(check_ends(index->name_ends_, index->names_.size(), "names"));
  AERIE_RETURN_IF_ERROR(check_ends(index->dir_ends_, index->dirs_.size(), "folders"));
  for (const uint32_t id : index->dir_ids_)
    if (id != kNoDir && id >= header.num_dirs) return broken("folder number");
  for (const uint64_t offset : index->line_offsets_)
    if (offset > header.source_size) return broken("line offset");
  AERIE_RETURN_IF_ERROR(
      parse_bad_lines(text(fmt::kBadLines), header.num_bad_lines, index->bad_lines_));
  index->owner_ = std::move(owner);
  index->num_rows_ = rows;
  index->source_size_ = header.source_size;
  index->source_mtime_ns_ = header.source_mtime_ns;
  index->source_hash_ = header.source_hash;
  index->sample_hash_ = header.sample_hash;
  return index;
}

Result<std::shared_ptr<ManifestIndex>> ManifestIndex::load(Env& env, const std::string& path,
                                                           const std::string& file) {
  AERIE_ASSIGN_OR_RETURN(const FileStat stat, env.stat(path));
  AERIE_ASSIGN_OR_RETURN(MappedFile mapped, env.map_file(file));
  auto owner = std::make_shared<MappedFile>(mapped);
  AERIE_ASSIGN_OR_RETURN(std::shared_ptr<ManifestIndex> index, parse(owner->text(), owner));
  if (stat.size != index->source_size_) return unavailable("the manifest has another size");
  AERIE_ASSIGN_OR_RETURN(auto source, env.open_random_access(path));
  if (stat.mtime_ns == index->source_mtime_ns_) {
    AERIE_ASSIGN_OR_RETURN(const uint64_t hash, sampled_hash(*source));
    if (hash != index->sample_hash_) return unavailable("the manifest has other bytes");
  } else {
    AERIE_ASSIGN_OR_RETURN(const uint64_t hash, full_hash(*source));
    if (hash != index->source_hash_) return unavailable("the manifest has other bytes");
  }
  index->from_cache_ = true;
  return index;
}

Result<std::shared_ptr<const ManifestIndex>> ManifestIndex::build(const std::string& given,
                                                                  Env* env) {
  if (env == nullptr) env = &Env::real();
  const std::string path = expand_user(given);
  ManifestIndexBuilder builder;
  AERIE_RETURN_IF_ERROR(builder.scan(*env, path).with_context(path));
  auto bytes = std::make_shared<std::string>(builder.serialize());
  AERIE_ASSIGN_OR_RETURN(std::shared_ptr<ManifestIndex> index, parse(*bytes, bytes));
  index->set_path(path);
  index->env_ = env;
  return std::shared_ptr<const ManifestIndex>(std::move(index));
}

Result<std::shared_ptr<const ManifestIndex>> ManifestIndex::open(const std::string& given,
                                                                 const Options& options) {
  Env& env = options.env != nullptr ? *options.env : Env::real();
  if (!options.use_cache) return build(given, &env);
  const std::string path = expand_user(given);
  // Beside the manifest when that can be written, else in the user's cache folder.
  std::vector<std::string> files;
  if (options.index_dir.empty()) {
    files = {cache_file(path, {})};
    if (const std::string cache = user_cache_dir(); !cache.empty())
      files.push_back(cache_file(path, join_path(cache, "manifests")));
  } else {
    files = {cache_file(path, expand_user(options.index_dir))};
  }
  const auto finish = [&](std::shared_ptr<ManifestIndex> index) {
    index->set_path(path);
    index->env_ = &env;
    return std::shared_ptr<const ManifestIndex>(std::move(index));
  };
  for (const std::string& file : files) {
    Result<std::shared_ptr<ManifestIndex>> index = load(env, path, file);
    if (index.ok()) return finish(std::move(index).value());
    if (index.status().code() == StatusCode::kDataError)
      log_debug("data", file, ": ", index.status().to_string(), "; made again");
  }

  auto builder = std::make_unique<ManifestIndexBuilder>();
  AERIE_RETURN_IF_ERROR(builder->scan(env, path).with_context(path));
  for (const std::string& file : files) {
    Status written = env.create_dirs(parent_path(file));
    if (written.ok()) written = builder->write(env, file);
    if (!written.ok()) {
      log_debug("data", "manifest index not kept: ", written.to_string());
      continue;
    }
    builder.reset();  // not twice in memory
    give_back_memory();
    Result<std::shared_ptr<ManifestIndex>> index = load(env, path, file);
    if (!index.ok()) return build(given, &env);  // the manifest is being changed
    (*index)->from_cache_ = false;
    return finish(std::move(index).value());
  }
  auto bytes = std::make_shared<std::string>(builder->serialize());
  builder.reset();
  give_back_memory();
  AERIE_ASSIGN_OR_RETURN(std::shared_ptr<ManifestIndex> index, parse(*bytes, bytes));
  return finish(std::move(index));
}

void ManifestIndex::set_path(const std::string& path) {
  path_ = path;
  const size_t slash = path.rfind('/');
  folder_ = slash == std::string::npos ? std::string() : path.substr(0, slash + 1);
  names_tar_members_ = is_tar_member_name("x", path);
}

std::string_view ManifestIndex::name(uint64_t row) const {
  const uint64_t begin = row == 0 ? 0 : name_ends_[row - 1];
  return names_.substr(begin, name_ends_[row] - begin);
}

std::string_view ManifestIndex::dir(uint64_t row) const {
  const uint32_t id = dir_ids_[row];
  if (id == kNoDir) return {};
  const uint64_t begin = id == 0 ? 0 : dir_ends_[id - 1];
  return dirs_.substr(begin, dir_ends_[id] - begin);
}

std::vector<std::string> ManifestIndex::written_paths(uint64_t row) const {
  if (is_list(row)) return split(name(row), '\0');
  return {str_cat(dir(row), name(row))};
}

std::string ManifestIndex::written_path(uint64_t row) const {
  if (is_list(row)) return std::string(name(row).substr(0, name(row).find('\0')));
  return str_cat(dir(row), name(row));
}

void ManifestIndex::assign_path(uint64_t row, std::string& out) const {
  if (is_list(row)) {
    out.assign(name(row).substr(0, name(row).find('\0')));
    return;
  }
  out.assign(dir(row));
  out.append(name(row));
}

std::string_view ManifestIndex::base_name(uint64_t row) const {
  std::string_view text = name(row);
  if (is_list(row)) text = text.substr(0, text.find('\0'));
  const size_t slash = text.rfind('/');
  return slash == std::string_view::npos ? text : text.substr(slash + 1);
}

int32_t ManifestIndex::channel(uint64_t row) const {
  if ((flags_[row] & kFlagChannel) == 0) return -1;
  const auto found =
      std::lower_bound(channel_rows_.begin(), channel_rows_.end(), static_cast<uint32_t>(row));
  if (found == channel_rows_.end() || *found != row) return -1;
  return channels_[static_cast<size_t>(found - channel_rows_.begin())];
}

std::string ManifestIndex::place(uint64_t row) const {
  return str_cat(path_, ":", line_numbers_[row]);
}

Result<std::string> ManifestIndex::raw_line(uint64_t row) const {
  AERIE_ASSIGN_OR_RETURN(auto file, env_->open_random_access(path_));
  std::string line;
  uint64_t at = line_offsets_[row];
  char block[4096];
  while (true) {
    AERIE_ASSIGN_OR_RETURN(const size_t got, file->read_at(at, block, sizeof(block)));
    const std::string_view text(block, got);
    const size_t end = text.find('\n');
    line.append(text.substr(0, end));
    if (end != std::string_view::npos || got == 0) break;
    at += got;
  }
  return std::string(trim(line));
}

}  // namespace aerie::data
