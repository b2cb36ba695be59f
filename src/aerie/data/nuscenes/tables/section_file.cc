#include "aerie/data/nuscenes/tables/section_file.h"

#include <cstddef>
#include <cstring>

#include <xxhash.h>

#include "aerie/base/check.h"
#include "aerie/base/path.h"
#include "aerie/base/process.h"
#include "aerie/base/strings.h"
#include "aerie/base/thread_pool.h"

namespace aerie::nuscenes {

namespace {

constexpr uint64_t kAlignment = 64;
constexpr std::string_view kTemporary = ".tmp";

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t num_sections;
  uint64_t file_bytes;
  uint64_t table_hash;  // of the header with this field 0, and of the section table
};
static_assert(sizeof(Header) == 32);

struct Entry {
  uint32_t id;
  uint32_t element_bytes;
  uint64_t offset;
  uint64_t bytes;
  uint64_t hash;  // XXH3-64
};
static_assert(sizeof(Entry) == 32);

// "<file>.<tag>.<number>.tmp" of processes that were killed.
void remove_abandoned(Env& env, const std::string& file) {
  const auto entries = env.list_dir(parent_path(file));
  if (!entries.ok()) return;
  const std::string begin = base_name(file) + ".";
  for (const DirEntry& entry : *entries) {
    if (entry.is_dir || !starts_with(entry.name, begin) || !ends_with(entry.name, kTemporary))
      continue;
    const std::string tag = entry.name.substr(begin.size());
    if (tag_life(tag.substr(0, tag.find('.'))) == ProcessLife::kDead)
      (void)env.remove_file(join_path(parent_path(file), entry.name));
  }
}

}  // namespace

SectionWriter::SectionWriter(const SectionFormat& format) : format_(format) {}

void SectionWriter::add_bytes(std::string_view bytes, uint32_t element_bytes) {
  pieces_.push_back({bytes, element_bytes});
}

std::string SectionWriter::header(std::vector<uint64_t>& padding) const {
  AERIE_CHECK(pieces_.size() == format_.num_sections, "sections");
  Header head{};
  std::memcpy(head.magic, format_.magic, sizeof(head.magic));
  head.version = format_.version;
  head.num_sections = format_.num_sections;
  std::string table;
  uint64_t at = sizeof(head) + pieces_.size() * sizeof(Entry);
  padding.clear();
  for (size_t i = 0; i < pieces_.size(); ++i) {
    padding.push_back((kAlignment - at % kAlignment) % kAlignment);
    at += padding.back();
    const std::string_view bytes = pieces_[i].bytes;
    const Entry entry{static_cast<uint32_t>(i + 1), pieces_[i].element_bytes, at, bytes.size(),
                      XXH3_64bits(bytes.data(), bytes.size())};
    table.append(reinterpret_cast<const char*>(&entry), sizeof(entry));
    at += bytes.size();
  }
  head.file_bytes = at;
  std::string out(reinterpret_cast<const char*>(&head), sizeof(head));
  out += table;
  const uint64_t hash = XXH3_64bits(out.data(), out.size());
  std::memcpy(out.data() + offsetof(Header, table_hash), &hash, sizeof(hash));
  return out;
}

std::string SectionWriter::serialize() const {
  std::vector<uint64_t> padding;
  std::string out = header(padding);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    out.append(padding[i], '\0');
    out.append(pieces_[i].bytes);
  }
  return out;
}

Status SectionWriter::write(Env& env, const std::string& file) const {
  AERIE_RETURN_IF_ERROR(env.create_dirs(parent_path(file)));
  remove_abandoned(env, file);
  std::vector<uint64_t> padding;
  const std::string head = header(padding);
  const std::string temporary =
      str_cat(file, ".", process_tag(this_process()), ".",
              static_cast<uint64_t>(reinterpret_cast<uintptr_t>(this)), kTemporary);
  Status status = [&]() -> Status {
    AERIE_ASSIGN_OR_RETURN(auto out, env.open_writable(temporary));
    AERIE_RETURN_IF_ERROR(out->append(head));
    for (size_t i = 0; i < pieces_.size(); ++i) {
      AERIE_RETURN_IF_ERROR(out->append(std::string(padding[i], '\0')));
      AERIE_RETURN_IF_ERROR(out->append(pieces_[i].bytes));
    }
    // Checksums make a torn file harmless, so it is not synced.
    AERIE_RETURN_IF_ERROR(out->close());
    return env.rename(temporary, file);
  }();
  if (!status.ok()) (void)env.remove_file(temporary);
  return status;
}

Status SectionFile::broken(std::string_view what) const {
  return data_error(str_cat(what_, " is damaged: ", what));
}

Result<SectionFile> SectionFile::parse(const SectionFormat& format, std::string_view bytes,
                                       std::shared_ptr<const void> owner, unsigned threads) {
  SectionFile out;
  out.what_ = format.what;
  Header header;
  if (bytes.size() < sizeof(header)) return out.broken("shorter than its header");
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, format.magic, sizeof(header.magic)) != 0)
    return out.broken("it is another kind of file");
  if (header.version > format.version)
    return unsupported(str_cat(out.what_, " of version ", header.version,
                               "; this aerie reads version ", format.version));
  if (header.version < format.version)
    return unavailable(str_cat(out.what_, " of the earlier version ", header.version));
  if (header.file_bytes != bytes.size()) return out.broken("wrong length");
  if (header.num_sections != format.num_sections) return out.broken("number of sections");
  const size_t head_bytes = sizeof(header) + format.num_sections * sizeof(Entry);
  if (bytes.size() < head_bytes) return out.broken("table of sections");
  std::string head(bytes.substr(0, head_bytes));
  std::memset(head.data() + offsetof(Header, table_hash), 0, sizeof(header.table_hash));
  if (XXH3_64bits(head.data(), head.size()) != header.table_hash)
    return out.broken("checksum of the header");
  out.sections_.resize(format.num_sections + 1);
  for (uint32_t i = 0; i < format.num_sections; ++i) {
    Entry entry;
    std::memcpy(&entry, bytes.data() + sizeof(header) + i * sizeof(entry), sizeof(entry));
    if (entry.id != i + 1) return out.broken("number of a section");
    if (entry.offset % kAlignment != 0 || entry.offset > bytes.size() ||
        entry.bytes > bytes.size() - entry.offset)
      return out.broken("a section lies outside the file");
    out.sections_[entry.id] = {bytes.substr(entry.offset, entry.bytes), entry.element_bytes,
                               entry.hash};
  }
  ThreadPool pool({.name = "index", .num_threads = static_cast<int>(threads)});
  AERIE_RETURN_IF_ERROR(pool.parallel_for(format.num_sections, [&](size_t i) {
    const Section& section = out.sections_[i + 1];
    return XXH3_64bits(section.bytes.data(), section.bytes.size()) == section.hash
               ? ok_status()
               : out.broken(str_cat("checksum of section ", i + 1));
  }));
  out.owner_ = std::move(owner);
  return out;
}

Result<SectionFile> SectionFile::map(Env& env, const SectionFormat& format, const std::string& file,
                                     unsigned threads) {
  AERIE_ASSIGN_OR_RETURN(MappedFile mapped, env.map_file(file));
  mapped.advise(MappedFile::Advice::kWillNeed);
  auto owner = std::make_shared<MappedFile>(mapped);
  return parse(format, owner->text(), owner, threads);
}

}  // namespace aerie::nuscenes
