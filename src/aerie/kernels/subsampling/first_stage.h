// Features -> conv 3x3/2 + ReLU -> depthwise 3x3/2, and back. Bound by arithmetic: a thread owns
// two channels, whose weights and sums stay in registers, and the features a block needs are a
// small tile of shared memory that all channels read together (broadcast), four neighbouring bins
// at a time. Included by subsampling.cu alone.
#pragma once

#include <type_traits>

#include "aerie/kernels/subsampling/lanes.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 128;
constexpr int kWidth = 2;
using Two = Lanes<kWidth>;

// Features [first_row, first_row + rows) of one item into shared memory; zero outside the item, and
// `width` (a multiple of 4) per row.
__device__ inline void load_tile(const SubsampleFirst& a, int item, int first_row, int rows,
                                 int width, float* tile) {
  const int length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
  const float* x = a.x + size_t(item) * a.frames * a.bins;
  for (int i = threadIdx.x; i < rows * width; i += kThreads) {
    const int t = first_row + i / width, f = i % width;
    tile[i] = t >= 0 && t < length && f < a.bins ? x[t * a.bins + f] : 0.0f;
  }
}

// Five bins of a row of the tile: 4n - 1 to 4n + 3.
struct Five {
  float v[5];
};
__device__ inline Five load_five(const float* row, int n, float before) {
  const Bits16 raw = *reinterpret_cast<const Bits16*>(row + 4 * n);
  Five out;
  out.v[0] = before;
  memcpy(out.v + 1, raw.w, 16);
  return out;
}

// relu(conv0) at bins 2n and 2n + 1 of kRows neighbouring middle rows; `x` are the rows of their
// windows. All of them together, so that many independent sums are under way.
template <int kRows>
__device__ inline void middle(const Five* x, const Taps<2>& weight, const Two& bias,
                              Two (*out)[2]) {
  AERIE_UNROLL
  for (int r = 0; r < kRows; ++r) out[r][0] = out[r][1] = bias;
  AERIE_UNROLL
  for (int k = 0; k < 9; ++k) AERIE_UNROLL
  for (int r = 0; r < kRows; ++r) AERIE_UNROLL
  for (int column = 0; column < 2; ++column)
    add_product(out[r][column], weight.v[k], x[2 * r + k / 3].v[2 * column + k % 3]);
  AERIE_UNROLL
  for (int r = 0; r < kRows; ++r) AERIE_UNROLL
  for (int column = 0; column < 2; ++column) out[r][column] = positive(out[r][column]);
}

constexpr int kTile = 4;        // output frames per block
constexpr int kUsualBins = 20;  // of the output, from 80 bins

// One block's outputs. kInside: all middle rows exist and their number of bins is even. kBins: bins
// of the output when known at compile time, for addresses without arithmetic, or 0.
template <typename T, int kBins, bool kInside>
__device__ inline void first_tile(const SubsampleFirst& a, const float* tile, int item, int begin,
                                  int c) {
  const int frames2 = strided(strided(a.frames));
  const int bins1 = strided(a.bins), bins2 = kBins > 0 ? kBins : strided(bins1), width = 4 * bins2;
  const int length1 = strided(a.lengths[item]), length2 = strided(length1);
  const Taps<2> weight0 = load_taps<2>(a.weight0, c), weight1 = load_taps<2>(a.weight1, c);
  const Two bias0 = load_lanes<2>(a.bias0 + c), bias1 = load_lanes<2>(a.bias1 + c);
  T* out = static_cast<T*>(a.out) + (size_t(item) * frames2 + begin) * bins2 * a.channels + c;
  const size_t stride = size_t(bins2) * a.channels;
  // Middle row r is frame 2 begin - 1 + r; its window begins at row 2r of the tile. Of every middle
  // row the column shared with the next output is carried.
  Two carried[2 * kTile + 1] = {};
  AERIE_UNROLL_BY(2)
  for (int n = 0; n < bins2; ++n) {
    Two sums[kTile];
    AERIE_UNROLL
    for (int o = 0; o < kTile; ++o) sums[o] = bias1;
    const auto five = [&](int row) {
      const float* from = tile + row * width;
      return load_five(from, n, n > 0 ? from[4 * n - 1] : 0.0f);
    };
    Five x[3];
    x[2] = five(0);
    AERIE_UNROLL
    for (int r = 0; r < 2 * kTile + 1; ++r) {
      x[0] = x[2];
      x[1] = five(2 * r + 1);
      x[2] = five(2 * r + 2);
      Two values[1][2];
      middle<1>(x, weight0, bias0, values);
      Two &one = values[0][0], &two = values[0][1];
      if (!kInside) {
        const int t1 = 2 * begin - 1 + r;
        const bool live = t1 >= 0 && t1 < length1;
        AERIE_UNROLL
        for (int i = 0; i < kWidth; ++i) {
          one.v[i] = live ? one.v[i] : 0.0f;
          two.v[i] = live && 2 * n + 1 < bins1 ? two.v[i] : 0.0f;
        }
      }
      AERIE_UNROLL
      for (int o = (r - 1) / 2; o <= r / 2; ++o) {
        if (o >= kTile) continue;
        const int kt = r - 2 * o;
        add_product(sums[o], weight1.v[kt * 3], carried[r]);
        add_product(sums[o], weight1.v[kt * 3 + 1], one);
        add_product(sums[o], weight1.v[kt * 3 + 2], two);
      }
      carried[r] = two;
    }
    AERIE_UNROLL
    for (int o = 0; o < kTile; ++o)
      if (kInside || begin + o < frames2)
        store_lanes(out + o * stride, kInside || begin + o < length2 ? sums[o] : Two{});
    out += a.channels;
  }
}

template <typename T, int kBins>
__global__ void __launch_bounds__(kThreads, 4) first_forward(SubsampleFirst a) {
  AERIE_DYNAMIC_SHARED(memory);
  float* tile = reinterpret_cast<float*>(memory);
  const int item = blockIdx.z, begin = blockIdx.y * kTile;
  const int frames2 = strided(strided(a.frames));
  const int bins1 = strided(a.bins), bins2 = kBins > 0 ? kBins : strided(bins1), width = 4 * bins2;
  const int length1 = strided(a.lengths[item]), length2 = strided(length1);
  const int c = (blockIdx.x * kThreads + threadIdx.x) * kWidth;
  if (begin >= length2) {  // the whole block
    if (c >= a.channels) return;
    const size_t rows = size_t(frames2 - begin < kTile ? frames2 - begin : kTile) * bins2;
    T* out = static_cast<T*>(a.out) + (size_t(item) * frames2 + begin) * bins2 * a.channels + c;
    for (size_t i = 0; i < rows; ++i) store_lanes(out + i * a.channels, Two{});
    return;
  }
  load_tile(a, item, begin * 4 - 3, kTile * 4 + 3, width, tile);
  __syncthreads();
  if (c >= a.channels) return;
  if (begin > 0 && 2 * (begin + kTile) <= length1 && bins1 % 2 == 0) {
    first_tile<T, kBins, true>(a, tile, item, begin, c);
  } else {
    first_tile<T, kBins, false>(a, tile, item, begin, c);
  }
}

template <int place>
__device__ inline void first_place(const Five* x, const Two* grads, Two value,
                                   const Taps<2>& weight1, bool live, Taps<2>& d_weight0,
                                   Two& d_bias0, Taps<2>& d_weight1) {
  constexpr int dt = place / 2, df = place % 2;
  AERIE_UNROLL
  for (int i = 0; i < kWidth; ++i) value.v[i] = live ? value.v[i] : 0.0f;
  const Two d = depthwise_place<place>(grads, value, weight1, d_weight1);
  add(d_bias0, d);
  AERIE_UNROLL
  for (int k = 0; k < 9; ++k) add_product(d_weight0.v[k], d, x[2 * dt + k / 3].v[2 * df + k % 3]);
}

constexpr int kUnit = 2;  // output frames whose features a block has at a time

template <typename T, int kBins>
__global__ void __launch_bounds__(kThreads, 4) first_backward(SubsampleFirstBackward b) {
  AERIE_DYNAMIC_SHARED(memory);
  float* tile = reinterpret_cast<float*>(memory);
  const SubsampleFirst& a = b.forward;
  const int frames2 = strided(strided(a.frames));
  const int bins1 = strided(a.bins), bins2 = kBins > 0 ? kBins : strided(bins1), width = 4 * bins2;
  const int c = (blockIdx.x * kThreads + threadIdx.x) * kWidth;
  const bool mine = c < a.channels;
  Taps<2> weight0 = {}, weight1 = {}, d_weight0 = {}, d_weight1 = {};
  Two bias0 = {}, d_bias0 = {}, d_bias1 = {};
  if (mine) {
    weight0 = load_taps<2>(a.weight0, c);
    weight1 = load_taps<2>(a.weight1, c);
    bias0 = load_lanes<2>(a.bias0 + c);
  }
  const int units = (frames2 + kUnit - 1) / kUnit;  // of an item
  for (int unit = blockIdx.y; unit < a.batch * units; unit += gridDim.y) {
    const int item = unit / units, begin = unit % units * kUnit;
    const int length1 = strided(a.lengths[item]), length2 = strided(length1);
    if (begin >= length2) continue;  // the same for the whole block
    const T* grad = static_cast<const T*>(b.grad_out) +
                    (size_t(item) * frames2 + begin) * bins2 * a.channels + c;
    bool below = begin + 1 < length2 && begin + 1 < frames2;
    const auto grad_at = [&](int dm, int n) {
      Raw<T, 2> none = {};
      if (n >= bins2 || (dm == 1 && !below) || !mine) return none;
      return load_raw<2>(grad + (dm * bins2 + n) * a.channels);
    };
    // Gradients are asked for two steps before they are used, the first ones ahead of the barriers.
    Raw<T, 2> next[3][2];
    const auto ask = [&] {
      AERIE_UNROLL
      for (int n = 0; n < 3; ++n) AERIE_UNROLL
      for (int dm = 0; dm < 2; ++dm) next[n][dm] = grad_at(dm, n);
    };
    ask();
    __syncthreads();
    load_tile(a, item, 4 * begin - 1, 4 * kUnit + 1, width, tile);
    __syncthreads();
    if (!mine) continue;
    AERIE_UNROLL_BY(1)
    for (int m = begin; m < begin + kUnit && m < length2 && m < frames2; ++m) {
      const float* patch = tile + (m - begin) * 4 * width;
      const bool rows = 2 * m + 1 < length1;
      if (m > begin) {
        grad += size_t(bins2) * a.channels;
        below = m + 1 < length2 && m + 1 < frames2;
        ask();
      }
      // Inside, both middle rows and all their columns exist.
      const auto walk = [&](auto inside) {
        constexpr bool kInside = decltype(inside)::value;
        Two grads[4];
        grads[1] = widen(next[0][0]);
        grads[3] = widen(next[0][1]);
        Five x[5] = {};
        AERIE_UNROLL_BY(2)
        for (int n = 0; n < bins2; ++n) {
          grads[0] = grads[1];
          grads[2] = grads[3];
          AERIE_UNROLL
          for (int dm = 0; dm < 2; ++dm) {
            grads[1 + 2 * dm] = widen(next[1][dm]);
            next[1][dm] = next[2][dm];
            next[2][dm] = grad_at(dm, n + 3);
          }
          AERIE_UNROLL
          for (int r = 0; r < 5; ++r) x[r] = load_five(patch + r * width, n, x[r].v[4]);
          const bool column = kInside || 2 * n + 1 < bins1, row = kInside || rows;
          add(d_bias1, grads[0]);
          Two values[2][2];
          middle<2>(x, weight0, bias0, values);
          first_place<0>(x, grads, values[0][0], weight1, true, d_weight0, d_bias0, d_weight1);
          first_place<1>(x, grads, values[0][1], weight1, column, d_weight0, d_bias0, d_weight1);
          first_place<2>(x, grads, values[1][0], weight1, row, d_weight0, d_bias0, d_weight1);
          first_place<3>(x, grads, values[1][1], weight1, row && column, d_weight0, d_bias0,
                         d_weight1);
        }
      };
      if (rows && bins1 % 2 == 0) {
        walk(std::true_type());
      } else {
        walk(std::false_type());
      }
    }
  }
  if (!mine) return;
  float* partial = b.partial + size_t(blockIdx.y) * kSections * a.channels + c;
  AERIE_UNROLL
  for (int k = 0; k < 9; ++k) {
    store_lanes(partial + size_t(k) * a.channels, d_weight0.v[k]);
    store_lanes(partial + size_t(kTaps1 + k) * a.channels, d_weight1.v[k]);
  }
  store_lanes(partial + size_t(kBias0) * a.channels, d_bias0);
  store_lanes(partial + size_t(kBias1) * a.channels, d_bias1);
}

}  // namespace
}  // namespace aerie::kernels::AERIE_BACKEND
