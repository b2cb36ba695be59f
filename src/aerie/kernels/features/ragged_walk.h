// Work on a ragged batch, shared out among blocks in equal parts: steps of one item behind those of
// the one before it, however many each has, and no block has more than one step more than another.
// Included by CUDA sources alone.
#pragma once

#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {

// Where a block is: at step `at` of an item that has `end`, with `left` steps to go.
struct RaggedWalk {
  int item = 0, at = 0, end = 0, left = 0;
  // Steps of the same item in a row, at most `most`.
  __device__ int ahead(int most) const {
    const int here = end - at < left ? end - at : left;
    return here < most ? here : most;
  }
  // `steps_of(item)`: how many an item has.
  template <typename Steps>
  __device__ void advance(int count, const Steps& steps_of) {
    at += count;
    left -= count;
    while (left > 0 && at >= end) {
      at = 0;
      end = steps_of(++item);
    }
  }
};

// Share `part` of `parts`; whole warps call it.
template <typename Steps>
__device__ inline RaggedWalk share_of(int items, const Steps& steps_of, int part, int parts) {
  const int lane = threadIdx.x % 32;
  int total = 0;
  for (int item = lane; item < items; item += 32) total += steps_of(item);
  total = warp_sum(total);
  const int begin = int(int64_t(total) * part / parts);
  RaggedWalk out;
  out.left = int(int64_t(total) * (part + 1) / parts) - begin;
  int before = 0;  // of the items so far
  for (int first = 0; first < items; first += 32) {
    const int own = first + lane < items ? steps_of(first + lane) : 0;
    int sum = own;
    AERIE_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kFullWarp, sum, step);
      sum += lane >= step ? other : 0;
    }
    const int passed = __popc(__ballot_sync(kFullWarp, before + sum <= begin));
    if (passed < 32) {
      out.item = first + passed;
      out.end = __shfl_sync(kFullWarp, own, passed);
      out.at = begin - before - __shfl_sync(kFullWarp, sum - own, passed);
      break;
    }
    before += __shfl_sync(kFullWarp, sum, 31);
  }
  return out;
}

}  // namespace aerie::kernels::AERIE_BACKEND
