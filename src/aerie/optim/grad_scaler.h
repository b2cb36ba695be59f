// Loss scaling for float16 (torch's GradScaler): the loss is multiplied by a scale so that small
// gradients survive; the scale grows after a run of good steps and shrinks when a step overflows.
// State lives on the device and is updated there.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace aerie::optim {

class GradScaler {
 public:
  struct Settings {
    double initial_scale = 65536.0;
    double growth_factor = 2.0;
    double backoff_factor = 0.5;
    int64_t growth_interval = 2000;
    bool dynamic = true;  // false: a fixed loss_scale; overflowing steps are still skipped
  };

  GradScaler(const Settings& settings, at::Device device);

  const at::Tensor& scale() const { return scale_; }  // 0-dim float32
  at::Tensor inverse() const;                         // 0-dim float32, exact for powers of two
  // After every step. `found_inf`: 0-dim float32.
  void update(const at::Tensor& found_inf);

  const Settings& settings() const { return settings_; }
  const at::Tensor& growth_tracker() const { return growth_tracker_; }  // 0-dim int32: good steps
  void restore(double scale, int64_t growth_tracker);

 private:
  Settings settings_;
  at::Tensor scale_;
  at::Tensor growth_tracker_;
};

}  // namespace aerie::optim
