// A model family: everything that one kind of model brings to the engine. Families and the dialects
// of their configurations are entries of an explicit table (Families), built where commands are:
// src/tools for the product, a test's main for its own.
//
//   command line -> dialect -> family -> train::Job -> train::run_training()
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/advisor/tune_space.h"
#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/train/job.h"
#include "aerie/train/run.h"
#include "aerie/ui/report_words.h"

namespace aerie::models {

// A configuration as its dialect read it and its family checked it.
class Configuration {
 public:
  virtual ~Configuration() = default;
  // Warnings, and what has no effect on this run: for the log, before anything else.
  virtual std::vector<std::string> warnings() const { return {}; }
  virtual std::vector<std::string> notes() const { return {}; }
};

struct DryRunRequest {
  Env* env = nullptr;
  bool json = false;           // machine-readable
  std::function<bool()> stop;  // may be empty
};

class Family {
 public:
  virtual ~Family() = default;
  virtual std::string_view name() const = 0;  // "nest": TaskInfo::family
  virtual ui::ReportWords report_words() const = 0;
  // The job of a configuration that a dialect of this family made, which outlives it.
  virtual Result<std::unique_ptr<train::Job>> make_job(const Configuration& config) const = 0;
  // What `aerie tune` and `batch_size: auto` may change.
  virtual Result<advisor::TuneSpace> tune_space(const Configuration& config,
                                                const advisor::TuneMachine& machine) const;
  // `aerie train --dry-run`: everything once, and what it showed.
  virtual Result<std::string> dry_run(const Configuration& config,
                                      const DryRunRequest& request) const;
};

// A way to write configurations, and a command line to go with it. Each belongs to one family.
class Dialect {
 public:
  virtual ~Dialect() = default;
  virtual std::string_view name() const = 0;  // "hydra"
  virtual const Family& family() const = 0;
  // Whether the arguments of a command are in this dialect; the first that says so takes them.
  virtual bool accepts(const std::vector<std::string>& args) const = 0;
  virtual Result<std::unique_ptr<Configuration>> load(
      const std::vector<std::string>& args) const = 0;
  // The arguments with the changes of a TuneBatch (key=value, in our own keys) behind them.
  virtual Result<std::vector<std::string>> with_changes(
      const std::vector<std::string>& args, const std::vector<std::string>& changes) const;
  // Where the arguments only ask to see the configuration: its text.
  virtual Result<std::optional<std::string>> show(const std::vector<std::string>& args) const {
    (void)args;
    return std::optional<std::string>();
  }
};

struct Families {
  std::vector<const Family*> families;
  std::vector<const Dialect*> dialects;  // tried in this order

  // Null: no dialect takes these arguments.
  const Dialect* dialect_of(const std::vector<std::string>& args) const;
  // Null: there is none of that name.
  const Family* find(std::string_view name) const;
};

// From the arguments of a command, without the command's own options, to a checked configuration;
// its warnings are logged.
struct Opened {
  const Dialect* dialect = nullptr;
  std::unique_ptr<Configuration> config;
};
Result<Opened> open_configuration(const Families& families, const std::vector<std::string>& args);
// Its two halves.
Result<Opened> load_configuration(const Families& families, const std::vector<std::string>& args);
void announce(const Configuration& config);

// Makes the job of a configuration and runs it.
Result<train::RunResult> train(const Opened& opened, const train::RunOptions& options);

}  // namespace aerie::models
