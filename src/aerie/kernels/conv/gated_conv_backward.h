// The convolution's backward pass, with that of the BatchNorm behind it. Included by gated_conv.cu
// alone.
//   grad_gated[s] = sum over k of weight[k] * g[s + left - k]
//   grad_weight[k] = sum over s of gated[s] * g[s + left - k]
#pragma once

#include "aerie/kernels/conv/conv_strips.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

// The gradient through SiLU and BatchNorm of a channel:
//   g = gain * grad * slope(gain * x + shift) - (offset + slant * x)
struct NormGradient {
  float gain, shift, offset, slant;
};
__device__ inline NormGradient norm_gradient(float mean, float rstd, float weight, float bias,
                                             float mean_grad, float mean_product) {
  const float gain = weight * rstd, slant = gain * rstd * mean_product;
  return {gain, bias - mean * gain, gain * mean_grad - mean * slant, slant};
}
template <typename T>
__device__ inline float undo_norm(const NormGradient& n, float x, float grad) {
  const float z = fmaf(x, n.gain, n.shift), open = sigmoid_for<T>(z);
  const float slope = fmaf(open, fmaf(-open, z, z), open);
  return n.gain * (grad * slope) - fmaf(x, n.slant, n.offset);
}

template <typename T, int kTaps, int kChannels, int kStrip>
__global__ void __launch_bounds__(kThreads, 2) gated_conv_backward_kernel(GatedConvBackward a) {
  const int channels = kChannels > 0 ? kChannels : a.forward.channels;
  constexpr int kChunk = kStrip % 4 == 0 ? 4 : kStrip;  // frames that are loaded together
  constexpr int kSections = kTaps + 3;                  // of sums: taps, bias, gate biases
  constexpr int kStride = kCols + 4;
  AERIE_SHARED(float, weights, kTaps* kCols);
  AERIE_SHARED(float, totals, kThreads);
  AERIE_SHARED(float, rows, kWarps* kSections* kStride);
  const GatedConv& f = a.forward;
  const BlockWeights<kTaps> block_weights(f);
  const Strip strip = strip_of<kStrip>(f);
  // Totals of BatchNorm's sums: two threads share the parts of a column.
  float sums_of_part[kBatchNormParts / 2];
  {
    const int which = threadIdx.x / kCols % 2, half = threadIdx.x / (2 * kCols);
    const int channel = int(blockIdx.x) * kCols + threadIdx.x % kCols;
    const int parts =
        channel < channels ? batch_norm_parts(num_rows(f.layout, f.batch, f.frames)) : 0;
    const float* from = a.norm_partial + (2 * half + which) * channels + channel;
    AERIE_UNROLL
    for (int p = 0; p < kBatchNormParts / 2; ++p)
      sums_of_part[p] = 2 * p + half < parts ? from[4 * p * channels] : 0.0f;
  }
  const Pair mean = load_pair(a.mean + strip.read), rstd = load_pair(a.rstd + strip.read);
  const Pair norm_weight = load_pair(a.norm_weight + strip.read);
  const Pair norm_bias = load_pair(a.norm_bias + strip.read);
  const size_t first_row = strip.first_row;
  const int limit = statistics_limit(f.counted, strip.item, f.frames);
  const int length = f.lengths[strip.item] < strip.rows ? f.lengths[strip.item] : strip.rows;
  const int present = limit < strip.rows ? limit : strip.rows;  // rows that count
  // Row j of the gradient is frame first + j; output s has read rows s to s + kTaps - 1.
  const int first = strip.begin + f.left - kTaps + 1;

  const T* conv = static_cast<const T*>(f.out) + first_row * channels + strip.read;
  const T* grad_out = static_cast<const T*>(a.grad_out) + first_row * channels + strip.read;
  const T* x = static_cast<const T*>(f.x) + first_row * 2 * channels + strip.read;
  T* grad_x = static_cast<T*>(a.grad_x) + first_row * 2 * channels + strip.column;
  struct Arrived {
    RawPair<T> x, grad;
  };
  // Most strips have nothing but frames that exist and count.
  const bool plain =
      first >= 0 && first + kStrip + kTaps - 1 <= present && strip.begin + kStrip <= length;
  conv += first * channels;
  grad_out += first * channels;
  x += strip.begin * 2 * channels;
  grad_x += strip.begin * 2 * channels;
  const auto load_arrived = [&](auto all, int j) {
    if constexpr (decltype(all)::value)
      return Arrived{load_raw_pair(conv + j * channels), load_raw_pair(grad_out + j * channels)};
    const int row = existing(first + j, strip.rows) - first;
    return Arrived{load_scattered_pair(conv + row * channels),
                   load_scattered_pair(grad_out + row * channels)};
  };
  struct Gates {
    RawPair<T> left, right;
  };
  const auto load_gates = [&](auto all, int s) {
    if constexpr (decltype(all)::value)
      return Gates{load_raw_pair(x + s * 2 * channels), load_raw_pair(x + (s * 2 + 1) * channels)};
    const T* row = x + (existing(strip.begin + s, strip.rows) - strip.begin) * 2 * channels;
    return Gates{load_scattered_pair(row), load_scattered_pair(row + channels)};
  };
  Arrived ahead[kTaps - 1], arrived[kChunk];
  Gates gates[kChunk];
  const auto load = [&](auto all) {
    AERIE_UNROLL
    for (int j = 0; j < kTaps - 1; ++j) ahead[j] = load_arrived(all, j);
    AERIE_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      arrived[i] = load_arrived(all, kTaps - 1 + i);
      gates[i] = load_gates(all, i);
    }
  };
  if (first >= 0 && first + kStrip + kTaps - 1 <= strip.rows) {
    load(std::true_type());
  } else {
    load(std::false_type());
  }

  int total = f.batch * limit;
  if (f.counted.lengths != nullptr) {
    total = 0;
    for (int b = 0; b < f.batch; ++b) total += statistics_limit(f.counted, b, f.frames);
  }
  const float inverse = total > 0 ? 1.0f / float(total) : 0.0f;
  float part_sum = 0.0f;
  AERIE_UNROLL
  for (int p = 0; p < kBatchNormParts / 2; ++p) part_sum += sums_of_part[p];
  totals[threadIdx.x] = part_sum;
  block_weights.put(weights);
  __syncthreads();
  NormGradient norm[2];
  {
    Pair grads = load_pair(totals + strip.lane * 2);
    Pair products = load_pair(totals + kCols + strip.lane * 2);
    add(grads, load_pair(totals + 2 * kCols + strip.lane * 2));
    add(products, load_pair(totals + 3 * kCols + strip.lane * 2));
    norm[0] = norm_gradient(mean.x, rstd.x, norm_weight.x, norm_bias.x, grads.x * inverse,
                            products.x * inverse);
    norm[1] = norm_gradient(mean.y, rstd.y, norm_weight.y, norm_bias.y, grads.y * inverse,
                            products.y * inverse);
  }
  const Pair left_bias = pair_or_zero(f.gate_bias, strip.read);
  const Pair right_bias = pair_or_zero(f.gate_bias, channels + strip.read);
  const GateBias gate_bias[2] = {GateBias(right_bias.x), GateBias(right_bias.y)};
  Pair weight[kTaps], d_weight[kTaps] = {};
  Pair d_bias = {0.0f, 0.0f}, d_left = {0.0f, 0.0f}, d_right = {0.0f, 0.0f};
  AERIE_UNROLL
  for (int k = 0; k < kTaps; ++k) weight[k] = load_pair(weights + k * kCols + strip.lane * 2);

  Pair window[kTaps];  // rows of the gradient; row j at j % kTaps
  const auto receive = [&](auto all, int j, const Arrived& from) {
    const int t = first + j;
    const bool counts = decltype(all)::value || (t >= 0 && t < present);
    const Pair out = unpack(from.x), grad = unpack(from.grad);
    const Pair g = {counts ? undo_norm<T>(norm[0], out.x, grad.x) : 0.0f,
                    counts ? undo_norm<T>(norm[1], out.y, grad.y) : 0.0f};
    // Every frame counts in one strip; rows in the middle are this one's for any left context.
    const bool own = j >= kTaps - 1 && j < kStrip;
    if (own || (t >= strip.begin && t < strip.begin + kStrip)) add(d_bias, g);
    window[j % kTaps] = g;
  };
  // Beyond the length, the gradient counts for the bias alone.
  const auto pass = [&] {
    Arrived all_rows[kStrip];
    AERIE_UNROLL
    for (int s = 0; s < kStrip; ++s)
      all_rows[s] = load_arrived(std::false_type(), kTaps - 1 - f.left + s);
    AERIE_UNROLL
    for (int s = 0; s < kStrip; ++s) {
      const int t = strip.begin + s;
      const Pair out = unpack(all_rows[s].x), grad = unpack(all_rows[s].grad);
      const Pair g = {undo_norm<T>(norm[0], out.x, grad.x), undo_norm<T>(norm[1], out.y, grad.y)};
      if (t < present) add(d_bias, g);
      if (!strip.inside || t >= strip.rows) continue;
      store_pair(grad_x + s * 2 * channels, {0.0f, 0.0f});
      store_pair(grad_x + (s * 2 + 1) * channels, {0.0f, 0.0f});
    }
  };
  const auto walk = [&](auto all) {
    AERIE_UNROLL
    for (int j = 0; j < kTaps - 1; ++j) receive(all, j, ahead[j]);
    AERIE_UNROLL
    for (int chunk = 0; chunk < kStrip; chunk += kChunk) {
      Arrived now[kChunk];
      Gates here[kChunk];
      AERIE_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        now[i] = arrived[i];
        here[i] = gates[i];
        if (chunk + kChunk >= kStrip) continue;
        arrived[i] = load_arrived(all, kTaps - 1 + chunk + kChunk + i);
        gates[i] = load_gates(all, chunk + kChunk + i);
      }
      AERIE_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        const int s = chunk + i, t = strip.begin + s;
        receive(all, s + kTaps - 1, now[i]);
        const bool valid = decltype(all)::value || t < length;
        Pair left = unpack(here[i].left), right = unpack(here[i].right);
        const Pair open = {valid ? gate_of<T>(right.x, gate_bias[0]) : 0.0f,
                           valid ? gate_of<T>(right.y, gate_bias[1]) : 0.0f};
        const Pair value = {valid ? (left.x + left_bias.x) * open.x : 0.0f,
                            valid ? (left.y + left_bias.y) * open.y : 0.0f};
        Pair sum = {0.0f, 0.0f};
        AERIE_UNROLL
        for (int k = 0; k < kTaps; ++k) {
          const Pair g = window[(s + kTaps - 1 - k) % kTaps];
          add_product(sum, weight[k], g);
          add_product(d_weight[k], value, g);
        }
        left = {sum.x * open.x, sum.y * open.y};
        right = {sum.x * value.x, sum.y * value.y};
        right = {fmaf(-open.x, right.x, right.x), fmaf(-open.y, right.y, right.y)};
        add(d_left, left);
        add(d_right, right);
        if (!strip.inside || (!decltype(all)::value && t >= strip.rows)) continue;
        store_pair(grad_x + s * 2 * channels, left);
        store_pair(grad_x + (s * 2 + 1) * channels, right);
      }
    }
  };
  if (plain) {
    walk(std::true_type());
  } else if (strip.begin < length) {
    walk(std::false_type());
  } else {
    pass();
  }

  // Frames that count and have no row: nothing arrives at them, and the bias is all there was.
  const int begin = strip.begin > strip.rows ? strip.begin : strip.rows;
  const int end = strip.begin + kStrip < limit ? strip.begin + kStrip : limit;
  if (begin < end) {
    const Pair bias = unpack(pack_pair<T>(pair_or_zero(f.bias, strip.read)));
    const float count = float(end - begin);
    add_product(d_bias, {count, count},
                {undo_norm<T>(norm[0], bias.x, 0.0f), undo_norm<T>(norm[1], bias.y, 0.0f)});
  }

  const auto put_row = [&](int section, Pair value) {
    store_pair(rows + (strip.warp * kSections + section) * kStride + strip.lane * 2, value);
  };
  AERIE_UNROLL
  for (int k = 0; k < kTaps; ++k) put_row(k, d_weight[k]);
  put_row(kTaps, d_bias);
  put_row(kTaps + 1, d_left);
  put_row(kTaps + 2, d_right);
  __syncthreads();
  // As weight (C,K), bias (C), gate bias (2C), each in the order of memory.
  float* part = a.partial + size_t(blockIdx.y) * kSections * channels;
  for (int i = threadIdx.x; i < kSections * kCols; i += kThreads) {
    const bool tap = i < kTaps * kCols;
    const int which = tap ? i % kTaps : i / kCols, local = tap ? i / kTaps : i % kCols;
    const int channel = int(blockIdx.x) * kCols + local;
    if (channel >= channels) continue;
    float sum = 0.0f;
    AERIE_UNROLL
    for (int w = 0; w < kWarps; ++w) sum += rows[(w * kSections + which) * kStride + local];
    part[tap ? channel * kTaps + which : which * channels + channel] = sum;
  }
}

}  // namespace
}  // namespace aerie::kernels::AERIE_BACKEND
