#include "aerie/image/resample_kernels.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aerie::image {
namespace {

constexpr int32_t kHalf = 1 << (kWeightBits - 1);

uint8_t to_byte(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

void horizontal_scalar(const ResampleAxis& axis, const uint8_t*, const uint8_t* const* rows,
                       int count, uint8_t* const* out) {
  for (int r = 0; r < count; ++r) {
    uint8_t* to = out[r];
    for (int i = 0; i < axis.outputs(); ++i, to += 3) {
      const int32_t* weight = &axis.weight[static_cast<size_t>(i) * axis.taps];
      const uint8_t* in = rows[r] + ptrdiff_t{3} * axis.start[i];
      int32_t sum[3] = {kHalf, kHalf, kHalf};
      for (int k = 0; k < axis.length[i]; ++k)
        for (int c = 0; c < 3; ++c) sum[c] += weight[k] * in[3 * k + c];
      for (int c = 0; c < 3; ++c) to[c] = to_byte(sum[c]);
    }
  }
}

void vertical_scalar(const uint8_t* const* rows, const int32_t* weight, int taps, size_t bytes,
                     uint8_t* out) {
  for (size_t i = 0; i < bytes; ++i) {
    int32_t sum = kHalf;
    for (int k = 0; k < taps; ++k) sum += weight[k] * rows[k][i];
    out[i] = to_byte(sum);
  }
}

#if defined(__x86_64__)

// Two digits: weight = high * 2^11 + low, 0 <= low < 2^11.
constexpr int kSplitBits = 11;
int16_t high_part(int32_t weight) {
  return static_cast<int16_t>(weight >> kSplitBits);
}
int16_t low_part(int32_t weight) {
  return static_cast<int16_t>(weight & ((1 << kSplitBits) - 1));
}

// For every output and four taps: 16 numbers, the high parts (w0 w1) four times and (w2 w3) four
// times, then 16 for the low parts.
size_t packed_bytes_avx2(const ResampleAxis& axis) {
  return axis.weight.size() * 16;
}
void pack_avx2(const ResampleAxis& axis, uint8_t* packed) {
  auto* to = reinterpret_cast<int16_t*>(packed);
  for (size_t i = 0; i < axis.weight.size(); i += 4) {
    const int32_t* w = &axis.weight[i];
    for (const bool high : {true, false})
      for (int pair = 0; pair < 2; ++pair)
        for (int lane = 0; lane < 4; ++lane)
          for (int k = 0; k < 2; ++k)
            *to++ = high ? high_part(w[2 * pair + k]) : low_part(w[2 * pair + k]);
  }
}

template <int kRows>
__attribute__((target("avx2"))) void horizontal_rows_avx2(const ResampleAxis& axis,
                                                          const uint8_t* packed,
                                                          const uint8_t* const* rows,
                                                          uint8_t* const* out) {
  // Bytes of four pixels as 16-bit pairs: r0 r1 g0 g1 b0 b1 . . | r2 r3 g2 g3 b2 b3 . .
  const __m256i spread =
      _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, 6, -1, 9, -1, 7,
                       -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1);
  const __m128i half = _mm_set1_epi32(kHalf);
  const int outputs = axis.outputs();
  const size_t weights_of_one = static_cast<size_t>(axis.taps) * 16;
  for (int i = 0; i < outputs; ++i) {
    const int groups = (axis.length[i] + 3) / 4;
    const auto* weight = reinterpret_cast<const __m256i*>(packed + i * weights_of_one);
    const size_t from = size_t{3} * axis.start[i];
    __m256i high[kRows], low[kRows];
    for (int r = 0; r < kRows; ++r) high[r] = low[r] = _mm256_setzero_si256();
    for (int g = 0; g < groups; ++g) {
      const __m256i weight_high = _mm256_loadu_si256(weight + 2 * g);
      const __m256i weight_low = _mm256_loadu_si256(weight + 2 * g + 1);
      for (int r = 0; r < kRows; ++r) {
        const __m256i pixels = _mm256_shuffle_epi8(
            _mm256_broadcastsi128_si256(
                _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[r] + from + size_t{12} * g))),
            spread);
        high[r] = _mm256_add_epi32(high[r], _mm256_madd_epi16(pixels, weight_high));
        low[r] = _mm256_add_epi32(low[r], _mm256_madd_epi16(pixels, weight_low));
      }
    }
    for (int r = 0; r < kRows; ++r) {
      const __m256i both = _mm256_add_epi32(_mm256_slli_epi32(high[r], kSplitBits), low[r]);
      __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
      sum = _mm_srai_epi32(_mm_add_epi32(sum, half), kWeightBits);
      sum = _mm_packs_epi32(sum, sum);
      sum = _mm_packus_epi16(sum, sum);
      const int pixel = _mm_cvtsi128_si32(sum);
      std::memcpy(out[r] + size_t{3} * i, &pixel, 4);  // the fourth byte is overwritten by the next
    }
  }
}

void horizontal_avx2(const ResampleAxis& axis, const uint8_t* packed, const uint8_t* const* rows,
                     int count, uint8_t* const* out) {
  int r = 0;
  for (; r + 4 <= count; r += 4) horizontal_rows_avx2<4>(axis, packed, rows + r, out + r);
  for (; r + 2 <= count; r += 2) horizontal_rows_avx2<2>(axis, packed, rows + r, out + r);
  for (; r < count; ++r) horizontal_rows_avx2<1>(axis, packed, rows + r, out + r);
}

// 32 outputs at `at`.
__attribute__((target("avx2"))) inline __m256i vertical_block_avx2(const uint8_t* const* rows,
                                                                   const int32_t* weight, int taps,
                                                                   size_t at) {
  __m256i high[4], low[4];
  for (int q = 0; q < 4; ++q) high[q] = low[q] = _mm256_setzero_si256();
  const __m256i zero = _mm256_setzero_si256();
  for (int k = 0; k < taps; k += 2) {
    const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[k] + at));
    const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(rows[k + 1] + at));
    const __m256i first = _mm256_unpacklo_epi8(a, b), second = _mm256_unpackhi_epi8(a, b);
    const __m256i pairs[4] = {_mm256_unpacklo_epi8(first, zero), _mm256_unpackhi_epi8(first, zero),
                              _mm256_unpacklo_epi8(second, zero),
                              _mm256_unpackhi_epi8(second, zero)};
    const auto pair_of = [](int16_t x, int16_t y) {
      return static_cast<int32_t>(static_cast<uint32_t>(static_cast<uint16_t>(x)) |
                                  static_cast<uint32_t>(static_cast<uint16_t>(y)) << 16);
    };
    const __m256i weight_high =
        _mm256_set1_epi32(pair_of(high_part(weight[k]), high_part(weight[k + 1])));
    const __m256i weight_low =
        _mm256_set1_epi32(pair_of(low_part(weight[k]), low_part(weight[k + 1])));
    for (int q = 0; q < 4; ++q) {
      high[q] = _mm256_add_epi32(high[q], _mm256_madd_epi16(pairs[q], weight_high));
      low[q] = _mm256_add_epi32(low[q], _mm256_madd_epi16(pairs[q], weight_low));
    }
  }
  const __m256i half = _mm256_set1_epi32(kHalf);
  for (int q = 0; q < 4; ++q) {
    const __m256i both = _mm256_add_epi32(_mm256_slli_epi32(high[q], kSplitBits), low[q]);
    high[q] = _mm256_srai_epi32(_mm256_add_epi32(both, half), kWeightBits);
  }
  // Unpacking kept to halves of the registers, packing does too: the order is restored.
  return _mm256_packus_epi16(_mm256_packs_epi32(high[0], high[1]),
                             _mm256_packs_epi32(high[2], high[3]));
}

__attribute__((target("avx2"))) void vertical_avx2(const uint8_t* const* rows,
                                                   const int32_t* weight, int taps, size_t bytes,
                                                   uint8_t* out) {
  size_t at = 0;
  for (; at + 32 <= bytes; at += 32)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + at),
                        vertical_block_avx2(rows, weight, taps, at));
  if (at < bytes) {
    alignas(32) uint8_t rest[32];
    _mm256_store_si256(reinterpret_cast<__m256i*>(rest),
                       vertical_block_avx2(rows, weight, taps, at));
    std::memcpy(out + at, rest, bytes - at);
  }
}

const ResampleKernels kAvx2Kernels{horizontal_avx2, vertical_avx2, packed_bytes_avx2, pack_avx2};

bool has_avx2() {
  static const bool has = __builtin_cpu_supports("avx2");
  return has;
}

#endif

const ResampleKernels kScalarKernels{horizontal_scalar, vertical_scalar, nullptr, nullptr};

}  // namespace

const ResampleKernels& resample_kernels(ResampleSimd simd, int taps) {
#if defined(__x86_64__)
  const ResampleKernels* wide = avx512_kernels();
  const bool may_be_wide = simd == ResampleSimd::kBest || simd == ResampleSimd::kAvx512;
  if (may_be_wide && wide != nullptr && taps <= kMaxAvx512Taps) return *wide;
  if (simd != ResampleSimd::kScalar && has_avx2()) return kAvx2Kernels;
#endif
  (void)simd;
  (void)taps;
  return kScalarKernels;
}

}  // namespace aerie::image
