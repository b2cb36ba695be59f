// Initial weights, drawn per element from a counter-based stream of its own for every parameter
// name: the value of an element depends on (seed, name, position in the tensor) alone. Same
// distributions as NeMo's modules; not the same numbers.
#pragma once

#include <cstdint>

#include "aerie/nn/param_registry.h"

namespace aerie::nn {

// Fills every entry (aliases through their owner) as its Init says. Stream: purpose kWeightInit,
// epoch 0, position = 64-bit FNV-1a of the name, index = element number.
void initialize(ParameterRegistry& registry, uint64_t seed);

// torch's default for Linear and Conv layers: weight and bias U(+-1/sqrt(fan_in)).
Init default_uniform(int64_t fan_in);

}  // namespace aerie::nn
