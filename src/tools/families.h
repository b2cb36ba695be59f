// The families and dialects of the aerie binary.
#pragma once

#include "aerie/models/family.h"

namespace aerie::tools {

const models::Families& families();

}  // namespace aerie::tools
