#include "aerie/kernels/layout/cast.h"
#include "aerie/kernels/reference.h"

namespace aerie::kernels::reference {

int cast(const Cast& a, void*) {
  if (a.to == Dtype::kFloat) return kUnsupported;
  for (size_t i = 0; i < static_cast<size_t>(a.count); ++i) store(a.out, a.to, i, a.x[i]);
  return kOk;
}

}  // namespace aerie::kernels::reference
