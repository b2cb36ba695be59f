// Bird's-eye-view models as a family, and mm-style configurations as its dialect.
#pragma once

#include "aerie/models/family.h"

namespace aerie::bev {

const models::Family& bev_family();
const models::Dialect& mm_dialect();

}  // namespace aerie::bev
