#include "aerie/probe/linear_probe.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace aerie::probe {
namespace {

double scalar_product(const at::Tensor& a, const at::Tensor& b) {
  return at::dot(a, b).item<double>();
}

// One remembered step: how far, how the gradient changed, 1 / (s . y).
struct Pair {
  at::Tensor s;
  at::Tensor y;
  double rho = 0.0;
};

// The two-loop recursion: an approximation of -H^-1 g.
at::Tensor direction(const at::Tensor& gradient, const std::deque<Pair>& history) {
  at::Tensor q = gradient.clone();
  std::vector<double> alphas(history.size());
  for (size_t i = history.size(); i-- > 0;) {
    alphas[i] = history[i].rho * scalar_product(history[i].s, q);
    q.sub_(history[i].y, alphas[i]);
  }
  if (!history.empty()) {
    const Pair& last = history.back();
    q.mul_(1.0 / (last.rho * scalar_product(last.y, last.y)));
  }
  for (size_t i = 0; i < history.size(); ++i) {
    const double beta = history[i].rho * scalar_product(history[i].y, q);
    q.add_(history[i].s, alphas[i] - beta);
  }
  return q.neg_();
}

}  // namespace

Minimum minimize(const std::function<double(const at::Tensor& x, at::Tensor& gradient)>& function,
                 const at::Tensor& start, const MinimizeOptions& options) {
  constexpr double kArmijo = 1e-4;
  constexpr int kMaxHalvings = 20;
  at::NoGradGuard no_grad;
  Minimum out;
  out.x = start.clone();
  at::Tensor gradient = at::zeros_like(start);
  at::Tensor next_gradient = at::zeros_like(start);
  out.value = function(out.x, gradient);
  std::deque<Pair> history;
  while (out.iterations < options.max_iterations) {
    if (gradient.abs().max().item<double>() <= options.gradient_tolerance) break;
    at::Tensor step = direction(gradient, history);
    double slope = scalar_product(step, gradient);
    if (!(slope < 0.0)) {  // rounding spoilt the history
      history.clear();
      step = gradient.neg();
      slope = scalar_product(step, gradient);
    }
    // Nothing is known about the scale before the first step.
    double rate = history.empty() ? std::min(1.0, 1.0 / std::sqrt(-slope)) : 1.0;
    at::Tensor next;
    double value = std::numeric_limits<double>::infinity();
    bool found = false;
    for (int halving = 0; halving < kMaxHalvings && !found; ++halving) {
      next = at::add(out.x, step, rate);
      value = function(next, next_gradient);
      found = value <= out.value + kArmijo * rate * slope;
      if (!found) rate *= 0.5;
    }
    ++out.iterations;
    if (!found) {
      if (history.empty()) break;  // as low as float32 can tell
      history.clear();
      continue;
    }
    Pair pair{next - out.x, next_gradient - gradient, 0.0};
    const double curvature = scalar_product(pair.s, pair.y);
    if (curvature > 1e-10 * scalar_product(pair.y, pair.y)) {
      pair.rho = 1.0 / curvature;
      history.push_back(std::move(pair));
      if (history.size() > static_cast<size_t>(options.history)) history.pop_front();
    }
    const double change = out.value - value;
    out.x = next;
    out.value = value;
    std::swap(gradient, next_gradient);
    if (change <= options.change_tolerance * std::abs(value)) break;
  }
  return out;
}

Result<LinearProbe> LinearProbe::fit(const at::Tensor& x, const at::Tensor& y, int64_t num_classes,
                                     const LinearProbeOptions& options) {
  try {
    at::NoGradGuard no_grad;
    const int64_t rows = x.size(0);
    const int64_t width = x.size(1);
    // Statistics in double: sums over many frames.
    const at::Tensor mean = x.mean(0, false, at::kDouble);
    const at::Tensor variance = x.to(at::kDouble).sub_(mean).square_().mean(0);
    const at::Tensor std = variance.sqrt();
    // A feature that does not vary says nothing.
    const at::Tensor scale =
        at::where(std > 1e-6 * std.max(), std.reciprocal(), 0.0).to(at::kFloat);
    const at::Tensor standard = x.sub(mean.to(at::kFloat)).mul_(scale);
    const at::Tensor column = y.unsqueeze(1);
    const at::Tensor minus_one = at::full({rows, 1}, -1.0, x.options());
    const double per_row = 1.0 / static_cast<double>(rows);

    const int64_t weights = width * num_classes;
    const auto function = [&](const at::Tensor& p, at::Tensor& gradient) {
      const at::Tensor weight = p.narrow(0, 0, weights).view({width, num_classes});
      const at::Tensor bias = p.narrow(0, weights, num_classes);
      const at::Tensor log_p = at::log_softmax(at::addmm(bias, standard, weight), 1);
      const double loss = -log_p.gather(1, column).sum(at::kDouble).item<double>() * per_row;
      at::Tensor delta = log_p.exp();
      delta.scatter_add_(1, column, minus_one).mul_(per_row);
      at::Tensor weight_gradient = gradient.narrow(0, 0, weights).view({width, num_classes});
      at::mm_out(weight_gradient, standard.t(), delta);
      weight_gradient.add_(weight, options.l2);
      gradient.narrow(0, weights, num_classes).copy_(delta.sum(0));
      return loss + 0.5 * options.l2 * weight.square().sum(at::kDouble).item<double>();
    };
    const Minimum minimum =
        minimize(function, at::zeros({weights + num_classes}, x.options()), options.minimize);

    LinearProbe out;
    const at::Tensor weight = minimum.x.narrow(0, 0, weights).view({width, num_classes});
    out.weight_ = weight * scale.unsqueeze(1);
    out.bias_ =
        minimum.x.narrow(0, weights, num_classes) - at::matmul(mean.to(at::kFloat), out.weight_);
    out.loss_ = minimum.value;
    out.iterations_ = minimum.iterations;
    if (!std::isfinite(out.loss_))
      return data_error("the probe's loss is not finite").with_hint("are the features finite?");
    return out;
  } catch (const std::exception& error) {
    return internal_error(error.what()).with_context("fitting a linear probe");
  }
}

at::Tensor LinearProbe::predict(const at::Tensor& x) const {
  at::NoGradGuard no_grad;
  return at::addmm(bias_, x, weight_).argmax(1);
}

Result<double> LinearProbe::accuracy(const at::Tensor& x, const at::Tensor& y) const {
  try {
    if (y.size(0) == 0) return std::numeric_limits<double>::quiet_NaN();
    return predict(x).eq(y).sum().item<double>() / static_cast<double>(y.size(0));
  } catch (const std::exception& error) {
    return internal_error(error.what()).with_context("testing a linear probe");
  }
}

}  // namespace aerie::probe
