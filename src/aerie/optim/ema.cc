#include "aerie/optim/ema.h"

#include <system_error>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "aerie/base/check.h"

namespace aerie::optim {

Ema::Ema(nn::ParameterRegistry& registry, double decay, int64_t every_n_steps, bool cpu_offload)
    : registry_(&registry), decay_(decay), every_n_steps_(every_n_steps) {
  AERIE_CHECK(every_n_steps >= 1, "every_n_steps ", every_n_steps);
  const at::Tensor& params = registry.flat_params();
  average_ =
      at::zeros(params.sizes(), cpu_offload ? params.options().device(at::kCPU) : params.options());
  count_ = at::zeros({}, average_.options().dtype(at::kLong));
}

Ema::~Ema() {
  if (averaging_.valid()) averaging_.wait();
}

void Ema::finish() const {
  if (averaging_.valid()) averaging_.get();
}

const at::Tensor& Ema::flat() const {
  finish();
  return average_;
}

void Ema::average_offloaded() {
  const at::Tensor& params = registry_->flat_params();
  if (params.is_cpu()) {
    average_.lerp_(params, 1.0 - decay_);
    return;
  }
  if (!weights_.defined())
    weights_ = at::empty(average_.sizes(), average_.options().pinned_memory(true));
  weights_.copy_(params);
  const auto average = [this] {
    at::NoGradGuard no_grad;
    average_.lerp_(weights_, 1.0 - decay_);
  };
  try {
    averaging_ = std::async(std::launch::async, average);
  } catch (const std::system_error&) {
    average();  // no thread to be had
  }
}

void Ema::begin() {
  if (started_) return;
  at::NoGradGuard no_grad;
  average_.copy_(registry_->flat_params());
  started_ = true;
}

void Ema::update(const at::Tensor& found_inf) {
  AERIE_CHECK(started_ && !swapped_, "Ema::update() before begin() or while swapped");
  at::NoGradGuard no_grad;
  finish();
  if (average_.is_cpu() && !always_mask_) {
    if (found_inf.defined() && found_inf.item<float>() != 0.0f) return;
    const int64_t seen = count_.item<int64_t>();
    count_.add_(1);
    if (seen % every_n_steps_ == 0) average_offloaded();
    return;
  }
  at::Tensor due = count_.remainder(every_n_steps_) == 0;
  if (found_inf.defined()) due = due.logical_and(found_inf == 0);
  const auto options = average_.options();
  average_.lerp_(registry_->flat_params(),
                 at::where(due, at::full({}, 1.0 - decay_, options), at::zeros({}, options)));
  count_.add_(found_inf.defined() ? (found_inf == 0).to(at::kLong) : at::ones_like(count_));
}

void Ema::swap() {
  if (!started_) return;
  finish();
  at::NoGradGuard no_grad;
  const at::Tensor weights = registry_->flat_params().to(average_.device(), /*non_blocking=*/false,
                                                         /*copy=*/true);
  registry_->flat_params().copy_(average_);
  average_.copy_(weights);
  swapped_ = !swapped_;
}

std::vector<NamedState> Ema::state() const {
  finish();
  std::vector<NamedState> out;
  for (const int64_t index : registry_->parameters()) {
    const nn::ParamInfo& info = registry_->entries()[static_cast<size_t>(index)];
    out.push_back({info.name, info.flat_offset >= 0 ? registry_->flat_view(average_, index)
                                                    : registry_->tensor(index)});
  }
  return out;
}

void Ema::restore(int64_t count) {
  finish();
  at::NoGradGuard no_grad;
  count_.fill_(count);
  started_ = true;
}

}  // namespace aerie::optim
