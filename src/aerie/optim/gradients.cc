#include "aerie/optim/gradients.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "aerie/base/check.h"

namespace aerie::optim {
namespace {

constexpr int64_t kBlock = 1 << 16;

// The norm of any type, in blocks that are added up in order.
at::Tensor vector_norm(const at::Tensor& flat, double type) {
  if (flat.numel() == 0) return at::zeros({}, flat.options().dtype(at::kDouble));
  std::vector<at::Tensor> norms;
  // ATen computes a block of this size in one thread.
  for (const at::Tensor& block : flat.flatten().split(int64_t{1} << 15))
    norms.push_back(
        at::linalg_vector_norm(block, type, at::OptionalIntArrayRef(), false, at::kDouble));
  return at::linalg_vector_norm(at::stack(norms), type);
}

// Fixed blocks, added up in order: the same sum for any number of threads.
template <typename T>
double sum_of_squares(const T* values, int64_t count) {
  const int64_t blocks = (count + kBlock - 1) / kBlock;
  std::vector<double> partial(static_cast<size_t>(blocks), 0.0);
  at::parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      const int64_t begin = block * kBlock;
      const int64_t end = std::min(count, begin + kBlock);
      // Eight independent sums, so that the compiler may keep them in vector registers.
      double sums[8] = {};
      int64_t i = begin;
      for (; i + 8 <= end; i += 8) {
        for (int64_t lane = 0; lane < 8; ++lane) {
          const double v = static_cast<double>(values[i + lane]);
          sums[lane] += v * v;
        }
      }
      for (; i < end; ++i)
        sums[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      double total = 0.0;
      for (const double sum : sums) total += sum;
      partial[static_cast<size_t>(block)] = total;
    }
  });
  double total = 0.0;
  for (const double sum : partial) total += sum;
  return total;
}

}  // namespace

at::Tensor l2_norm(const at::Tensor& flat) {
  at::NoGradGuard no_grad;
  if (flat.numel() == 0) return at::zeros({}, flat.options().dtype(at::kDouble));
  if (flat.is_cpu() && flat.is_contiguous()) {
    const double squares =
        flat.scalar_type() == at::kDouble
            ? sum_of_squares(flat.const_data_ptr<double>(), flat.numel())
            : sum_of_squares(flat.to(at::kFloat).const_data_ptr<float>(), flat.numel());
    return at::scalar_tensor(std::sqrt(squares), at::kDouble);
  }
  const std::vector<at::Tensor> norms =
      at::_foreach_norm(flat.flatten().split(int64_t{1} << 20), 2, at::kDouble);
  return at::linalg_vector_norm(at::stack(norms).to(at::kDouble), 2);
}

GradientReport prepare_gradients(at::Tensor flat_grads, const at::Tensor& inverse_scale,
                                 const ClipSettings& clip,
                                 const std::function<void(const at::Tensor& squares)>& add_up) {
  at::NoGradGuard no_grad;
  GradientReport out;
  out.norm = l2_norm(flat_grads);
  if (add_up) {
    const at::Tensor squares = out.norm.square();
    add_up(squares);
    out.norm = squares.sqrt();
  }
  out.found_inf = at::isfinite(out.norm).logical_not().to(at::kFloat);
  at::Tensor factor = inverse_scale;
  if (factor.defined()) out.norm = out.norm * factor.to(at::kDouble);
  const bool by_norm = clip.value > 0.0 && clip.algorithm == config::GradientClip::kNorm;
  if (by_norm && clip.norm_type != 2.0) {
    AERIE_CHECK(!add_up, "parts of gradients are added up in the norm 2");
    out.norm = vector_norm(flat_grads, clip.norm_type);
    if (factor.defined()) out.norm = out.norm * factor.to(at::kDouble);
  }
  if (by_norm) {
    const at::Tensor coefficient = (clip.value / (out.norm + 1e-6)).clamp_max(1.0);
    factor = factor.defined() ? factor.to(at::kDouble) * coefficient : coefficient;
  }
  if (factor.defined()) {
    factor = factor.to(flat_grads.scalar_type());
    // On the CPU the factor can be looked at, and is often exactly 1.
    if (!factor.is_cpu() || factor.item<double>() != 1.0) flat_grads.mul_(factor);
  }
  if (clip.value > 0.0 && !by_norm) flat_grads.clamp_(-clip.value, clip.value);
  return out;
}

}  // namespace aerie::optim
