// A block owns kConvRows frames of 64 channels. It loads them (and the taps' overlap) 16 bytes per
// thread, applies the pointwise part once per value and keeps the result in shared memory; then a
// thread slides along 6 frames of 2 channels. Backward needs the overlap of the gradient alone:
//   grad_gated[s] = sum over k of weight[k] * g[s + left - k]
//   grad_weight[k] = sum over s of gated[s] * g[s + left - k]
#include "aerie/kernels/conv/gated_conv.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kCols = 64;
constexpr int kVecs = kCols / 8;
constexpr int kGroupRows = kConvRows / kWarps;  // frames of a thread
constexpr int kTasks = 2;                       // rows that a thread loads: 64 of the block's
static_assert(kThreads / kVecs * kTasks >= kConvRows + 8);

struct Pair {
  float x, y;
};
__device__ inline Pair load_pair(const float* p) {
  struct alignas(8) Raw {
    float x, y;
  };
  const Raw raw = *reinterpret_cast<const Raw*>(p);
  return {raw.x, raw.y};
}
__device__ inline void store_pair(float* p, Pair value) {
  struct alignas(8) Raw {
    float x, y;
  };
  *reinterpret_cast<Raw*>(p) = Raw{value.x, value.y};
}
template <typename T>
__device__ inline void store_pair(T* p, Pair value) {
  *reinterpret_cast<uint32_t*>(p) = pack2<T>(value.x, value.y);
}

// Part of the grid: which item, first frame, first channel.
struct Tile {
  int item, begin, column;
};
__device__ inline Tile tile_of(int frames) {
  const int tiles = (frames + kConvRows - 1) / kConvRows;
  return {int(blockIdx.y) / tiles, int(blockIdx.y) % tiles * kConvRows, int(blockIdx.x) * kCols};
}

// The block's weights as (taps, kCols): read from memory in order, where a thread's own would be
// scattered. To be followed by a barrier.
template <int kTaps>
__device__ inline void load_weights(const GatedConv& a, int first, float* weights) {
  for (int i = threadIdx.x; i < kTaps * kCols; i += kThreads) {
    const int channel = i / kTaps;
    weights[i % kTaps * kCols + channel] =
        first + channel < a.channels ? a.weight[size_t(first) * kTaps + i] : 0.0f;
  }
}

__device__ inline void add_gate_bias(const GatedConv& a, int column, Vec8* left, Vec8* right) {
  if (a.gate_bias == nullptr) return;
  const Vec8 more_left = load8(a.gate_bias + column);
  const Vec8 more_right = load8(a.gate_bias + a.channels + column);
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) {
    left->v[k] += more_left.v[k];
    right->v[k] += more_right.v[k];
  }
}

template <typename T, int kTaps>
__global__ void __launch_bounds__(kThreads) gated_conv_kernel(GatedConv a) {
  AERIE_SHARED(float, gated, (kConvRows + kTaps - 1) * kCols);
  AERIE_SHARED(float, sums, kWarps* kCols);
  AERIE_SHARED(float, weights, kTaps* kCols);
  load_weights<kTaps>(a, int(blockIdx.x) * kCols, weights);
  const Tile tile = tile_of(a.frames);
  const size_t first_row = size_t(tile.item) * a.frames;
  {
    const int vec = threadIdx.x % kVecs, column = tile.column + vec * 8;
    const bool inside = column < a.channels;
    const int length = a.lengths[tile.item] < a.frames ? a.lengths[tile.item] : a.frames;
    Vec8 left[kTasks], right[kTasks];
    bool valid[kTasks];
    AERIE_UNROLL
    for (int i = 0; i < kTasks; ++i) {
      const int r = threadIdx.x / kVecs + i * (kThreads / kVecs), t = tile.begin - a.left + r;
      valid[i] = inside && r < kConvRows + kTaps - 1 && t >= 0 && t < length;
      if (!valid[i]) continue;
      const T* x = static_cast<const T*>(a.x) + (first_row + t) * 2 * a.channels + column;
      left[i] = load8(x);
      right[i] = load8(x + a.channels);
    }
    AERIE_UNROLL
    for (int i = 0; i < kTasks; ++i) {
      const int r = threadIdx.x / kVecs + i * (kThreads / kVecs);
      if (r >= kConvRows + kTaps - 1) continue;
      Vec8 out = {};
      if (valid[i]) {
        add_gate_bias(a, column, &left[i], &right[i]);
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k) out.v[k] = left[i].v[k] * sigmoid_for<T>(right[i].v[k]);
      }
      store8(gated + r * kCols + vec * 8, out);
    }
  }
  __syncthreads();

  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int c = tile.column + lane * 2;
  const bool inside = c < a.channels;
  Pair results[kGroupRows];
  if (inside) {
    Pair weight[kTaps];
    AERIE_UNROLL
    for (int k = 0; k < kTaps; ++k) weight[k] = load_pair(weights + k * kCols + lane * 2);
    Pair bias = {0.0f, 0.0f};
    if (a.bias != nullptr) bias = load_pair(a.bias + c);
    Pair window[kGroupRows + kTaps - 1];
    AERIE_UNROLL
    for (int k = 0; k < kGroupRows + kTaps - 1; ++k)
      window[k] = load_pair(gated + (group * kGroupRows + k) * kCols + lane * 2);
    AERIE_UNROLL
    for (int s = 0; s < kGroupRows; ++s) {
      Pair sum = bias;
      AERIE_UNROLL
      for (int k = 0; k < kTaps; ++k) {
        sum.x += weight[k].x * window[s + k].x;
        sum.y += weight[k].y * window[s + k].y;
      }
      const int t = tile.begin + group * kGroupRows + s;
      if (t < a.frames) store_pair(static_cast<T*>(a.out) + (first_row + t) * a.channels + c, sum);
      results[s] = {to_float(from_float<T>(sum.x)), to_float(from_float<T>(sum.y))};
    }
  }
  if (a.statistics == nullptr) return;  // the whole grid leaves
  // Mean of the part, then the squared deviations from it.
  const int limit = statistics_limit(a.counted, tile.item, a.frames) - tile.begin;
  const int count = limit < kConvRows ? limit : kConvRows;
  Pair mean = {0.0f, 0.0f};
  AERIE_UNROLL
  for (int pass = 0; pass < 2; ++pass) {
    Pair sum = {0.0f, 0.0f};
    AERIE_UNROLL
    for (int s = 0; s < kGroupRows; ++s) {
      if (!inside || group * kGroupRows + s >= count) continue;
      const Pair off = {results[s].x - mean.x, results[s].y - mean.y};
      sum.x += pass == 0 ? off.x : off.x * off.x;
      sum.y += pass == 0 ? off.y : off.y * off.y;
    }
    store_pair(sums + group * kCols + lane * 2, sum);
    __syncthreads();
    Pair total = {0.0f, 0.0f};
    AERIE_UNROLL
    for (int g = 0; g < kWarps; ++g) {
      const Pair part = load_pair(sums + g * kCols + lane * 2);
      total.x += part.x;
      total.y += part.y;
    }
    if (pass == 0 && count > 0) mean = {total.x / float(count), total.y / float(count)};
    if (group == 0 && inside) {
      float* out = a.statistics + (size_t(blockIdx.y) * 2 + pass) * a.channels + c;
      store_pair(out, pass == 0 ? mean : total);
    }
    __syncthreads();
  }
}

// What the gradient through SiLU and BatchNorm needs of a channel; kept in shared memory, since the
// registers are full.
enum NormConstant { kMean, kRstd, kNormWeight, kNormBias, kMeanGrad, kMeanProduct, kNumConstants };

__device__ inline float norm_constant(const GatedConvBackward& a, int which, int channel,
                                      float inverse) {
  switch (which) {
    case kMean:
      return a.mean[channel];
    case kRstd:
      return a.rstd[channel];
    case kNormWeight:
      return a.norm_weight[channel];
    case kNormBias:
      return a.norm_bias[channel];
    case kMeanGrad:
      return a.totals[channel] * inverse;
    default:
      return a.totals[a.forward.channels + channel] * inverse;
  }
}

// The gradient that arrives at the convolution's output, eight values of one frame; `at` points to
// the first channel's constants.
template <typename T>
__device__ inline Vec8 undo_norm(const Vec8& x, const Vec8& grad, const float* at) {
  const Vec8 mean = load8(at + kMean * kCols), rstd = load8(at + kRstd * kCols);
  const Vec8 weight = load8(at + kNormWeight * kCols), bias = load8(at + kNormBias * kCols);
  const Vec8 mean_grad = load8(at + kMeanGrad * kCols);
  const Vec8 mean_product = load8(at + kMeanProduct * kCols);
  Vec8 out;
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) {
    const float normal = (x.v[k] - mean.v[k]) * rstd.v[k];
    const float before = grad.v[k] * silu_slope_for<T>(normal * weight.v[k] + bias.v[k]);
    out.v[k] = weight.v[k] * rstd.v[k] * (before - mean_grad.v[k] - normal * mean_product.v[k]);
  }
  return out;
}

template <typename T, int kTaps>
__global__ void __launch_bounds__(kThreads, 4) gated_conv_backward_kernel(GatedConvBackward a) {
  constexpr int kRows = kConvRows + kTaps - 1;
  constexpr int kSums = kTaps + 1;  // per channel: the taps and the bias
  constexpr int kFirst = kRows * kCols + kConvRows * kCols;
  constexpr int kStride = kCols + 4;  // keeps 16-byte rows, and neighbours in other banks
  constexpr int kLast = kWarps * kStride * (kSums + 2);
  AERIE_SHARED(float, memory, kFirst > kLast ? kFirst : kLast);
  AERIE_SHARED(float, constants, kNumConstants* kCols);
  AERIE_SHARED(float, weights, kTaps* kCols);
  float* const grads = memory;  // (kRows, kCols), from frame begin + left - taps + 1
  float* const gated = memory + kRows * kCols;  // (kConvRows, kCols); then its gradient
  const GatedConv& f = a.forward;
  const Tile tile = tile_of(f.frames);
  load_weights<kTaps>(f, tile.column, weights);
  const size_t first_row = size_t(tile.item) * f.frames;
  const int vec = threadIdx.x % kVecs, column = tile.column + vec * 8;
  const bool column_inside = column < f.channels;
  const int limit = statistics_limit(f.counted, tile.item, f.frames);
  const int length = f.lengths[tile.item] < f.frames ? f.lengths[tile.item] : f.frames;

  {
    Raw8<T> x[kTasks], grad[kTasks], left[kTasks], right[kTasks];
    bool counts[kTasks];
    AERIE_UNROLL
    for (int i = 0; i < kTasks; ++i) {
      const int r = threadIdx.x / kVecs + i * (kThreads / kVecs);
      const int t = tile.begin + f.left - kTaps + 1 + r;
      counts[i] = column_inside && r < kRows && t >= 0 && t < limit;
      if (!counts[i]) continue;
      const size_t at = (first_row + t) * f.channels + column;
      x[i] = load_raw(static_cast<const T*>(f.out) + at);
      grad[i] = load_raw(static_cast<const T*>(a.grad_out) + at);
    }
    AERIE_UNROLL
    for (int i = 0; i < kTasks; ++i) {
      const int r = threadIdx.x / kVecs + i * (kThreads / kVecs), t = tile.begin + r;
      if (!column_inside || r >= kConvRows || t >= length) continue;
      const T* at = static_cast<const T*>(f.x) + (first_row + t) * 2 * f.channels + column;
      left[i] = load_raw(at);
      right[i] = load_raw(at + f.channels);
    }
    int total = f.batch * limit;
    if (f.counted.lengths != nullptr) {
      total = 0;
      for (int b = 0; b < f.batch; ++b) total += statistics_limit(f.counted, b, f.frames);
    }
    const float inverse = total > 0 ? 1.0f / float(total) : 0.0f;
    for (int i = threadIdx.x; i < kNumConstants * kCols; i += kThreads) {
      const int channel = tile.column + i % kCols;
      constants[i] = channel < f.channels ? norm_constant(a, i / kCols, channel, inverse) : 0.0f;
    }
    __syncthreads();
    AERIE_UNROLL
    for (int i = 0; i < kTasks; ++i) {
      const int r = threadIdx.x / kVecs + i * (kThreads / kVecs);
      if (r >= kRows) continue;
      store8(grads + r * kCols + vec * 8,
             counts[i] ? undo_norm<T>(unpack(x[i]), unpack(grad[i]), constants + vec * 8) : Vec8{});
    }
    AERIE_UNROLL
    for (int i = 0; i < kTasks; ++i) {
      const int r = threadIdx.x / kVecs + i * (kThreads / kVecs);
      if (!column_inside || r >= kConvRows) continue;
      Vec8 out = {};
      if (tile.begin + r < length) {
        Vec8 a_half = unpack(left[i]), b_half = unpack(right[i]);
        add_gate_bias(f, column, &a_half, &b_half);
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k) out.v[k] = a_half.v[k] * sigmoid_for<T>(b_half.v[k]);
      }
      store8(gated + r * kCols + vec * 8, out);
    }
  }
  __syncthreads();

  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int c = tile.column + lane * 2;
  Pair d_weight[kTaps] = {}, d_bias = {0.0f, 0.0f};
  if (c < f.channels) {
    Pair weight[kTaps];
    AERIE_UNROLL
    for (int k = 0; k < kTaps; ++k) weight[k] = load_pair(weights + k * kCols + lane * 2);
    Pair window[kGroupRows + kTaps - 1];
    AERIE_UNROLL
    for (int k = 0; k < kGroupRows + kTaps - 1; ++k)
      window[k] = load_pair(grads + (group * kGroupRows + k) * kCols + lane * 2);
    AERIE_UNROLL
    for (int s = 0; s < kGroupRows; ++s) {
      const int r = group * kGroupRows + s;
      const Pair here = load_pair(grads + (r + kTaps - 1 - f.left) * kCols + lane * 2);
      d_bias.x += here.x;
      d_bias.y += here.y;
      float* at = gated + r * kCols + lane * 2;
      const Pair value = load_pair(at);
      Pair sum = {0.0f, 0.0f};
      AERIE_UNROLL
      for (int k = 0; k < kTaps; ++k) {
        const Pair g = window[s + kTaps - 1 - k];
        sum.x += weight[k].x * g.x;
        sum.y += weight[k].y * g.y;
        d_weight[k].x += value.x * g.x;
        d_weight[k].y += value.y * g.y;
      }
      store_pair(at, sum);
    }
  }
  __syncthreads();

  Vec8 d_left = {}, d_right = {};
  AERIE_UNROLL
  for (int i = 0; i < kTasks; ++i) {
    const int r = threadIdx.x / kVecs + i * (kThreads / kVecs), t = tile.begin + r;
    if (!column_inside || r >= kConvRows || t >= f.frames) continue;
    Vec8 out_left = {}, out_right = {};
    if (t < length) {
      // The gates once more, from the cache: registers are what limits this kernel.
      const T* from = static_cast<const T*>(f.x) + (first_row + t) * 2 * f.channels + column;
      Vec8 left = load8(from), right = load8(from + f.channels);
      add_gate_bias(f, column, &left, &right);
      const Vec8 grad = load8(gated + r * kCols + vec * 8);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) {
        const float s = sigmoid_for<T>(right.v[k]);
        out_left.v[k] = grad.v[k] * s;
        out_right.v[k] = grad.v[k] * left.v[k] * s * (1.0f - s);
        d_left.v[k] += out_left.v[k];
        d_right.v[k] += out_right.v[k];
      }
    }
    T* at = static_cast<T*>(a.grad_x) + (first_row + t) * 2 * f.channels + column;
    store8(at, out_left);
    store8(at + f.channels, out_right);
  }
  // Lanes of one warp hold four rows.
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) {
    AERIE_UNROLL
    for (int mask = 8; mask <= 16; mask *= 2) {
      d_left.v[k] += __shfl_xor_sync(kFullWarp, d_left.v[k], mask);
      d_right.v[k] += __shfl_xor_sync(kFullWarp, d_right.v[k], mask);
    }
  }
  __syncthreads();             // the gradients have been read
  float* const rows = memory;  // (warps, taps + 1 + 2, kStride)
  AERIE_UNROLL
  for (int k = 0; k < kTaps; ++k)
    store_pair(rows + (group * (kSums + 2) + k) * kStride + lane * 2, d_weight[k]);
  store_pair(rows + (group * (kSums + 2) + kTaps) * kStride + lane * 2, d_bias);
  if (lane < kVecs) {
    store8(rows + (group * (kSums + 2) + kSums) * kStride + vec * 8, d_left);
    store8(rows + (group * (kSums + 2) + kSums + 1) * kStride + vec * 8, d_right);
  }
  __syncthreads();
  // As weight (C,K), bias (C), gate bias (2C), each in the order of memory.
  float* part = a.partial + size_t(blockIdx.y) * (kTaps + 3) * f.channels;
  for (int i = threadIdx.x; i < (kSums + 2) * kCols; i += kThreads) {
    const bool tap = i < kTaps * kCols;
    const int which = tap ? i % kTaps : i / kCols, local = tap ? i / kTaps : i % kCols;
    const int channel = tile.column + local;
    if (channel >= f.channels) continue;
    float sum = 0.0f;
    AERIE_UNROLL
    for (int g = 0; g < kWarps; ++g) sum += rows[(g * (kSums + 2) + which) * kStride + local];
    part[tap ? channel * kTaps + which : which * f.channels + channel] = sum;
  }
}

bool covered(const GatedConv& a) {
  return a.batch > 0 && a.frames > 0 && a.channels > 0 && a.channels % 8 == 0 && a.left >= 0 &&
         a.left < a.kernel && (a.kernel == 5 || a.kernel == 9);
}

LaunchShape shape_of(const GatedConv& a) {
  return {dim3(unsigned(ceil_div(a.channels, kCols)), unsigned(conv_parts(a.batch, a.frames))),
          dim3(kThreads)};
}

}  // namespace

int gated_conv(const GatedConv& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  return dispatch(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    return a.kernel == 9 ? launch(stream, shape_of(a), gated_conv_kernel<T, 9>, a)
                         : launch(stream, shape_of(a), gated_conv_kernel<T, 5>, a);
  });
}

int gated_conv_backward(const GatedConvBackward& a, void* stream) {
  const GatedConv& f = a.forward;
  if (!covered(f)) return kUnsupported;
  AERIE_TRY(dispatch(f.dtype, [&](auto zero) {
    using T = decltype(zero);
    return f.kernel == 9 ? launch(stream, shape_of(f), gated_conv_backward_kernel<T, 9>, a)
                         : launch(stream, shape_of(f), gated_conv_backward_kernel<T, 5>, a);
  }));
  ColumnSums sums;
  sums.sections = 1;
  sums.parts = conv_parts(f.batch, f.frames);
  sums.stride = size_t(f.channels) * (f.kernel + 3);
  sums.accumulate = a.accumulate;
  struct {
    float* out;
    int begin, width;
  } const targets[] = {{a.grad_weight, 0, f.kernel},
                       {a.grad_bias, f.kernel, 1},
                       {a.grad_gate_bias, f.kernel + 1, 2}};
  for (const auto& target : targets) {
    if (target.out == nullptr) continue;
    sums.out[0] = target.out;
    sums.width = f.channels * target.width;
    sums.partial = a.partial + size_t(f.channels) * target.begin;
    AERIE_TRY(finish_column_sums(stream, sums, a.later));
  }
  return kOk;
}

}  // namespace aerie::kernels::AERIE_BACKEND
