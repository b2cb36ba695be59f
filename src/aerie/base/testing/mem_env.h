// A file system in memory, for tests: quick, empty at the start, gone at the end. Knows the root
// folder "/" and relative names (below "/"); "." and ".." are not resolved, there are no links.
#pragma once

#include <memory>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"

namespace aerie {

// Modification times come from `clock`, which must outlive the result.
std::unique_ptr<Env> new_mem_env(Clock& clock = Clock::real());

}  // namespace aerie
