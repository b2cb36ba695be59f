// Three launches: partial sums of squares, one block that decides, one pass that updates. Bound by
// memory: 4 bytes per parameter for the norm, then 28, 2 more for the compute weights and 8 for
// the EMA.
//
// A list of chunks is updated by few large blocks, each of which has an SM to itself, past L2,
// which belongs to the work that it overlaps. Alone, many small blocks are faster (H200: 4.1 TB/s;
// with two groups of values per thread 4.0, past L2 3.8, in large blocks that stay 4.0).
#include "aerie/kernels/adamw/adamw.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 256;

// Blocks of the first launch; depends on the number of elements alone, as the sum's order must.
__host__ __device__ inline int num_parts(const AdamwStep& a) {
  const int64_t wanted = a.square_partials != nullptr
                             ? a.num_ranges + a.num_square_partials / 1024 + 1
                             : (a.count + kThreads * 8 - 1) / (kThreads * 8);
  return wanted < kAdamwParts ? int(wanted) : kAdamwParts;
}

__global__ void __launch_bounds__(kThreads) sum_squares(AdamwStep a) {
  AERIE_SHARED(double, sums, kThreads / 32);
  double sum = 0.0;
  const auto add = [&](int64_t i) {
    const Vec8 g = load8(a.grads + i);
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) sum += double(g.v[k]) * double(g.v[k]);
  };
  const int64_t thread = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t threads = int64_t(gridDim.x) * kThreads;
  if (a.square_partials == nullptr) {
    for (int64_t i = thread * 8; i < a.count; i += threads * 8) add(i);
  } else {
    for (int64_t i = thread; i < a.num_square_partials; i += threads) sum += a.square_partials[i];
    for (int s = blockIdx.x; s < a.num_ranges; s += gridDim.x) {
      const AdamwRange range = a.ranges[s];
      for (int i = threadIdx.x * 8; i < range.count; i += kThreads * 8) add(range.begin + i);
    }
  }
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kThreads / 32; ++w) sum += sums[w];
  a.partial[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) decide(AdamwStep a) {
  AERIE_SHARED(double, sums, kThreads / 32);
  AERIE_SHARED(uint32_t, skip, 1);
  double sum = 0.0;
  for (int p = threadIdx.x; p < num_parts(a); p += kThreads) sum += a.partial[p];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    double squares = 0.0;
    for (int w = 0; w < kThreads / 32; ++w) squares += sums[w];
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

// What the update needs to know about the elements from `begin` to `end`.
struct Rule {
  int64_t begin = 0, end = 0;
  AdamwFactors factors = {};
  float beta1 = 0.0f, beta2 = 0.0f, eps = 0.0f;
  bool decoupled = true;
  bool known = false;  // false: elements of no segment
};
__device__ inline Rule rule_at(const AdamwStep& a, int64_t i) {
  Rule rule;
  const int s = find_segment(a.segments, a.num_segments, i);
  rule.known = s >= 0;
  rule.begin = i;
  rule.end = i + 4;
  if (s < 0) return rule;
  const AdamwSegment& g = a.segments[s];
  rule.begin = g.begin;
  rule.end = g.end;
  rule.factors = a.factors[s];
  rule.beta1 = float(g.beta1);
  rule.beta2 = float(g.beta2);
  rule.eps = float(g.eps);
  rule.decoupled = g.decoupled;
  return rule;
}

// Rounding of the last place or two, in a step that is far smaller than its weight; exact division
// (and the exact root) branch.
__device__ inline float fast_divide(float x, float y) {
#ifdef __CUDA_ARCH__
  return __fdividef(x, y);
#else
  return x / y;
#endif
}

// Neighbouring threads take neighbouring groups of four.
template <typename T>
__device__ inline void store4(T* p, const Vec4& x) {
  *reinterpret_cast<Bits8*>(p) = {{pack2<T>(x.v[0], x.v[1]), pack2<T>(x.v[2], x.v[3])}};
}

// What is not read again before all else has passed through L2.
#ifdef __CUDACC__
__device__ inline Vec4 load4_once(const float* p) {
  const float4 x = __ldcs(reinterpret_cast<const float4*>(p));
  return {x.x, x.y, x.z, x.w};
}
__device__ inline void store4_once(float* p, const Vec4& x) {
  __stcs(reinterpret_cast<float4*>(p), make_float4(x.v[0], x.v[1], x.v[2], x.v[3]));
}
#else
__device__ inline Vec4 load4_once(const float* p) {
  return load4(p);
}
__device__ inline void store4_once(float* p, const Vec4& x) {
  store4(p, x);
}
#endif

struct Values {
  Vec4 grad, param, exp_avg, exp_avg_sq;
};
// kOnce: past L2.
template <bool kOnce>
__device__ inline Values load_values(const AdamwStep& a, int64_t i) {
  const auto load = [i](const float* from) {
    return kOnce ? load4_once(from + i) : load4(from + i);
  };
  return {load(a.grads), load(a.params), load(a.exp_avg), load(a.exp_avg_sq)};
}

template <typename Compute, bool kOnce>
__device__ inline void update4(const AdamwStep& a, const AdamwControl& c, const Rule& rule,
                               int64_t i, const Values& values) {
  if (!rule.known) return;
  const AdamwFactors f = rule.factors;
  const float limit = a.clip > 0.0 && a.clip_by_value ? float(a.clip) : INFINITY;
  Vec4 p = values.param, m = values.exp_avg, v = values.exp_avg_sq;
  AERIE_UNROLL
  for (int k = 0; k < 4; ++k) {
    float grad = fminf(fmaxf(values.grad.v[k] * c.factor, -limit), limit);
    if (rule.decoupled) {
      p.v[k] *= f.decay;
    } else {
      grad += f.decay * p.v[k];
    }
    m.v[k] += (grad - m.v[k]) * (1.0f - rule.beta1);
    v.v[k] = rule.beta2 * v.v[k] + (1.0f - rule.beta2) * grad * grad;
    p.v[k] -= fast_divide(f.step_size * m.v[k], fast_sqrt(v.v[k]) * f.inv_sqrt_c2 + rule.eps);
  }
  const auto store = [i](float* to, const Vec4& x) {
    kOnce ? store4_once(to + i, x) : store4(to + i, x);
  };
  store(a.params, p);
  store(a.exp_avg, m);
  store(a.exp_avg_sq, v);
  if (a.compute_weights != nullptr) store4(static_cast<Compute*>(a.compute_weights) + i, p);
  if (a.ema != nullptr && c.ema_weight != 0.0f) {
    Vec4 average = load4(a.ema + i);
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) average.v[k] += (p.v[k] - average.v[k]) * c.ema_weight;
    store4(a.ema + i, average);
  }
}

template <typename Compute>
__global__ void __launch_bounds__(kThreads) update(AdamwStep a, const uint32_t* wanted) {
  const AdamwControl c = *a.control;
  if (c.skip != 0 || (wanted != nullptr && *wanted == 0)) return;
  const int64_t i = (int64_t(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (i >= a.count) return;
  const Values values = load_values<false>(a, i);
  update4<Compute, false>(a, c, rule_at(a, i), i, values);
}

// All registers of an SM: a block has it to itself.
constexpr int kChunkThreads = kAdamwChunk / 4;

// The loads of the next chunk are under way while this one is computed.
template <typename Compute>
__global__ void __launch_bounds__(kChunkThreads, 1)
    update_chunks(AdamwStep a, const int32_t* chunks, int count, const uint32_t* wanted) {
  const AdamwControl c = *a.control;
  if (c.skip != 0 || (wanted != nullptr && *wanted == 0)) return;
  const auto index = [&](int n) { return int64_t(chunks[n]) * kAdamwChunk + threadIdx.x * 4; };
  Rule rule;
  int n = blockIdx.x;
  int64_t i = index(n);
  Values values;
  if (i < a.count) values = load_values<true>(a, i);
  while (n < count) {
    const int next = n + int(gridDim.x);
    int64_t next_i = a.count;
    Values next_values;
    if (next < count) next_i = index(next);
    if (next_i < a.count) next_values = load_values<true>(a, next_i);
    if (i < a.count) {
      if (i < rule.begin || i >= rule.end) rule = rule_at(a, i);
      update4<Compute, true>(a, c, rule, i, values);
    }
    n = next;
    i = next_i;
    values = next_values;
  }
}

}  // namespace

int adamw_decide(const AdamwStep& a, void* stream) {
  if (a.count % 8 != 0 || a.compute_dtype == Dtype::kF32) return kUnsupported;
  if (a.count == 0) return kOk;
  AERIE_TRY(launch(stream, {dim3(unsigned(num_parts(a))), dim3(kThreads)}, sum_squares, a));
  return launch(stream, {dim3(1), dim3(kThreads)}, decide, a);
}

int adamw_update(const AdamwUpdate& u, void* stream) {
  const AdamwStep& a = u.step;
  if (a.count % 8 != 0 || a.compute_dtype == Dtype::kF32) return kUnsupported;
  const bool half = a.compute_dtype == Dtype::kF16;
  if (u.num_chunks < 0) {
    if (a.count == 0) return kOk;
    const LaunchShape shape{dim3(unsigned(ceil_div(a.count, int64_t(kThreads) * 4))),
                            dim3(kThreads)};
    return launch(stream, shape, half ? update<Half> : update<Bf16>, a, u.wanted);
  }
  if (u.num_chunks == 0) return kOk;
  const int share = u.share > 1 ? u.share : 1;
  const int blocks = sm_count() > share ? sm_count() / share : 1;
  const LaunchShape shape{dim3(unsigned(blocks < u.num_chunks ? blocks : u.num_chunks)),
                          dim3(kChunkThreads)};
  return launch(stream, shape, half ? update_chunks<Half> : update_chunks<Bf16>, a, u.chunks,
                u.num_chunks, u.wanted);
}

}  // namespace aerie::kernels::AERIE_BACKEND
