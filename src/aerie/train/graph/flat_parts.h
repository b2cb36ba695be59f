// The flat weights and gradients of a model, cut into parts in the order in which the forward pass
// needs them. The backward pass completes them in the opposite order.
//
// Parts consist of whole chunks (kernels/adamw/adamw.h). A chunk with parameters of several parts
// belongs to the first of them: it is needed with that one, and complete behind it.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "aerie/nn/param_registry.h"

namespace aerie::train {

// Neighbouring elements of the flat buffers.
struct FlatRange {
  int64_t begin = 0;
  int64_t count = 0;
};

// Behind others in order of memory; neighbours are one range.
void append_range(std::vector<FlatRange>& ranges, const FlatRange& next);

struct FlatParts {
  int64_t count = 0;              // elements of the flat buffers
  std::vector<int32_t> chunks;    // by part
  std::vector<int32_t> begins;    // of the parts in chunks, and the end
  std::vector<int> of_trainable;  // part of every trainable parameter, in the registry's order

  int size() const { return static_cast<int>(begins.size()) - 1; }
  // What a part owns, in order of memory; neighbours are one range.
  std::vector<FlatRange> ranges(int part) const;
};

FlatParts make_flat_parts(const nn::ParameterRegistry& registry, int parts,
                          const std::function<int(const nn::ParamInfo& info)>& part_of);

}  // namespace aerie::train
