#include "aerie/tar/tar_index.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <numeric>

#include <xxhash.h>

#include "aerie/base/path.h"
#include "aerie/tar/byte_stream.h"
#include "aerie/tar/tar_stream.h"
#include "aerie/tar/tar_stream_points.h"

namespace aerie::tar {
namespace {

// The index file: header, entries, points, names, then the XXH3-64 of all before it. Little endian.
constexpr char kIndexMagic[8] = {'A', 'E', 'R', 'T', 'A', 'R', 'I', 'X'};
constexpr uint32_t kVersion = 1;
constexpr uint64_t kEdgeBytes = 64 * 1024;

struct FileHeader {
  char magic[8];
  uint32_t version;
  uint32_t compression;
  uint64_t tar_size;
  int64_t tar_mtime_ns;
  uint64_t tar_hash;
  uint64_t archive_bytes;
  uint64_t num_entries;
  uint64_t num_points;
  uint64_t names_bytes;
};
struct PointHeader {
  uint64_t out_offset;
  uint64_t in_offset;
  uint32_t bits;
  uint32_t window_size;
};
static_assert(sizeof(FileHeader) == 72 && sizeof(PointHeader) == 24 &&
              sizeof(TarIndex::Entry) == 24);

template <typename T>
void append_raw(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

Env& env_of(const TarOptions& options) {
  return options.env != nullptr ? *options.env : Env::real();
}

Result<FileStamp> stamp_in(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(const FileStat info, env.stat(path));
  AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<RandomAccessFile> file,
                         env.open_random_access(path));
  FileStamp stamp;
  stamp.size = info.size;
  stamp.mtime_ns = info.mtime_ns;
  std::vector<uint8_t> edges(2 * kEdgeBytes);
  AERIE_ASSIGN_OR_RETURN(const size_t head, file->read_at(0, edges.data(), kEdgeBytes));
  const uint64_t tail_at = info.size > kEdgeBytes ? info.size - kEdgeBytes : 0;
  AERIE_ASSIGN_OR_RETURN(const size_t tail,
                         file->read_at(tail_at, edges.data() + head, kEdgeBytes));
  stamp.head_tail_hash = XXH3_64bits(edges.data(), head + tail);
  return stamp;
}

}  // namespace

Result<FileStamp> stamp_file(const std::string& path) {
  return stamp_in(Env::real(), path);
}

Result<TarIndex> TarIndex::build(const std::string& path, const TarOptions& options) {
  TarIndex index;
  AERIE_ASSIGN_OR_RETURN(index.stamp_, stamp_in(env_of(options), path));
  AERIE_ASSIGN_OR_RETURN(std::unique_ptr<RawInput> input, RawInput::open(path, options.env));
  // Duplicates are found below, by sorting, exactly and for less memory.
  TarOptions walk = options;
  walk.refuse_duplicates = false;
  AERIE_ASSIGN_OR_RETURN(const std::unique_ptr<TarStream> stream,
                         open_tar_stream(std::move(input), path, walk, &index.points_));
  while (true) {
    AERIE_ASSIGN_OR_RETURN(std::optional<TarMember> member, stream->next());
    if (!member) break;
    if (index.names_.size() + member->name.size() > UINT32_MAX)
      return data_error("the names of the members take more than 4 GiB").with_context(path);
    Entry entry;
    entry.offset = member->offset;
    entry.size = member->size;
    entry.name_offset = static_cast<uint32_t>(index.names_.size());
    entry.name_size = static_cast<uint32_t>(member->name.size());
    index.names_ += member->name;
    index.entries_.push_back(entry);
  }
  index.compression_ = stream->compression();
  index.archive_bytes_ = stream->position();
  index.entries_.shrink_to_fit();
  index.names_.shrink_to_fit();
  if (options.refuse_duplicates && index.size() > 1) {
    std::vector<uint32_t> order(index.size());
    std::iota(order.begin(), order.end(), 0u);
    std::sort(order.begin(), order.end(),
              [&](uint32_t a, uint32_t b) { return index.name(a) < index.name(b); });
    for (size_t i = 1; i < order.size(); ++i)
      if (index.name(order[i - 1]) == index.name(order[i]))
        return data_error(str_cat("member '", index.name(order[i]), "' is there twice"))
            .with_context(path);
  }
  return index;
}

std::string TarIndex::cache_path(const std::string& path, const std::string& cache_dir) {
  if (cache_dir.empty())
    return join_path(parent_path(path), str_cat(".", base_name(path), ".aerie-index"));
  char text[32];
  std::snprintf(text, sizeof(text), "-%016llx.tar-index",
                static_cast<unsigned long long>(XXH3_64bits(path.data(), path.size())));
  return join_path(cache_dir, base_name(path) + text);
}

Result<TarIndex> TarIndex::open(const std::string& path, const std::string& cache_dir,
                                const TarOptions& options, bool* from_cache) {
  Env& env = env_of(options);
  const std::string cached = cache_path(path, cache_dir);
  if (from_cache != nullptr) *from_cache = false;
  AERIE_ASSIGN_OR_RETURN(const FileStamp stamp, stamp_in(env, path).with_context(path));
  if (env.exists(cached)) {
    if (Result<std::string> bytes = env.read_file(cached, uint64_t{8} << 30); bytes.ok()) {
      Result<TarIndex> index = deserialize(*bytes);
      if (index.ok() && index->stamp_ == stamp) {
        if (from_cache != nullptr) *from_cache = true;
        return index;
      }
    }
  }
  AERIE_ASSIGN_OR_RETURN(TarIndex index, build(path, options));
  // Read-only data sets are common; the index is then built again next time.
  if (!cache_dir.empty()) (void)env.create_dirs(cache_dir);
  (void)env.atomic_replace(cached, index.serialize());
  return index;
}

std::optional<size_t> TarIndex::find(std::string_view wanted) const {
  for (size_t i = 0; i < size(); ++i)
    if (name(i) == wanted) return i;
  return std::nullopt;
}

std::string TarIndex::serialize() const {
  FileHeader header{};
  std::memcpy(header.magic, kIndexMagic, sizeof(kIndexMagic));
  header.version = kVersion;
  header.compression = static_cast<uint32_t>(compression_);
  header.tar_size = stamp_.size;
  header.tar_mtime_ns = stamp_.mtime_ns;
  header.tar_hash = stamp_.head_tail_hash;
  header.archive_bytes = archive_bytes_;
  header.num_entries = entries_.size();
  header.num_points = points_.size();
  header.names_bytes = names_.size();
  std::string out;
  out.reserve(sizeof(header) + entries_.size() * sizeof(Entry) + names_.size() + 8 +
              points_.size() * (sizeof(PointHeader) + 32768));
  append_raw(out, header);
  out.append(reinterpret_cast<const char*>(entries_.data()), entries_.size() * sizeof(Entry));
  for (const GzipPoint& point : points_) {
    append_raw(out, PointHeader{point.out_offset, point.in_offset, point.bits,
                                static_cast<uint32_t>(point.window.size())});
    out.append(reinterpret_cast<const char*>(point.window.data()), point.window.size());
  }
  out += names_;
  append_raw(out, static_cast<uint64_t>(XXH3_64bits(out.data(), out.size())));
  return out;
}

Result<TarIndex> TarIndex::deserialize(std::string_view bytes) {
  const Status bad = data_error("damaged tar index file");
  FileHeader header;
  if (bytes.size() < sizeof(header) + 8) return bad;
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kIndexMagic, sizeof(kIndexMagic)) != 0) return bad;
  if (header.version != kVersion) return unsupported("tar index file of another version");
  uint64_t stored = 0;
  std::memcpy(&stored, bytes.data() + bytes.size() - 8, 8);
  bytes.remove_suffix(8);
  if (XXH3_64bits(bytes.data(), bytes.size()) != stored) return bad;
  bytes.remove_prefix(sizeof(header));
  TarIndex index;
  index.stamp_ = {header.tar_size, header.tar_mtime_ns, header.tar_hash};
  index.archive_bytes_ = header.archive_bytes;
  if (header.compression > static_cast<uint32_t>(Compression::kXz)) return bad;
  index.compression_ = static_cast<Compression>(header.compression);
  // Counts are checked against the bytes that are there before anything is allocated.
  if (header.num_entries > bytes.size() / sizeof(Entry)) return bad;
  index.entries_.resize(header.num_entries);
  if (header.num_entries > 0)
    std::memcpy(index.entries_.data(), bytes.data(), header.num_entries * sizeof(Entry));
  bytes.remove_prefix(header.num_entries * sizeof(Entry));
  if (header.num_points > bytes.size() / sizeof(PointHeader)) return bad;
  for (uint64_t i = 0; i < header.num_points; ++i) {
    PointHeader raw;
    if (bytes.size() < sizeof(raw)) return bad;
    std::memcpy(&raw, bytes.data(), sizeof(raw));
    bytes.remove_prefix(sizeof(raw));
    if (raw.window_size > 32768 || raw.window_size > bytes.size() || raw.bits > 7) return bad;
    GzipPoint point;
    point.out_offset = raw.out_offset;
    point.in_offset = raw.in_offset;
    point.bits = static_cast<uint8_t>(raw.bits);
    point.window.assign(bytes.begin(), bytes.begin() + raw.window_size);
    bytes.remove_prefix(raw.window_size);
    index.points_.push_back(std::move(point));
  }
  if (bytes.size() != header.names_bytes) return bad;
  index.names_ = std::string(bytes);
  for (const Entry& entry : index.entries_) {
    if (uint64_t{entry.name_offset} + entry.name_size > index.names_.size()) return bad;
    if (entry.offset > index.archive_bytes_ || entry.size > index.archive_bytes_ - entry.offset)
      return bad;
  }
  return index;
}

}  // namespace aerie::tar
