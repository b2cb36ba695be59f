#include "aerie/data/nuscenes/tables/index_file.h"

#include <algorithm>
#include <vector>

#include "aerie/base/hash.h"
#include "aerie/base/strings.h"

namespace aerie::nuscenes {

namespace {

namespace format = index_format;

constexpr SectionFormat kIndexFormat = {
    {format::kMagic[0], format::kMagic[1], format::kMagic[2], format::kMagic[3], format::kMagic[4],
     format::kMagic[5], format::kMagic[6], format::kMagic[7]},
    format::kVersion,
    format::kNumSections,
    "index of nuScenes tables"};

// The bytes of a table that are hashed on every start: blocks evenly spaced, the first and the last
// included; all of a file that is not larger than that.
constexpr uint64_t kSampleBlocks = 16;
constexpr uint64_t kSampleBlockBytes = 64 << 10;

Result<uint64_t> sampled_hash(const RandomAccessFile& file) {
  const uint64_t size = file.size();
  std::vector<char> block(kSampleBlockBytes);
  XxHash64 hash;
  const bool whole = size <= kSampleBlocks * kSampleBlockBytes;
  const uint64_t step =
      whole ? kSampleBlockBytes : (size - kSampleBlockBytes) / (kSampleBlocks - 1);
  const uint64_t blocks =
      whole ? (size + kSampleBlockBytes - 1) / kSampleBlockBytes : kSampleBlocks;
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t at = !whole && i + 1 == blocks ? size - kSampleBlockBytes : i * step;
    AERIE_ASSIGN_OR_RETURN(const size_t got, file.read_at(at, block.data(), block.size()));
    hash.update(block.data(), got);
  }
  return hash.digest();
}

SectionWriter writer_of(const Sources& sources, const IndexContent& content) {
  SectionWriter writer(kIndexFormat);
  writer.add<format::SourceRecord>(sources);
  writer.add<format::SceneRecord>(content.scenes);
  writer.add<format::SampleRecord>(content.samples);
  writer.add<format::FrameRecord>(content.frames);
  writer.add<format::CalibrationRecord>(content.calibrations);
  writer.add<format::BoxRecord>(content.boxes);
  writer.add<format::StringRef>(content.categories);
  writer.add_text(content.strings);
  return writer;
}

// Checksums keep accidents out; this keeps a file made on purpose from reading elsewhere.
Status check_numbers(const IndexFile& index) {
  const auto broken = [&](std::string_view what) { return index.sections.broken(what); };
  const auto inside = [&](const format::StringRef& ref) {
    return ref.offset <= index.strings.size() && ref.size <= index.strings.size() - ref.offset;
  };
  if (index.sources.size() != kTableNames.size()) return broken("number of tables");
  if (index.frames.size() != index.samples.size() * format::kNumChannels)
    return broken("number of frames");
  if (index.samples.size() >= 0xFFFFFFFFu / format::kNumChannels) return broken("samples");
  uint64_t next_sample = 0;
  for (const format::SceneRecord& scene : index.scenes) {
    if (!inside(scene.name) || !inside(scene.location) || scene.first_sample != next_sample)
      return broken("a scene");
    next_sample += scene.num_samples;
  }
  if (next_sample != index.samples.size()) return broken("samples of scenes");
  uint64_t next_box = 0;
  for (const format::SampleRecord& sample : index.samples) {
    if (sample.scene >= index.scenes.size() || sample.first_box != next_box)
      return broken("a sample");
    next_box += sample.num_boxes;
  }
  if (next_box != index.boxes.size()) return broken("boxes of samples");
  for (const format::FrameRecord& frame : index.frames) {
    if (frame.exists != 0 &&
        (!inside(frame.filename) || frame.calibration >= index.calibrations.size()))
      return broken("a frame");
  }
  for (const format::StringRef& category : index.categories) {
    if (!inside(category)) return broken("a category");
  }
  for (const format::BoxRecord& box : index.boxes) {
    if (box.category >= index.categories.size()) return broken("a box");
  }
  return ok_status();
}

Result<IndexFile> views_of(SectionFile sections) {
  IndexFile out;
  AERIE_ASSIGN_OR_RETURN(out.sources, sections.items<format::SourceRecord>(format::kSources));
  AERIE_ASSIGN_OR_RETURN(out.scenes, sections.items<format::SceneRecord>(format::kScenes));
  AERIE_ASSIGN_OR_RETURN(out.samples, sections.items<format::SampleRecord>(format::kSamples));
  AERIE_ASSIGN_OR_RETURN(out.frames, sections.items<format::FrameRecord>(format::kFrames));
  AERIE_ASSIGN_OR_RETURN(out.calibrations,
                         sections.items<format::CalibrationRecord>(format::kCalibrations));
  AERIE_ASSIGN_OR_RETURN(out.boxes, sections.items<format::BoxRecord>(format::kBoxes));
  AERIE_ASSIGN_OR_RETURN(out.categories, sections.items<format::StringRef>(format::kCategories));
  out.strings = sections.text(format::kStrings);
  XxHash64 hash;
  for (uint32_t id = format::kSources + 1; id <= format::kNumSections; ++id) {
    const uint64_t value = sections.hash(id);
    hash.update(&value, sizeof(value));
  }
  out.fingerprint = hash.digest();
  out.sections = std::move(sections);
  AERIE_RETURN_IF_ERROR(check_numbers(out));
  return out;
}

}  // namespace

Result<Sources> look_at_sources(Env& env, const std::string& tables_dir) {
  Sources out{};
  std::vector<std::string> missing;
  for (size_t i = 0; i < kTableNames.size(); ++i) {
    const std::string path = table_path(tables_dir, kTableNames[i]);
    const Result<FileStat> stat = env.stat(path);
    if (!stat.ok()) {
      if (stat.status().code() != StatusCode::kNotFound) return stat.status();
      missing.push_back(str_cat(kTableNames[i], ".json"));
      continue;
    }
    AERIE_ASSIGN_OR_RETURN(const auto file, env.open_random_access(path));
    AERIE_ASSIGN_OR_RETURN(const uint64_t hash, sampled_hash(*file));
    out[i] = {stat->size, stat->mtime_ns, hash};
  }
  if (!missing.empty())
    return data_error(str_cat("tables are missing: ", join(missing, ", ")))
        .with_context(tables_dir)
        .with_hint("a version of nuScenes has 13 tables");
  return out;
}

bool same_sources(const Sources& a, const Sources& b) {
  return std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) {
    return x.size == y.size && x.mtime_ns == y.mtime_ns && x.sample_hash == y.sample_hash;
  });
}

Result<IndexFile> map_index(Env& env, const std::string& file, unsigned threads) {
  AERIE_ASSIGN_OR_RETURN(SectionFile sections, SectionFile::map(env, kIndexFormat, file, threads));
  return views_of(std::move(sections));
}

Status write_index(Env& env, const std::string& file, const Sources& sources,
                   const IndexContent& content) {
  return writer_of(sources, content).write(env, file);
}

Result<IndexFile> index_in_memory(const Sources& sources, const IndexContent& content,
                                  unsigned threads) {
  auto bytes = std::make_shared<std::string>(writer_of(sources, content).serialize());
  AERIE_ASSIGN_OR_RETURN(SectionFile sections,
                         SectionFile::parse(kIndexFormat, *bytes, bytes, threads));
  return views_of(std::move(sections));
}

}  // namespace aerie::nuscenes
