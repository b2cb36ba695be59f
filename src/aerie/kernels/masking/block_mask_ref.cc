#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "aerie/kernels/masking/block_mask.h"
#include "aerie/kernels/reference.h"

namespace aerie::kernels::reference {
namespace {

// Hidden frames of one item.
std::vector<bool> hidden_frames(const BlockMask& a, int length, uint64_t position) {
  std::vector<bool> mask(static_cast<size_t>(a.frames));
  const auto hide = [&](int begin, int end) {
    for (int t = begin; t < std::min(end, a.frames); ++t) mask[static_cast<size_t>(t)] = true;
  };
  const PhiloxKey key = a.state->mask_key;
  if (a.rules_of_2_6 && a.block >= length * a.max_mask_ratio) {
    hide(0, a.allow_overlap ? std::min(8, length) : 8);
    return mask;
  }
  if (length <= 0) return mask;
  if (a.allow_overlap) {
    const uint64_t threshold = static_cast<uint64_t>(std::llround(a.probability * 4294967296.0));
    const int starts = length - a.block + (a.rules_of_2_6 ? 0 : 1);
    for (int first = 0; first < starts; first += 4) {
      const PhiloxBlock draws = philox_block(key, 0, position, static_cast<uint32_t>(first) / 4);
      for (int t = first; t < std::min(first + 4, starts); ++t)
        if (draws.v[t - first] < threshold) hide(t, std::min(t + a.block, length));
    }
    return mask;
  }
  int patches =
      static_cast<int>(std::ceil(static_cast<float>(length) * static_cast<float>(a.probability) /
                                 static_cast<float>(a.block)));
  const int block =
      (patches + 1) * a.block > length ? std::max(1, length / (patches + 1)) : a.block;
  const int slots = std::max(0, length / block - 1);
  patches = std::min(patches, slots);
  std::vector<std::pair<uint32_t, int>> order;
  for (int s = 0; s < slots; ++s)
    order.emplace_back(philox_u32(key, 1, position, static_cast<uint64_t>(s)), s);
  std::sort(order.begin(), order.end());
  const uint64_t range = static_cast<uint64_t>(a.rules_of_2_6 ? a.block : block);
  const int offset = static_cast<int>((philox_u32(key, 2, position, 0) * range) >> 32);
  for (int i = 0; i < patches; ++i) {
    const int begin = order[static_cast<size_t>(i)].second * block + offset;
    hide(begin, begin + block);
  }
  return mask;
}

}  // namespace

int block_mask(const BlockMask& a, void*) {
  const size_t frames = static_cast<size_t>(a.frames), combine = static_cast<size_t>(a.combine);
  for (size_t b = 0; b < static_cast<size_t>(a.batch); ++b) {
    const std::vector<bool> mask = hidden_frames(a, a.lengths[b], item_position(*a.state, b));
    for (size_t t = 0; t < frames; ++t) a.mask[b * frames + t] = mask[t] ? 1 : 0;
    for (size_t t = 0; t < frames / combine; ++t) {
      int hidden = 0;
      for (size_t k = 0; k < combine; ++k) hidden += mask[t * combine + k] ? 1 : 0;
      a.selected[b * (frames / combine) + t] =
          static_cast<float>(hidden) / static_cast<float>(a.combine) > a.loss_threshold ? 1 : 0;
    }
  }
  return kOk;
}

int select_rows(const SelectRows& a, void*) {
  int count = 0;
  for (int row = 0; row < a.batch * a.frames; ++row) {
    const int item = row / a.frames, token = row % a.frames;
    const bool there = token < rows_of(a.layout, item, a.frames);
    const int at = there ? first_row(a.layout, item, a.frames) + token : -1;
    if (there) a.slots[at] = -1;
    if (a.selected[row] == 0) continue;
    if (count < a.capacity) {
      a.rows[count] = row;
      a.packed_rows[count] = at;
      if (there) a.slots[at] = count;
    }
    ++count;
  }
  for (int i = count; i < a.capacity; ++i) a.rows[i] = a.packed_rows[i] = -1;
  *a.count = count;
  return kOk;
}

int gather_rows(const GatherRows& a, void*) {
  const size_t channels = static_cast<size_t>(a.channels);
  for (size_t i = 0; i < static_cast<size_t>(a.count); ++i)
    for (size_t c = 0; c < channels; ++c)
      store(
          a.out, a.dtype, i * channels + c,
          a.rows[i] < 0 ? 0.0f : load(a.x, a.dtype, static_cast<size_t>(a.rows[i]) * channels + c));
  return kOk;
}

}  // namespace aerie::kernels::reference
