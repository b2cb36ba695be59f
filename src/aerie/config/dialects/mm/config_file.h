// Configuration files of mmcv with their bases: what Config.fromfile() reads, without running it.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config::mm {

struct LoadedFile {
  Value config;                       // a map without `_base_`
  std::vector<std::string> files;     // every file read, bases before those that name them
  std::vector<std::string> warnings;  // `_deprecation_`
  std::set<std::string> names_read;   // top-level names that some value uses
};

// A .py, .yaml, .yml or .json file. `_base_` is one name or several, relative to the file; keys of
// two bases must differ; dicts merge key by key, everything else is replaced; `_delete_=True` in a
// dict replaces the base's; {{_base_.a.b}} is a value of the bases; {{ fileDirname }},
// {{ fileBasename }}, {{ fileBasenameNoExtension }} and {{ fileExtname }} are the file's own names.
// kNotFound when the file itself does not exist.
Result<LoadedFile> load_config_file(Env& env, const std::string& path);

// mmcv's merge of a child's dict into its base's. `_delete_` of a dict that has no counterpart
// stays, as in mmcv. With `list_keys` a key of digits is an index of a list in `base`.
Status merge_child(Value child, Value& base, bool list_keys = false);

}  // namespace aerie::config::mm
