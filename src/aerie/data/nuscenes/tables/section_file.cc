#include "aerie/data/nuscenes/tables/section_file.h"

#include <cstddef>
#include <cstring>

#include <xxhash.h>

#include "aerie/base/check.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/base/thread_pool.h"

namespace aerie::nuscenes {

namespace {

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t num_sections;
  uint64_t file_bytes;
  uint64_t table_hash;  // of the header with this field 0, and of the section table
};
static_assert(sizeof(Header) == 32);

}  // namespace

SectionWriter::SectionWriter(const SectionFormat& format) : format_(format) {}

void SectionWriter::add_bytes(std::string_view bytes, uint32_t element_bytes) {
  sections_.push_back({static_cast<uint32_t>(sections_.size() + 1), element_bytes, bytes});
}

SectionedFile SectionWriter::file() const {
  AERIE_CHECK(sections_.size() == format_.num_sections, "sections");
  Header head{};
  std::memcpy(head.magic, format_.magic, sizeof(head.magic));
  head.version = format_.version;
  head.num_sections = format_.num_sections;
  return {head, sections_};
}

std::string SectionWriter::serialize() const {
  return file().serialize();
}

Status SectionWriter::write(Env& env, const std::string& file) const {
  AERIE_RETURN_IF_ERROR(env.create_dirs(parent_path(file)));
  return this->file().write(env, file);
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
  const size_t head_bytes = sizeof(header) + format.num_sections * sizeof(SectionEntry);
  if (bytes.size() < head_bytes) return out.broken("table of sections");
  std::string head(bytes.substr(0, head_bytes));
  std::memset(head.data() + offsetof(Header, table_hash), 0, sizeof(header.table_hash));
  if (XXH3_64bits(head.data(), head.size()) != header.table_hash)
    return out.broken("checksum of the header");
  out.sections_.resize(format.num_sections + 1);
  for (uint32_t i = 0; i < format.num_sections; ++i) {
    SectionEntry entry;
    std::memcpy(&entry, bytes.data() + sizeof(header) + i * sizeof(entry), sizeof(entry));
    if (entry.id != i + 1) return out.broken("number of a section");
    if (entry.offset % kSectionAlignment != 0 || entry.offset > bytes.size() ||
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
