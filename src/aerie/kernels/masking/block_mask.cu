// One block per item; the masks are small. The list of rows is made by one block, which scans with
// votes.
#include "aerie/kernels/device.h"
#include "aerie/kernels/masking/block_mask.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr uint32_t kStartEpoch = 0, kSlotEpoch = 1, kOffsetEpoch = 2;

// Frames hidden by overlapping blocks: `flags` holds the starts.
__device__ void mask_by_starts(const BlockMask& a, int length, uint64_t position, uint8_t* flags,
                               uint8_t* mask) {
  const uint64_t threshold = uint64_t(llround(a.probability * 4294967296.0));
  const int starts = length - a.block + (a.rules_of_2_6 ? 0 : 1);
  for (int group = threadIdx.x; group * 4 < a.frames; group += kThreads) {
    const PhiloxBlock draws =
        philox_block(a.state->mask_key, kStartEpoch, position, uint32_t(group));
    for (int k = 0; k < 4 && group * 4 + k < a.frames; ++k)
      flags[group * 4 + k] = group * 4 + k < starts && draws.v[k] < threshold;
  }
  __syncthreads();
  for (int t = threadIdx.x; t < a.frames; t += kThreads) {
    uint8_t hidden = 0;
    if (t < length)
      for (int s = t; s >= 0 && s > t - a.block; --s) hidden |= flags[s];
    mask[t] = hidden;
  }
}

// Blocks that do not overlap: of the slots, those with the smallest draws.
__device__ void mask_by_slots(const BlockMask& a, int length, uint64_t position, uint8_t* mask) {
  int patches = int(ceilf(float(length) * float(a.probability) / float(a.block)));
  int block = a.block;
  if (int64_t(patches + 1) * block > length) {
    block = length / (patches + 1);
    block = block > 1 ? block : 1;
  }
  const int slots = length / block - 1 > 0 ? length / block - 1 : 0;
  patches = patches < slots ? patches : slots;
  const uint64_t range = uint64_t(a.rules_of_2_6 ? a.block : block);
  const int offset = int((philox_u32(a.state->mask_key, kOffsetEpoch, position, 0) * range) >> 32);
  for (int t = threadIdx.x; t < a.frames; t += kThreads) mask[t] = 0;
  __syncthreads();
  for (int s = threadIdx.x; s < slots; s += kThreads) {
    const uint32_t draw = philox_u32(a.state->mask_key, kSlotEpoch, position, uint64_t(s));
    int rank = 0;
    for (int other = 0; other < slots; ++other) {
      const uint32_t value = philox_u32(a.state->mask_key, kSlotEpoch, position, uint64_t(other));
      rank += value < draw || (value == draw && other < s) ? 1 : 0;
    }
    if (rank >= patches) continue;
    for (int t = s * block + offset; t < (s + 1) * block + offset && t < a.frames; ++t) mask[t] = 1;
  }
}

__global__ void __launch_bounds__(kThreads) block_mask_kernel(BlockMask a) {
  AERIE_DYNAMIC_SHARED(memory);
  uint8_t* flags = memory;
  uint8_t* mask = memory + a.frames;
  const int item = blockIdx.x;
  const int length = a.lengths[item];
  const uint64_t position = item_position(*a.state, uint64_t(item));
  if (a.rules_of_2_6 && double(a.block) >= double(length) * a.max_mask_ratio) {
    const int until = a.allow_overlap && length < 8 ? length : 8;
    for (int t = threadIdx.x; t < a.frames; t += kThreads) mask[t] = t < until;
  } else if (length <= 0) {
    for (int t = threadIdx.x; t < a.frames; t += kThreads) mask[t] = 0;
  } else if (a.allow_overlap) {
    mask_by_starts(a, length, position, flags, mask);
  } else {
    mask_by_slots(a, length, position, mask);
  }
  __syncthreads();
  for (int t = threadIdx.x; t < a.frames; t += kThreads)
    a.mask[size_t(item) * a.frames + t] = mask[t];
  const int tokens = a.frames / a.combine;
  for (int t = threadIdx.x; t < tokens; t += kThreads) {
    int hidden = 0;
    for (int k = 0; k < a.combine; ++k) hidden += mask[t * a.combine + k];
    a.selected[size_t(item) * tokens + t] = float(hidden) / float(a.combine) > a.loss_threshold;
  }
}

constexpr int kScanThreads = 1024;

// Every warp has its own segment of rows: it counts, learns how many come before it, and writes.
__global__ void __launch_bounds__(kScanThreads) select_kernel(SelectRows a) {
  constexpr int kWarps = kScanThreads / 32;
  AERIE_SHARED(int, counts, kWarps);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int rows_in = a.batch * a.frames;
  const int segment = (rows_in + kScanThreads - 1) / kScanThreads * 32;
  const int begin = warp * segment;
  const int end = begin + segment < rows_in ? begin + segment : rows_in;
  const auto votes_of = [&](int first) {
    const int row = first + lane;
    return __ballot_sync(kFullWarp, row < end && a.selected[row] != 0);
  };
  int count = 0;
  AERIE_UNROLL_BY(4)
  for (int first = begin; first < end; first += 32) count += __popc(votes_of(first));
  if (lane == 0) counts[warp] = count;
  __syncthreads();
  int before = 0, total = 0;
  for (int w = 0; w < kWarps; ++w) {
    before += w < warp ? counts[w] : 0;
    total += counts[w];
  }
  AERIE_UNROLL_BY(4)
  for (int first = begin; first < end; first += 32) {
    const unsigned votes = votes_of(first);
    const int row = first + lane, place = before + __popc(votes & ((1u << lane) - 1u));
    const bool fits = ((votes >> lane) & 1u) != 0 && place < a.capacity;
    if (row < end) {
      const int item = row / a.frames, token = row % a.frames;
      const bool there = token < rows_of(a.layout, item, a.frames);
      const int at = there ? first_row(a.layout, item, a.frames) + token : -1;
      if (there) a.slots[at] = fits ? place : -1;
      if (fits) {
        a.rows[place] = row;
        a.packed_rows[place] = at;
      }
    }
    before += __popc(votes);
  }
  for (int i = total + threadIdx.x; i < a.capacity; i += kScanThreads) {
    a.rows[i] = -1;
    a.packed_rows[i] = -1;
  }
  if (threadIdx.x == 0) *a.count = total;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) gather_kernel(GatherRows a) {
  const unsigned per_row = unsigned(a.channels / 8);
  const unsigned vec = blockIdx.x * kThreads + threadIdx.x;
  if (vec >= per_row * unsigned(a.count)) return;
  const int from = a.rows[vec / per_row];
  Vec8 x = {};
  if (from >= 0)
    x = load8(static_cast<const T*>(a.x) + (size_t(from) * per_row + vec % per_row) * 8);
  store8(static_cast<T*>(a.out) + size_t(vec) * 8, x);
}

}  // namespace

int block_mask(const BlockMask& a, void* stream) {
  if (a.batch <= 0 || a.frames <= 0 || a.block <= 0 || a.combine <= 0 ||
      a.frames % a.combine != 0 || a.frames > 100000)
    return kUnsupported;
  return launch(stream, {dim3(unsigned(a.batch)), dim3(kThreads), size_t(a.frames) * 2},
                block_mask_kernel, a);
}

int select_rows(const SelectRows& a, void* stream) {
  if (a.batch <= 0 || a.frames <= 0 || a.capacity <= 0) return kUnsupported;
  return launch(stream, {dim3(1), dim3(kScanThreads)}, select_kernel, a);
}

int gather_rows(const GatherRows& a, void* stream) {
  if (a.count <= 0 || a.channels <= 0 || a.channels % 8 != 0) return kUnsupported;
  return dispatch(a.dtype, [&](auto zero) {
    return launch(
        stream,
        {dim3(unsigned(ceil_div(size_t(a.count) * (a.channels / 8), kThreads))), dim3(kThreads)},
        gather_kernel<decltype(zero)>, a);
  });
}

}  // namespace aerie::kernels::AERIE_BACKEND
