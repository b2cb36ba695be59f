// Exponential moving average of all parameters (NeMo's EMA callback): after every n-th optimizer
// step ema <- decay * ema + (1 - decay) * weights. Buffers (BatchNorm statistics) are not averaged.
//
// The average starts as the weights before the first step. Frozen parameters are their own average.
// A skipped step neither counts nor changes anything. Not synchronised.
#pragma once

#include <cstdint>
#include <future>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/nn/param_registry.h"
#include "aerie/optim/optimizer.h"

namespace aerie::optim {

class Ema {
 public:
  // `cpu_offload`: the average lives in host memory; every update then waits for the device to
  // hand over the weights. They are averaged beside what the caller does next.
  Ema(nn::ParameterRegistry& registry, double decay, int64_t every_n_steps, bool cpu_offload);
  ~Ema();
  Ema(const Ema&) = delete;
  Ema& operator=(const Ema&) = delete;

  // Before an optimizer step: takes the weights as the start of the average, once.
  void begin();
  // After it. `found_inf` as in Optimizer::step().
  void update(const at::Tensor& found_inf = {});

  // Exchanges weights and average; before the first step nothing happens.
  void swap();
  bool swapped() const { return swapped_; }

  bool started() const { return started_; }
  // One tensor per parameter in public order, frozen ones included. While swapped, averages are in
  // the registry and weights here.
  std::vector<NamedState> state() const;
  const at::Tensor& flat() const;
  const at::Tensor& count() const { return count_; }  // 0-dim int64: steps seen
  // Marks the contents of state(), written from outside, as valid.
  void restore(int64_t count);
  // Masks updates on the CPU as on a device. For tests.
  void always_mask(bool on) { always_mask_ = on; }

 private:
  void average_offloaded();
  void finish() const;  // what an update has left to do

  nn::ParameterRegistry* registry_;
  double decay_;
  int64_t every_n_steps_;
  at::Tensor average_;  // laid out like flat_params()
  at::Tensor count_;
  bool started_ = false;
  bool swapped_ = false;
  bool always_mask_ = false;
  at::Tensor weights_;  // page-locked copy of the weights, on their way from a device
  mutable std::future<void> averaging_;
};

}  // namespace aerie::optim
