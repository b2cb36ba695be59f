// Multinomial logistic regression with L2 on frozen features: what a linear layer can read out of
// them. Features are standardised with the training part's statistics; the whole training part is
// one batch, and L-BFGS finds the minimum of a convex function: nothing is random. Runs on the
// device of its input; the same machine gives the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/base/status.h"

namespace aerie::probe {

struct MinimizeOptions {
  int max_iterations = 100;
  int history = 10;
  double gradient_tolerance = 1e-5;  // largest component
  double change_tolerance = 5e-5;    // relative, of the value, mean of the last five iterations
};
struct Minimum {
  at::Tensor x;
  double value = 0.0;
  int iterations = 0;
};
// L-BFGS with backtracking (Armijo). `function` writes the gradient at x and returns the value.
// `precondition` applies a positive definite approximation of the inverse Hessian, up to a factor;
// empty: the identity.
Minimum minimize(const std::function<double(const at::Tensor& x, at::Tensor& gradient)>& function,
                 const std::function<at::Tensor(const at::Tensor&)>& precondition,
                 const at::Tensor& start, const MinimizeOptions& options);

class LinearProbe {
 public:
  at::Tensor predict(const at::Tensor& x) const;  // (n) int64
  // Share of rows predicted right; NaN for no rows. Labels outside [0, num_classes) are never
  // right.
  Result<double> accuracy(const at::Tensor& x, const at::Tensor& y) const;

  double l2() const { return l2_; }
  double loss() const { return loss_; }  // mean cross-entropy + l2/2 * |weights|^2; biases are free
  int iterations() const { return iterations_; }

 private:
  friend class ProbeFitter;
  LinearProbe() = default;
  at::Tensor weight_;  // (d,C), for features as they come
  at::Tensor bias_;    // (C)
  double l2_ = 0.0;
  double loss_ = 0.0;
  int iterations_ = 0;
};

// Fits probes to one training part: x (n,d) float32 and finite, y (n) int64 in [0, num_classes).
class ProbeFitter {
 public:
  static Result<ProbeFitter> create(const at::Tensor& x, const at::Tensor& y, int64_t num_classes);

  // Starts where the last call ended; so go from strong regularisation to weak.
  Result<LinearProbe> fit(double l2, const MinimizeOptions& options = {});

  // One fit for each of `l2`, strongest first, until the accuracy on the development part falls by
  // half a point; the best one.
  Result<LinearProbe> fit_and_choose(std::vector<double> l2, const at::Tensor& dev_x,
                                     const at::Tensor& dev_y, const MinimizeOptions& options = {});

 private:
  ProbeFitter() = default;
  at::Tensor mean_, scale_;  // (d): standardised = (x - mean) * scale
  at::Tensor standard_;      // (n,d)
  at::Tensor covariance_;    // (d,d) of the standardised features
  at::Tensor labels_;        // (n,1)
  at::Tensor start_;         // weights, then biases, of the last fit
  int64_t num_classes_ = 0;
};

}  // namespace aerie::probe
