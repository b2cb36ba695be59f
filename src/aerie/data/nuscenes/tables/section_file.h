// A binary file of numbered sections with checksums: what the indexes of this folder are made of.
// Header, table of sections, then the sections, each aligned to 64 bytes. A torn or damaged file is
// noticed when it is opened.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/sectioned_file.h"
#include "aerie/base/status.h"

namespace aerie::nuscenes {

struct SectionFormat {
  char magic[8];
  uint32_t version;
  uint32_t num_sections;  // ids 1 to this, all of them there
  std::string_view what;  // "index of nuScenes tables"
};

class SectionWriter {
 public:
  explicit SectionWriter(const SectionFormat& format);
  // Sections in the order of their ids; the bytes must live until the file is written.
  template <typename T>
  void add(std::span<const T> items) {
    add_bytes({reinterpret_cast<const char*>(items.data()), items.size_bytes()}, sizeof(T));
  }
  void add_text(std::string_view bytes) { add_bytes(bytes, 1); }

  // Under a name of its own, then renamed: readers see all of it or none. Folders are made.
  Status write(Env& env, const std::string& file) const;
  std::string serialize() const;

 private:
  void add_bytes(std::string_view bytes, uint32_t element_bytes);
  SectionedFile file() const;

  const SectionFormat& format_;
  std::vector<FileSection> sections_;
};

class SectionFile {
 public:
  // Checks everything. A file of a later version is kUnsupported and the message names both
  // versions; a damaged one is a data error; one of an earlier version is kUnavailable.
  // `owner` keeps the bytes alive.
  static Result<SectionFile> parse(const SectionFormat& format, std::string_view bytes,
                                   std::shared_ptr<const void> owner, unsigned threads);
  static Result<SectionFile> map(Env& env, const SectionFormat& format, const std::string& file,
                                 unsigned threads);

  template <typename T>
  Result<std::span<const T>> items(uint32_t id) const {
    const Section& section = sections_[id];
    if (section.element_bytes != sizeof(T) || section.bytes.size() % sizeof(T) != 0)
      return broken("element size");
    return std::span<const T>(reinterpret_cast<const T*>(section.bytes.data()),
                              section.bytes.size() / sizeof(T));
  }
  std::string_view text(uint32_t id) const { return sections_[id].bytes; }
  uint64_t hash(uint32_t id) const { return sections_[id].hash; }
  Status broken(std::string_view what) const;

 private:
  struct Section {
    std::string_view bytes;
    uint32_t element_bytes = 0;
    uint64_t hash = 0;
  };
  std::string what_;
  std::vector<Section> sections_;
  std::shared_ptr<const void> owner_;
};

}  // namespace aerie::nuscenes
