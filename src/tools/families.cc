#include "families.h"

#include "aerie/models/bev/run/bev_family.h"
#include "aerie/models/nest/run/nest_family.h"

namespace aerie::tools {

const models::Families& families() {
  // NEST's dialect takes whatever the others leave.
  static const models::Families all{{&nest::nest_family(), &bev::bev_family()},
                                    {&bev::mm_dialect(), &nest::hydra_dialect()}};
  return all;
}

}  // namespace aerie::tools
