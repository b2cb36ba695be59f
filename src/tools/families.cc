#include "families.h"

#include "aerie/models/nest/run/nest_family.h"

namespace aerie::tools {

const models::Families& families() {
  static const models::Families all{{&nest::nest_family()}, {&nest::hydra_dialect()}};
  return all;
}

}  // namespace aerie::tools
