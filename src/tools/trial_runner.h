// Short real runs of a configuration, each in a process and a folder of its own: what `aerie
// doctor` and `aerie tune` measure with. A trial that runs out of memory or is killed ends its own
// process alone.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "aerie/advisor/diagnosis.h"
#include "aerie/base/status.h"
#include "aerie/base/temp_dir.h"

namespace aerie::tools {

struct ProcessOutput;

struct TrialLength {
  int64_t steps = 60;    // optimizer steps; with seconds: at least
  double seconds = 0.0;  // of training; 0: steps alone count
};

Result<std::string> path_of_this_program();

// What a trial ("a trial of 60 steps") that ended badly died of, from what it printed.
// kOutOfMemory: there was not enough memory, or the process was killed.
Status trial_error(int exit_code, const std::string& text, const std::string& what);

class TrialRunner final {
 public:
  // `config_args` is what `aerie train` would take, of any family.
  static Result<TrialRunner> make(std::vector<std::string> config_args);

  // Trains with the overrides `changes` (key=value) and gives the folder of the run, which is there
  // until the runner goes. A run that finished unhealthy is no error. kOutOfMemory: there was not
  // enough memory, or the process was killed.
  Result<std::string> train(const std::vector<std::string>& changes, const TrialLength& length);
  // `aerie train --dry-run --json` with the overrides: what it printed.
  Result<std::string> dry_run(const std::vector<std::string>& changes);

  // Arguments of `aerie train` for the configuration with the changes; good while the runner is.
  std::vector<std::string> train_args(const std::vector<std::string>& changes) const;

 private:
  TrialRunner(std::string program, std::vector<std::string> config_args, bool native);
  std::vector<std::string> command(const std::vector<std::string>& before,
                                   std::vector<std::string> overrides) const;

  Status error_of(const ProcessOutput& output, const std::string& what) const;

  // Overrides that make `folder` the place of a trial; returns options to go with them.
  std::vector<std::string> place_in(const std::string& folder,
                                    std::vector<std::string>& overrides) const;

  std::string program_;
  std::vector<std::string> config_args_;
  bool native_;  // a file of our own keys in the scratch folder, changed by --cfg-options
  std::unique_ptr<TempDir> scratch_;
  int count_ = 0;
};

// What the records in the folder of a run show, and where its data lies.
Result<advisor::Diagnosis> diagnose_folder(const std::string& folder);
// The first path of a run's data that is not here, as the configuration has it; empty: all are.
std::string missing_data(const advisor::RunFacts& facts);

}  // namespace aerie::tools
