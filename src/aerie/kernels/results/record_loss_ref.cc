#include <cmath>
#include <limits>

#include "aerie/kernels/results/record_loss.h"

namespace aerie::kernels::reference {

int record_loss(const RecordLoss& a, void*) {
  const float loss = *a.loss;
  const int32_t rows = *a.rows;
  a.out->loss = a.add ? a.out->loss + loss : loss;
  a.out->rows = a.add ? a.out->rows + rows : rows;
  const float before = a.first ? 0.0f : *a.bad_loss;
  *a.bad_loss = rows > 0 && !std::isfinite(loss) ? std::numeric_limits<float>::quiet_NaN() : before;
  return kOk;
}

}  // namespace aerie::kernels::reference
