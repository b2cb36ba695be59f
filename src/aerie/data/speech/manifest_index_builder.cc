#include "aerie/data/speech/manifest_index_builder.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include <xxhash.h>

#include "aerie/base/strings.h"
#include "aerie/data/speech/manifest_index_format.h"

namespace aerie::data {

namespace fmt = index_format;

namespace {

constexpr size_t kBlockBytes = size_t{4} << 20;
// Folders beyond this number (one folder per file, say) are kept in the names instead.
constexpr size_t kMaxDirs = size_t{1} << 18;

struct FreeHash {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};
using HashState = std::unique_ptr<XXH3_state_t, FreeHash>;

HashState new_hash() {
  HashState state(XXH3_createState());
  XXH3_64bits_reset(state.get());
  return state;
}

template <typename T>
std::string_view bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

}  // namespace

Result<uint64_t> full_hash(const RandomAccessFile& file) {
  HashState state = new_hash();
  std::vector<char> block(std::min<uint64_t>(kBlockBytes, file.size()));
  for (uint64_t at = 0; at < file.size();) {
    AERIE_ASSIGN_OR_RETURN(const size_t got, file.read_at(at, block.data(), block.size()));
    if (got == 0) break;
    XXH3_64bits_update(state.get(), block.data(), got);
    at += got;
  }
  return XXH3_64bits_digest(state.get());
}

Result<uint64_t> sampled_hash(const RandomAccessFile& file) {
  const uint64_t size = file.size();
  if (size <= fmt::kSampleBlocks * fmt::kSampleBlockBytes) return full_hash(file);
  HashState state = new_hash();
  std::vector<char> block(fmt::kSampleBlockBytes);
  const uint64_t span = size - fmt::kSampleBlockBytes;
  for (uint64_t i = 0; i < fmt::kSampleBlocks; ++i) {
    // No overflow: blocks are a few and files far below 2^60.
    const uint64_t at = span / (fmt::kSampleBlocks - 1) * i;
    const uint64_t offset = i + 1 == fmt::kSampleBlocks ? span : at;
    AERIE_RETURN_IF_ERROR(file.read_exact_at(offset, block.data(), block.size()));
    XXH3_64bits_update(state.get(), block.data(), block.size());
  }
  return XXH3_64bits_digest(state.get());
}

uint32_t ManifestIndexBuilder::dir_id(std::string_view dir) {
  if (last_dir_id_ != ManifestIndex::kNoDir && dir == last_dir_) return last_dir_id_;
  const auto found = dir_numbers_.find(std::string(dir));
  uint32_t id;
  if (found != dir_numbers_.end()) {
    id = found->second;
  } else {
    if (dir_numbers_.size() >= kMaxDirs) return ManifestIndex::kNoDir;
    id = static_cast<uint32_t>(dir_ends_.size());
    dirs_.append(dir);
    dir_ends_.push_back(dirs_.size());
    dir_numbers_.emplace(dir, id);
  }
  last_dir_.assign(dir);
  last_dir_id_ = id;
  return id;
}

void ManifestIndexBuilder::add_line(std::string_view text, uint64_t offset, uint32_t number) {
  const std::string_view stripped = trim(text);
  if (stripped.empty()) return;
  Status status = parser_.parse(stripped, line_);
  if (status.ok() && durations_.size() + 1 >= ManifestIndex::kNoDir)
    status = data_error("a manifest may have at most 2^32 - 2 lines");
  if (!status.ok()) {
    const std::string reason = status.message().substr(0, 500);
    const uint32_t head[2] = {number, static_cast<uint32_t>(reason.size())};
    bad_lines_.append(reinterpret_cast<const char*>(head), sizeof(head)).append(reason);
    ++num_bad_lines_;
    return;
  }
  uint8_t flags = 0;
  uint32_t dir = ManifestIndex::kNoDir;
  if (line_.is_list) {
    flags |= ManifestIndex::kFlagList;
    for (size_t i = 0; i < line_.paths.size(); ++i) {
      if (i > 0) names_.push_back('\0');
      names_.append(line_.paths[i]);
    }
  } else {
    const std::string_view path = line_.paths[0];
    const size_t slash = path.rfind('/');
    const size_t split_at = slash == std::string_view::npos ? 0 : slash + 1;
    if (split_at > 0) dir = dir_id(path.substr(0, split_at));
    names_.append(dir == ManifestIndex::kNoDir ? path : path.substr(split_at));
  }
  if (line_.channel >= 0) {
    flags |= ManifestIndex::kFlagChannel;
    channel_rows_.push_back(static_cast<uint32_t>(durations_.size()));
    channels_.push_back(line_.channel);
  }
  // Rows before the first offset get a zero when the first one appears.
  if (line_.offset_s != 0.0 && !any_offset_) {
    any_offset_ = true;
    offsets_.assign(durations_.size(), 0.0);
  }
  if (any_offset_) offsets_.push_back(line_.offset_s);
  durations_.push_back(line_.duration_s);
  name_ends_.push_back(names_.size());
  dir_ids_.push_back(dir);
  line_offsets_.push_back(offset);
  line_numbers_.push_back(number);
  flags_.push_back(flags);
}

// After the first block the number of lines is about known: growing by doubling would hold twice
// the memory.
void ManifestIndexBuilder::reserve_for(uint64_t scanned_bytes) {
  const double factor =
      1.03 * static_cast<double>(source_size_) / static_cast<double>(scanned_bytes);
  const auto grown = [factor](size_t now) {
    return static_cast<size_t>(static_cast<double>(now) * factor) + 16;
  };
  const size_t rows = grown(durations_.size());
  durations_.reserve(rows);
  if (any_offset_) offsets_.reserve(rows);
  name_ends_.reserve(rows);
  dir_ids_.reserve(rows);
  line_offsets_.reserve(rows);
  line_numbers_.reserve(rows);
  flags_.reserve(rows);
  names_.reserve(grown(names_.size()));
}

Status ManifestIndexBuilder::scan(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(const FileStat stat, env.stat(path));
  AERIE_ASSIGN_OR_RETURN(auto file, env.open_random_access(path));
  source_size_ = file->size();
  source_mtime_ns_ = stat.mtime_ns;
  HashState state = new_hash();
  // `pending` holds the bytes from the start of the current line.
  std::string pending;
  std::vector<char> block(std::min<uint64_t>(kBlockBytes, source_size_));
  uint64_t line_offset = 0;
  uint32_t number = 0;
  uint64_t at = 0;
  while (at < source_size_) {
    const size_t want = static_cast<size_t>(std::min<uint64_t>(block.size(), source_size_ - at));
    AERIE_ASSIGN_OR_RETURN(const size_t got, file->read_at(at, block.data(), want));
    if (got == 0) return io_error("the manifest became shorter while it was read");
    XXH3_64bits_update(state.get(), block.data(), got);
    std::string_view rest(block.data(), got);
    if (at == 0 && starts_with(rest, "\xEF\xBB\xBF")) {
      rest.remove_prefix(3);
      line_offset = 3;
    }
    at += got;
    while (true) {
      const size_t end = rest.find('\n');
      if (end == std::string_view::npos) break;
      if (pending.empty()) {
        add_line(rest.substr(0, end), line_offset, ++number);
        line_offset += end + 1;
      } else {
        pending.append(rest.substr(0, end));
        add_line(pending, line_offset, ++number);
        line_offset += pending.size() + 1;
        pending.clear();
      }
      rest.remove_prefix(end + 1);
    }
    if (at == got && source_size_ > got) reserve_for(got);
    // A line without an end would be collected whole; beyond the limit it is bad anyway.
    pending.append(rest);
    if (pending.size() > ManifestLineParser::kMaxLineBytes + kBlockBytes)
      return data_error(str_cat("line ", number + 1, " is longer than ",
                                ManifestLineParser::kMaxLineBytes >> 20, " MiB"))
          .with_hint("a manifest is one JSON object per line; is this another kind of file?");
  }
  if (!pending.empty()) add_line(pending, line_offset, ++number);
  source_hash_ = XXH3_64bits_digest(state.get());
  AERIE_ASSIGN_OR_RETURN(sample_hash_, sampled_hash(*file));
  dir_numbers_.clear();
  return ok_status();
}

SectionedFile ManifestIndexBuilder::file() const {
  std::vector<FileSection> sections;
  sections.push_back({fmt::kDurations, 8, bytes_of(durations_)});
  if (any_offset_) sections.push_back({fmt::kOffsets, 8, bytes_of(offsets_)});
  sections.push_back({fmt::kNameEnds, 8, bytes_of(name_ends_)});
  sections.push_back({fmt::kDirIds, 4, bytes_of(dir_ids_)});
  sections.push_back({fmt::kNames, 1, names_});
  sections.push_back({fmt::kDirEnds, 8, bytes_of(dir_ends_)});
  sections.push_back({fmt::kDirs, 1, dirs_});
  sections.push_back({fmt::kLineOffsets, 8, bytes_of(line_offsets_)});
  sections.push_back({fmt::kLineNumbers, 4, bytes_of(line_numbers_)});
  sections.push_back({fmt::kFlags, 1, bytes_of(flags_)});
  sections.push_back({fmt::kChannelRows, 4, bytes_of(channel_rows_)});
  sections.push_back({fmt::kChannels, 4, bytes_of(channels_)});
  sections.push_back({fmt::kBadLines, 1, bad_lines_});
  fmt::Header head{};
  std::memcpy(head.magic, fmt::kMagic, sizeof(head.magic));
  head.version = fmt::kVersion;
  head.num_sections = static_cast<uint32_t>(sections.size());
  head.source_size = source_size_;
  head.source_mtime_ns = source_mtime_ns_;
  head.source_hash = source_hash_;
  head.sample_hash = sample_hash_;
  head.num_rows = durations_.size();
  head.num_dirs = dir_ends_.size();
  head.num_bad_lines = num_bad_lines_;
  return {head, std::move(sections)};
}

std::string ManifestIndexBuilder::serialize() const {
  return file().serialize();
}

Status ManifestIndexBuilder::write(Env& env, const std::string& file) const {
  return this->file().write(env, file);
}

}  // namespace aerie::data
