// Judges a resolved configuration tree against a schema. Everything wrong is collected, not
// only the first; each finding names the key, where it was written, what was expected and what to
// try. Keys are judged by their effect: `devices: -1` and `strategy: ddp` are fine on one device
// (effect.h says which keys then change nothing).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config {

class Schema;

struct Finding {
  enum class Severity { kError, kWarning };
  Severity severity = Severity::kError;
  std::string key;
  std::string message;
  std::string hint;   // empty: none
  std::string where;  // "nest.yaml:12:5", "command line: trainer.max_steps=x", or empty

  // "nest.yaml:12:5: trainer.max_step: unknown key (did you mean 'trainer.max_steps'?)"
  std::string to_string() const;
};

class Findings {
 public:
  void add(Finding finding) { all_.push_back(std::move(finding)); }
  const std::vector<Finding>& all() const { return all_; }
  std::vector<Finding> errors() const { return of(Finding::Severity::kError); }
  std::vector<Finding> warnings() const { return of(Finding::Severity::kWarning); }
  // Ok, or kInvalidArgument with every error on a line of its own.
  Status to_status() const;

 private:
  std::vector<Finding> of(Finding::Severity severity) const;
  std::vector<Finding> all_;
};

struct ValidateOptions {
  bool allow_unknown = false;  // unknown keys become warnings
  // For a run: `???` that the run needs and devices that are not there are errors; otherwise they
  // are warnings or passed over.
  bool for_training = false;
  int num_gpus = 0;  // GPUs this process sees; what `devices: -1` and "auto" mean
  // Keys that some interpolation reads (ResolveOptions::reads); they may be unknown.
  const std::set<std::string>* interpolation_reads = nullptr;
};

// `resolved` has no interpolations left and contains the `aerie:` node.
Findings validate(const Schema& schema, const Value& resolved, const ValidateOptions& options);

}  // namespace aerie::config
