// `aerie bench step --reference-table`: one row for everything that the fast engine does not cover,
// measured on whatever engine runs it, with NeMo beside it.
#pragma once

#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/models/nest/config/run_config_loader.h"

namespace aerie::tools {

struct ReferenceRow {
  std::string name;                    // what leaves the fast engine
  std::vector<std::string> overrides;  // of the base configuration
};

// All rows. Where a key has several such values, one of each kind of computation.
const std::vector<ReferenceRow>& reference_rows();
// NEST-L in bf16-mixed (nest_fast-conformer.yaml without data), as text.
std::string reference_base_yaml();

Status run_reference_table(const config::ConfigArgs& parsed);

}  // namespace aerie::tools
