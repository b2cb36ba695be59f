#include "hash_uniform.h"

#include <cstdint>
#include <vector>

namespace aerie::bev::parity {

std::vector<float> hash_uniform(std::string_view name, int64_t count, uint64_t seed) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ull;
  const uint64_t base = seed * 0xD1342543DE82EF95ull + hash;
  std::vector<float> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) {
    uint64_t z = base + (i + 1) * 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    out[i] = static_cast<float>(z >> 40) * 0x1p-23f - 1.0f;
  }
  return out;
}

}  // namespace aerie::bev::parity
