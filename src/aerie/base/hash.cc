#include "aerie/base/hash.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include <xxhash.h>
#include <zlib.h>

#include "aerie/base/check.h"

namespace aerie {

uint64_t xxhash64(std::string_view bytes, uint64_t seed) {
  return XXH64(bytes.data(), bytes.size(), seed);
}

struct XxHash64::State {
  XXH64_state_t* state = XXH64_createState();
  ~State() { XXH64_freeState(state); }
};

XxHash64::XxHash64(uint64_t seed) : state_(std::make_unique<State>()) {
  AERIE_CHECK(state_->state != nullptr, "out of memory");
  XXH64_reset(state_->state, seed);
}
XxHash64::~XxHash64() = default;
XxHash64::XxHash64(XxHash64&&) noexcept = default;
XxHash64& XxHash64::operator=(XxHash64&&) noexcept = default;

void XxHash64::update(std::string_view bytes) {
  if (!bytes.empty()) XXH64_update(state_->state, bytes.data(), bytes.size());
}

uint64_t XxHash64::digest() const {
  return XXH64_digest(state_->state);
}

uint32_t crc32(std::string_view bytes, uint32_t previous) {
  uLong value = previous;
  // zlib counts in 32 bits.
  while (!bytes.empty()) {
    const size_t count = std::min<size_t>(bytes.size(), std::numeric_limits<uInt>::max());
    value = ::crc32(value, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(count));
    bytes.remove_prefix(count);
  }
  return static_cast<uint32_t>(value);
}

namespace {

// FIPS 180-4: the first 32 bits of the fractional parts of the cube roots of the first 64 primes.
constexpr uint32_t kSha256[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

}  // namespace

Sha256::Sha256()
    : state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
             0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {}

void Sha256::compress(const uint8_t* block) {
  uint32_t w[64];
  for (int i = 0; i < 16; ++i)
    w[i] = static_cast<uint32_t>(block[4 * i]) << 24 |
           static_cast<uint32_t>(block[4 * i + 1]) << 16 |
           static_cast<uint32_t>(block[4 * i + 2]) << 8 | block[4 * i + 3];
  for (int i = 16; i < 64; ++i) {
    const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
  auto [a, b, c, d, e, f, g, h] = state_;
  for (int i = 0; i < 64; ++i) {
    const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
    const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kSha256[i] + w[i];
    const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
    const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
    h = g;
    g = f;
    f = e;
    e = d + t1;
    d = c;
    c = b;
    b = a;
    a = t1 + t2;
  }
  const uint32_t added[8] = {a, b, c, d, e, f, g, h};
  for (size_t i = 0; i < 8; ++i) state_[i] += added[i];
}

void Sha256::update(std::string_view bytes) {
  size_t held = num_bytes_ % 64;
  num_bytes_ += bytes.size();
  while (!bytes.empty()) {
    if (held == 0 && bytes.size() >= 64) {
      compress(reinterpret_cast<const uint8_t*>(bytes.data()));
      bytes.remove_prefix(64);
      continue;
    }
    const size_t count = std::min(bytes.size(), 64 - held);
    std::memcpy(buffer_.data() + held, bytes.data(), count);
    bytes.remove_prefix(count);
    held = (held + count) % 64;
    if (held == 0) compress(buffer_.data());
  }
}

std::array<uint8_t, 32> Sha256::digest() const {
  Sha256 last = *this;
  const uint64_t num_bits = num_bytes_ * 8;
  std::string padding(1, '\x80');
  padding.append((119 - num_bytes_ % 64) % 64, '\0');
  for (int shift = 56; shift >= 0; shift -= 8)
    padding.push_back(static_cast<char>(num_bits >> shift & 0xff));
  last.update(padding);
  std::array<uint8_t, 32> out;
  for (size_t i = 0; i < 32; ++i)
    out[i] = static_cast<uint8_t>(last.state_[i / 4] >> (24 - 8 * (i % 4)) & 0xff);
  return out;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  const auto digest = hash.digest();
  return hex(digest.data(), digest.size());
}

std::string hex64(uint64_t value) {
  uint8_t bytes[8];
  for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(value >> (56 - 8 * i) & 0xff);
  return hex(bytes, 8);
}

std::string hex(const uint8_t* bytes, size_t size) {
  static const char digits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * size);
  for (size_t i = 0; i < size; ++i) {
    out.push_back(digits[bytes[i] >> 4]);
    out.push_back(digits[bytes[i] & 15]);
  }
  return out;
}

}  // namespace aerie
