// The random draws of the reference model (aerie/nn/random_fill.h) made where its tensors are, with
// the counters and to the bit of those the host makes.
//
//   dropout_draws   out = x * factor in float32, rounded to the dtype; the factor of a value is
//                   `scale` where its dropout_draw() (base/dropout.h) reaches the threshold, else
//                   0. Without x the factors themselves, in float32.
//   normal_draws    normals as philox_fill_normals() makes them (base/normals.h)
//   uniform_draws   uniform values of initial weights (nn/init.cc), computed in double, rounded
//   once
//
// Item b of a batch has the stream (epoch, position) = (site or signal, (micro_step << 20) |
// (first_item + b * item_stride)); where an item has several rows (pictures), each has its own.
// Keys are part of the arguments: these calls are not captured.
#pragma once

#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct DrawStream {
  PhiloxKey key{};
  uint32_t epoch = 0;
  uint64_t micro_step = 0, first_item = 0;
  uint64_t item_stride = 1, rows_per_item = 1;
};
AERIE_HD uint64_t stream_position(const DrawStream& stream, uint64_t row) {
  const uint64_t rows = stream.rows_per_item;
  const uint64_t number =
      rows == 1 ? stream.first_item + row * stream.item_stride
                : (stream.first_item + row / rows * stream.item_stride) * rows + row % rows;
  return (stream.micro_step << 20) | number;
}

struct DropoutDraws {
  DrawStream stream;
  uint32_t threshold = 0;  // dropout_threshold(p)
  float scale = 1.0f;      // dropout_scale(p)
  // A dense tensor (items, heads, rows, columns); the draw of a value has the number
  // first + head * head_stride + row * row_stride + column.
  int64_t items = 0, heads = 1, rows = 1, columns = 0;
  uint64_t first = 0;
  int64_t head_stride = 0, row_stride = 0;
  Dtype dtype = Dtype::kF32;
  const void* x = nullptr;
  void* out = nullptr;  // may be x
};
AERIE_HD uint64_t first_draw(const DropoutDraws& a, int64_t head, int64_t row) {
  return a.first + static_cast<uint64_t>(head * a.head_stride + row * a.row_stride);
}

struct NormalDraws {
  DrawStream stream;
  int64_t items = 0, samples = 0;
  float* out = nullptr;  // (items, samples)
};

struct UniformDraws {
  PhiloxKey key{};
  uint64_t position = 0;  // the stream is (0, position)
  double bound = 0.0;     // values lie in (-bound, bound)
  int64_t count = 0;
  float* out = nullptr;
};
AERIE_HD float uniform_of_draw(uint32_t draw, double bound) {
  const double u = (static_cast<double>(draw) + 0.5) * 2.3283064365386963e-10;
  return static_cast<float>(bound * (2.0 * u - 1.0));
}

AERIE_DECLARE_KERNEL(dropout_draws, DropoutDraws)
AERIE_DECLARE_KERNEL(uniform_draws, UniformDraws)
AERIE_DECLARE_KERNEL(normal_draws, NormalDraws)

}  // namespace aerie::kernels
