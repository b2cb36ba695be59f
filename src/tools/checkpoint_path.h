// Commands on files with weights also take the folder of a run: its newest checkpoint is meant.
#pragma once

#include <string>

#include "aerie/archive/native_checkpoint.h"
#include "aerie/base/path.h"

namespace aerie::tools {

// `path` itself, or the checkpoint that a folder of a run or of checkpoints stands for.
inline Result<std::string> checkpoint_or_file(Env& env, const std::string& given) {
  const std::string path = expand_user(given);
  const auto stat = env.stat(path);
  if (stat.status().code() == StatusCode::kNotFound)
    return invalid_argument(str_cat("there is no '", path, "'"))
        .with_hint("give a file with weights, a checkpoint, or the folder of a run");
  if (!stat.ok() || !stat->is_dir || env.exists(join_path(path, archive::kNativeWeights)))
    return path;
  return archive::find_native_checkpoint(env, path);
}

}  // namespace aerie::tools
