// A folder where a run would write, for what dry runs save and load; gone at the end.
#pragma once

#include <memory>
#include <string>
#include <unistd.h>

#include "aerie/base/env.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"
#include "aerie/base/status.h"
#include "aerie/base/strings.h"

namespace aerie::train {

// The first folder above `path` (or itself) that exists.
inline std::string existing_ancestor(Env& env, const std::string& path) {
  std::string at = path;
  while (!at.empty() && !env.exists(at)) {
    const std::string up = parent_path(at);
    if (up == at) break;
    at = up;
  }
  return at.empty() ? "." : at;
}

class ScratchFolder {
 public:
  static Result<std::unique_ptr<ScratchFolder>> make(Env& env, const std::string& run_dir) {
    const std::string parent = existing_ancestor(env, run_dir);
    std::string path;
    for (int k = 0; path.empty() || env.exists(path); ++k)
      path = join_path(parent, str_cat(".aerie-dry-run-", getpid(), "-", k));
    const Status made = env.create_dir(path);
    if (!made.ok())
      return made.with_context("the run's folder cannot be written")
          .with_hint("set exp_manager.exp_dir to a folder you may write to");
    return std::unique_ptr<ScratchFolder>(new ScratchFolder(env, path));
  }
  ~ScratchFolder() {
    const Status removed = env_.remove_tree(path_);
    if (!removed.ok()) log_warn("train", path_, " could not be removed: ", removed.to_string());
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  ScratchFolder(Env& env, std::string path) : env_(env), path_(std::move(path)) {}
  Env& env_;
  const std::string path_;
};

}  // namespace aerie::train
