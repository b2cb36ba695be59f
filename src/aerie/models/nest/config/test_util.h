// Helpers of the schema tests.
#pragma once

#include <string>
#include <vector>

#include "aerie/config/schema/validate.h"
#include "aerie/config/value.h"
#include "aerie/models/nest/config/nest_config.h"

namespace aerie::config {

struct Checked {
  Value resolved;
  Findings findings;
  RunConfig run;  // filled when there is no error
  Status build;   // of build_run_config()

  bool ok() const { return findings.errors().empty() && build.ok(); }
  // The messages of all errors, or of all warnings, one per line.
  std::string errors() const;
  std::string warnings() const;
};

// YAML text with the `aerie:` defaults, resolved, validated, built.
Checked check_text(const std::string& yaml, ValidateOptions options = {});
Checked check_file(const std::string& path, ValidateOptions options = {});
// A file with values set: {"trainer.precision", Value("16")}.
Checked check_stock(const std::vector<std::pair<std::string, Value>>& changes,
                    ValidateOptions options = {});

// The shipped stock config.
std::string stock_path();

}  // namespace aerie::config
