// What happens to gradients between backward and update: their norm, the finiteness check,
// unscaling and clipping, without waiting for the device.
#pragma once

#include <functional>

#include <ATen/core/Tensor.h>

#include "aerie/config/schema/trainer_config.h"

namespace aerie::optim {

// L2 norm of a float tensor, accumulated in float64 and independent of the number of threads. 0-dim
// float64 on the tensor's device; not finite exactly when an element is not.
at::Tensor l2_norm(const at::Tensor& flat);

struct ClipSettings {
  double value = 0.0;  // <= 0: off
  config::GradientClip algorithm = config::GradientClip::kNorm;
  double norm_type = 2.0;  // kNorm: which one; infinite: the largest absolute value
};

struct GradientReport {
  at::Tensor norm;       // 0-dim float64: of the unscaled gradients, before clipping, of norm_type
  at::Tensor found_inf;  // 0-dim float32: 1 when some element is not finite
};

// Divides flat gradients by the loss scale (`inverse_scale`: 0-dim, or undefined for none) and
// clips them: by the norm as torch does, factor min(1, value / (norm + 1e-6)), or every element to
// [-value, value]. Gradients that are not finite are left in an undefined state: the step must be
// skipped.
// `add_up`: where the gradients are a part of all, replaces their sum of squares (0-dim float64) by
// that of all parts; the norm is 2 then.
GradientReport prepare_gradients(at::Tensor flat_grads, const at::Tensor& inverse_scale,
                                 const ClipSettings& clip,
                                 const std::function<void(const at::Tensor& squares)>& add_up = {});

}  // namespace aerie::optim
