// Multinomial logistic regression with L2 on frozen features: what a linear layer can read out of
// them. Features are standardised with the training part's statistics; the whole training part is
// one batch, L-BFGS finds the minimum of a convex function, so there is nothing random and nothing
// to tune but `l2`. Runs on the device of its input; the same machine gives the same bits.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "aerie/base/status.h"

namespace aerie::probe {

struct MinimizeOptions {
  int max_iterations = 100;
  int history = 10;
  double gradient_tolerance = 1e-5;  // largest component
  double change_tolerance = 1e-6;    // relative, of the value, in one iteration
};
struct Minimum {
  at::Tensor x;
  double value = 0.0;
  int iterations = 0;
};
// L-BFGS with backtracking (Armijo). `function` writes the gradient at x and returns the value.
Minimum minimize(const std::function<double(const at::Tensor& x, at::Tensor& gradient)>& function,
                 const at::Tensor& start, const MinimizeOptions& options);

struct LinearProbeOptions {
  double l2 = 1e-4;  // loss = mean cross-entropy + l2/2 * |weights|^2; biases are free
  MinimizeOptions minimize;
};

class LinearProbe {
 public:
  // x (n,d) float32, y (n) int64 in [0, num_classes). n >= 1.
  static Result<LinearProbe> fit(const at::Tensor& x, const at::Tensor& y, int64_t num_classes,
                                 const LinearProbeOptions& options);

  at::Tensor predict(const at::Tensor& x) const;  // (n) int64
  // Share of rows predicted right; NaN for no rows. Labels outside [0, num_classes) are never
  // right.
  Result<double> accuracy(const at::Tensor& x, const at::Tensor& y) const;

  double loss() const { return loss_; }  // at the end of fitting
  int iterations() const { return iterations_; }

 private:
  LinearProbe() = default;
  at::Tensor weight_;  // (d,C), for features as they come
  at::Tensor bias_;    // (C)
  double loss_ = 0.0;
  int iterations_ = 0;
};

}  // namespace aerie::probe
