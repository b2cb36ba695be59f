// What the norm of gradients still has to read where sums of squares of some come with them
// (grouped_wgrad.h): everything else, in ranges.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "aerie/kernels/adamw/adamw.h"

namespace aerie::kernels {

// `squared`: where gradients whose squares are known begin, and how many values; none of them
// overlap. All of them lie in the `count` values from `grads` on.
inline std::vector<AdamwRange> adamw_ranges(
    const float* grads, int64_t count,
    const std::vector<std::pair<const float*, size_t>>& squared) {
  std::vector<std::pair<int64_t, int64_t>> known;
  for (const auto& [grad, values] : squared) {
    const int64_t begin = grad - grads;
    known.push_back({begin, begin + static_cast<int64_t>(values)});
  }
  known.push_back({count, count});
  std::sort(known.begin(), known.end());
  std::vector<AdamwRange> out;
  int64_t at = 0;
  for (const auto& [begin, end] : known) {
    for (; at < begin; at += AdamwRange::kMost)
      out.push_back({at, static_cast<int32_t>(std::min<int64_t>(AdamwRange::kMost, begin - at))});
    at = end;
  }
  return out;
}

}  // namespace aerie::kernels
