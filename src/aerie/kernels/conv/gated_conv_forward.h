// The convolution's forward pass, with the parts of BatchNorm's statistics. Included by
// gated_conv.cu alone.
#pragma once

#include "aerie/kernels/conv/conv_strips.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

// Frames from `begin` on that count, and at most so many.
__device__ inline int counted_from(int begin, int limit, int most) {
  const int rest = limit - begin;
  return rest < 0 ? 0 : rest < most ? rest : most;
}

// From the mean and the squared deviations of strips to those of the statistics' parts. All threads
// of a block; `moments` has room for 2 * kWarps * kCols numbers.
template <int kStrip>
__device__ inline void merge_statistics(const GatedConv& a, const Strip& strip, int limit,
                                        const Pair& mean, const Pair& squares, float* moments) {
  constexpr int kStrips = kConvRows / kStrip;
  float* const mine = moments + strip.warp * kCols + strip.lane * 2;
  store_pair(mine, mean);
  store_pair(mine + kWarps * kCols, squares);
  __syncthreads();
  if (strip.warp % kStrips != 0 || !strip.inside || strip.begin >= a.frames) return;
  const int total = counted_from(strip.begin, limit, kConvRows);
  const float inverse = total > 0 ? 1.0f / float(total) : 0.0f;
  Pair all = {0.0f, 0.0f}, deviations = {0.0f, 0.0f};
  AERIE_UNROLL
  for (int w = 0; w < kStrips; ++w) {
    const float part = float(counted_from(strip.begin + w * kStrip, limit, kStrip)) * inverse;
    add_product(all, load_pair(mine + w * kCols), {part, part});
  }
  AERIE_UNROLL
  for (int w = 0; w < kStrips; ++w) {
    const float frames = float(counted_from(strip.begin + w * kStrip, limit, kStrip));
    const Pair one = load_pair(mine + w * kCols);
    const Pair off = {one.x - all.x, one.y - all.y};
    add(deviations, load_pair(mine + (kWarps + w) * kCols));
    add_product(deviations, off, {off.x * frames, off.y * frames});
  }
  const int parts = (a.frames + kConvRows - 1) / kConvRows;  // of an item
  float* to = a.statistics + size_t(strip.item * parts + strip.begin / kConvRows) * 2 * a.channels +
              strip.column;
  store_pair(to, all);
  store_pair(to + a.channels, deviations);
}

// kChannels: when known at compile time, for addresses without arithmetic, or 0.
template <typename T, int kTaps, int kChannels>
__global__ void __launch_bounds__(kThreads, 2) gated_conv_kernel(GatedConv a) {
  const int channels = kChannels > 0 ? kChannels : a.channels;
  constexpr int kStrip = kShortStrip, kRows = kStrip + kTaps - 1;
  AERIE_SHARED(float, weights, kTaps* kCols);
  AERIE_SHARED(float, moments, 2 * kWarps * kCols);
  const BlockWeights<kTaps> block_weights(a);
  const Strip strip = strip_of<kStrip>(a);
  const size_t first_row = strip.first_row;
  const int length = a.lengths[strip.item] < strip.rows ? a.lengths[strip.item] : strip.rows;
  const T* x = static_cast<const T*>(a.x) + first_row * 2 * channels + strip.read;
  // Most strips have nothing but frames that exist and count. Loads do not wait for the length.
  const int first = strip.begin - a.left;
  const bool present = first >= 0 && first + kRows <= strip.rows;
  const bool plain = first >= 0 && first + kRows <= length;
  RawPair<T> left[kRows], right[kRows];
  const auto load = [&](auto all) {
    const T* from = x + first * 2 * channels;
    AERIE_UNROLL
    for (int j = 0; j < kRows; ++j) {
      if constexpr (decltype(all)::value) {
        left[j] = load_raw_pair(from + 2 * j * channels);
        right[j] = load_raw_pair(from + (2 * j + 1) * channels);
      } else {
        const T* row = x + existing(first + j, strip.rows) * 2 * channels;
        left[j] = load_scattered_pair(row);
        right[j] = load_scattered_pair(row + channels);
      }
    }
  };
  if (present) {
    load(std::true_type());
  } else {
    load(std::false_type());
  }
  const Pair left_bias = pair_or_zero(a.gate_bias, strip.read);
  const Pair right_bias = pair_or_zero(a.gate_bias, channels + strip.read);
  const GateBias gate_bias[2] = {GateBias(right_bias.x), GateBias(right_bias.y)};
  const Pair bias = pair_or_zero(a.bias, strip.read);
  block_weights.put(weights);
  __syncthreads();
  Pair weight[kTaps], sums[kStrip];
  AERIE_UNROLL
  for (int k = 0; k < kTaps; ++k) weight[k] = load_pair(weights + k * kCols + strip.lane * 2);
  AERIE_UNROLL
  for (int s = 0; s < kStrip; ++s) sums[s] = bias;
  const auto convolve = [&](auto all) {
    AERIE_UNROLL
    for (int j = 0; j < kRows; ++j) {
      const bool valid = decltype(all)::value || (first + j >= 0 && first + j < length);
      Pair value = unpack(left[j]);
      const Pair gate = unpack(right[j]);
      value.x = (value.x + left_bias.x) * gate_of<T>(gate.x, gate_bias[0]);
      value.y = (value.y + left_bias.y) * gate_of<T>(gate.y, gate_bias[1]);
      value = {valid ? value.x : 0.0f, valid ? value.y : 0.0f};
      AERIE_UNROLL
      for (int k = 0; k < kTaps; ++k)
        if (j - k >= 0 && j - k < kStrip) add_product(sums[j - k], weight[k], value);
    }
  };
  if (plain) {
    convolve(std::true_type());
  } else if (first < length) {  // otherwise there is nothing but the bias
    convolve(std::false_type());
  }
  T* out = static_cast<T*>(a.out) + first_row * channels + strip.column;
  out += strip.begin * channels;
  AERIE_UNROLL
  for (int s = 0; s < kStrip; ++s) {
    const RawPair<T> raw = pack_pair<T>(sums[s]);
    if (strip.inside && strip.begin + s < strip.rows)
      *reinterpret_cast<RawPair<T>*>(out + s * channels) = raw;
    sums[s] = unpack(raw);
  }
  if (a.statistics == nullptr) return;  // the whole grid leaves
  // Mean and squared deviations of the strip, then of the block's strips together.
  const int limit = statistics_limit(a.counted, strip.item, a.frames);
  const int count = counted_from(strip.begin, limit, kStrip);
  Pair mean = {0.0f, 0.0f}, squares = {0.0f, 0.0f};
  AERIE_UNROLL
  for (int s = 0; s < kStrip; ++s)
    if (s < count) add(mean, sums[s]);
  const float share = count > 0 ? 1.0f / float(count) : 0.0f;
  mean = {mean.x * share, mean.y * share};
  AERIE_UNROLL
  for (int s = 0; s < kStrip; ++s) {
    const Pair off = {sums[s].x - mean.x, sums[s].y - mean.y};
    if (s < count) add_product(squares, off, off);
  }
  merge_statistics<kStrip>(a, strip, limit, mean, squares, moments);
}

// The same for many rows, in long strips: what a lane holds of them is the taps' window.
template <typename T, int kTaps, int kChannels>
__global__ void __launch_bounds__(kThreads, 3) gated_conv_long_kernel(GatedConv a) {
  constexpr int channels = kChannels, kStrip = kLongStrip, kRows = kStrip + kTaps - 1;
  constexpr int kChunk = 4, kChunks = kRows / kChunk;  // rows that are loaded together
  constexpr int kAhead = 2;                            // chunks under way
  static_assert(kChunks * kChunk == kRows);
  AERIE_SHARED(float, weights, kTaps* kCols);
  AERIE_SHARED(float, moments, 2 * kWarps * kCols);
  const BlockWeights<kTaps> block_weights(a);
  const Strip strip = strip_of<kStrip>(a);
  const size_t first_row = strip.first_row;
  const int length = a.lengths[strip.item] < strip.rows ? a.lengths[strip.item] : strip.rows;
  const T* x = static_cast<const T*>(a.x) + first_row * 2 * channels + strip.read;
  T* out = static_cast<T*>(a.out) + first_row * channels + strip.column;
  out += strip.begin * channels;
  const int first = strip.begin - a.left;
  const bool plain = first >= 0 && first + kRows <= length;
  const int limit = a.statistics != nullptr ? statistics_limit(a.counted, strip.item, a.frames) : 0;
  const int count = counted_from(strip.begin, limit, kStrip);
  const Pair left_bias = pair_or_zero(a.gate_bias, strip.read);
  const Pair right_bias = pair_or_zero(a.gate_bias, channels + strip.read);
  const GateBias gate_bias[2] = {GateBias(right_bias.x), GateBias(right_bias.y)};
  const Pair bias = pair_or_zero(a.bias, strip.read);
  struct Gates {
    RawPair<T> left, right;
  };
  Gates arrived[kAhead][kChunk];
  Pair weight[kTaps], window[kTaps];  // gated row j at j % kTaps
  // Of the values that count, less the first of them, so that the squares do not cancel.
  Pair origin = {0.0f, 0.0f}, sum = {0.0f, 0.0f}, squares = {0.0f, 0.0f};
  const auto load = [&](auto all, int chunk) {
    AERIE_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      const int j = chunk * kChunk + i;
      Gates& to = arrived[chunk % kAhead][i];
      if constexpr (decltype(all)::value) {
        const T* row = x + (first + j) * 2 * channels;
        to = {load_raw_pair(row), load_raw_pair(row + channels)};
      } else {
        const T* row = x + existing(first + j, strip.rows) * 2 * channels;
        to = {load_scattered_pair(row), load_scattered_pair(row + channels)};
      }
    }
  };
  const auto load_first = [&](auto all) {
    AERIE_UNROLL
    for (int chunk = 0; chunk < kAhead; ++chunk) load(all, chunk);
  };
  if (plain) {
    load_first(std::true_type());
  } else {
    load_first(std::false_type());
  }
  block_weights.put(weights);
  __syncthreads();
  AERIE_UNROLL
  for (int k = 0; k < kTaps; ++k) weight[k] = load_pair(weights + k * kCols + strip.lane * 2);
  const auto walk = [&](auto all) {
    AERIE_UNROLL
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      Gates now[kChunk];
      AERIE_UNROLL
      for (int i = 0; i < kChunk; ++i) now[i] = arrived[chunk % kAhead][i];
      if (chunk + kAhead < kChunks) load(all, chunk + kAhead);
      AERIE_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        const int j = chunk * kChunk + i, s = j - kTaps + 1;
        const bool valid = decltype(all)::value || (first + j >= 0 && first + j < length);
        const Pair left = unpack(now[i].left), right = unpack(now[i].right);
        const Pair value = {(left.x + left_bias.x) * gate_of<T>(right.x, gate_bias[0]),
                            (left.y + left_bias.y) * gate_of<T>(right.y, gate_bias[1])};
        window[j % kTaps] = {valid ? value.x : 0.0f, valid ? value.y : 0.0f};
        if (s < 0) continue;
        Pair result = bias;
        AERIE_UNROLL
        for (int k = 0; k < kTaps; ++k) add_product(result, weight[k], window[(s + k) % kTaps]);
        const RawPair<T> raw = pack_pair<T>(result);
        if (strip.inside && (decltype(all)::value || strip.begin + s < strip.rows))
          *reinterpret_cast<RawPair<T>*>(out + s * channels) = raw;
        result = unpack(raw);
        if (s == 0) origin = result;
        const Pair off = {result.x - origin.x, result.y - origin.y};
        if (s < count) {
          add(sum, off);
          add_product(squares, off, off);
        }
      }
    }
  };
  if (plain) {
    walk(std::true_type());
  } else {
    walk(std::false_type());
  }
  if (a.statistics == nullptr) return;  // the whole grid leaves
  const float share = count > 0 ? 1.0f / float(count) : 0.0f;
  const Pair off = {sum.x * share, sum.y * share};
  squares = {fmaxf(squares.x - sum.x * off.x, 0.0f), fmaxf(squares.y - sum.y * off.y, 0.0f)};
  const Pair mean = {count > 0 ? origin.x + off.x : 0.0f, count > 0 ? origin.y + off.y : 0.0f};
  merge_statistics<kStrip>(a, strip, limit, mean, squares, moments);
}

}  // namespace
}  // namespace aerie::kernels::AERIE_BACKEND
