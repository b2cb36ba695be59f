#include "aerie/models/nest/probe/linear_probe.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/cholesky_inverse.h>
#include <ATen/ops/dot.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_cholesky.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "aerie/nn/torch_error.h"

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
at::Tensor direction(const at::Tensor& gradient, const std::deque<Pair>& history,
                     const std::function<at::Tensor(const at::Tensor&)>& precondition) {
  at::Tensor q = gradient.clone();
  std::vector<double> alphas(history.size());
  for (size_t i = history.size(); i-- > 0;) {
    alphas[i] = history[i].rho * scalar_product(history[i].s, q);
    q.sub_(history[i].y, alphas[i]);
  }
  if (precondition) q = precondition(q);
  if (!history.empty()) {
    const Pair& last = history.back();
    const at::Tensor y = precondition ? precondition(last.y) : last.y;
    q.mul_(1.0 / (last.rho * scalar_product(last.y, y)));
  }
  for (size_t i = 0; i < history.size(); ++i) {
    const double beta = history[i].rho * scalar_product(history[i].y, q);
    q.add_(history[i].s, alphas[i] - beta);
  }
  return q.neg_();
}

}  // namespace

Minimum minimize(const std::function<double(const at::Tensor& x, at::Tensor& gradient)>& function,
                 const std::function<at::Tensor(const at::Tensor&)>& precondition,
                 const at::Tensor& start, const MinimizeOptions& options) {
  constexpr double kArmijo = 1e-4;
  constexpr int kMaxHalvings = 20;
  constexpr size_t kWindow = 5;  // one short step is no sign of the end
  at::NoGradGuard no_grad;
  Minimum out;
  out.x = start.clone();
  at::Tensor gradient = at::zeros_like(start);
  at::Tensor next_gradient = at::zeros_like(start);
  out.value = function(out.x, gradient);
  std::deque<double> values{out.value};
  std::deque<Pair> history;
  while (out.iterations < options.max_iterations) {
    if (gradient.abs().max().item<double>() <= options.gradient_tolerance) break;
    at::Tensor step = direction(gradient, history, precondition);
    double slope = scalar_product(step, gradient);
    if (!(slope < 0.0)) {  // rounding spoilt the history
      history.clear();
      step = direction(gradient, history, precondition);
      slope = scalar_product(step, gradient);
      if (!(slope < 0.0)) break;
    }
    // Nothing is known about the scale before the first step.
    const bool first = history.empty() && !precondition;
    double rate = first ? std::min(1.0, 1.0 / std::sqrt(-slope)) : 1.0;
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
    out.x = next;
    out.value = value;
    std::swap(gradient, next_gradient);
    values.push_back(value);
    if (values.size() <= kWindow) continue;
    const double change = (values.front() - value) / static_cast<double>(kWindow);
    values.pop_front();
    if (change <= options.change_tolerance * std::abs(value)) break;
  }
  return out;
}

Result<ProbeFitter> ProbeFitter::create(const at::Tensor& x, const at::Tensor& y,
                                        int64_t num_classes) {
  try {
    at::NoGradGuard no_grad;
    ProbeFitter out;
    // Statistics in double: sums over many frames.
    const at::Tensor mean = x.mean(0, false, at::kDouble);
    const at::Tensor std = x.to(at::kDouble).sub_(mean).square_().mean(0).sqrt();
    // A feature that does not vary says nothing.
    out.scale_ = at::where(std > 1e-6 * std.max(), std.reciprocal(), 0.0).to(at::kFloat);
    out.mean_ = mean.to(at::kFloat);
    out.standard_ = x.sub(out.mean_).mul_(out.scale_);
    if (!out.standard_.isfinite().all().item<bool>())
      return data_error("the features are not finite");
    out.covariance_ = at::mm(out.standard_.t(), out.standard_)
                          .div_(static_cast<double>(std::max<int64_t>(1, x.size(0))));
    out.labels_ = y.unsqueeze(1);
    out.num_classes_ = num_classes;
    out.start_ = at::zeros({(x.size(1) + 1) * num_classes}, x.options());
    return out;
  } catch (const std::exception& error) {
    return internal_error(nn::torch_message(error)).with_context("fitting a linear probe");
  }
}

Result<LinearProbe> ProbeFitter::fit(double l2, const MinimizeOptions& options) {
  try {
    at::NoGradGuard no_grad;
    const int64_t rows = standard_.size(0);
    const int64_t width = standard_.size(1);
    const int64_t classes = num_classes_;
    const int64_t weights = width * classes;
    const double per_row = 1.0 / static_cast<double>(rows);
    const at::Tensor minus_one = at::full({rows, 1}, -1.0, standard_.options());
    const auto function = [&](const at::Tensor& p, at::Tensor& gradient) {
      const at::Tensor weight = p.narrow(0, 0, weights).view({width, classes});
      const at::Tensor bias = p.narrow(0, weights, classes);
      const at::Tensor log_p = at::log_softmax(at::addmm(bias, standard_, weight), 1);
      const double loss = -log_p.gather(1, labels_).sum(at::kDouble).item<double>() * per_row;
      at::Tensor delta = log_p.exp();
      delta.scatter_add_(1, labels_, minus_one).mul_(per_row);
      at::Tensor weight_gradient = gradient.narrow(0, 0, weights).view({width, classes});
      at::mm_out(weight_gradient, standard_.t(), delta);
      weight_gradient.add_(weight, l2);
      gradient.narrow(0, weights, classes).copy_(delta.sum(0));
      return loss + 0.5 * l2 * weight.square().sum(at::kDouble).item<double>();
    };
    // The Hessian is at most half the covariance for every class (Boehning's bound), plus l2.
    // Standardised features have mean 0, so the biases stand alone.
    at::Tensor hessian = covariance_.to(at::kDouble).mul(0.5);
    hessian.diagonal().add_(l2 + 1e-6);
    const at::Tensor inverse = at::cholesky_inverse(at::linalg_cholesky(hessian)).to(at::kFloat);
    const auto precondition = [&](const at::Tensor& v) {
      at::Tensor out = at::empty_like(v);
      at::Tensor out_weight = out.narrow(0, 0, weights).view({width, classes});
      at::mm_out(out_weight, inverse, v.narrow(0, 0, weights).view({width, classes}));
      out.narrow(0, weights, classes).copy_(v.narrow(0, weights, classes) * 2.0);
      return out;
    };
    const Minimum minimum = minimize(function, precondition, start_, options);
    if (!std::isfinite(minimum.value)) return internal_error("the probe's loss is not finite");

    start_ = minimum.x;
    LinearProbe out;
    out.weight_ = start_.narrow(0, 0, weights).view({width, classes}) * scale_.unsqueeze(1);
    out.bias_ = start_.narrow(0, weights, classes) - at::matmul(mean_, out.weight_);
    out.l2_ = l2;
    out.loss_ = minimum.value;
    out.iterations_ = minimum.iterations;
    return out;
  } catch (const std::exception& error) {
    return internal_error(nn::torch_message(error)).with_context("fitting a linear probe");
  }
}

Result<LinearProbe> ProbeFitter::fit_and_choose(std::vector<double> l2, const at::Tensor& dev_x,
                                                const at::Tensor& dev_y,
                                                const MinimizeOptions& options) {
  constexpr double kFall = 0.005;
  AERIE_CHECK(!l2.empty(), "no l2 to choose from");
  std::sort(l2.begin(), l2.end(), std::greater<>());
  std::optional<LinearProbe> best;
  double best_dev = -1.0;
  for (const double weight : l2) {
    AERIE_ASSIGN_OR_RETURN(LinearProbe probe, fit(weight, options));
    AERIE_ASSIGN_OR_RETURN(const double dev, probe.accuracy(dev_x, dev_y));
    if (dev < best_dev - kFall) break;
    if (dev > best_dev || !best) {
      best_dev = dev;
      best = std::move(probe);
    }
  }
  return std::move(*best);
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
    return internal_error(nn::torch_message(error)).with_context("testing a linear probe");
  }
}

}  // namespace aerie::probe
