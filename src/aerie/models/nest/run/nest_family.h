// NEST's entries in the table of families (models/family.h).
#pragma once

#include "aerie/models/family.h"

namespace aerie::nest {

const models::Family& nest_family();
// NeMo's configurations and command line, by Hydra's rules. Takes every argument: the last entry.
const models::Dialect& hydra_dialect();

}  // namespace aerie::nest
