// A folder of its own below $TMPDIR (or /tmp), removed with all its content at the end. For tests
// and for tools that need scratch space; throws InternalError when the folder cannot be made.
#pragma once

#include <string>
#include <string_view>

namespace aerie {

class TempDir final {
 public:
  TempDir();
  ~TempDir();
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  // Path of `name` inside the folder.
  std::string file(std::string_view name) const;

 private:
  std::string path_;
};

}  // namespace aerie
