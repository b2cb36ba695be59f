// The inner loops of resample.h, one set for each kind of machine. All give the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "aerie/image/resample.h"

namespace aerie::image {

inline constexpr int kWeightBits = 22;
// Vector loops multiply 16-bit numbers: weight = high * 2^kSplitBits + low, 0 <= low <
// 2^kSplitBits. A product of pixel and weight then needs two multiplications, whose sums are put
// together once at the end. All sums fit in 32 bits: |weights| sum up to less than 1.4 * 2^22 after
// normalisation.
inline constexpr int kSplitBits = 11;

struct ResampleKernels {
  // `count` rows (1 to 8) through the horizontal pass: rows[k] to out[k], axis.outputs() pixels of
  // three bytes. May write up to 16 bytes beyond.
  void (*horizontal)(const ResampleAxis& axis, const int16_t* packed, const uint8_t* const* rows,
                     int count, uint8_t* const* out);
  // out[i] = sum over k < taps of weight[k] * rows[k][i], for i < bytes. Rows are readable up to 64
  // bytes beyond; `out` is written exactly. `taps` is a multiple of four.
  void (*vertical)(const uint8_t* const* rows, const int32_t* weight, int taps, size_t bytes,
                   uint8_t* out);
  // Fills `packed` for horizontal(); null where it takes none.
  void (*pack)(const ResampleAxis& axis, std::vector<int16_t>& packed);
};

const ResampleKernels& scalar_kernels();
const ResampleKernels& resample_kernels(ResampleSimd simd);

}  // namespace aerie::image
