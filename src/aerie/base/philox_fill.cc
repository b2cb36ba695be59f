#include "aerie/base/philox_fill.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "aerie/base/check.h"
#include "aerie/base/normals.h"
#include "aerie/base/simd.h"

namespace aerie {
namespace {

constexpr int kLanes = 16;          // blocks made together
constexpr int kGroup = 4 * kLanes;  // draws made together

// kLanes blocks, number `block` and following, as 4 * kLanes consecutive draws. The counters of a
// group do not depend on each other, so every line below is one or two vector instructions.
AERIE_SIMD_CLONES void draw_group(PhiloxKey key, uint32_t epoch, uint64_t position, uint32_t block,
                                  uint32_t* out) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    c0[l] = block + static_cast<uint32_t>(l);
    c1[l] = epoch;
    c2[l] = static_cast<uint32_t>(position);
    c3[l] = static_cast<uint32_t>(position >> 32);
  }
  uint32_t k0 = key.k0, k1 = key.k1;
  for (int round = 0; round < 10; ++round) {
    for (int l = 0; l < kLanes; ++l) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[l];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2[l];
      c0[l] = static_cast<uint32_t>(p1 >> 32) ^ c1[l] ^ k0;
      c1[l] = static_cast<uint32_t>(p1);
      c2[l] = static_cast<uint32_t>(p0 >> 32) ^ c3[l] ^ k1;
      c3[l] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int l = 0; l < kLanes; ++l) {
    out[4 * l] = c0[l];
    out[4 * l + 1] = c1[l];
    out[4 * l + 2] = c2[l];
    out[4 * l + 3] = c3[l];
  }
}

// Two decisions per draw (dropout.h).
AERIE_SIMD_CLONES void keep_group(const uint32_t* draws, uint32_t threshold, float scale,
                                  float* out) {
  for (int k = 0; k < kGroup; ++k) {
    out[2 * k] = (draws[k] & 0xffffu) >= threshold ? scale : 0.0f;
    out[2 * k + 1] = draws[k] >> 16 >= threshold ? scale : 0.0f;
  }
}

// normals_of_draws() for kGroup draws, in loops that become vector instructions.
AERIE_SIMD_CLONES void normal_group(const uint32_t* draws, float* out) {
  constexpr int kPairs = kGroup / 2;
  double radius[kPairs], first[kPairs], second[kPairs];
  uint32_t quarter[kPairs];
  for (int k = 0; k < kPairs; ++k) {
    const double a =
        std::bit_cast<double>(uint64_t{draws[2 * k]} | 0x4330000000000000ull) - 4503599627370496.0;
    radius[k] = std::sqrt(-2.0 * log_of((a + 1.0) * 2.3283064365386963e-10));
  }
  for (int k = 0; k < kPairs; ++k) {
    // The angle is 2 pi b / 2^32: its quarter turn is exact in the integer.
    const uint32_t b = draws[2 * k + 1];
    quarter[k] = (b + (1u << 29)) >> 30;
    const double x =
        static_cast<double>(static_cast<int32_t>(b - (quarter[k] << 30))) * 1.4629180792671596e-09;
    first[k] = cosine_of(x);
    second[k] = sine_of(x);
  }
  for (int k = 0; k < kPairs; ++k) {
    const bool swap = (quarter[k] & 1u) != 0;
    double cosine = swap ? second[k] : first[k];
    double sine = swap ? first[k] : second[k];
    cosine = ((quarter[k] + 1) & 2u) != 0 ? -cosine : cosine;
    sine = (quarter[k] & 2u) != 0 ? -sine : sine;
    out[2 * k] = static_cast<float>(radius[k] * cosine);
    out[2 * k + 1] = static_cast<float>(radius[k] * sine);
  }
}

// Calls use(offset of the group in the output, draws, first wanted, count wanted) for every group
// that overlaps [first_index, first_index + count). A draw holds kValues of what is counted.
template <int kValues = 1, typename Use>
void for_groups(PhiloxKey key, uint32_t epoch, uint64_t position, uint64_t first_index,
                int64_t count, const Use& use) {
  alignas(64) uint32_t draws[kGroup];
  int64_t done = 0;
  while (done < count) {
    const uint64_t index = first_index + static_cast<uint64_t>(done);
    constexpr int kBlock = 4 * kValues;
    const int skip = static_cast<int>(index % kBlock);
    draw_group(key, epoch, position, static_cast<uint32_t>(index / kBlock), draws);
    const int64_t take = std::min<int64_t>(kGroup * kValues - skip, count - done);
    use(done, draws, skip, take);
    done += take;
  }
}

}  // namespace

void philox_fill_u32(PhiloxKey key, uint32_t epoch, uint64_t position, uint64_t first_index,
                     int64_t count, uint32_t* out) {
  for_groups(key, epoch, position, first_index, count,
             [&](int64_t at, const uint32_t* draws, int skip, int64_t take) {
               std::copy_n(draws + skip, take, out + at);
             });
}

void philox_fill_keep(PhiloxKey key, uint32_t epoch, uint64_t position, uint64_t first_index,
                      int64_t count, uint32_t threshold, float scale, float* out) {
  constexpr int kDecisions = 2 * kGroup;
  alignas(64) float factors[kDecisions];
  for_groups<2>(key, epoch, position, first_index, count,
                [&](int64_t at, const uint32_t* draws, int skip, int64_t take) {
                  if (take == kDecisions) {
                    keep_group(draws, threshold, scale, out + at);
                  } else {
                    keep_group(draws, threshold, scale, factors);
                    std::copy_n(factors + skip, take, out + at);
                  }
                });
}

void philox_fill_normals(PhiloxKey key, uint32_t epoch, uint64_t position, uint64_t first_index,
                         int64_t count, float* out) {
  AERIE_CHECK((first_index & 3) == 0, "first_index ", first_index);
  alignas(64) float normals[kGroup];
  for_groups(key, epoch, position, first_index, count,
             [&](int64_t at, const uint32_t* draws, int, int64_t take) {
               normal_group(draws, normals);
               std::copy_n(normals, take, out + at);
             });
}

}  // namespace aerie
