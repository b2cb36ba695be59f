// Threads walk down columns, so that a channel's constants stay in registers: one read and one
// write forward, two reads for the sums.
#include "aerie/kernels/conv/batch_norm.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = kColumnThreads;
constexpr int kWarps = kThreads / 32;
constexpr int kFinishThreads = 1024;  // 32 groups share the parts of 32 channels

struct Moments {
  float count, mean, squares;
};
// Chan's merge of two sets.
__device__ inline Moments merge(const Moments& a, const Moments& b) {
  const float count = a.count + b.count;
  if (count == 0.0f) return a;
  const float delta = b.mean - a.mean, share = b.count / count;
  return {count, a.mean + delta * share, a.squares + b.squares + delta * delta * a.count * share};
}

__global__ void __launch_bounds__(kFinishThreads) finish_kernel(BatchNormFinish a) {
  AERIE_SHARED(Moments, groups, kFinishThreads);
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int c = blockIdx.x * 32 + lane;
  if (!a.training) {
    if (group == 0 && c < a.channels) {
      a.mean[c] = a.running_mean[c];
      a.rstd[c] = 1.0f / sqrtf(a.running_var[c] + a.eps);
    }
    return;
  }
  const int strips = (a.frames + kConvRows - 1) / kConvRows;
  Moments all = {0.0f, 0.0f, 0.0f};
  if (c < a.channels) {
    for (int part = group; part < a.batch * strips; part += kFinishThreads / 32) {
      const int left =
          statistics_limit(a.counted, part / strips, a.frames) - part % strips * kConvRows;
      if (left <= 0) continue;
      const float* s = a.statistics + size_t(part) * 2 * a.channels + c;
      all = merge(all, {float(left < kConvRows ? left : kConvRows), s[0], s[a.channels]});
    }
  }
  groups[threadIdx.x] = all;
  __syncthreads();
  // Pairs of groups, then pairs of pairs.
  for (int half = kFinishThreads / 64; half > 0; half /= 2) {
    if (group < half) groups[threadIdx.x] = all = merge(all, groups[threadIdx.x + half * 32]);
    __syncthreads();
  }
  if (group != 0 || c >= a.channels) return;
  const float count = all.count > 1.0f ? all.count : 1.0f;
  a.mean[c] = all.mean;
  a.rstd[c] = 1.0f / sqrtf(all.squares / count + a.eps);
  const float unbiased = all.squares / (count > 1.0f ? count - 1.0f : 1.0f);
  a.running_mean[c] += (all.mean - a.running_mean[c]) * a.momentum;
  a.running_var[c] += (unbiased - a.running_var[c]) * a.momentum;
  if (c == 0) *a.batches += 1;
}

// Written once, so that computing it again gives the same bits; gain = rstd * weight.
__device__ inline float before_silu(float x, float mean, float gain, float bias) {
  return (x - mean) * gain + bias;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) forward_kernel(BatchNormForward a) {
  const int column = (blockIdx.x * 32 + threadIdx.x % 32) * 8;
  if (column >= a.channels) return;
  const Vec8 mean = load8(a.mean + column), bias = load8(a.bias + column);
  Vec8 gain = load8(a.rstd + column);
  const Vec8 weight = load8(a.weight + column);
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) gain.v[k] *= weight.v[k];
  const int rows = a.batch * a.frames;
  for (int row = blockIdx.y * kWarps + threadIdx.x / 32; row < rows; row += gridDim.y * kWarps) {
    const size_t at = size_t(row) * a.channels + column;
    Vec8 x = load8(static_cast<const T*>(a.x) + at);
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) {
      const float z = before_silu(x.v[k], mean.v[k], gain.v[k], bias.v[k]);
      x.v[k] = z * sigmoid_for<T>(z);
    }
    store8(static_cast<T*>(a.out) + at, x);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) reduce_kernel(BatchNormReduce a) {
  AERIE_SHARED(float, sums, kThreads * 8);
  AERIE_SHARED(float, product_sums, kThreads * 8);
  const int column = (blockIdx.x * 32 + threadIdx.x % 32) * 8;
  Vec8 sum = {}, product = {};
  if (column < a.channels) {
    const Vec8 mean = load8(a.mean + column), rstd = load8(a.rstd + column);
    Vec8 gain = load8(a.weight + column);
    const Vec8 bias = load8(a.bias + column);
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) gain.v[k] *= rstd.v[k];
    const int rows = a.batch * a.frames;
    AERIE_UNROLL_BY(2)
    for (int row = blockIdx.y * kWarps + threadIdx.x / 32; row < rows; row += gridDim.y * kWarps) {
      const bool counts = row % a.frames < statistics_limit(a.counted, row / a.frames, a.frames);
      if (!counts && a.out == nullptr) continue;
      const size_t at = size_t(row) * a.channels + column;
      const Vec8 x = load8(static_cast<const T*>(a.x) + at);
      Vec8 grad = {}, out;
      if (counts) grad = load8(static_cast<const T*>(a.grad_out) + at);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) {
        const float normal = (x.v[k] - mean.v[k]) * rstd.v[k];
        const float z = before_silu(x.v[k], mean.v[k], gain.v[k], bias.v[k]);
        const float s = sigmoid_for<T>(z);
        out.v[k] = z * s;
        grad.v[k] *= s * (1.0f + z * (1.0f - s));
        sum.v[k] += grad.v[k];
        product.v[k] += grad.v[k] * normal;
      }
      if (a.out != nullptr) store8(static_cast<T*>(a.out) + at, out);
    }
  }
  const int limit = 2 * a.channels;
  write_partial(a.partial, limit, column < a.channels ? column : limit, sum, sums);
  write_partial(a.partial, limit, column < a.channels ? column + a.channels : limit, product,
                product_sums);
}

__global__ void __launch_bounds__(kFinishThreads) totals_kernel(BatchNormReduce a, int parts) {
  AERIE_SHARED(float, sums, kFinishThreads);
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int column = blockIdx.x * 32 + lane, columns = 2 * a.channels;
  float sum = 0.0f;
  if (column < columns)
    for (int p = group; p < parts; p += kFinishThreads / 32)
      sum += a.partial[size_t(p) * columns + column];
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kFinishThreads / 64; half > 0; half /= 2) {
    if (group < half) sums[threadIdx.x] = sum = sum + sums[threadIdx.x + half * 32];
    __syncthreads();
  }
  if (group != 0 || column >= columns) return;
  a.totals[column] = sum;
  float* out = column < a.channels ? a.grad_bias + column : a.grad_weight + column - a.channels;
  *out = a.accumulate ? *out + sum : sum;
}

template <typename Args>
bool covered(const Args& a) {
  return a.batch > 0 && a.frames > 0 && a.channels > 0 && a.channels % 8 == 0;
}

template <typename Args>
LaunchShape column_shape(const Args& a, int most_parts) {
  const int wanted = ceil_div(a.batch * a.frames, kWarps);
  return {dim3(unsigned(ceil_div(a.channels, 256)),
               unsigned(wanted < most_parts ? wanted : most_parts)),
          dim3(kThreads)};
}

}  // namespace

int batch_norm_finish(const BatchNormFinish& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  return launch(stream, {dim3(unsigned(ceil_div(a.channels, 32))), dim3(kFinishThreads)},
                finish_kernel, a);
}

int batch_norm_forward(const BatchNormForward& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  return dispatch(a.dtype, [&](auto zero) {
    return launch(stream, column_shape(a, 512), forward_kernel<decltype(zero)>, a);
  });
}

int batch_norm_reduce(const BatchNormReduce& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  const LaunchShape shape = column_shape(a, kBatchNormParts);
  AERIE_TRY(dispatch(
      a.dtype, [&](auto zero) { return launch(stream, shape, reduce_kernel<decltype(zero)>, a); }));
  return launch(stream, {dim3(unsigned(ceil_div(2 * a.channels, 32))), dim3(kFinishThreads)},
                totals_kernel, a, int(shape.grid.y));
}

}  // namespace aerie::kernels::AERIE_BACKEND
