// A thread owns two channels; weights, sums and the window along mel stay in registers. The
// features a block needs are one small tile of shared memory that all channels read together
// (broadcast).
#include "aerie/kernels/device.h"
#include "aerie/kernels/subsampling/subsampling.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 128;
constexpr int kWidth = 2;

template <typename T>
struct alignas(sizeof(T) * kWidth) Pair {
  T v[kWidth];
};
struct Two {
  float v[kWidth];
};
template <typename T>
__device__ inline Two load2(const T* p) {
  const Pair<T> raw = *reinterpret_cast<const Pair<T>*>(p);
  return {{to_float(raw.v[0]), to_float(raw.v[1])}};
}
template <typename T>
__device__ inline void store2(T* p, const Two& x) {
  Pair<T> raw;
  raw.v[0] = from_float<T>(x.v[0]);
  raw.v[1] = from_float<T>(x.v[1]);
  *reinterpret_cast<Pair<T>*>(p) = raw;
}

struct Taps {
  float v[kWidth][9];
};
__device__ inline Taps load_taps(const float* weight, int channel) {
  Taps out;
  AERIE_UNROLL
  for (int i = 0; i < kWidth; ++i) AERIE_UNROLL
  for (int k = 0; k < 9; ++k) out.v[i][k] = weight[(channel + i) * 9 + k];
  return out;
}

// Features [first_row, first_row + rows) of one item into shared memory, a zero column on the left
// and two on the right; zero outside the item.
__device__ inline void load_tile(const SubsampleFirst& a, int item, int first_row, int rows,
                                 float* tile) {
  const int width = a.bins + 3;
  const int length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
  const float* x = a.x + size_t(item) * a.frames * a.bins;
  for (int i = threadIdx.x; i < rows * width; i += kThreads) {
    const int t = first_row + i / width, f = i % width - 1;
    tile[i] = t >= 0 && t < length && f >= 0 && f < a.bins ? x[t * a.bins + f] : 0.0f;
  }
}

// relu(conv0) of one place; `patch` is its upper left feature in the tile.
__device__ inline Two middle(const float* patch, int width, const Taps& weight, const Two& bias) {
  Two sum = bias;
  AERIE_UNROLL
  for (int kt = 0; kt < 3; ++kt) AERIE_UNROLL
  for (int kf = 0; kf < 3; ++kf) {
    const float x = patch[kt * width + kf];
    AERIE_UNROLL
    for (int i = 0; i < kWidth; ++i) sum.v[i] += weight.v[i][kt * 3 + kf] * x;
  }
  AERIE_UNROLL
  for (int i = 0; i < kWidth; ++i) sum.v[i] = fmaxf(sum.v[i], 0.0f);
  return sum;
}

constexpr int kTile = 4;  // output frames per block

template <typename T>
__global__ void __launch_bounds__(kThreads) first_forward(SubsampleFirst a) {
  AERIE_DYNAMIC_SHARED(memory);
  float* tile = reinterpret_cast<float*>(memory);
  const int width = a.bins + 3, item = blockIdx.z, begin = blockIdx.y * kTile;
  const int frames2 = strided(strided(a.frames));
  const int bins1 = strided(a.bins), bins2 = strided(bins1);
  const int length1 = strided(a.lengths[item]), length2 = strided(length1);
  load_tile(a, item, begin * 4 - 3, kTile * 4 + 3, tile);
  __syncthreads();
  const int c = (blockIdx.x * kThreads + threadIdx.x) * kWidth;
  if (c >= a.channels) return;
  const Taps weight0 = load_taps(a.weight0, c), weight1 = load_taps(a.weight1, c);
  const Two bias0 = load2(a.bias0 + c), bias1 = load2(a.bias1 + c);

  for (int t2 = begin; t2 < begin + kTile && t2 < frames2; ++t2) {
    T* out = static_cast<T*>(a.out) + (size_t(item) * frames2 + t2) * bins2 * a.channels + c;
    // Row r of the window is middle frame 2 t2 - 1 + r, in the tile from row 4 (t2 - begin) + 2 r
    // on.
    bool live[3];
    AERIE_UNROLL
    for (int r = 0; r < 3; ++r) live[r] = 2 * t2 - 1 + r >= 0 && 2 * t2 - 1 + r < length1;
    Two carried[3] = {};  // the column shared with the next output
    for (int f2 = 0; f2 < bins2; ++f2) {
      Two sum = bias1;
      AERIE_UNROLL
      for (int r = 0; r < 3; ++r) {
        const float* row = tile + ((t2 - begin) * 4 + 2 * r) * width;
        Two columns[2] = {};
        AERIE_UNROLL
        for (int k = 0; k < 2; ++k) {
          const int f1 = 2 * f2 + k;
          if (live[r] && f1 < bins1) columns[k] = middle(row + 2 * f1, width, weight0, bias0);
        }
        AERIE_UNROLL
        for (int i = 0; i < kWidth; ++i)
          sum.v[i] += weight1.v[i][r * 3] * carried[r].v[i] +
                      weight1.v[i][r * 3 + 1] * columns[0].v[i] +
                      weight1.v[i][r * 3 + 2] * columns[1].v[i];
        carried[r] = columns[1];
      }
      store2(out + size_t(f2) * a.channels, t2 < length2 ? sum : Two{});
    }
  }
}

// What every backward kernel of a strided depthwise convolution does at a place (m, n) of its
// output: its input has up to four values there, at (2m, 2n) to (2m+1, 2n+1), and these were read
// by the outputs (m, n), (m, n+1), (m+1, n), (m+1, n+1). grads[2*dm + dn] are theirs. Gives the
// gradient of input (2m + dt, 2n + df) and adds to the taps' gradient.
template <int dt, int df>
__device__ inline Two depthwise_place(const Two* grads, const Two& value, const Taps& weight,
                                      Taps& d_weight) {
  Two out = {};
  AERIE_UNROLL
  for (int dm = 0; dm <= dt; ++dm) AERIE_UNROLL
  for (int dn = 0; dn <= df; ++dn) {
    const int kt = dt + 1 - 2 * dm, kf = df + 1 - 2 * dn;
    AERIE_UNROLL
    for (int i = 0; i < kWidth; ++i) {
      out.v[i] += weight.v[i][kt * 3 + kf] * grads[2 * dm + dn].v[i];
      d_weight.v[i][kt * 3 + kf] += value.v[i] * grads[2 * dm + dn].v[i];
    }
  }
  return out;
}

// Sums of two channels as one block's partial result: sections of 9, 1, 9 and 1 values per channel.
__device__ inline void store_partial(float* partial, int channels, int c, const Taps& taps0,
                                     const Two& bias0, const Taps& taps1, const Two& bias1) {
  AERIE_UNROLL
  for (int i = 0; i < kWidth; ++i) {
    AERIE_UNROLL
    for (int k = 0; k < 9; ++k) {
      partial[(c + i) * 9 + k] = taps0.v[i][k];
      partial[10 * channels + (c + i) * 9 + k] = taps1.v[i][k];
    }
    partial[9 * channels + c + i] = bias0.v[i];
    partial[19 * channels + c + i] = bias1.v[i];
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) first_backward(SubsampleFirstBackward b) {
  AERIE_DYNAMIC_SHARED(memory);
  float* tile = reinterpret_cast<float*>(memory);
  const SubsampleFirst& a = b.forward;
  const int width = a.bins + 3;
  const int frames2 = strided(strided(a.frames));
  const int bins1 = strided(a.bins), bins2 = strided(bins1);
  const int c = (blockIdx.x * kThreads + threadIdx.x) * kWidth;
  const bool live = c < a.channels;
  Taps weight0 = {}, weight1 = {}, d_weight0 = {}, d_weight1 = {};
  Two bias0 = {}, d_bias0 = {}, d_bias1 = {};
  if (live) {
    weight0 = load_taps(a.weight0, c);
    weight1 = load_taps(a.weight1, c);
    bias0 = load2(a.bias0 + c);
  }
  for (int unit = blockIdx.y; unit < a.batch * frames2; unit += gridDim.y) {
    const int item = unit / frames2, m = unit % frames2;
    const int length1 = strided(a.lengths[item]), length2 = strided(length1);
    if (m >= length2) continue;  // the same for the whole block
    __syncthreads();
    load_tile(a, item, 4 * m - 1, 5, tile);
    __syncthreads();
    if (!live) continue;
    const T* grad =
        static_cast<const T*>(b.grad_out) + (size_t(item) * frames2 + m) * bins2 * a.channels + c;
    const bool below = m + 1 < length2 && m + 1 < frames2;
    const auto grad_at = [&](int dm, int n) {
      if (n >= bins2 || (dm == 1 && !below)) return Two{};
      return load2(grad + (size_t(dm) * bins2 + n) * a.channels);
    };
    Two grads[4];
    grads[1] = grad_at(0, 0);
    grads[3] = grad_at(1, 0);
    for (int n = 0; n < bins2; ++n) {
      grads[0] = grads[1];
      grads[2] = grads[3];
      grads[1] = grad_at(0, n + 1);
      grads[3] = grad_at(1, n + 1);
      AERIE_UNROLL
      for (int i = 0; i < kWidth; ++i) d_bias1.v[i] += grads[0].v[i];
      AERIE_UNROLL
      for (int place = 0; place < 4; ++place) {
        const int dt = place / 2, df = place % 2;
        if (2 * m + dt >= length1 || 2 * n + df >= bins1) continue;
        const float* patch = tile + 2 * dt * width + 4 * n + 2 * df;
        const Two value = middle(patch, width, weight0, bias0);
        Two d = place == 0   ? depthwise_place<0, 0>(grads, value, weight1, d_weight1)
                : place == 1 ? depthwise_place<0, 1>(grads, value, weight1, d_weight1)
                : place == 2 ? depthwise_place<1, 0>(grads, value, weight1, d_weight1)
                             : depthwise_place<1, 1>(grads, value, weight1, d_weight1);
        AERIE_UNROLL
        for (int i = 0; i < kWidth; ++i) {
          d.v[i] = value.v[i] > 0.0f ? d.v[i] : 0.0f;
          d_bias0.v[i] += d.v[i];
        }
        AERIE_UNROLL
        for (int kt = 0; kt < 3; ++kt) AERIE_UNROLL
        for (int kf = 0; kf < 3; ++kf) {
          const float x = patch[kt * width + kf];
          AERIE_UNROLL
          for (int i = 0; i < kWidth; ++i) d_weight0.v[i][kt * 3 + kf] += d.v[i] * x;
        }
      }
    }
  }
  if (live)
    store_partial(b.partial + size_t(blockIdx.y) * 20 * a.channels, a.channels, c, d_weight0,
                  d_bias0, d_weight1, d_bias1);
}

// relu(x + bias0) at (t, f), zero outside; `item` points at the item's two channels.
template <typename T>
__device__ inline Two activated(const SubsampleNext& a, const T* item, int t, int f, int length,
                                const Two& bias0) {
  if (t < 0 || t >= length || f < 0 || f >= a.bins) return Two{};
  Two x = load2(item + (size_t(t) * a.bins + f) * a.channels);
  AERIE_UNROLL
  for (int i = 0; i < kWidth; ++i) x.v[i] = fmaxf(x.v[i] + bias0.v[i], 0.0f);
  return x;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) next_forward(SubsampleNext a) {
  const int c = (blockIdx.x * kThreads + threadIdx.x) * kWidth;
  if (c >= a.channels) return;
  const int t1 = blockIdx.y, item = blockIdx.z;
  const int frames1 = strided(a.frames), bins1 = strided(a.bins);
  const int length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
  const bool live = t1 < strided(length);
  const Taps weight1 = load_taps(a.weight1, c);
  const Two bias0 = load2(a.bias0 + c), bias1 = load2(a.bias1 + c);
  const T* x = static_cast<const T*>(a.x) + size_t(item) * a.frames * a.bins * a.channels + c;
  T* out = static_cast<T*>(a.out) + (size_t(item) * frames1 + t1) * bins1 * a.channels + c;
  Two carried[3] = {};
  for (int f1 = 0; f1 < bins1; ++f1) {
    Two sum = bias1;
    AERIE_UNROLL
    for (int r = 0; r < 3; ++r) {
      const Two one = activated(a, x, 2 * t1 - 1 + r, 2 * f1, length, bias0);
      const Two two = activated(a, x, 2 * t1 - 1 + r, 2 * f1 + 1, length, bias0);
      AERIE_UNROLL
      for (int i = 0; i < kWidth; ++i)
        sum.v[i] += weight1.v[i][r * 3] * carried[r].v[i] + weight1.v[i][r * 3 + 1] * one.v[i] +
                    weight1.v[i][r * 3 + 2] * two.v[i];
      carried[r] = two;
    }
    store2(out + size_t(f1) * a.channels, live ? sum : Two{});
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) next_backward(SubsampleNextBackward b) {
  const SubsampleNext& a = b.forward;
  const int c = (blockIdx.x * kThreads + threadIdx.x) * kWidth;
  if (c >= a.channels) return;
  const int frames1 = strided(a.frames), bins1 = strided(a.bins);
  const Taps weight1 = load_taps(a.weight1, c);
  const Two bias0 = load2(a.bias0 + c);
  Taps d_weight1 = {};
  Two d_bias0 = {}, d_bias1 = {};
  for (int unit = blockIdx.y; unit < a.batch * frames1; unit += gridDim.y) {
    const int item = unit / frames1, m = unit % frames1;
    const int length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
    const int length1 = strided(length);
    const size_t base = size_t(item) * a.frames * a.bins * a.channels + c;
    const T* x = static_cast<const T*>(a.x) + base;
    T* grad_x = static_cast<T*>(b.grad_x) + base;
    const T* grad =
        static_cast<const T*>(b.grad_out) + (size_t(item) * frames1 + m) * bins1 * a.channels + c;
    const auto grad_at = [&](int dm, int n) {
      if (n >= bins1 || m + dm >= length1) return Two{};
      return load2(grad + (size_t(dm) * bins1 + n) * a.channels);
    };
    Two grads[4];
    grads[1] = grad_at(0, 0);
    grads[3] = grad_at(1, 0);
    for (int n = 0; n < bins1; ++n) {
      grads[0] = grads[1];
      grads[2] = grads[3];
      grads[1] = grad_at(0, n + 1);
      grads[3] = grad_at(1, n + 1);
      AERIE_UNROLL
      for (int i = 0; i < kWidth; ++i) d_bias1.v[i] += grads[0].v[i];
      AERIE_UNROLL
      for (int place = 0; place < 4; ++place) {
        const int t = 2 * m + place / 2, f = 2 * n + place % 2;
        if (t >= a.frames || f >= a.bins) continue;
        const Two value = activated(a, x, t, f, length, bias0);
        Two d = place == 0   ? depthwise_place<0, 0>(grads, value, weight1, d_weight1)
                : place == 1 ? depthwise_place<0, 1>(grads, value, weight1, d_weight1)
                : place == 2 ? depthwise_place<1, 0>(grads, value, weight1, d_weight1)
                             : depthwise_place<1, 1>(grads, value, weight1, d_weight1);
        AERIE_UNROLL
        for (int i = 0; i < kWidth; ++i) {
          d.v[i] = value.v[i] > 0.0f ? d.v[i] : 0.0f;
          d_bias0.v[i] += d.v[i];
        }
        store2(grad_x + (size_t(t) * a.bins + f) * a.channels, d);
      }
    }
  }
  store_partial(b.partial + size_t(blockIdx.y) * 20 * a.channels, a.channels, c, Taps{}, d_bias0,
                d_weight1, d_bias1);
}

constexpr int kReluWarps = kColumnThreads / 32;

// Forward and backward; threads walk down columns.
template <typename T>
__global__ void __launch_bounds__(kColumnThreads) relu_kernel(Relu a) {
  AERIE_SHARED(float, sums, kColumnThreads * 8);
  const int column = (blockIdx.x * 32 + threadIdx.x % 32) * 8;
  const int per_item = a.frames * a.bins, rows = a.batch * per_item;
  Vec8 sum = {};
  if (column < a.channels) {
    const Vec8 bias = load8(a.bias + column);
    for (int row = blockIdx.y * kReluWarps + threadIdx.x / 32; row < rows;
         row += gridDim.y * kReluWarps) {
      const size_t at = size_t(row) * a.channels + column;
      Vec8 out = {};
      if (row % per_item / a.bins < a.lengths[row / per_item]) {
        const Vec8 x = load8(static_cast<const T*>(a.x) + at);
        if (a.grad_out != nullptr) out = load8(static_cast<const T*>(a.grad_out) + at);
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k) {
          const float value = x.v[k] + bias.v[k];
          out.v[k] = value > 0.0f ? (a.grad_out != nullptr ? out.v[k] : value) : 0.0f;
          sum.v[k] += out.v[k];
        }
      }
      store8(static_cast<T*>(a.grad_out != nullptr ? a.grad_x : a.out) + at, out);
    }
  }
  if (a.grad_out != nullptr) write_partial(a.partial, a.channels, column, sum, sums);
}

template <typename Args>
bool covered(const Args& a) {
  return a.batch > 0 && a.batch < 65536 && a.frames > 0 && a.bins > 0 && a.channels > 0 &&
         a.channels % 8 == 0;
}

unsigned channel_blocks(int channels) {
  return unsigned(ceil_div(channels, kThreads * kWidth));
}

int parts_of(int units) {
  return units < kSubsampleParts ? units : kSubsampleParts;
}

int sum_section(void* stream, float* out, const float* partial, int section, int width,
                int channels, int parts, bool accumulate) {
  if (out == nullptr) return kOk;
  ColumnSums sums;
  sums.out[0] = out;
  sums.sections = 1;
  sums.width = width * channels;
  sums.partial = partial + size_t(section) * channels;
  sums.parts = parts;
  sums.stride = size_t(20) * channels;
  sums.accumulate = accumulate;
  return launch_column_sums(stream, sums);
}

}  // namespace

int subsample_first(const SubsampleFirst& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  const LaunchShape shape{
      dim3(channel_blocks(a.channels), unsigned(ceil_div(strided(strided(a.frames)), kTile)),
           unsigned(a.batch)),
      dim3(kThreads), size_t(kTile * 4 + 3) * (a.bins + 3) * sizeof(float)};
  return dispatch(
      a.dtype, [&](auto zero) { return launch(stream, shape, first_forward<decltype(zero)>, a); });
}

int subsample_first_backward(const SubsampleFirstBackward& b, void* stream) {
  const SubsampleFirst& a = b.forward;
  if (!covered(a)) return kUnsupported;
  const int parts = parts_of(a.batch * strided(strided(a.frames)));
  const LaunchShape shape{dim3(channel_blocks(a.channels), unsigned(parts)), dim3(kThreads),
                          size_t(5) * (a.bins + 3) * sizeof(float)};
  AERIE_TRY(dispatch(a.dtype, [&](auto zero) {
    return launch(stream, shape, first_backward<decltype(zero)>, b);
  }));
  const auto sum = [&](float* out, int section, int width) {
    return sum_section(stream, out, b.partial, section, width, a.channels, parts, b.accumulate);
  };
  AERIE_TRY(sum(b.grad_weight0, 0, 9));
  AERIE_TRY(sum(b.grad_bias0, 9, 1));
  AERIE_TRY(sum(b.grad_weight1, 10, 9));
  return sum(b.grad_bias1, 19, 1);
}

int subsample_next(const SubsampleNext& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  const LaunchShape shape{
      dim3(channel_blocks(a.channels), unsigned(strided(a.frames)), unsigned(a.batch)),
      dim3(kThreads)};
  return dispatch(
      a.dtype, [&](auto zero) { return launch(stream, shape, next_forward<decltype(zero)>, a); });
}

int subsample_next_backward(const SubsampleNextBackward& b, void* stream) {
  const SubsampleNext& a = b.forward;
  if (!covered(a)) return kUnsupported;
  const int parts = parts_of(a.batch * strided(a.frames));
  const LaunchShape shape{dim3(channel_blocks(a.channels), unsigned(parts)), dim3(kThreads)};
  AERIE_TRY(dispatch(
      a.dtype, [&](auto zero) { return launch(stream, shape, next_backward<decltype(zero)>, b); }));
  const auto sum = [&](float* out, int section, int width) {
    return sum_section(stream, out, b.partial, section, width, a.channels, parts, b.accumulate);
  };
  AERIE_TRY(sum(b.grad_bias0, 9, 1));
  AERIE_TRY(sum(b.grad_weight1, 10, 9));
  return sum(b.grad_bias1, 19, 1);
}

int relu(const Relu& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  const int parts = parts_of(ceil_div(a.batch * a.frames * a.bins, kReluWarps));
  const LaunchShape shape{dim3(unsigned(ceil_div(a.channels, 256)), unsigned(parts)),
                          dim3(kColumnThreads)};
  AERIE_TRY(dispatch(
      a.dtype, [&](auto zero) { return launch(stream, shape, relu_kernel<decltype(zero)>, a); }));
  if (a.grad_out == nullptr || a.grad_bias == nullptr) return kOk;
  ColumnSums sums;
  sums.out[0] = a.grad_bias;
  sums.sections = 1;
  sums.width = a.channels;
  sums.partial = a.partial;
  sums.parts = parts;
  sums.accumulate = a.accumulate;
  return launch_column_sums(stream, sums);
}

}  // namespace aerie::kernels::AERIE_BACKEND
