// Threads walk down columns, so that a channel's constants stay in registers: two reads and one
// write forward and back, plus the reduction's two reads (from the cache, for tensors that fit it).
#include "aerie/kernels/conv/batch_norm.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = kColumnThreads;
constexpr int kWarps = kThreads / 32;

// Frames that count, over the whole batch.
__device__ inline float counted_frames(const StatisticsFrames& s, int batch, int frames) {
  int total = 0;
  for (int b = 0; b < batch; ++b) total += statistics_limit(s, b, frames);
  return float(total);
}

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

__global__ void __launch_bounds__(kThreads) finish_kernel(BatchNormFinish a) {
  AERIE_SHARED(Moments, groups, kThreads);
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int c = blockIdx.x * 32 + lane;
  if (!a.training) {
    if (group == 0 && c < a.channels) {
      a.mean[c] = a.running_mean[c];
      a.rstd[c] = 1.0f / sqrtf(a.running_var[c] + a.eps);
    }
    return;
  }
  const int strips = (a.frames + kDepthwiseStrip - 1) / kDepthwiseStrip;
  Moments all = {0.0f, 0.0f, 0.0f};
  if (c < a.channels) {
    for (int part = group; part < a.batch * strips; part += kWarps) {
      const int left =
          statistics_limit(a.counted, part / strips, a.frames) - part % strips * kDepthwiseStrip;
      if (left <= 0) continue;
      const float* s = a.statistics + size_t(part) * 2 * a.channels + c;
      all =
          merge(all, {float(left < kDepthwiseStrip ? left : kDepthwiseStrip), s[0], s[a.channels]});
    }
  }
  groups[threadIdx.x] = all;
  __syncthreads();
  if (group != 0 || c >= a.channels) return;
  for (int g = 1; g < kWarps; ++g) all = merge(all, groups[g * 32 + lane]);
  const float count = all.count > 1.0f ? all.count : 1.0f;
  a.mean[c] = all.mean;
  a.rstd[c] = 1.0f / sqrtf(all.squares / count + a.eps);
  const float unbiased = all.squares / (count > 1.0f ? count - 1.0f : 1.0f);
  a.running_mean[c] += (all.mean - a.running_mean[c]) * a.momentum;
  a.running_var[c] += (unbiased - a.running_var[c]) * a.momentum;
  if (c == 0) *a.batches += 1;
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
      const float z = (x.v[k] - mean.v[k]) * gain.v[k] + bias.v[k];
      x.v[k] = z * sigmoid_for<T>(z);
    }
    store8(static_cast<T*>(a.out) + at, x);
  }
}

// Gradient before the SiLU, and the normalised input, of eight values.
template <typename T>
__device__ inline void undo_silu(const BatchNormBackward& a, size_t at, const Vec8& mean,
                                 const Vec8& rstd, const Vec8& weight, const Vec8& bias, Vec8* grad,
                                 Vec8* normal) {
  *normal = load8(static_cast<const T*>(a.x) + at);
  *grad = load8(static_cast<const T*>(a.grad_out) + at);
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) {
    normal->v[k] = (normal->v[k] - mean.v[k]) * rstd.v[k];
    grad->v[k] *= silu_slope_for<T>(normal->v[k] * weight.v[k] + bias.v[k]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) reduce_kernel(BatchNormBackward a) {
  AERIE_SHARED(float, sums, kThreads * 8);
  AERIE_SHARED(float, product_sums, kThreads * 8);
  const int column = (blockIdx.x * 32 + threadIdx.x % 32) * 8;
  Vec8 sum = {}, product = {};
  if (column < a.channels) {
    const Vec8 mean = load8(a.mean + column), rstd = load8(a.rstd + column);
    const Vec8 weight = load8(a.weight + column), bias = load8(a.bias + column);
    const int rows = a.batch * a.frames;
    for (int row = blockIdx.y * kWarps + threadIdx.x / 32; row < rows; row += gridDim.y * kWarps) {
      if (row % a.frames >= statistics_limit(a.counted, row / a.frames, a.frames)) continue;
      Vec8 grad, normal;
      undo_silu<T>(a, size_t(row) * a.channels + column, mean, rstd, weight, bias, &grad, &normal);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) {
        sum.v[k] += grad.v[k];
        product.v[k] += grad.v[k] * normal.v[k];
      }
    }
  }
  const int limit = 2 * a.channels;
  write_partial(a.partial, limit, column < a.channels ? column : limit, sum, sums);
  write_partial(a.partial, limit, column < a.channels ? column + a.channels : limit, product,
                product_sums);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) apply_kernel(BatchNormBackward a, const float* totals) {
  const int column = (blockIdx.x * 32 + threadIdx.x % 32) * 8;
  if (column >= a.channels) return;
  const Vec8 mean = load8(a.mean + column), rstd = load8(a.rstd + column);
  const Vec8 weight = load8(a.weight + column), bias = load8(a.bias + column);
  Vec8 sum = load8(totals + column), product = load8(totals + a.channels + column);
  if (blockIdx.y == 0 && threadIdx.x / 32 == 0) {
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) {
      float* d_weight = a.grad_weight + column + k;
      float* d_bias = a.grad_bias + column + k;
      *d_weight = a.accumulate ? *d_weight + product.v[k] : product.v[k];
      *d_bias = a.accumulate ? *d_bias + sum.v[k] : sum.v[k];
    }
  }
  const float count = counted_frames(a.counted, a.batch, a.frames);
  const float inverse = count > 0.0f ? 1.0f / count : 0.0f;
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) {
    sum.v[k] *= inverse;
    product.v[k] *= inverse;
  }
  const int rows = a.batch * a.frames;
  for (int row = blockIdx.y * kWarps + threadIdx.x / 32; row < rows; row += gridDim.y * kWarps) {
    const size_t at = size_t(row) * a.channels + column;
    Vec8 out = {};
    if (row % a.frames < statistics_limit(a.counted, row / a.frames, a.frames)) {
      Vec8 grad, normal;
      undo_silu<T>(a, at, mean, rstd, weight, bias, &grad, &normal);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k)
        out.v[k] = weight.v[k] * rstd.v[k] * (grad.v[k] - sum.v[k] - normal.v[k] * product.v[k]);
    }
    store8(static_cast<T*>(a.grad_x) + at, out);
  }
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
  return launch(stream, {dim3(unsigned(ceil_div(a.channels, 32))), dim3(kThreads)}, finish_kernel,
                a);
}

int batch_norm_forward(const BatchNormForward& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  return dispatch(a.dtype, [&](auto zero) {
    return launch(stream, column_shape(a, 512), forward_kernel<decltype(zero)>, a);
  });
}

int batch_norm_backward(const BatchNormBackward& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  const LaunchShape shape = column_shape(a, kBatchNormParts);
  float* totals = a.partial + size_t(kBatchNormParts) * 2 * a.channels;
  AERIE_TRY(dispatch(
      a.dtype, [&](auto zero) { return launch(stream, shape, reduce_kernel<decltype(zero)>, a); }));
  ColumnSums sums;
  sums.out[0] = totals;
  sums.out[1] = totals + a.channels;
  sums.sections = 2;
  sums.width = a.channels;
  sums.partial = a.partial;
  sums.parts = int(shape.grid.y);
  AERIE_TRY(launch_column_sums(stream, sums));
  return dispatch(a.dtype, [&](auto zero) {
    return launch(stream, column_shape(a, 512), apply_kernel<decltype(zero)>, a, totals);
  });
}

}  // namespace aerie::kernels::AERIE_BACKEND
