// The loops for machines with VNNI and VBMI: four products of a pixel's byte and a weight's digit
// are summed by one instruction, so nothing is widened before it.
#include "aerie/image/resample_kernels.h"

#if defined(__x86_64__)
// The compiler's own header reads what it calls undefined, and warns of it (gcc's bug 105593).
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <algorithm>
#include <cstring>
#include <immintrin.h>

#define AERIE_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vbmi,avx512vnni")))

namespace aerie::image {
namespace {

constexpr int kDigits = 3;      // of 8 bits, signed: weight = d[0] * 2^16 + d[1] * 2^8 + d[2]
constexpr int kBlockTaps = 16;  // 48 bytes of pixels
// An output near the right border reads as many blocks as the others.
static_assert(BicubicResizer::kRowSlack >= 3 * kMaxAvx512Taps + 16);
constexpr int32_t kHalf = 1 << (kWeightBits - 1);

void digits_of(int32_t weight, int8_t* digits) {
  for (int d = kDigits - 1; d >= 0; --d) {
    digits[d] = static_cast<int8_t>(weight);
    weight = (weight - digits[d]) >> 8;
  }
}

int blocks_of(const ResampleAxis& axis) {
  return (axis.taps + kBlockTaps - 1) / kBlockTaps;
}
int padded_outputs(const ResampleAxis& axis) {
  return (axis.outputs() + 3) / 4 * 4;
}

// For each output, digit and block 64 bytes: for four times four taps the digits for red, again for
// green and for blue, and four zeros.
size_t packed_bytes(const ResampleAxis& axis) {
  return static_cast<size_t>(padded_outputs(axis)) * blocks_of(axis) * kDigits * 64;
}
void pack(const ResampleAxis& axis, uint8_t* packed) {
  const int blocks = blocks_of(axis);
  std::memset(packed, 0, packed_bytes(axis));
  for (int i = 0; i < axis.outputs(); ++i) {
    uint8_t* output = packed + static_cast<size_t>(i) * blocks * kDigits * 64;
    for (int k = 0; k < axis.length[i]; ++k) {
      int8_t digits[kDigits];
      digits_of(axis.weight[static_cast<size_t>(i) * axis.taps + k], digits);
      const int block = k / kBlockTaps, lane = k % kBlockTaps / 4, tap = k % 4;
      for (int d = 0; d < kDigits; ++d) {
        uint8_t* to = output + (d * blocks + block) * 64 + lane * 16 + tap;
        to[0] = to[4] = to[8] = static_cast<uint8_t>(digits[d]);
      }
    }
  }
}

AERIE_AVX512 inline __m512i load(const void* from) {
  return _mm512_loadu_si512(from);
}

// One output pixel: sums of red, green, blue in each of four lanes.
template <int kBlocks>
AERIE_AVX512 inline __m512i sums_of_pixel(const uint8_t* from, const uint8_t* weights,
                                          __m512i spread) {
  __m512i pixels[kBlocks];
  for (int b = 0; b < kBlocks; ++b)
    pixels[b] = _mm512_permutexvar_epi8(spread, load(from + 48 * b));
  __m512i sum = _mm512_setzero_si512();
  for (int d = 0; d < kDigits; ++d) {
    if (d > 0) sum = _mm512_slli_epi32(sum, 8);
    for (int b = 0; b < kBlocks; ++b)
      sum = _mm512_dpbusd_epi32(sum, pixels[b], load(weights + (d * kBlocks + b) * 64));
  }
  return sum;
}

template <int kBlocks>
AERIE_AVX512 void horizontal_blocks(const ResampleAxis& axis, const uint8_t* packed,
                                    const uint8_t* const* rows, int count, uint8_t* const* out) {
  // Byte 16 * lane + 4 * channel + tap comes from pixel 4 * lane + tap.
  alignas(64) uint8_t order[64] = {};
  for (int lane = 0; lane < 4; ++lane)
    for (int channel = 0; channel < 3; ++channel)
      for (int tap = 0; tap < 4; ++tap)
        order[16 * lane + 4 * channel + tap] = static_cast<uint8_t>(3 * (4 * lane + tap) + channel);
  const __m512i spread = load(order);
  const __m512i half = _mm512_set1_epi32(kHalf);
  const __m128i drop_fourth = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
  const int last = axis.outputs() - 1;
  constexpr size_t kOutputBytes = size_t{64} * kDigits * kBlocks;
  for (int i = 0; i <= last; i += 4) {
    size_t from[4];
    for (int k = 0; k < 4; ++k) from[k] = size_t{3} * axis.start[std::min(i + k, last)];
    const uint8_t* weights = packed + i * kOutputBytes;
    for (int r = 0; r < count; ++r) {
      __m512i sum[4];
      for (int k = 0; k < 4; ++k)
        sum[k] = sums_of_pixel<kBlocks>(rows[r] + from[k], weights + k * kOutputBytes, spread);
      // Lanes of one pixel are added up, four pixels at a time.
      const __m512i ab = _mm512_add_epi32(_mm512_shuffle_i32x4(sum[0], sum[1], 0x44),
                                          _mm512_shuffle_i32x4(sum[0], sum[1], 0xEE));
      const __m512i cd = _mm512_add_epi32(_mm512_shuffle_i32x4(sum[2], sum[3], 0x44),
                                          _mm512_shuffle_i32x4(sum[2], sum[3], 0xEE));
      const __m512i all =
          _mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xDD));
      const __m512i value = _mm512_srai_epi32(_mm512_add_epi32(all, half), kWeightBits);
      const __m128i bytes = _mm512_cvtusepi32_epi8(_mm512_max_epi32(value, _mm512_setzero_si512()));
      _mm_storeu_si128(reinterpret_cast<__m128i*>(out[r] + size_t{3} * i),
                       _mm_shuffle_epi8(bytes, drop_fourth));
    }
  }
}

void horizontal(const ResampleAxis& axis, const uint8_t* packed, const uint8_t* const* rows,
                int count, uint8_t* const* out) {
  switch (blocks_of(axis)) {
    case 1:
      return horizontal_blocks<1>(axis, packed, rows, count, out);
    case 2:
      return horizontal_blocks<2>(axis, packed, rows, count, out);
    case 3:
      return horizontal_blocks<3>(axis, packed, rows, count, out);
    default:
      return horizontal_blocks<4>(axis, packed, rows, count, out);
  }
}

// 64 outputs at `at`; digits[k / 4][d] are those of four taps.
AERIE_AVX512 inline __m512i vertical_block(const uint8_t* const* rows,
                                           const int32_t (*digits)[kDigits], int taps, size_t at) {
  __m512i sums[kDigits][4];
  for (auto& of_digit : sums)
    for (auto& sum : of_digit) sum = _mm512_setzero_si512();
  for (int k = 0; k < taps; k += 4) {
    const __m512i a = load(rows[k] + at), b = load(rows[k + 1] + at);
    const __m512i c = load(rows[k + 2] + at), d = load(rows[k + 3] + at);
    const __m512i ab_low = _mm512_unpacklo_epi8(a, b), ab_high = _mm512_unpackhi_epi8(a, b);
    const __m512i cd_low = _mm512_unpacklo_epi8(c, d), cd_high = _mm512_unpackhi_epi8(c, d);
    const __m512i pixels[4] = {
        _mm512_unpacklo_epi16(ab_low, cd_low), _mm512_unpackhi_epi16(ab_low, cd_low),
        _mm512_unpacklo_epi16(ab_high, cd_high), _mm512_unpackhi_epi16(ab_high, cd_high)};
    for (int digit = 0; digit < kDigits; ++digit) {
      const __m512i weight = _mm512_set1_epi32(digits[k / 4][digit]);
      for (int q = 0; q < 4; ++q)
        sums[digit][q] = _mm512_dpbusd_epi32(sums[digit][q], pixels[q], weight);
    }
  }
  const __m512i half = _mm512_set1_epi32(kHalf);
  __m512i value[4];
  for (int q = 0; q < 4; ++q) {
    __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(sums[0][q], 8), sums[1][q]);
    sum = _mm512_add_epi32(_mm512_slli_epi32(sum, 8), sums[2][q]);
    value[q] = _mm512_srai_epi32(_mm512_add_epi32(sum, half), kWeightBits);
  }
  // Unpacking kept to quarters of the registers, packing does too: the order is restored.
  return _mm512_packus_epi16(_mm512_packs_epi32(value[0], value[1]),
                             _mm512_packs_epi32(value[2], value[3]));
}

AERIE_AVX512 void vertical(const uint8_t* const* rows, const int32_t* weight, int taps,
                           size_t bytes, uint8_t* out) {
  int32_t digits[kMaxAvx512Taps / 4][kDigits];
  for (int k = 0; k < taps; k += 4) {
    int8_t of_tap[4][kDigits], together[4];
    for (int t = 0; t < 4; ++t) digits_of(weight[k + t], of_tap[t]);
    for (int d = 0; d < kDigits; ++d) {
      for (int t = 0; t < 4; ++t) together[t] = of_tap[t][d];
      std::memcpy(&digits[k / 4][d], together, 4);
    }
  }
  size_t at = 0;
  for (; at + 64 <= bytes; at += 64)
    _mm512_storeu_si512(out + at, vertical_block(rows, digits, taps, at));
  if (at < bytes) {
    const __mmask64 rest = ~uint64_t{0} >> (64 - (bytes - at));
    _mm512_mask_storeu_epi8(out + at, rest, vertical_block(rows, digits, taps, at));
  }
}

const ResampleKernels kKernels{horizontal, vertical, packed_bytes, pack};

}  // namespace

const ResampleKernels* avx512_kernels() {
  static const bool has =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
  return has ? &kKernels : nullptr;
}

}  // namespace aerie::image

#else

namespace aerie::image {
const ResampleKernels* avx512_kernels() {
  return nullptr;
}
}  // namespace aerie::image

#endif
