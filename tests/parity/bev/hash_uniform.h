// Weights and inputs that any language can make again: float32 in [-1, 1) from a name and a seed.
//   h = FNV-1a-64(name); z = seed*0xD1342543DE82EF95 + h + (i+1)*0x9E3779B97F4A7C15 (mod 2^64)
//   z ^= z>>30; z *= 0xBF58476D1CE4E5B9; z ^= z>>27; z *= 0x94D049BB133111EB; z ^= z>>31
//   value = (z>>40) * 2^-23 - 1
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace aerie::bev::parity {

std::vector<float> hash_uniform(std::string_view name, int64_t count, uint64_t seed);

}  // namespace aerie::bev::parity
