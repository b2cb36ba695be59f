// A block owns 64 channels of every so many frames, a thread eight channels. Forward, every block
// adds up the statistics of its channels for itself while its first frames are on their way: that
// is less than a launch.
#include "aerie/kernels/conv/batch_norm.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kCols = 64;
constexpr int kVecs = kCols / 8;
constexpr int kRows = kThreads / kVecs;    // frames of a block at a time
constexpr int kGroups = kThreads / kCols;  // that share the parts of the statistics
constexpr int kHeld = 4;                   // frames that a thread loads together
constexpr int kBoth = 3;                   // the same where there are gradients as well
constexpr int kForwardBlocks = 264;        // two for each of 132 SMs

// Written once, so that computing it again gives the same bits; gain = rstd * weight.
__device__ inline float before_silu(float x, float mean, float gain, float bias) {
  return (x - mean) * gain + bias;
}

// Mean and 1/std of the block's channels, into shared memory, and from the first row of blocks to
// memory. The parts' means are taken from that of the first part, so that the squares do not
// cancel.
__device__ inline void finish_statistics(const BatchNormForward& a, float* sums, float* mean_rstd) {
  const int local = threadIdx.x % kCols, group = threadIdx.x / kCols;
  const int c = int(blockIdx.x) * kCols + local;
  const bool inside = c < a.channels;
  const int strips = (a.frames + kConvRows - 1) / kConvRows, parts = a.batch * strips;
  float origin = 0.0f, count = 0.0f, first = 0.0f, second = 0.0f;
  if (a.training && inside) {
    const float* s = a.statistics + c;
    origin = s[0];
    const int padded = a.counted.lengths == nullptr ? statistics_limit(a.counted, 0, a.frames) : 0;
    int item = group / strips, strip = group % strips;
    AERIE_UNROLL_BY(8)
    for (int part = group; part < parts; part += kGroups) {
      const int limit =
          a.counted.lengths == nullptr ? padded : statistics_limit(a.counted, item, a.frames);
      int n = limit - strip * kConvRows;
      n = n < 0 ? 0 : n < kConvRows ? n : kConvRows;
      const float off = s[size_t(part) * 2 * a.channels] - origin;
      count += float(n);
      first += float(n) * off;
      second += s[(size_t(part) * 2 + 1) * a.channels] + float(n) * off * off;
      strip += kGroups % strips;
      item += kGroups / strips + (strip >= strips ? 1 : 0);
      strip -= strip >= strips ? strips : 0;
    }
  }
  float* const mine = sums + threadIdx.x;
  mine[0] = count;
  mine[kThreads] = first;
  mine[2 * kThreads] = second;
  __syncthreads();
  if (group == 0 && inside) {
    AERIE_UNROLL
    for (int g = 1; g < kGroups; ++g) {
      count += mine[g * kCols];
      first += mine[kThreads + g * kCols];
      second += mine[2 * kThreads + g * kCols];
    }
    float mean, rstd;
    if (a.training) {
      count = count > 1.0f ? count : 1.0f;
      const float off = first / count;
      mean = origin + off;
      const float squares = fmaxf(second - first * off, 0.0f);
      rstd = 1.0f / sqrtf(squares / count + a.eps);
      if (blockIdx.y == 0) {
        const float unbiased = squares / (count > 1.0f ? count - 1.0f : 1.0f);
        a.running_mean[c] += (mean - a.running_mean[c]) * a.momentum;
        a.running_var[c] += (unbiased - a.running_var[c]) * a.momentum;
        if (c == 0) *a.batches += 1;
      }
    } else {
      mean = a.running_mean[c];
      rstd = 1.0f / sqrtf(a.running_var[c] + a.eps);
    }
    mean_rstd[local] = mean;
    mean_rstd[kCols + local] = rstd;
    if (blockIdx.y == 0) {
      a.mean[c] = mean;
      a.rstd[c] = rstd;
    }
  }
  __syncthreads();
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) forward_kernel(BatchNormForward a) {
  AERIE_SHARED(float, sums, 3 * kThreads);
  AERIE_SHARED(float, mean_rstd, 2 * kCols);
  const int vec = threadIdx.x % kVecs, column = int(blockIdx.x) * kCols + vec * 8;
  const bool inside = column < a.channels;
  const int rows = inside ? num_rows(a.layout, a.batch, a.frames) : 0,
            step = int(gridDim.y) * kRows;
  int row = int(blockIdx.y) * kRows + int(threadIdx.x) / kVecs;
  const T* x = static_cast<const T*>(a.x) + column;
  T* out = static_cast<T*>(a.out) + column;
  Raw8<T> held[kHeld];
  const auto fetch = [&] {
    AERIE_UNROLL
    for (int i = 0; i < kHeld; ++i)
      if (row + i * step < rows) held[i] = load_raw(x + size_t(row + i * step) * a.channels);
  };
  fetch();
  Vec8 weight = {}, bias = {};
  if (inside) {
    weight = load8(a.weight + column);
    bias = load8(a.bias + column);
  }
  finish_statistics(a, sums, mean_rstd);
  if (!inside) return;
  const Vec8 mean = load8(mean_rstd + vec * 8);
  Vec8 gain = load8(mean_rstd + kCols + vec * 8);
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) gain.v[k] *= weight.v[k];
  for (; row < rows;) {
    Raw8<T> now[kHeld];
    AERIE_UNROLL
    for (int i = 0; i < kHeld; ++i) now[i] = held[i];
    const int here = row;
    row += kHeld * step;
    fetch();
    AERIE_UNROLL
    for (int i = 0; i < kHeld; ++i) {
      if (here + i * step >= rows) continue;
      Vec8 value = unpack(now[i]);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) {
        const float z = before_silu(value.v[k], mean.v[k], gain.v[k], bias.v[k]);
        value.v[k] = z * sigmoid_for<T>(z);
      }
      store8(out + size_t(here + i * step) * a.channels, value);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads, 2) reduce_kernel(BatchNormReduce a) {
  AERIE_SHARED(float, sums, 2 * kWarps * kCols);
  const int vec = threadIdx.x % kVecs, column = int(blockIdx.x) * kCols + vec * 8;
  const bool inside = column < a.channels;
  const int rows = inside ? num_rows(a.layout, a.batch, a.frames) : 0,
            step = int(gridDim.y) * kRows;
  int row = int(blockIdx.y) * kRows + int(threadIdx.x) / kVecs;
  const T* x = static_cast<const T*>(a.x) + column;
  const T* grad_out = static_cast<const T*>(a.grad_out) + column;
  T* out = static_cast<T*>(a.out) + column;
  Vec8 sum = {}, product = {};
  Vec8 mean = {}, rstd = {}, gain = {}, bias = {};
  if (inside) {
    mean = load8(a.mean + column);
    rstd = load8(a.rstd + column);
    gain = load8(a.weight + column);
    bias = load8(a.bias + column);
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) gain.v[k] *= rstd.v[k];
  }
  for (; row < rows; row += kBoth * step) {
    Raw8<T> values[kBoth], grads[kBoth];
    bool counts[kBoth];
    AERIE_UNROLL
    for (int i = 0; i < kBoth; ++i) {
      const int at = row + i * step;
      if (at < rows) {
        values[i] = load_raw(x + size_t(at) * a.channels);
        grads[i] = load_raw(grad_out + size_t(at) * a.channels);
      }
      const RowPosition place = position_of(a.layout, at < rows ? at : 0, a.frames);
      counts[i] = place.frame < statistics_limit(a.counted, place.item, a.frames);
    }
    AERIE_UNROLL
    for (int i = 0; i < kBoth; ++i) {
      if (row + i * step >= rows) continue;
      const Vec8 value = unpack(values[i]);
      const Vec8 grad = counts[i] ? unpack(grads[i]) : Vec8{};
      Vec8 again;
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) {
        const float normal = (value.v[k] - mean.v[k]) * rstd.v[k];
        const float z = before_silu(value.v[k], mean.v[k], gain.v[k], bias.v[k]);
        const float s = sigmoid_for<T>(z);
        again.v[k] = z * s;
        const float before = grad.v[k] * (s * (1.0f + z * (1.0f - s)));
        sum.v[k] += before;
        product.v[k] += before * normal;
      }
      if (a.out != nullptr) store8(out + size_t(row + i * step) * a.channels, again);
    }
  }
  // Lanes of one warp hold four frames.
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) AERIE_UNROLL
  for (int mask = 8; mask <= 16; mask *= 2) {
    sum.v[k] += __shfl_xor_sync(kFullWarp, sum.v[k], mask);
    product.v[k] += __shfl_xor_sync(kFullWarp, product.v[k], mask);
  }
  const int warp = threadIdx.x / 32;
  if (threadIdx.x % 32 < kVecs) {
    store8(sums + warp * 2 * kCols + vec * 8, sum);
    store8(sums + (warp * 2 + 1) * kCols + vec * 8, product);
  }
  __syncthreads();
  const int which = threadIdx.x / kCols, channel = int(blockIdx.x) * kCols + threadIdx.x % kCols;
  if (which >= 2 || channel >= a.channels) return;
  float total = 0.0f;
  AERIE_UNROLL
  for (int w = 0; w < kWarps; ++w) total += sums[w * 2 * kCols + threadIdx.x];
  a.partial[(size_t(blockIdx.y) * 2 + which) * a.channels + channel] = total;
}

}  // namespace

int batch_norm_forward(const BatchNormForward& a, void* stream) {
  if (!a.covered()) return kUnsupported;
  const int side = ceil_div(a.channels, kCols),
            wanted = ceil_div(num_rows(a.layout, a.batch, a.frames), kRows);
  const int most = kForwardBlocks / side > 8 ? kForwardBlocks / side : 8;
  const LaunchShape shape{dim3(unsigned(side), unsigned(wanted < most ? wanted : most)),
                          dim3(kThreads)};
  return dispatch(
      a.dtype, [&](auto zero) { return launch(stream, shape, forward_kernel<decltype(zero)>, a); });
}

int batch_norm_reduce(const BatchNormReduce& a, void* stream) {
  if (!a.covered()) return kUnsupported;
  const int parts = batch_norm_parts(num_rows(a.layout, a.batch, a.frames));
  const LaunchShape shape{dim3(unsigned(ceil_div(a.channels, kCols)), unsigned(parts)),
                          dim3(kThreads)};
  AERIE_TRY(dispatch(
      a.dtype, [&](auto zero) { return launch(stream, shape, reduce_kernel<decltype(zero)>, a); }));
  ColumnSums sums = column_sums(a.grad_bias, a.channels, a.partial, parts, a.accumulate);
  sums.out[1] = a.grad_weight;
  sums.sections = 2;
  return finish_column_sums(stream, sums, a.deferred);
}

}  // namespace aerie::kernels::AERIE_BACKEND
