// Which nuScenes data a command looks at: a configuration's data sets, or a root named directly;
// and the commands that do, one file each.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/nuscenes/config/data_schema.h"
#include "aerie/data/nuscenes/nuscenes_dataset.h"

namespace CLI {
class App;
}

namespace aerie::tools {

struct NuscenesInput {
  std::string config_file;
  std::string root, version, split, profile, cache_dir, pack;
  std::vector<std::string> overrides;  // k=v, of train_ds unless they begin with model. or aerie.

  // Adds its options to a command's.
  void add_options(CLI::App& app);
};

struct NuscenesParts {
  struct Part {
    std::string name;  // "train_ds"
    nuscenes::DataConfig config;
  };
  std::vector<Part> parts;
  config::AerieConfig aerie;
};

// `default_split`: of a root that is named directly; empty: as the node has it. Without a file
// there is one part. Warnings are printed.
Result<NuscenesParts> read_nuscenes_input(const NuscenesInput& input,
                                          const std::string& default_split);

Status run_nuscenes_bench(const std::vector<std::string>& args);
Status run_nuscenes_pack(const std::vector<std::string>& args);
Status run_nuscenes_stats(const std::vector<std::string>& args);
Status run_nuscenes_validate(const std::vector<std::string>& args);

}  // namespace aerie::tools
