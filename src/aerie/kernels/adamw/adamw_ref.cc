#include <cmath>

#include "aerie/kernels/adamw/adamw.h"

namespace aerie::kernels::reference {
namespace {

void decide(const AdamwStep& a) {
  double squares = 0.0;
  for (int64_t i = 0; i < a.count; ++i)
    squares += static_cast<double>(a.grads[i]) * static_cast<double>(a.grads[i]);
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
}

}  // namespace

int adamw_step(const AdamwStep& a, void*) {
  decide(a);
  const AdamwControl& c = *a.control;
  if (c.skip != 0) return kOk;
  for (int32_t s = 0; s < a.num_segments; ++s) {
    const AdamwSegment& g = a.segments[s];
    const double step = a.steps[s] += 1.0f;
    const double lr = a.learning_rates[g.rate];
    const float step_size = static_cast<float>(lr / (1.0 - std::pow(g.beta1, step)));
    const float inv_c2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(g.beta2, step)));
    const float beta1 = static_cast<float>(g.beta1), beta2 = static_cast<float>(g.beta2);
    for (int64_t i = g.begin; i < g.end; ++i) {
      float p = a.params[i];
      float grad = a.grads[i] * c.factor;
      if (a.clip > 0.0 && a.clip_by_value) {
        const float limit = static_cast<float>(a.clip);
        grad = std::fmin(std::fmax(grad, -limit), limit);
      }
      if (g.decoupled) {
        p *= static_cast<float>(1.0 - lr * g.weight_decay);
      } else {
        grad += static_cast<float>(g.weight_decay) * p;
      }
      const float m = a.exp_avg[i] += (grad - a.exp_avg[i]) * (1.0f - beta1);
      const float v = a.exp_avg_sq[i] = beta2 * a.exp_avg_sq[i] + (1.0f - beta2) * grad * grad;
      p -= step_size * m / (std::sqrt(v) * inv_c2 + static_cast<float>(g.eps));
      a.params[i] = p;
      if (a.shadow != nullptr) {
        uint16_t* shadow = static_cast<uint16_t*>(a.shadow);
        shadow[i] = a.shadow_dtype == Dtype::kHalf ? float_to_half_bits(p) : float_to_bf16_bits(p);
      }
      if (a.ema != nullptr && c.ema_weight != 0.0f) a.ema[i] += (p - a.ema[i]) * c.ema_weight;
    }
  }
  return kOk;
}

}  // namespace aerie::kernels::reference
