// Helpers of the reference implementations: element access by dtype, dropout factors one by one.
#pragma once

#include <cmath>

#include "aerie/kernels/types.h"

namespace aerie::kernels::reference {

inline double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

inline float load(const void* values, Dtype dtype, size_t i) {
  switch (dtype) {
    case Dtype::kF32:
      return static_cast<const float*>(values)[i];
    case Dtype::kBF16:
      return to_float(static_cast<const Bf16*>(values)[i]);
    case Dtype::kF16:
      return to_float(static_cast<const Half*>(values)[i]);
    default:
      return 0.0f;
  }
}

inline void store(void* values, Dtype dtype, size_t i, float value) {
  switch (dtype) {
    case Dtype::kF32:
      static_cast<float*>(values)[i] = value;
      break;
    case Dtype::kBF16:
      static_cast<Bf16*>(values)[i] = from_float<Bf16>(value);
      break;
    case Dtype::kF16:
      static_cast<Half*>(values)[i] = from_float<Half>(value);
      break;
    default:
      break;
  }
}

// The factor, 0 or 1/(1-p), of one value.
inline float dropout_factor(const Dropout& dropout, size_t item, size_t index) {
  if (dropout.threshold == 0) return 1.0f;
  const uint32_t draw = dropout_draw(dropout.state->dropout_key, dropout.site,
                                     item_position(*dropout.state, item), index);
  return draw >= dropout.threshold ? dropout.scale : 0.0f;
}

// Item and frame of a row.
struct Place {
  size_t item, frame;
};
template <typename Args>
Place place_of(const Args& a, size_t row) {
  const RowPosition place = kernels::position_of(a.layout, static_cast<int>(row), a.frames);
  return {static_cast<size_t>(place.item), static_cast<size_t>(place.frame)};
}

// Sets one of the bits that say which values dropout kept.
inline void set_keep(uint8_t* keep, size_t i, bool kept) {
  const uint8_t bit = static_cast<uint8_t>(1u << (i % 8));
  keep[i / 8] = static_cast<uint8_t>(kept ? keep[i / 8] | bit : keep[i / 8] & ~bit);
}

inline void put(float* out, double value, bool accumulate) {
  *out = static_cast<float>(accumulate ? static_cast<double>(*out) + value : value);
}

}  // namespace aerie::kernels::reference
