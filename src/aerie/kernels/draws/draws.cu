// A thread makes one Philox block: eight decisions of dropout or four normals, which lie side by
// side in memory. Rows of decisions need not begin at a block; the first and the last block of a
// row are then used in part.
#include "aerie/base/normals.h"
#include "aerie/kernels/device.h"
#include "aerie/kernels/draws/draws.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int kDecisions = 8;  // of a block

template <typename T>
struct alignas(4 * sizeof(T)) Quad {
  T v[4];
};

// Four values at once where memory allows it.
template <typename T>
__device__ void apply_quad(const T* x, T* out, const float* factors, int count, bool whole) {
  if (whole && count == 4) {
    Quad<T> quad = *reinterpret_cast<const Quad<T>*>(x);
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) quad.v[k] = from_float<T>(to_float(quad.v[k]) * factors[k]);
    *reinterpret_cast<Quad<T>*>(out) = quad;
    return;
  }
  for (int k = 0; k < count; ++k) out[k] = from_float<T>(to_float(x[k]) * factors[k]);
}
__device__ inline void write_quad(float* out, const float* values, int count, bool whole) {
  if (whole && count == 4) {
    Quad<float> quad;
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) quad.v[k] = values[k];
    *reinterpret_cast<Quad<float>*>(out) = quad;
    return;
  }
  for (int k = 0; k < count; ++k) out[k] = values[k];
}

__device__ inline int clamped(int64_t value, int most) {
  return value < 0 ? 0 : value > most ? most : int(value);
}

// Index: unsigned 32 bits where the number of blocks fits, 64 otherwise.
template <typename T, typename Index>
__global__ void __launch_bounds__(kThreads)
    dropout_kernel(DropoutDraws a, Index blocks, Index blocks_per_row, bool aligned) {
  const Index number = Index(blockIdx.x) * kThreads + threadIdx.x;
  if (number >= blocks) return;
  const Index line = number / blocks_per_row;  // of all rows
  const int64_t block = int64_t(number - line * blocks_per_row);
  const Index head_line = line / Index(a.rows);
  const int64_t row = int64_t(line - head_line * Index(a.rows));
  const Index item = head_line / Index(a.heads);
  const int64_t head = int64_t(head_line - item * Index(a.heads));

  const uint64_t first = first_draw(a, head, row);
  const int skip = int(first % kDecisions);
  // Column of the block's first decision; negative where it lies in front of the row.
  const int64_t column = block * kDecisions - skip;
  if (column >= a.columns) return;
  const PhiloxBlock draws =
      philox_block(a.stream.key, a.stream.epoch, stream_position(a.stream, uint64_t(item)),
                   uint32_t(first / kDecisions + uint64_t(block)));
  float factors[kDecisions];
  AERIE_UNROLL
  for (int k = 0; k < kDecisions; ++k) {
    const uint32_t draw = k % 2 == 0 ? draws.v[k / 2] & 0xffffu : draws.v[k / 2] >> 16;
    factors[k] = draw >= a.threshold ? a.scale : 0.0f;
  }
  const int64_t at = int64_t(line) * a.columns + column;
  const bool whole = aligned && skip == 0;
  if (skip == 0) {
    AERIE_UNROLL
    for (int k = 0; k < kDecisions; k += 4) {
      const int count = clamped(a.columns - column - k, 4);
      if (a.x == nullptr)
        write_quad(static_cast<float*>(a.out) + at + k, factors + k, count, whole);
      else
        apply_quad(static_cast<const T*>(a.x) + at + k, static_cast<T*>(a.out) + at + k,
                   factors + k, count, whole);
    }
    return;
  }
  AERIE_UNROLL
  for (int k = 0; k < kDecisions; ++k) {
    if (column + k < 0 || column + k >= a.columns) continue;
    if (a.x == nullptr)
      static_cast<float*>(a.out)[at + k] = factors[k];
    else
      static_cast<T*>(a.out)[at + k] =
          from_float<T>(to_float(static_cast<const T*>(a.x)[at + k]) * factors[k]);
  }
}

__global__ void __launch_bounds__(kThreads)
    normal_kernel(NormalDraws a, int64_t blocks_per_item, bool aligned) {
  const int64_t number = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t item = number / blocks_per_item;
  if (item >= a.items) return;
  const int64_t block = number - item * blocks_per_item;
  const PhiloxBlock draws = philox_block(
      a.stream.key, a.stream.epoch, stream_position(a.stream, uint64_t(item)), uint32_t(block));
  float normals[4];
  normals_of_draws(draws.v[0], draws.v[1], &normals[0], &normals[1]);
  normals_of_draws(draws.v[2], draws.v[3], &normals[2], &normals[3]);
  write_quad(a.out + item * a.samples + block * 4, normals, clamped(a.samples - block * 4, 4),
             aligned);
}

__global__ void __launch_bounds__(kThreads) uniform_kernel(UniformDraws a, bool aligned) {
  const int64_t block = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (block * 4 >= a.count) return;
  const PhiloxBlock draws = philox_block(a.key, 0, a.position, uint32_t(block));
  float values[4];
  AERIE_UNROLL
  for (int k = 0; k < 4; ++k) values[k] = uniform_of_draw(draws.v[k], a.bound);
  write_quad(a.out + block * 4, values, clamped(a.count - block * 4, 4), aligned);
}

// Grids have up to 2^31 - 1 blocks of threads.
bool fits_grid(int64_t threads) {
  return ceil_div(threads, kThreads) <= 0x7fffffff;
}
bool is_aligned(const void* pointer, size_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

}  // namespace

int dropout_draws(const DropoutDraws& a, void* stream) {
  if (a.items <= 0 || a.heads <= 0 || a.rows <= 0 || a.columns <= 0) return kOk;
  const bool rows_at_blocks = a.first % kDecisions == 0 && a.head_stride % kDecisions == 0 &&
                              a.row_stride % kDecisions == 0;
  const int64_t blocks_per_row = ceil_div(a.columns, kDecisions) + (rows_at_blocks ? 0 : 1);
  const int64_t blocks = a.items * a.heads * a.rows * blocks_per_row;
  if (!fits_grid(blocks)) return kUnsupported;
  const LaunchShape shape{dim3(unsigned(ceil_div(blocks, kThreads))), dim3(kThreads)};
  return dispatch(a.x == nullptr ? Dtype::kF32 : a.dtype, [&](auto type) {
    using T = decltype(type);
    const bool aligned = a.columns % 4 == 0 && is_aligned(a.out, sizeof(Quad<T>)) &&
                         (a.x == nullptr || is_aligned(a.x, sizeof(Quad<T>)));
    return blocks < 0x7fffffff ? launch(stream, shape, dropout_kernel<T, uint32_t>, a,
                                        uint32_t(blocks), uint32_t(blocks_per_row), aligned)
                               : launch(stream, shape, dropout_kernel<T, uint64_t>, a,
                                        uint64_t(blocks), uint64_t(blocks_per_row), aligned);
  });
}

int normal_draws(const NormalDraws& a, void* stream) {
  if (a.items <= 0 || a.samples <= 0) return kOk;
  const int64_t blocks_per_item = ceil_div(a.samples, 4);
  if (!fits_grid(a.items * blocks_per_item)) return kUnsupported;
  return launch(stream,
                {dim3(unsigned(ceil_div(a.items * blocks_per_item, kThreads))), dim3(kThreads)},
                normal_kernel, a, blocks_per_item,
                a.samples % 4 == 0 && is_aligned(a.out, sizeof(Quad<float>)));
}

int uniform_draws(const UniformDraws& a, void* stream) {
  if (a.count <= 0) return kOk;
  const int64_t blocks = ceil_div(a.count, 4);
  if (!fits_grid(blocks)) return kUnsupported;
  return launch(stream, {dim3(unsigned(ceil_div(blocks, kThreads))), dim3(kThreads)},
                uniform_kernel, a, is_aligned(a.out, sizeof(Quad<float>)));
}

}  // namespace aerie::kernels::AERIE_BACKEND
