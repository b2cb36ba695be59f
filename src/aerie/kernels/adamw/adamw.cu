// Three launches: partial sums of squares, one block that decides, one pass that updates. Bound by
// memory: 4 bytes per parameter for the norm, then 28, 2 more for the 16-bit copy and 8 for the
// moving average.
#include "aerie/kernels/adamw/adamw.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 256;

// Blocks of the first launch; depends on the number of elements alone, as the sum's order must.
__host__ __device__ inline int num_parts(int64_t count) {
  const int64_t wanted = (count + kThreads * 8 - 1) / (kThreads * 8);
  return wanted < kAdamwParts ? int(wanted) : kAdamwParts;
}

__global__ void __launch_bounds__(kThreads)
    sum_squares(double* partial, const float* grads, int64_t count) {
  AERIE_SHARED(double, sums, kThreads / 32);
  double sum = 0.0;
  const int64_t stride = int64_t(gridDim.x) * kThreads * 8;
  for (int64_t i = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * 8; i < count; i += stride) {
    const Vec8 g = load8(grads + i);
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) sum += double(g.v[k]) * double(g.v[k]);
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) sum += sums[w];
  partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) decide(AdamwStep a) {
  AERIE_SHARED(double, sums, kThreads);
  AERIE_SHARED(uint32_t, skip, 1);
  double sum = 0.0;
  for (int p = threadIdx.x; p < num_parts(a.count); p += kThreads) sum += a.partial[p];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    double squares = 0.0;
    for (int t = 0; t < kThreads; ++t) squares += sums[t];
    AdamwControl c;
    c.loss_scale = a.loss_scale != nullptr ? *a.loss_scale : 1.0f;
    const double inverse = float(1.0 / double(c.loss_scale));
    c.norm = sqrt(squares) * inverse;
    c.skip = !isfinite(squares) || (a.loss != nullptr && !isfinite(*a.loss)) ? 1u : 0u;
    double factor = inverse;
    if (a.clip > 0.0 && !a.clip_by_value) factor *= fmin(1.0, a.clip / (c.norm + 1e-6));
    c.factor = float(factor);
    if (a.loss_scale != nullptr && a.dynamic_scale) {
      if (c.skip != 0) {
        *a.loss_scale = c.loss_scale * a.backoff;
        *a.growth_tracker = 0;
      } else if (*a.growth_tracker + 1 == a.growth_interval) {
        const float grown = c.loss_scale * a.growth;
        if (isfinite(grown)) *a.loss_scale = grown;
        *a.growth_tracker = 0;
      } else {
        *a.growth_tracker += 1;
      }
    }
    c.ema_weight = 0.0f;
    if (a.ema != nullptr && c.skip == 0) {
      if (*a.ema_count % a.ema_every == 0) c.ema_weight = float(1.0 - a.ema_decay);
      *a.ema_count += 1;
    }
    *a.control = c;
    skip[0] = c.skip;
  }
  __syncthreads();
  if (skip[0] != 0) return;
  for (int s = threadIdx.x; s < a.num_segments; s += kThreads) {
    const AdamwSegment g = a.segments[s];
    const float step = a.steps[s] + 1.0f;
    a.steps[s] = step;
    const double lr = a.learning_rates[g.rate];
    AdamwFactors f;
    f.decay = float(g.decoupled ? 1.0 - lr * g.weight_decay : g.weight_decay);
    f.step_size = float(lr / (1.0 - pow(g.beta1, double(step))));
    f.inv_sqrt_c2 = float(1.0 / sqrt(1.0 - pow(g.beta2, double(step))));
    a.factors[s] = f;
  }
}

// Number of the segment that holds element i, or -1.
__device__ int find_segment(const AdamwSegment* segments, int count, int64_t i) {
  int low = 0, high = count;  // the first segment that ends behind i
  while (low < high) {
    const int middle = (low + high) / 2;
    if (segments[middle].end <= i) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < count && segments[low].begin <= i ? low : -1;
}

template <typename Shadow>
__global__ void __launch_bounds__(kThreads) update(AdamwStep a) {
  const AdamwControl c = *a.control;
  if (c.skip != 0) return;
  const int64_t i = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * 8;
  if (i >= a.count) return;
  const int s = find_segment(a.segments, a.num_segments, i);
  if (s < 0) return;
  const AdamwSegment& g = a.segments[s];
  const AdamwFactors f = a.factors[s];
  const float beta1 = float(g.beta1), beta2 = float(g.beta2), eps = float(g.eps);
  const bool decoupled = g.decoupled;
  const float limit = a.clip > 0.0 && a.clip_by_value ? float(a.clip) : INFINITY;
  const Vec8 grads = load8(a.grads + i);
  Vec8 p = load8(a.params + i), m = load8(a.exp_avg + i), v = load8(a.exp_avg_sq + i);
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) {
    float grad = fminf(fmaxf(grads.v[k] * c.factor, -limit), limit);
    if (decoupled) {
      p.v[k] *= f.decay;
    } else {
      grad += f.decay * p.v[k];
    }
    m.v[k] += (grad - m.v[k]) * (1.0f - beta1);
    v.v[k] = beta2 * v.v[k] + (1.0f - beta2) * grad * grad;
    p.v[k] -= f.step_size * m.v[k] / (sqrtf(v.v[k]) * f.inv_sqrt_c2 + eps);
  }
  store8(a.params + i, p);
  store8(a.exp_avg + i, m);
  store8(a.exp_avg_sq + i, v);
  if (a.shadow != nullptr) store8(static_cast<Shadow*>(a.shadow) + i, p);
  if (a.ema != nullptr && c.ema_weight != 0.0f) {
    Vec8 average = load8(a.ema + i);
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) average.v[k] += (p.v[k] - average.v[k]) * c.ema_weight;
    store8(a.ema + i, average);
  }
}

}  // namespace

int adamw_step(const AdamwStep& a, void* stream) {
  if (a.count % 8 != 0 || a.shadow_dtype == Dtype::kFloat) return kUnsupported;
  if (a.count == 0) return kOk;
  AERIE_TRY(launch(stream, {dim3(unsigned(num_parts(a.count))), dim3(kThreads)}, sum_squares,
                   a.partial, a.grads, a.count));
  AERIE_TRY(launch(stream, {dim3(1), dim3(kThreads)}, decide, a));
  const LaunchShape shape{dim3(unsigned(ceil_div(a.count, int64_t(kThreads) * 8))), dim3(kThreads)};
  return a.shadow_dtype == Dtype::kHalf ? launch(stream, shape, update<Half>, a)
                                        : launch(stream, shape, update<Bf16>, a);
}

}  // namespace aerie::kernels::AERIE_BACKEND
