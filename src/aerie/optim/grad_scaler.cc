#include "aerie/optim/grad_scaler.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace aerie::optim {

GradScaler::GradScaler(const Settings& settings, at::Device device)
    : settings_(settings),
      scale_(at::full({}, settings.initial_scale, at::TensorOptions(device).dtype(at::kFloat))),
      growth_tracker_(at::zeros({}, at::TensorOptions(device).dtype(at::kInt))) {}

at::Tensor GradScaler::inverse() const {
  return scale_.to(at::kDouble).reciprocal().to(at::kFloat);
}

void GradScaler::update(const at::Tensor& found_inf) {
  if (!settings_.dynamic) return;
  at::NoGradGuard no_grad;
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf, settings_.growth_factor,
                         settings_.backoff_factor, settings_.growth_interval);
}

void GradScaler::restore(double scale, int64_t growth_tracker) {
  at::NoGradGuard no_grad;
  scale_.fill_(scale);
  growth_tracker_.fill_(growth_tracker);
}

}  // namespace aerie::optim
