// The binary index of joined tables: written, checked, mapped. Internal to NuscenesIndex.
#pragma once

#include <array>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/nuscenes/tables/index_format.h"
#include "aerie/data/nuscenes/tables/section_file.h"
#include "aerie/data/nuscenes/tables/table_reader.h"

namespace aerie::nuscenes {

using Sources = std::array<index_format::SourceRecord, kTableNames.size()>;

// Sizes, times and sampled bytes of the tables; an error names the tables that are missing.
Result<Sources> look_at_sources(Env& env, const std::string& tables_dir);
bool same_sources(const Sources& a, const Sources& b);

// Views of an index; every number in it has been checked against what it points into.
struct IndexFile {
  std::span<const index_format::SourceRecord> sources;
  std::span<const index_format::SceneRecord> scenes;
  std::span<const index_format::SampleRecord> samples;
  std::span<const index_format::FrameRecord> frames;
  std::span<const index_format::CalibrationRecord> calibrations;
  std::span<const index_format::BoxRecord> boxes;
  std::span<const index_format::StringRef> categories;
  std::string_view strings;
  uint64_t fingerprint = 0;  // of everything but the sources
  SectionFile sections;      // keeps the bytes

  std::string_view text(const index_format::StringRef& ref) const {
    return strings.substr(ref.offset, ref.size);
  }
};

Result<IndexFile> map_index(Env& env, const std::string& file, unsigned threads);
Status write_index(Env& env, const std::string& file, const Sources& sources,
                   const IndexContent& content);
// Without a file: the same bytes in memory.
Result<IndexFile> index_in_memory(const Sources& sources, const IndexContent& content,
                                  unsigned threads);

}  // namespace aerie::nuscenes
