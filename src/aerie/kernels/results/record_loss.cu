#include "aerie/kernels/device.h"
#include "aerie/kernels/results/record_loss.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

__global__ void record(RecordLoss a) {
  const float loss = *a.loss;
  const int32_t rows = *a.rows;
  a.out->loss = a.add ? a.out->loss + loss : loss;
  a.out->rows = a.add ? a.out->rows + rows : rows;
  const float before = a.first ? 0.0f : *a.bad_loss;
  *a.bad_loss = rows > 0 && !isfinite(loss) ? NAN : before;
}

}  // namespace

int record_loss(const RecordLoss& a, void* stream) {
  return launch(stream, {dim3(1), dim3(1)}, record, a);
}

}  // namespace aerie::kernels::AERIE_BACKEND
