#include "aerie/base/sectioned_file.h"

#include <cstring>

#include <xxhash.h>

#include "aerie/base/path.h"
#include "aerie/base/process.h"
#include "aerie/base/strings.h"

namespace aerie {
namespace {

constexpr std::string_view kTemporarySections = ".tmp";

// "<file>.<tag>.<number>.tmp" of processes that were killed.
void remove_abandoned_sections(Env& env, const std::string& file) {
  const auto entries = env.list_dir(parent_path(file));
  if (!entries.ok()) return;
  const std::string begin = base_name(file) + ".";
  for (const DirEntry& entry : *entries) {
    if (entry.is_dir || !starts_with(entry.name, begin) ||
        !ends_with(entry.name, kTemporarySections))
      continue;
    const std::string tag = entry.name.substr(begin.size());
    if (tag_life(tag.substr(0, tag.find('.'))) == ProcessLife::kDead)
      (void)env.remove_file(join_path(parent_path(file), entry.name));
  }
}

}  // namespace

std::string SectionedFile::make_table(size_t header_bytes, uint64_t* file_bytes) {
  std::string table;
  uint64_t at = header_bytes + sections_.size() * sizeof(SectionEntry);
  for (const FileSection& section : sections_) {
    padding_.push_back((kSectionAlignment - at % kSectionAlignment) % kSectionAlignment);
    at += padding_.back();
    const std::string_view bytes = section.bytes;
    const SectionEntry entry{section.id, section.element_bytes, at, bytes.size(),
                             XXH3_64bits(bytes.data(), bytes.size())};
    table.append(reinterpret_cast<const char*>(&entry), sizeof(entry));
    at += bytes.size();
  }
  *file_bytes = at;
  return table;
}

void SectionedFile::seal(size_t hash_at) {
  const uint64_t hash = XXH3_64bits(head_.data(), head_.size());
  std::memcpy(head_.data() + hash_at, &hash, sizeof(hash));
}

std::string SectionedFile::serialize() const {
  std::string out = head_;
  for (size_t i = 0; i < sections_.size(); ++i) {
    out.append(padding_[i], '\0');
    out.append(sections_[i].bytes);
  }
  return out;
}

Status SectionedFile::write(Env& env, const std::string& file) const {
  remove_abandoned_sections(env, file);
  const std::string temporary =
      str_cat(file, ".", process_tag(this_process()), ".",
              static_cast<uint64_t>(reinterpret_cast<uintptr_t>(this)), kTemporarySections);
  Status status = [&]() -> Status {
    AERIE_ASSIGN_OR_RETURN(auto out, env.open_writable(temporary));
    AERIE_RETURN_IF_ERROR(out->append(head_));
    for (size_t i = 0; i < sections_.size(); ++i) {
      AERIE_RETURN_IF_ERROR(out->append(std::string(padding_[i], '\0')));
      AERIE_RETURN_IF_ERROR(out->append(sections_[i].bytes));
    }
    // Checksums make a torn file harmless, so it is not synced.
    AERIE_RETURN_IF_ERROR(out->close());
    return env.rename(temporary, file);
  }();
  if (!status.ok()) (void)env.remove_file(temporary);
  return status;
}

}  // namespace aerie
