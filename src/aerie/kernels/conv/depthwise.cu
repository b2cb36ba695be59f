// A thread owns a few neighbouring channels and slides a window of registers along a strip of time:
// every value is read once (twice at the seams). Loads are 8 bytes per thread forward (4 channels
// of 16 bits) and 4 backward, where the window of gradients and the sums for the weights need the
// registers.
#include "aerie/kernels/conv/depthwise.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 128;
constexpr int kStrip = kDepthwiseStrip;

template <int kWidth>
struct Channels {
  float v[kWidth];
};

template <int kWidth>
__device__ inline Channels<kWidth> load_channels(const float* p) {
  Channels<kWidth> out;
  struct alignas(4 * kWidth) Raw {
    float v[kWidth];
  };
  const Raw raw = *reinterpret_cast<const Raw*>(p);
  AERIE_UNROLL
  for (int i = 0; i < kWidth; ++i) out.v[i] = raw.v[i];
  return out;
}
template <int kWidth, typename T>
__device__ inline Channels<kWidth> load_channels(const T* p) {
  Channels<kWidth> out;
  struct alignas(2 * kWidth) Raw {
    T v[kWidth];
  };
  const Raw raw = *reinterpret_cast<const Raw*>(p);
  AERIE_UNROLL
  for (int i = 0; i < kWidth; ++i) out.v[i] = to_float(raw.v[i]);
  return out;
}
template <int kWidth, typename T>
__device__ inline void store_channels(T* p, const Channels<kWidth>& x) {
  struct alignas(sizeof(T) * kWidth) Raw {
    T v[kWidth];
  };
  Raw raw;
  AERIE_UNROLL
  for (int i = 0; i < kWidth; ++i) raw.v[i] = from_float<T>(x.v[i]);
  *reinterpret_cast<Raw*>(p) = raw;
}
// Row t of one item, zero outside [0, frames).
template <int kWidth, typename T>
__device__ inline Channels<kWidth> load_row(const T* item, int t, int frames, int channels) {
  if (t < 0 || t >= frames) return Channels<kWidth>{};
  return load_channels<kWidth>(item + size_t(t) * channels);
}

template <typename T, int kTaps>
__global__ void __launch_bounds__(kThreads) depthwise_forward_kernel(DepthwiseForward a) {
  constexpr int kWidth = 4;
  const int c = (blockIdx.x * kThreads + threadIdx.x) * kWidth;
  if (c >= a.channels) return;
  const int strips = (a.frames + kStrip - 1) / kStrip;
  const int item = blockIdx.y / strips, begin = blockIdx.y % strips * kStrip;
  const T* x = static_cast<const T*>(a.x) + size_t(item) * a.frames * a.channels + c;
  T* out = static_cast<T*>(a.out) + size_t(item) * a.frames * a.channels + c;

  float weight[kWidth][kTaps];
  AERIE_UNROLL
  for (int i = 0; i < kWidth; ++i) AERIE_UNROLL
  for (int k = 0; k < kTaps; ++k) weight[i][k] = a.weight[(c + i) * kTaps + k];
  Channels<kWidth> bias = {};
  if (a.bias != nullptr) bias = load_channels<kWidth>(a.bias + c);

  Channels<kWidth> window[kStrip + kTaps - 1];
  AERIE_UNROLL
  for (int k = 0; k < kTaps - 1; ++k)
    window[k] = load_row<kWidth>(x, begin - a.left + k, a.frames, a.channels);
  // Mean and squared deviations of the strip, value by value (Welford).
  const int limit = a.statistics != nullptr ? statistics_limit(a.counted, item, a.frames) : 0;
  Channels<kWidth> mean = {}, squares = {};
  AERIE_UNROLL
  for (int s = 0; s < kStrip; ++s) {
    const int t = begin + s;
    window[s + kTaps - 1] = load_row<kWidth>(x, t - a.left + kTaps - 1, a.frames, a.channels);
    Channels<kWidth> sum = bias;
    AERIE_UNROLL
    for (int i = 0; i < kWidth; ++i) AERIE_UNROLL
    for (int k = 0; k < kTaps; ++k) sum.v[i] += weight[i][k] * window[s + k].v[i];
    if (t < a.frames) store_channels<kWidth>(out + size_t(t) * a.channels, sum);
    if (t < limit) {
      AERIE_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        const float value = to_float(from_float<T>(sum.v[i]));
        const float delta = value - mean.v[i];
        mean.v[i] += delta * (1.0f / float(s + 1));
        squares.v[i] += delta * (value - mean.v[i]);
      }
    }
  }
  if (a.statistics == nullptr) return;
  float* part = a.statistics + size_t(blockIdx.y) * 2 * a.channels + c;
  store_channels<kWidth>(part, mean);
  store_channels<kWidth>(part + a.channels, squares);
}

template <typename T, int kTaps>
__global__ void __launch_bounds__(kThreads) depthwise_backward_kernel(DepthwiseBackward a) {
  constexpr int kWidth = 2;
  const int c = (blockIdx.x * kThreads + threadIdx.x) * kWidth;
  if (c >= a.channels) return;
  float weight[kWidth][kTaps], d_weight[kWidth][kTaps] = {};
  AERIE_UNROLL
  for (int i = 0; i < kWidth; ++i) AERIE_UNROLL
  for (int k = 0; k < kTaps; ++k) weight[i][k] = a.weight[(c + i) * kTaps + k];
  Channels<kWidth> d_bias = {};

  const int strips = (a.frames + kStrip - 1) / kStrip;
  for (int strip = blockIdx.y; strip < a.batch * strips; strip += gridDim.y) {
    const int begin = strip % strips * kStrip;
    const size_t base = size_t(strip / strips) * a.frames * a.channels + c;
    const T* x = static_cast<const T*>(a.x) + base;
    const T* grad = static_cast<const T*>(a.grad_out) + base;
    T* grad_x = static_cast<T*>(a.grad_x) + base;
    // grad_x[t] = sum over k of weight[k] * grad[t + left - k]: rows[s + kTaps - 1 - k].
    // grad_weight[k] += grad[t] * x[t - left + k]: inputs[s + k].
    Channels<kWidth> rows[kStrip + kTaps - 1], inputs[kStrip + kTaps - 1];
    AERIE_UNROLL
    for (int k = 0; k < kTaps - 1; ++k) {
      rows[k] = load_row<kWidth>(grad, begin + a.left - (kTaps - 1) + k, a.frames, a.channels);
      inputs[k] = load_row<kWidth>(x, begin - a.left + k, a.frames, a.channels);
    }
    AERIE_UNROLL
    for (int s = 0; s < kStrip; ++s) {
      const int t = begin + s;
      rows[s + kTaps - 1] = load_row<kWidth>(grad, t + a.left, a.frames, a.channels);
      inputs[s + kTaps - 1] = load_row<kWidth>(x, t - a.left + kTaps - 1, a.frames, a.channels);
      if (t >= a.frames) continue;
      const Channels<kWidth> here = load_channels<kWidth>(grad + size_t(t) * a.channels);
      Channels<kWidth> sum = {};
      AERIE_UNROLL
      for (int i = 0; i < kWidth; ++i) {
        d_bias.v[i] += here.v[i];
        AERIE_UNROLL
        for (int k = 0; k < kTaps; ++k) {
          sum.v[i] += weight[i][k] * rows[s + kTaps - 1 - k].v[i];
          d_weight[i][k] += here.v[i] * inputs[s + k].v[i];
        }
      }
      store_channels<kWidth>(grad_x + size_t(t) * a.channels, sum);
    }
  }
  float* part = a.partial + size_t(blockIdx.y) * (kTaps + 1) * a.channels;
  AERIE_UNROLL
  for (int i = 0; i < kWidth; ++i) {
    AERIE_UNROLL
    for (int k = 0; k < kTaps; ++k) part[(c + i) * kTaps + k] = d_weight[i][k];
    part[kTaps * a.channels + c + i] = d_bias.v[i];
  }
}

template <typename Args>
bool covered(const Args& a) {
  return a.batch > 0 && a.frames > 0 && a.channels > 0 && a.channels % 8 == 0 && a.left >= 0 &&
         a.left < a.kernel && (a.kernel == 5 || a.kernel == 9);
}

}  // namespace

int depthwise_forward(const DepthwiseForward& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  const LaunchShape shape{dim3(unsigned(ceil_div(a.channels / 4, kThreads)),
                               unsigned(depthwise_strips(a.batch, a.frames))),
                          dim3(kThreads)};
  return dispatch(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    return a.kernel == 9 ? launch(stream, shape, depthwise_forward_kernel<T, 9>, a)
                         : launch(stream, shape, depthwise_forward_kernel<T, 5>, a);
  });
}

int depthwise_backward(const DepthwiseBackward& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  const int strips = depthwise_strips(a.batch, a.frames);
  const int parts = strips < kDepthwiseParts ? strips : kDepthwiseParts;
  const LaunchShape shape{dim3(unsigned(ceil_div(a.channels / 2, kThreads)), unsigned(parts)),
                          dim3(kThreads)};
  AERIE_TRY(dispatch(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    return a.kernel == 9 ? launch(stream, shape, depthwise_backward_kernel<T, 9>, a)
                         : launch(stream, shape, depthwise_backward_kernel<T, 5>, a);
  }));
  ColumnSums sums;
  sums.out[0] = a.grad_weight;
  sums.sections = 1;
  sums.width = a.channels * a.kernel;
  sums.partial = a.partial;
  sums.parts = parts;
  sums.stride = size_t(a.channels) * (a.kernel + 1);
  sums.accumulate = a.accumulate;
  AERIE_TRY(finish_column_sums(stream, sums, a.later));
  if (a.grad_bias == nullptr) return kOk;
  sums.out[0] = a.grad_bias;
  sums.width = a.channels;
  sums.partial = a.partial + size_t(a.channels) * a.kernel;
  return finish_column_sums(stream, sums, a.later);
}

}  // namespace aerie::kernels::AERIE_BACKEND
