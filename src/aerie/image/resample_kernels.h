// The inner loops of resample.h, one set for each kind of machine. All give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>

#include "aerie/image/resample.h"

namespace aerie::image {

inline constexpr int kWeightBits = 22;

// Vector instructions multiply 8-bit or 16-bit numbers: weights are cut into digits, every digit is
// multiplied and summed by itself, and the sums are put together at the end. Sums may wrap around
// on the way; the whole fits in 32 bits (weights are normalised), so the result is exact.
struct ResampleKernels {
  // `count` rows (1 to 8) through the horizontal pass: rows[k] to out[k], axis.outputs() pixels of
  // three bytes. May read kRowSlack bytes beyond the end of a row, and write 16.
  void (*horizontal)(const ResampleAxis& axis, const uint8_t* packed, const uint8_t* const* rows,
                     int count, uint8_t* const* out);
  // out[i] = sum over k < taps of weight[k] * rows[k][i], for i < bytes. Rows are readable up to 64
  // bytes beyond; `out` is written exactly. `taps` is a multiple of four.
  void (*vertical)(const uint8_t* const* rows, const int32_t* weight, int taps, size_t bytes,
                   uint8_t* out);
  // Bytes of horizontal()'s own form of the weights, and what fills them (64-byte aligned). Null:
  // it takes none.
  size_t (*packed_bytes)(const ResampleAxis& axis);
  void (*pack)(const ResampleAxis& axis, uint8_t* packed);
};

// For axes of at most this many taps (both of them).
inline constexpr int kMaxAvx512Taps = 64;
const ResampleKernels* avx512_kernels();  // null where the machine or the build has none
// The best of what is there and allowed by `simd`, for axes of so many taps.
const ResampleKernels& resample_kernels(ResampleSimd simd, int taps);

}  // namespace aerie::image
