// Writes binary files of numbered sections: a header, a table of the sections, then the sections,
// each aligned to 64 bytes. Checksums of all of it let a reader notice a torn or damaged file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie {

constexpr uint64_t kSectionAlignment = 64;

// A row of the table.
struct SectionEntry {
  uint32_t id;
  uint32_t element_bytes;
  uint64_t offset;
  uint64_t bytes;
  uint64_t hash;  // XXH3-64 of the section's bytes
};
static_assert(sizeof(SectionEntry) == 32);

struct FileSection {
  uint32_t id;
  uint32_t element_bytes;
  std::string_view bytes;
};

class SectionedFile {
 public:
  // Fills in two fields of the header: file_bytes, and table_hash (XXH3-64 of the header with this
  // field 0 and of the table). The sections' bytes outlive this.
  template <typename Header>
  SectionedFile(Header header, std::vector<FileSection> sections) : sections_(std::move(sections)) {
    header.table_hash = 0;
    const std::string table = make_table(sizeof(Header), &header.file_bytes);
    head_.assign(reinterpret_cast<const char*>(&header), sizeof(Header));
    head_ += table;
    seal(offsetof(Header, table_hash));
  }

  std::string serialize() const;
  // Under a name of its own, then renamed: readers see all of it or none, and of several writers
  // the last one stays. What killed writers left behind is removed.
  Status write(Env& env, const std::string& file) const;

 private:
  std::string make_table(size_t header_bytes, uint64_t* file_bytes);
  void seal(size_t hash_at);

  std::vector<FileSection> sections_;
  std::string head_;               // header and table
  std::vector<uint64_t> padding_;  // before each section
};

}  // namespace aerie
