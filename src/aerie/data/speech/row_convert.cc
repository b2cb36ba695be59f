#include "aerie/data/speech/row_convert.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace aerie::data {

namespace {

constexpr float kScale = 1.0f / 32768.0f;

#if defined(__x86_64__)

constexpr int64_t kLanes = 16;

// Shorter rows may still be in the cache when they are used.
constexpr int64_t kStreamSamples = 16384;

// Whole groups of 16 samples; returns how many samples were done. kStream: `out` is aligned to 32
// bytes and written past the caches.
template <bool kStream>
__attribute__((target("avx2"))) int64_t convert_groups(const int16_t* in, int64_t n, float* out,
                                                       float* copy, int64_t* energy) {
  const __m256 scale = _mm256_set1_ps(kScale);
  const __m256i low_half = _mm256_set1_epi64x(0xFFFFFFFF);
  __m256i sum = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i));
    // Sums of two squares: at most 2^31, right as unsigned 32-bit numbers.
    const __m256i squares = _mm256_madd_epi16(x, x);
    sum = _mm256_add_epi64(sum, _mm256_and_si256(squares, low_half));
    sum = _mm256_add_epi64(sum, _mm256_srli_epi64(squares, 32));
    const __m256 a =
        _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(x))), scale);
    const __m256 b = _mm256_mul_ps(
        _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(x, 1))), scale);
    if constexpr (kStream) {
      _mm256_stream_ps(out + i, a);
      _mm256_stream_ps(out + i + 8, b);
    } else {
      _mm256_storeu_ps(out + i, a);
      _mm256_storeu_ps(out + i + 8, b);
    }
    if (copy != nullptr) {
      _mm256_storeu_ps(copy + i, a);
      _mm256_storeu_ps(copy + i + 8, b);
    }
  }
  if constexpr (kStream) _mm_sfence();
  alignas(32) int64_t parts[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(parts), sum);
  *energy = parts[0] + parts[1] + parts[2] + parts[3];
  return i;
}

#endif

}  // namespace

int64_t convert_row_reference(const int16_t* in, int64_t n, float* out, float* copy) {
  int64_t energy = 0;
  for (int64_t i = 0; i < n; ++i) {
    const int32_t value = in[i];
    out[i] = static_cast<float>(value) * kScale;
    if (copy != nullptr) copy[i] = out[i];
    energy += static_cast<uint32_t>(value * value);
  }
  return energy;
}

int64_t convert_row(const int16_t* in, int64_t n, float* out, float* copy) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) {
    int64_t energy = 0;
    const bool stream =
        copy != nullptr && n >= kStreamSamples && reinterpret_cast<uintptr_t>(out) % 32 == 0;
    const int64_t done = stream ? convert_groups<true>(in, n, out, copy, &energy)
                                : convert_groups<false>(in, n, out, copy, &energy);
    return energy + convert_row_reference(in + done, n - done, out + done,
                                          copy == nullptr ? nullptr : copy + done);
  }
#endif
  return convert_row_reference(in, n, out, copy);
}

}  // namespace aerie::data
