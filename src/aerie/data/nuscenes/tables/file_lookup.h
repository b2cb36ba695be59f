// Where the pictures named by the tables really are. A picture is where its filename says, or, in
// data that was unpacked another way (a root a version, samples/<n>/samples/CAM_FRONT), wherever
// below the root a file of that name lies: first one in a folder of the same name (CAM_FRONT), else
// the only one anywhere. The answer is kept in a file and believed while no folder that was looked
// at has changed.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/data/nuscenes/tables/index_format.h"

namespace aerie::nuscenes {

class FileLookup {
 public:
  // Pictures by number; an empty name is none.
  struct Names {
    uint32_t count = 0;
    std::function<std::string_view(uint32_t number)> name;
  };

  // Lists folders; a folder that cannot be read has no files.
  static FileLookup search(Env& env, const std::string& root, const Names& names);
  // From `file`, unless the tables (`fingerprint`), the root or a folder have changed.
  static Result<FileLookup> load(Env& env, const std::string& file, const std::string& root,
                                 uint64_t fingerprint, const Names& names);
  Status write(Env& env, const std::string& file, const std::string& root,
               uint64_t fingerprint) const;

  bool present(uint32_t number) const { return states_[number] != kMissing; }
  // Relative to the root; empty: where its name says.
  std::string_view moved_to(uint32_t number) const;
  uint64_t num_moved() const { return moved_.size(); }
  uint64_t hash() const;  // of all answers
  // Folders were left out: there are too many.
  bool gave_up() const { return gave_up_; }

 private:
  enum State : uint8_t { kMissing, kInPlace, kMoved };
  struct Moved {
    uint32_t number;
    index_format::StringRef path;  // in strings_
  };
  struct Folder {
    index_format::StringRef path;  // below the root, in strings_
    int64_t mtime_ns;              // 0: not there; -1: too fresh to be believed
  };
  class Searcher;

  std::vector<uint8_t> states_;
  std::vector<Moved> moved_;  // by number
  std::vector<Folder> folders_;
  std::string strings_;
  bool gave_up_ = false;
};

}  // namespace aerie::nuscenes
