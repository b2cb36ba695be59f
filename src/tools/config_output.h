// What `aerie config` prints, whatever the family.
#pragma once

#include <string>

#include "aerie/base/status.h"
#include "aerie/config/schema/schema.h"
#include "aerie/config/schema/validate.h"
#include "aerie/config/value.h"

namespace aerie::tools {

// To stderr, a line each.
void print_warnings(const config::Findings& findings);
// `aerie config validate`; the errors are the result.
Status print_findings(const std::string& file, const config::Findings& findings, bool json);
struct NamedTree {
  const std::string& file;
  const config::Value& tree;
};
void print_differences(const NamedTree& before, const NamedTree& after, bool json);
// Every key that starts with the prefix; an error when there is none.
Status print_keys(const config::Schema& schema, const std::string& prefix, bool json);

}  // namespace aerie::tools
