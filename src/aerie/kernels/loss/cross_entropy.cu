// One block per row. With one book the row lives in registers: one read and one write of the
// logits. Several books are interleaved in memory and take the strided kernel, which reads three
// times.
#include <type_traits>

#include "aerie/kernels/device.h"
#include "aerie/kernels/loss/cross_entropy.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

__device__ inline float block_max(float value, float* scratch) {
  value = warp_max(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  for (int w = 0; w < kWarps; ++w) value = fmaxf(value, scratch[w]);
  return value;
}
__device__ inline float block_sum(float value, float* scratch) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
  for (int w = 0; w < kWarps; ++w) total += scratch[w];
  return total;
}

__device__ inline int divisor(const CrossEntropy& a) {
  const int rows = a.divisor != nullptr ? *a.divisor : *a.num_rows;
  return rows > 1 ? rows : 1;
}
__device__ inline float grad_weight(const CrossEntropy& a) {
  const float rows = float(divisor(a));
  return a.weight * (a.loss_scale != nullptr ? *a.loss_scale : 1.0f) / (rows * float(a.books));
}

template <typename T, int kVecs>
__global__ void __launch_bounds__(kThreads) row_kernel(CrossEntropy a) {
  AERIE_SHARED(float, maxima, kWarps);
  AERIE_SHARED(float, sums, kWarps);
  const int row = blockIdx.x;
  T* logits = static_cast<T*>(a.logits) + size_t(row) * a.classes;
  const bool used = row < *a.num_rows;
  if (!used) {
    if (!a.backward || a.rest_is_zero) return;
    for (int c = threadIdx.x * 8; c < a.classes; c += kThreads * 8) store8(logits + c, Vec8{});
    return;
  }
  const int token = a.tokens[row];
  Vec8 x[kVecs] = {};
  float largest = -INFINITY;
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    const int c = (j * kThreads + threadIdx.x) * 8;
    if (c >= a.classes) continue;
    x[j] = load8(logits + c);
    if (a.bias != nullptr) {
      const Vec8 bias = load8(a.bias + c);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) x[j].v[k] += bias.v[k];
    }
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) {
      largest = fmaxf(largest, x[j].v[k]);
      if (c + k == token) a.row_loss[row] = -x[j].v[k];
    }
  }
  largest = block_max(largest, maxima);
  float sum = 0.0f;
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    if ((j * kThreads + int(threadIdx.x)) * 8 >= a.classes) continue;
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) {
      x[j].v[k] = expf(x[j].v[k] - largest);
      sum += x[j].v[k];
    }
  }
  sum = block_sum(sum, sums);  // its barrier also lets row_loss be read
  if (threadIdx.x == 0) a.row_loss[row] += largest + logf(sum);
  if (!a.backward) return;
  const float weight = grad_weight(a), inverse = weight / sum;
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    const int c = (j * kThreads + threadIdx.x) * 8;
    if (c >= a.classes) continue;
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) x[j].v[k] = x[j].v[k] * inverse - (c + k == token ? weight : 0.0f);
    store8(logits + c, x[j]);
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads) strided_kernel(CrossEntropy a) {
  AERIE_SHARED(float, maxima, kWarps);
  AERIE_SHARED(float, sums, kWarps);
  const int row = blockIdx.x, book = blockIdx.y;
  T* logits = static_cast<T*>(a.logits) + size_t(row) * a.classes * a.books + book;
  if (row >= *a.num_rows) {
    if (!a.backward || a.rest_is_zero) return;
    for (int c = threadIdx.x; c < a.classes; c += kThreads) logits[c * a.books] = from_float<T>(0);
    return;
  }
  const auto at = [&](int c) {
    return to_float(logits[c * a.books]) + (a.bias != nullptr ? a.bias[c * a.books + book] : 0.0f);
  };
  float largest = -INFINITY, sum = 0.0f;
  for (int c = threadIdx.x; c < a.classes; c += kThreads) largest = fmaxf(largest, at(c));
  largest = block_max(largest, maxima);
  for (int c = threadIdx.x; c < a.classes; c += kThreads) sum += expf(at(c) - largest);
  sum = block_sum(sum, sums);
  const int token = a.tokens[row * a.books + book];
  if (threadIdx.x == 0) a.row_loss[row * a.books + book] = largest + logf(sum) - at(token);
  if (!a.backward) return;
  __syncthreads();  // thread 0 has read the token's logit
  const float weight = grad_weight(a), inverse = weight / sum;
  for (int c = threadIdx.x; c < a.classes; c += kThreads)
    logits[c * a.books] =
        from_float<T>(expf(at(c) - largest) * inverse - (c == token ? weight : 0.0f));
}

__global__ void __launch_bounds__(kThreads) mean_kernel(CrossEntropy a) {
  AERIE_SHARED(double, parts, kThreads);
  const int rows = *a.num_rows < a.capacity ? *a.num_rows : a.capacity;
  double sum = 0.0;
  for (int i = threadIdx.x; i < rows * a.books; i += kThreads) sum += a.row_loss[i];
  parts[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int t = 1; t < kThreads; ++t) sum += parts[t];
  if (rows > 0) {
    *a.loss = float(sum / (double(divisor(a)) * a.books));
  } else {
    *a.loss = a.nan_when_empty ? NAN : 0.0f;
  }
}

}  // namespace

int cross_entropy(const CrossEntropy& a, void* stream) {
  if (a.capacity <= 0 || a.classes <= 0 || a.books <= 0) return kUnsupported;
  AERIE_TRY(dispatch(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (a.books > 1 || a.classes % 8 != 0 || a.classes > kThreads * 64)
      return launch(stream, {dim3(unsigned(a.capacity), unsigned(a.books)), dim3(kThreads)},
                    strided_kernel<T>, a);
    const LaunchShape shape{dim3(unsigned(a.capacity)), dim3(kThreads)};
    if (a.classes <= kThreads * 8) return launch(stream, shape, row_kernel<T, 1>, a);
    if (a.classes <= kThreads * 32) return launch(stream, shape, row_kernel<T, 4>, a);
    return launch(stream, shape, row_kernel<T, 8>, a);
  }));
  return launch(stream, {dim3(1), dim3(kThreads)}, mean_kernel, a);
}

}  // namespace aerie::kernels::AERIE_BACKEND
