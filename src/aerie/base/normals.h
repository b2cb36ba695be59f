// Two standard normals from two draws by additions, multiplications, divisions and square roots in
// double precision alone. These round the same everywhere, so that normals made by the host's
// vector units (philox_fill.h) and on a GPU (kernels/draws) are the same to the bit. What includes
// this is compiled without fused multiply-add (-ffp-contract=off, --fmad=false).
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "aerie/base/philox.h"

namespace aerie {

// Natural logarithm of a normal number in (0, 1]: the exponent, and 2 atanh(s) of the mantissa in
// [sqrt(1/2), sqrt(2)). Error below 1e-15 relative to 1.
AERIE_HD double log_of(double u) {
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdull;
  constexpr uint64_t kOne = 0x3ff0000000000000ull;
  const uint64_t bits = std::bit_cast<uint64_t>(u);
  const uint64_t biased = (bits + (kOne - kSqrtHalf)) >> 52;  // exponent + 1023
  const double mantissa = std::bit_cast<double>(bits - (biased << 52) + kOne);
  // An integer below 2^52 becomes a double by writing it into the mantissa of 2^52.
  const double exponent =
      std::bit_cast<double>(biased | 0x4330000000000000ull) - (4503599627370496.0 + 1023.0);
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double z = s * s;
  double series = 1.0 / 21;
  series = series * z + 1.0 / 19;
  series = series * z + 1.0 / 17;
  series = series * z + 1.0 / 15;
  series = series * z + 1.0 / 13;
  series = series * z + 1.0 / 11;
  series = series * z + 1.0 / 9;
  series = series * z + 1.0 / 7;
  series = series * z + 1.0 / 5;
  series = series * z + 1.0 / 3;
  return exponent * 0.6931471805599453 + 2.0 * s * (1.0 + z * series);
}

// Sine and cosine of an angle in [-pi/4, pi/4]: Taylor series, error below 1e-15.
AERIE_HD double sine_of(double x) {
  const double z = x * x;
  double series = 1.0 / 6227020800.0;
  series = series * z - 1.0 / 39916800.0;
  series = series * z + 1.0 / 362880.0;
  series = series * z - 1.0 / 5040.0;
  series = series * z + 1.0 / 120.0;
  series = series * z - 1.0 / 6.0;
  return x + x * z * series;
}

AERIE_HD double cosine_of(double x) {
  const double z = x * x;
  double series = 1.0 / 20922789888000.0;
  series = series * z - 1.0 / 87178291200.0;
  series = series * z + 1.0 / 479001600.0;
  series = series * z - 1.0 / 3628800.0;
  series = series * z + 1.0 / 40320.0;
  series = series * z - 1.0 / 720.0;
  series = series * z + 1.0 / 24.0;
  series = series * z - 0.5;
  return 1.0 + z * series;
}

// Box-Muller as u32x2_to_normals(), to the last bit or two of a float.
AERIE_HD void normals_of_draws(uint32_t a, uint32_t b, float* first, float* second) {
  const double radius =
      sqrt(-2.0 * log_of((static_cast<double>(a) + 1.0) * 2.3283064365386963e-10));
  // The angle is 2 pi b / 2^32: its quarter turn is exact in the integer.
  const uint32_t quarter = (b + (1u << 29)) >> 30;
  const double x =
      static_cast<double>(static_cast<int32_t>(b - (quarter << 30))) * 1.4629180792671596e-09;
  double cosine = cosine_of(x), sine = sine_of(x);
  if ((quarter & 1u) != 0) {
    const double swapped = cosine;
    cosine = sine;
    sine = swapped;
  }
  *first = static_cast<float>(radius * (((quarter + 1) & 2u) != 0 ? -cosine : cosine));
  *second = static_cast<float>(radius * ((quarter & 2u) != 0 ? -sine : sine));
}

}  // namespace aerie
