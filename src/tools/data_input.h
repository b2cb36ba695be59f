// Which data a command looks at: a configuration's data sets, or manifests named directly.
#pragma once

#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/models/nest/config/run_config_loader.h"

namespace aerie::tools {

struct DataInput {
  struct Part {
    std::string name;  // "train_ds", "validation_ds.0", or the manifest's name
    config::DatasetConfig dataset;
  };
  std::vector<Part> parts;
  config::SpeechAerieConfig aerie;
};

// Options every such command takes besides those of the configuration.
std::vector<config::ExtraOption> data_input_options();
std::string data_input_help();

// With a config: its train_ds, and validation_ds unless `train_only`. Without: --manifest and the
// other options.
Result<DataInput> read_data_input(const config::ConfigArgs& args, bool train_only);

// --name VALUE as a number from `min` to `max`; `fallback` when it is not given.
Result<double> number_option(const config::ConfigArgs& args, const std::string& name,
                             double fallback, double min, double max);
// --workers N: threads, one per CPU when it is not given.
Result<int> workers_option(const config::ConfigArgs& args);

}  // namespace aerie::tools
