#include <algorithm>
#include <cmath>

#include "aerie/kernels/adamw/adamw.h"

namespace aerie::kernels::reference {
namespace {

void update(const AdamwStep& a, const AdamwSegment& g, const AdamwFactors& f, int64_t begin,
            int64_t end) {
  const AdamwControl& c = *a.control;
  const float beta1 = static_cast<float>(g.beta1), beta2 = static_cast<float>(g.beta2);
  for (int64_t i = begin; i < end; ++i) {
    float p = a.params[i];
    float grad = a.grads[i] * c.factor;
    if (a.clip > 0.0 && a.clip_by_value) {
      const float limit = static_cast<float>(a.clip);
      grad = std::fmin(std::fmax(grad, -limit), limit);
    }
    if (g.decoupled) {
      p *= f.decay;
    } else {
      grad += f.decay * p;
    }
    const float m = a.exp_avg[i] += (grad - a.exp_avg[i]) * (1.0f - beta1);
    const float v = a.exp_avg_sq[i] = beta2 * a.exp_avg_sq[i] + (1.0f - beta2) * grad * grad;
    p -= f.step_size * m / (std::sqrt(v) * f.inv_sqrt_c2 + static_cast<float>(g.eps));
    a.params[i] = p;
    if (a.compute_weights != nullptr) {
      uint16_t* compute_weights = static_cast<uint16_t*>(a.compute_weights);
      compute_weights[i] =
          a.compute_dtype == Dtype::kF16 ? float_to_half_bits(p) : float_to_bf16_bits(p);
    }
    if (a.ema != nullptr && c.ema_weight != 0.0f) a.ema[i] += (p - a.ema[i]) * c.ema_weight;
  }
}

}  // namespace

int adamw_decide(const AdamwStep& a, void*) {
  double squares = 0.0;
  const auto add = [&](int64_t begin, int64_t count) {
    for (int64_t i = begin; i < begin + count; ++i)
      squares += static_cast<double>(a.grads[i]) * static_cast<double>(a.grads[i]);
  };
  if (a.square_partials == nullptr) {
    add(0, a.count);
  } else {
    for (int64_t i = 0; i < a.num_square_partials; ++i) squares += a.square_partials[i];
    for (int32_t i = 0; i < a.num_ranges; ++i) add(a.ranges[i].begin, a.ranges[i].count);
  }
  AdamwControl& c = *a.control;
  c.loss_scale = a.loss_scale != nullptr ? *a.loss_scale : 1.0f;
  const double inverse = static_cast<float>(1.0 / static_cast<double>(c.loss_scale));
  c.norm = std::sqrt(squares) * inverse;
  c.skip = !std::isfinite(squares) || (a.loss != nullptr && !std::isfinite(*a.loss)) ? 1 : 0;
  double factor = inverse;
  if (a.clip > 0.0 && !a.clip_by_value) factor *= std::fmin(1.0, a.clip / (c.norm + 1e-6));
  c.factor = static_cast<float>(factor);

  if (a.loss_scale != nullptr && a.dynamic_scale) {
    if (c.skip != 0) {
      *a.loss_scale *= a.backoff;
      *a.growth_tracker = 0;
    } else if (++*a.growth_tracker == a.growth_interval) {
      if (std::isfinite(*a.loss_scale * a.growth)) *a.loss_scale *= a.growth;
      *a.growth_tracker = 0;
    }
  }
  c.ema_weight = 0.0f;
  if (a.ema != nullptr && c.skip == 0) {
    if (*a.ema_count % a.ema_every == 0) c.ema_weight = static_cast<float>(1.0 - a.ema_decay);
    ++*a.ema_count;
  }
  if (c.skip != 0) return kOk;
  for (int32_t s = 0; s < a.num_segments; ++s) {
    const AdamwSegment& g = a.segments[s];
    const double step = a.steps[s] += 1.0f;
    const double lr = a.learning_rates[g.rate];
    AdamwFactors& f = a.factors[s];
    f.decay = static_cast<float>(g.decoupled ? 1.0 - lr * g.weight_decay : g.weight_decay);
    f.step_size = static_cast<float>(lr / (1.0 - std::pow(g.beta1, step)));
    f.inv_sqrt_c2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(g.beta2, step)));
  }
  return kOk;
}

int adamw_update(const AdamwUpdate& u, void*) {
  const AdamwStep& a = u.step;
  if (a.control->skip != 0 || (u.wanted != nullptr && *u.wanted == 0)) return kOk;
  const bool all = u.num_chunks < 0;
  const int32_t ranges = all ? 1 : u.num_chunks;
  for (int32_t n = 0; n < ranges; ++n) {
    const int64_t begin = all ? 0 : int64_t{u.chunks[n]} * kAdamwChunk;
    const int64_t end = all ? a.count : begin + kAdamwChunk;
    for (int32_t s = 0; s < a.num_segments; ++s)
      update(a, a.segments[s], a.factors[s], std::max(begin, a.segments[s].begin),
             std::min(end, a.segments[s].end));
  }
  return kOk;
}

}  // namespace aerie::kernels::reference
