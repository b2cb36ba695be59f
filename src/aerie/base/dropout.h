// What decides whether dropout keeps a value: one definition for every path that draws.
//
// A decision is a 16-bit draw of a Philox stream (philox.h): one block decides eight neighbouring
// values, word (index / 2) % 4 of block index / 8, lower half first. A value is kept where its draw
// reaches the threshold round(p * 2^16), halves away from zero, and is then multiplied by 1/(1-p).
// Probabilities are therefore multiples of 2^-16 = 1.5e-5 and the mean of the factors is 1 to
// within 0.8e-5/(1-p); p = 0 and p = 1 are exact, and no other p becomes one of them: below 2^-16
// it counts as 2^-16, above 1 - 2^-16 as that.
#pragma once

#include "aerie/base/philox.h"

namespace aerie {

// Draw number `index` of the stream (epoch, position), below 2^16; index below 2^35.
AERIE_HD uint32_t dropout_draw(PhiloxKey key, uint32_t epoch, uint64_t position, uint64_t index) {
  const PhiloxBlock block = philox_block(key, epoch, position, static_cast<uint32_t>(index >> 3));
  return block.v[index >> 1 & 3] >> (index & 1) * 16 & 0xffffu;
}

// 0 to 2^16; a value is kept where dropout_draw() >= dropout_threshold(p).
inline uint32_t dropout_threshold(double p) {
  if (p <= 0.0) return 0;
  if (p >= 1.0) return 65536;
  const long rounded = std::lround(p * 65536.0);
  return static_cast<uint32_t>(rounded < 1 ? 1 : rounded > 65535 ? 65535 : rounded);
}

// The factor of what is kept; 0 where nothing is.
inline float dropout_scale(double p) {
  return p < 1.0 ? static_cast<float>(1.0 / (1.0 - p)) : 0.0f;
}

}  // namespace aerie
