#include "aerie/nn/exchanged_norm.h"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/custom_function.h>

#include "aerie/nn/device_draws.h"

namespace aerie::nn {
namespace {

constexpr int64_t kOverFrames[] = {0, 2};

// How the graph's node holds on to what it needs.
struct NormHolder : public torch::CustomClassHolder {
  NormHolder(ExchangedNorm of, at::Tensor frames) : norm(std::move(of)), valid(std::move(frames)) {}
  ExchangedNorm norm;
  at::Tensor valid;  // may be undefined, as no argument of an operation may be
};

void exchange(const ExchangedNorm& norm, bool backward, const at::Tensor& sums) {
  kernels::ExchangedSums out;
  out.layer = norm.layer;
  out.backward = backward;
  out.values = sums.mutable_data_ptr<double>();
  out.count = sums.numel();
  const bool done = queue_draws(sums.device(), "BatchNorm's sums",
                                [&](void* stream) { return (*norm.exchange)(out, stream); });
  TORCH_CHECK(done, "BatchNorm's sums could not be exchanged");
}

// What sums over frames stand for.
struct Moments {
  at::Tensor count, mean, squares;  // of the distances from the mean
};
Moments moments_of(const at::Tensor& sums, int64_t channels) {
  Moments out;
  out.count = sums[2 * channels].clamp_min(1.0);
  out.mean = sums.narrow(0, 0, channels) / out.count;
  out.squares =
      (sums.narrow(0, channels, channels) - out.mean * sums.narrow(0, 0, channels)).clamp_min(0.0);
  return out;
}

void update_running(const ExchangedNorm& norm, const Moments& moments) {
  const at::Tensor unbiased = moments.squares / (moments.count - 1.0).clamp_min(1.0);
  at::Tensor mean = norm.running_mean, var = norm.running_var;
  mean.lerp_(moments.mean.to(mean.scalar_type()), norm.momentum);
  var.lerp_(unbiased.to(var.scalar_type()), norm.momentum);
}

// (C) to (1,C,1), in the dtype of x.
at::Tensor spread(const at::Tensor& values, const at::Tensor& x) {
  return values.to(x.scalar_type()).unsqueeze(0).unsqueeze(-1);
}

class Norm : public torch::autograd::Function<Norm> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& bias,
                            const c10::intrusive_ptr<NormHolder>& holder) {
    const ExchangedNorm& norm = holder->norm;
    const at::Tensor& valid = holder->valid;
    const int64_t channels = x.size(1);
    const at::Tensor wide = x.to(at::kDouble);
    const at::Tensor counted = valid.defined() ? wide * valid.to(at::kDouble) : wide;
    at::Tensor sums;
    if (norm.kept_sums != nullptr && norm.kept_sums->defined()) {
      sums = *norm.kept_sums;
    } else {
      const at::Tensor frames =
          valid.defined()
              ? valid.sum(at::kDouble).reshape({1})
              : at::full({1}, static_cast<double>(x.size(0) * x.size(2)), wide.options());
      sums = at::cat({counted.sum(kOverFrames), (counted * wide).sum(kOverFrames), frames});
      exchange(norm, /*backward=*/false, sums);
      if (norm.kept_sums != nullptr) *norm.kept_sums = sums;
    }
    const Moments moments = moments_of(sums, channels);
    const at::Tensor &count = moments.count, &mean = moments.mean;
    if (norm.running_mean.defined()) update_running(norm, moments);
    const at::Tensor rstd = (moments.squares / count + norm.eps).rsqrt();
    ctx->save_for_backward({x, weight, mean, rstd, count});
    ctx->saved_data["norm"] = c10::IValue::make_capsule(holder);
    return (x - spread(mean, x)) * spread(rstd, x) * spread(weight, x) + spread(bias, x);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const at::NoGradGuard no_grad;
    const auto holder =
        c10::static_intrusive_pointer_cast<NormHolder>(ctx->saved_data["norm"].toCapsule());
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &rstd = saved[3],
                     &count = saved[4], &valid = holder->valid;
    const at::Tensor& grad = grads[0];
    const at::Tensor normal = (x - spread(mean, x)) * spread(rstd, x);
    const at::Tensor wide = grad.to(at::kDouble);
    const at::Tensor sum = wide.sum(kOverFrames), product = (wide * normal).sum(kOverFrames);
    // Those of weight and bias are this batch's: they are added up with all other gradients.
    const at::Tensor grad_weight = product.to(weight.scalar_type());
    const at::Tensor grad_bias = sum.to(weight.scalar_type());
    const at::Tensor sums = at::cat({sum, product});
    exchange(holder->norm, /*backward=*/true, sums);
    const int64_t channels = x.size(1);
    at::Tensor shared = spread(sums.narrow(0, 0, channels) / count, x) +
                        normal * spread(sums.narrow(0, channels, channels) / count, x);
    if (valid.defined()) shared = shared * valid;
    const at::Tensor grad_x = (grad - shared) * spread(rstd * weight.to(at::kDouble), x);
    return {grad_x, grad_weight, grad_bias, at::Tensor()};
  }
};

}  // namespace

at::Tensor exchanged_batch_norm(const ExchangedNorm& norm, const at::Tensor& x,
                                const at::Tensor& valid, const at::Tensor& weight,
                                const at::Tensor& bias) {
  return Norm::apply(x, weight, bias, c10::make_intrusive<NormHolder>(norm, valid));
}

bool exchange_no_frames(const ExchangedNorm& norm, int64_t channels, at::Device device,
                        bool backward) {
  const at::NoGradGuard no_grad;
  const at::Tensor sums = at::zeros({backward ? 2 * channels : 2 * channels + 1},
                                    at::TensorOptions(device).dtype(at::kDouble));
  exchange(norm, backward, sums);
  if (backward) return true;
  const bool any = sums[2 * channels].item<double>() > 0.0;
  if (any && norm.running_mean.defined()) update_running(norm, moments_of(sums, channels));
  return any;
}

}  // namespace aerie::nn
