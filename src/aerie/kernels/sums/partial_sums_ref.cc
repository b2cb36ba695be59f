#include "aerie/kernels/reference.h"
#include "aerie/kernels/sums/partial_sums.h"

namespace aerie::kernels::reference {

int add_partials(const PartialSums& a, void*) {
  for (int i = 0; i < a.count; ++i) {
    const PartialSum& s = a.sums[i];
    for (int c = 0; c < s.columns; ++c) {
      double sum = 0.0;
      for (int p = 0; p < s.parts; ++p) sum += static_cast<double>(s.partial[p * s.stride + c]);
      put(s.out + c, sum, s.accumulate);
    }
  }
  return kOk;
}

}  // namespace aerie::kernels::reference
