// Counter-based random numbers (Philox 4x32, 10 rounds), the same on CPU and GPU.
//
// Every random decision of a run is a pure function of (seed, purpose, epoch, position, index): no
// draw depends on the rank, the thread or on how many draws came before it elsewhere. That is what
// makes results independent of the number of loader threads and a resumed run equal to an
// uninterrupted one.
//
//   seed      aerie.seed
//   purpose   which decision this is (Purpose below); streams of different purposes are independent
//   epoch     32 bits, for example the data epoch
//   position  64 bits, for example the global sample index or the optimizer step
//   index     number of the 32-bit draw inside this stream, up to 2^34
//
// Header-only and free of the standard library where the device compiler reads it: the functions
// marked AERIE_HD compile under nvcc as well. Integers agree bitwise between CPU and GPU; normals
// agree to 1e-6 (they are computed in double and rounded once).
#pragma once

#include <cmath>
#include <cstdint>

#ifdef __CUDACC__
#define AERIE_HD __host__ __device__ __forceinline__
#else
#define AERIE_HD inline
#endif

namespace aerie {

// Numbers are part of the reproducibility contract: append, never renumber.
enum class Purpose : uint32_t {
  kTest = 0,
  kWeightInit = 1,
  kShuffle = 2,   // order of samples
  kSampling = 3,  // which data set or bucket comes next
  kAugment = 4,   // batch augmentors (speaker and noise mixing)
  kPerturb = 5,   // per-utterance perturbations
  kNoise = 6,     // which noise and where
  kMask = 7,      // block masking
  kDither = 8,    // preprocessor dither
  kDropout = 9,   // all dropout sites; the site number goes into the index space
  kStochasticDepth = 10,
  kContext = 11,     // attention context choice
  kSynth = 12,       // synthetic corpus
  kNarrowBand = 13,  // nb_augmentation
  kValidation = 14,  // added to the seed of validation streams
  kProbe = 15,
  kImageAugment = 16,  // resize, crop, flip and rotation of a camera's picture
  kBevAugment = 17,    // rotation, scale, shift and flips of the bird's-eye view
  kResample = 18,      // class-balanced repetition of samples
};

struct PhiloxBlock {
  uint32_t v[4];
};

struct PhiloxKey {
  uint32_t k0;
  uint32_t k1;
};

// One round on the counter c.
AERIE_HD void philox_round(PhiloxBlock& c, PhiloxKey key) {
  // Both halves of one product: compilers make two multiplications of separate expressions.
  const uint64_t product0 = static_cast<uint64_t>(0xD2511F53u) * c.v[0];
  const uint64_t product1 = static_cast<uint64_t>(0xCD9E8D57u) * c.v[2];
  c = PhiloxBlock{
      {static_cast<uint32_t>(product1 >> 32) ^ c.v[1] ^ key.k0, static_cast<uint32_t>(product1),
       static_cast<uint32_t>(product0 >> 32) ^ c.v[3] ^ key.k1, static_cast<uint32_t>(product0)}};
}
AERIE_HD PhiloxKey philox_next_key(PhiloxKey key) {
  return PhiloxKey{key.k0 + 0x9E3779B9u, key.k1 + 0xBB67AE85u};
}
constexpr int kPhiloxRounds = 10;

// One Philox4x32-10 block.
AERIE_HD PhiloxBlock philox4x32(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, PhiloxKey key) {
  PhiloxBlock c{{c0, c1, c2, c3}};
  for (int round = 0; round < kPhiloxRounds; ++round) {
    philox_round(c, key);
    key = philox_next_key(key);
  }
  return c;
}

// The 64-bit finaliser of SplitMix64: a bijection that spreads nearby seeds over the whole key
// space.
AERIE_HD uint64_t mix64(uint64_t x) {
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

AERIE_HD PhiloxKey philox_key(uint64_t seed, Purpose purpose) {
  const uint64_t mixed = mix64(mix64(seed) ^ (static_cast<uint64_t>(purpose) << 32));
  return PhiloxKey{static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
}

// Block `block` (4 draws) of the stream (epoch, position).
AERIE_HD PhiloxBlock philox_block(PhiloxKey key, uint32_t epoch, uint64_t position,
                                  uint32_t block) {
  return philox4x32(block, epoch, static_cast<uint32_t>(position),
                    static_cast<uint32_t>(position >> 32), key);
}

// Draw number `index` of the stream (epoch, position).
AERIE_HD uint32_t philox_u32(PhiloxKey key, uint32_t epoch, uint64_t position, uint64_t index) {
  return philox_block(key, epoch, position, static_cast<uint32_t>(index >> 2)).v[index & 3];
}

// [0, 1) with 24 bits, exact in float.
AERIE_HD float u32_to_unit_float(uint32_t u) {
  return static_cast<float>(u >> 8) * 5.9604644775390625e-8f;
}

// [0, 1) with 53 bits from two draws.
AERIE_HD double u32x2_to_unit_double(uint32_t hi, uint32_t lo) {
  const uint64_t bits = (static_cast<uint64_t>(hi) << 21) ^ (static_cast<uint64_t>(lo) >> 11);
  return static_cast<double>(bits & ((1ull << 53) - 1)) * 1.1102230246251565e-16;
}

// Two standard normals from two draws (Box-Muller, in double).
AERIE_HD void u32x2_to_normals(uint32_t a, uint32_t b, float* first, float* second) {
  const double u = (static_cast<double>(a) + 1.0) * 2.3283064365386963e-10;  // (0, 1]
  const double angle = static_cast<double>(b) * 1.4629180792671596e-09;      // 2 pi / 2^32
  const double radius = sqrt(-2.0 * log(u));
  *first = static_cast<float>(radius * cos(angle));
  *second = static_cast<float>(radius * sin(angle));
}

// Normal number `index` of the stream: block index/4 gives four normals from its four draws.
AERIE_HD float philox_normal(PhiloxKey key, uint32_t epoch, uint64_t position, uint64_t index) {
  const PhiloxBlock block = philox_block(key, epoch, position, static_cast<uint32_t>(index >> 2));
  const uint32_t pair = static_cast<uint32_t>(index & 2);
  float first, second;
  u32x2_to_normals(block.v[pair], block.v[pair + 1], &first, &second);
  return (index & 1) ? second : first;
}

// A sequential reader of one stream, for host code that makes several decisions in a row.
class RandomStream {
 public:
  RandomStream(uint64_t seed, Purpose purpose, uint32_t epoch, uint64_t position)
      : key_(philox_key(seed, purpose)), epoch_(epoch), position_(position) {}

  uint32_t next_u32() {
    if ((index_ & 3) == 0)
      block_ = philox_block(key_, epoch_, position_, static_cast<uint32_t>(index_ >> 2));
    return block_.v[index_++ & 3];
  }
  uint64_t next_u64() {
    const uint64_t hi = next_u32();
    return (hi << 32) | next_u32();
  }
  // [0, 1)
  double uniform() {
    const uint32_t hi = next_u32();
    return u32x2_to_unit_double(hi, next_u32());
  }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  // Uniform integer in [0, n), n >= 1, without bias (multiply-shift with rejection).
  uint64_t below(uint64_t n) {
    const uint64_t threshold = (0 - n) % n;
    while (true) {
      const unsigned __int128 product = static_cast<unsigned __int128>(next_u64()) * n;
      if (static_cast<uint64_t>(product) >= threshold) return static_cast<uint64_t>(product >> 64);
    }
  }
  // Uniform integer in [low, high], both inclusive, as Python's random.randint.
  int64_t randint(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
  }
  // Standard normal; draws two at a time.
  float normal() {
    if (has_spare_) {
      has_spare_ = false;
      return spare_;
    }
    const uint32_t a = next_u32();
    float first;
    u32x2_to_normals(a, next_u32(), &first, &spare_);
    has_spare_ = true;
    return first;
  }

 private:
  PhiloxKey key_;
  uint32_t epoch_;
  uint64_t position_;
  uint64_t index_ = 0;
  PhiloxBlock block_{};
  float spare_ = 0.0f;
  bool has_spare_ = false;
};

}  // namespace aerie
