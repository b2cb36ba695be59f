#include "aerie/base/philox_fill.h"
#include "aerie/kernels/draws/draws.h"
#include "aerie/kernels/reference.h"

namespace aerie::kernels::reference {

int dropout_draws(const DropoutDraws& a, void*) {
  size_t at = 0;
  for (int64_t item = 0; item < a.items; ++item)
    for (int64_t head = 0; head < a.heads; ++head)
      for (int64_t row = 0; row < a.rows; ++row) {
        const uint64_t first = first_draw(a, head, row);
        const uint64_t position = stream_position(a.stream, static_cast<uint64_t>(item));
        for (int64_t column = 0; column < a.columns; ++column, ++at) {
          const uint32_t draw = dropout_draw(a.stream.key, a.stream.epoch, position,
                                             first + static_cast<uint64_t>(column));
          const float factor = draw >= a.threshold ? a.scale : 0.0f;
          if (a.x == nullptr)
            store(a.out, Dtype::kF32, at, factor);
          else
            store(a.out, a.dtype, at, load(a.x, a.dtype, at) * factor);
        }
      }
  return kOk;
}

int normal_draws(const NormalDraws& a, void*) {
  for (int64_t item = 0; item < a.items; ++item)
    philox_fill_normals(a.stream.key, a.stream.epoch,
                        stream_position(a.stream, static_cast<uint64_t>(item)), 0, a.samples,
                        a.out + item * a.samples);
  return kOk;
}

int uniform_draws(const UniformDraws& a, void*) {
  for (int64_t i = 0; i < a.count; ++i)
    a.out[i] = uniform_of_draw(philox_u32(a.key, 0, a.position, static_cast<uint64_t>(i)), a.bound);
  return kOk;
}

}  // namespace aerie::kernels::reference
