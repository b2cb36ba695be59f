// Which folder holds the tables, and which one pictures are relative to.
#pragma once

#include <string>

#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie::nuscenes {

struct DataRoot {
  std::string root;        // filenames of the tables are relative to it
  std::string tables_dir;  // root/version, or root itself
  std::string version;     // name of the tables' folder: "v1.0-mini"
};

// `given` is the data root or the version's folder itself. `version` is the folder's name or what
// comes after "v1.0-"; empty: the only version there is. Also a root a version:
// given/trainval/v1.0-trainval. Several versions and none named is an error that lists them.
Result<DataRoot> find_data_root(Env& env, const std::string& given, const std::string& version);

}  // namespace aerie::nuscenes
