#include "aerie/data/nuscenes/tables/file_lookup.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "aerie/base/clock.h"
#include "aerie/base/hash.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/tables/section_file.h"
#include "aerie/data/nuscenes/tables/string_pool.h"

namespace aerie::nuscenes {

namespace {

enum SectionId : uint32_t { kKey = 1, kStates, kMovedFiles, kFolders, kText, kNumSections = kText };

constexpr SectionFormat kFormat = {
    {'A', 'E', 'R', 'N', 'U', 'F', 'L', '\n'}, 1, kNumSections, "list of nuScenes files"};

constexpr int kMaxDepth = 8;
constexpr size_t kMaxFolders = 65536;
// A folder that changed this short a time ago may change again without another time.
constexpr int64_t kFreshNs = 2'000'000'000;

std::string_view folder_of(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view() : path.substr(0, slash);
}

std::string_view name_of(std::string_view path) {
  return path.substr(path.rfind('/') + 1);  // npos + 1 is 0
}

// The tables, the root and the pictures' names that an answer is about.
uint64_t key_of(const std::string& root, uint64_t fingerprint, uint64_t count) {
  return xxhash64(str_cat(root, "\n", fingerprint, "\n", count));
}

}  // namespace

class FileLookup::Searcher {
 public:
  Searcher(Env& env, const std::string& root, const Names& names, FileLookup& out)
      : env_(env), root_(root), names_(names), out_(out), now_ns_(Clock::real().wall_ns()) {}

  void run() {
    out_.states_.assign(names_.count, kMissing);
    std::map<std::string_view, std::vector<uint32_t>> by_folder;
    for (uint32_t i = 0; i < names_.count; ++i) {
      const std::string_view name = names_.name(i);
      if (!name.empty()) by_folder[folder_of(name)].push_back(i);
    }
    for (const auto& [folder, numbers] : by_folder) look_in_place(folder, numbers);
    for (const auto& [folder, numbers] : by_folder) {
      for (const uint32_t number : numbers) {
        if (out_.states_[number] == kMissing)
          wanted_[name_of(names_.name(number))].push_back(number);
      }
    }
    if (wanted_.empty()) return;
    walk("", 0, false);
    take_candidates();
  }

 private:
  struct Candidate {
    index_format::StringRef path{};
    uint32_t count = 0;
    bool same_folder = false;
  };

  // False: not a folder that can be read.
  bool list(const std::string& folder, std::vector<DirEntry>& entries) {
    const std::string path = join_path(root_, folder);
    const Result<FileStat> stat = env_.stat(path);
    int64_t mtime_ns = 0;
    bool good = stat.ok() && stat->is_dir;
    if (good) {
      mtime_ns = stat->mtime_ns > 0 && now_ns_ - stat->mtime_ns > kFreshNs ? stat->mtime_ns : -1;
      Result<std::vector<DirEntry>> listed = env_.list_dir(path);
      good = listed.ok();
      if (good)
        entries = std::move(listed).value();
      else
        mtime_ns = -1;
    }
    StringPool pool(out_.strings_);
    if (const auto ref = pool.add(folder); ref.ok()) out_.folders_.push_back({*ref, mtime_ns});
    return good;
  }

  void look_in_place(std::string_view folder, const std::vector<uint32_t>& numbers) {
    std::vector<DirEntry> entries;  // sorted by name
    if (out_.folders_.size() >= kMaxFolders) {
      out_.gave_up_ = true;
      return;
    }
    if (!list(std::string(folder), entries)) return;
    for (const uint32_t number : numbers) {
      const std::string_view name = name_of(names_.name(number));
      const auto found = std::lower_bound(
          entries.begin(), entries.end(), name,
          [](const DirEntry& entry, std::string_view wanted) { return entry.name < wanted; });
      if (found != entries.end() && found->name == name && !found->is_dir)
        out_.states_[number] = kInPlace;
    }
  }

  void walk(const std::string& folder, int depth, bool behind_link) {
    if (out_.folders_.size() >= kMaxFolders) {
      out_.gave_up_ = true;
      return;
    }
    std::vector<DirEntry> entries;
    if (!list(folder, entries)) return;
    const std::string_view folder_name = name_of(folder);
    for (const DirEntry& entry : entries) {
      if (!entry.is_dir) consider(folder, folder_name, entry.name);
    }
    for (const DirEntry& entry : entries) {
      if (!entry.is_dir && !entry.is_symlink) continue;
      // Frames between key frames are never asked for and are most of the files.
      if (entry.name == "sweeps" || entry.name.front() == '.' || depth + 1 > kMaxDepth) continue;
      const std::string below = join_path(folder, entry.name);
      bool is_link = false;
      if (!entry.is_dir) {
        // Links are followed once, so that circles end.
        const Result<FileStat> stat = env_.stat(join_path(root_, below));
        if (behind_link || !stat.ok() || !stat->is_dir) continue;
        is_link = true;
      }
      walk(below, depth + 1, behind_link || is_link);
    }
  }

  void consider(const std::string& folder, std::string_view folder_name, const std::string& name) {
    const auto found = wanted_.find(name);
    if (found == wanted_.end()) return;
    for (const uint32_t number : found->second) {
      Candidate& candidate = candidates_[number];
      const bool same_folder = name_of(folder_of(names_.name(number))) == folder_name;
      if (candidate.same_folder && !same_folder) continue;
      ++candidate.count;
      if (candidate.count > 1 && candidate.same_folder == same_folder) continue;
      StringPool pool(out_.strings_);
      const auto ref = pool.add(join_path(folder, name));
      if (!ref.ok()) continue;
      candidate.path = *ref;
      candidate.same_folder = same_folder;
    }
  }

  void take_candidates() {
    for (const auto& [number, candidate] : candidates_) {
      if (!candidate.same_folder && candidate.count > 1) continue;  // which one is meant?
      out_.states_[number] = kMoved;
      out_.moved_.push_back({number, candidate.path});
    }
  }

  Env& env_;
  const std::string& root_;
  const Names& names_;
  FileLookup& out_;
  const int64_t now_ns_;
  std::unordered_map<std::string_view, std::vector<uint32_t>> wanted_;  // by file name
  std::map<uint32_t, Candidate> candidates_;
};

FileLookup FileLookup::search(Env& env, const std::string& root, const Names& names) {
  FileLookup out;
  Searcher(env, root, names, out).run();
  return out;
}

std::string_view FileLookup::moved_to(uint32_t number) const {
  if (states_[number] != kMoved) return {};
  const auto found =
      std::lower_bound(moved_.begin(), moved_.end(), number,
                       [](const Moved& moved, uint32_t wanted) { return moved.number < wanted; });
  return std::string_view(strings_).substr(found->path.offset, found->path.size);
}

uint64_t FileLookup::hash() const {
  XxHash64 hash;
  hash.update(states_.data(), states_.size());
  for (const Moved& moved : moved_)
    hash.update(std::string_view(strings_).substr(moved.path.offset, moved.path.size));
  return hash.digest();
}

Status FileLookup::write(Env& env, const std::string& file, const std::string& root,
                         uint64_t fingerprint) const {
  const uint64_t key[1] = {key_of(root, fingerprint, states_.size())};
  SectionWriter writer(kFormat);
  writer.add<uint64_t>(key);
  writer.add<uint8_t>(states_);
  writer.add<Moved>(moved_);
  writer.add<Folder>(folders_);
  writer.add_text(strings_);
  return writer.write(env, file);
}

Result<FileLookup> FileLookup::load(Env& env, const std::string& file, const std::string& root,
                                    uint64_t fingerprint, const Names& names) {
  AERIE_ASSIGN_OR_RETURN(const SectionFile sections, SectionFile::map(env, kFormat, file, 1));
  AERIE_ASSIGN_OR_RETURN(const auto key, sections.items<uint64_t>(kKey));
  AERIE_ASSIGN_OR_RETURN(const auto states, sections.items<uint8_t>(kStates));
  AERIE_ASSIGN_OR_RETURN(const auto moved, sections.items<Moved>(kMovedFiles));
  AERIE_ASSIGN_OR_RETURN(const auto folders, sections.items<Folder>(kFolders));
  const std::string_view text = sections.text(kText);
  if (key.size() != 1 || key[0] != key_of(root, fingerprint, names.count))
    return unavailable("it is about other tables");
  if (states.size() != names.count) return sections.broken("number of files");
  const auto inside = [&](const index_format::StringRef& ref) {
    return ref.offset <= text.size() && ref.size <= text.size() - ref.offset;
  };
  FileLookup out;
  out.states_.assign(states.begin(), states.end());
  size_t num_moved = 0;
  for (const uint8_t state : states) {
    if (state > kMoved) return sections.broken("state of a file");
    num_moved += state == kMoved;
  }
  if (num_moved != moved.size()) return sections.broken("number of files");
  uint32_t last = 0;
  for (const Moved& entry : moved) {
    if (entry.number >= names.count || out.states_[entry.number] != kMoved ||
        (&entry != moved.data() && entry.number <= last) || !inside(entry.path))
      return sections.broken("a file");
    last = entry.number;
  }
  for (const Folder& folder : folders) {
    if (!inside(folder.path)) return sections.broken("a folder");
    const std::string path = join_path(root, text.substr(folder.path.offset, folder.path.size));
    const Result<FileStat> stat = env.stat(path);
    const int64_t now = stat.ok() && stat->is_dir ? stat->mtime_ns : 0;
    if (now != folder.mtime_ns || folder.mtime_ns < 0)
      return unavailable(str_cat(path, " has changed"));
  }
  out.moved_.assign(moved.begin(), moved.end());
  out.folders_.assign(folders.begin(), folders.end());
  out.strings_ = text;
  return out;
}

}  // namespace aerie::nuscenes
