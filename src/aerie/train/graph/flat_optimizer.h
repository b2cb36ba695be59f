// AdamW or Adam of a fast engine: one kernel sequence (kernels/adamw/adamw.h) over a model's flat
// weights, gradients and moments. Groups, decay, scaler and average are those of the optimizer it
// stands in for; step counts live here, one per segment, between write_counts() and refresh().
//
// A step is decided at its end; the weights follow with the next pass through the model, each part
// (flat_parts.h) just before it is read, or all at once.
//
// One thread, the one that launches the computation. Everything it is made with outlives it.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/config/schema/optim_config.h"
#include "aerie/config/schema/trainer_config.h"
#include "aerie/device/stream.h"
#include "aerie/kernels/kernel_table.h"
#include "aerie/optim/ema.h"
#include "aerie/optim/grad_scaler.h"
#include "aerie/optim/gradients.h"
#include "aerie/optim/optimizer.h"
#include "aerie/train/graph/flat_parts.h"
#include "aerie/train/graph/upload_ring.h"

namespace aerie::train {

class FlatOptimizer {
 public:
  struct Of {
    nn::ParameterRegistry& registry;
    optim::Optimizer& optimizer;
    optim::Ema* ema = nullptr;  // null: off
    config::EmaConfig ema_settings;
    optim::ClipSettings clip;
  };
  FlatOptimizer(const Of& of, FlatParts parts, device::Stream& stream, UploadRing& uploads);

  // Why such an optimizer needs another engine; empty: it does not.
  static std::string not_covered(const config::OptimConfig& optim, const config::EmaConfig& ema);

  // Only what lies in a range of whole chunks is updated; the optimizer it stands in for keeps
  // moments of just these (optim::Optimizer::keep()). Before refresh().
  void own(FlatRange range);

  // From the present state. `scaler`: null without loss scaling; `compute_weights`: the compute
  // weights, undefined in float32; `control` and `bad_loss` (not finite: skip the step) in device
  // memory. Returns whether captured calls of update_part() are as they were.
  Result<bool> refresh(optim::GradScaler* scaler, const at::Tensor& compute_weights,
                       kernels::Dtype dtype, kernels::AdamwControl* control, const float* bad_loss);
  // Launches norm and decision on the flat gradients, which stay as they are until the update.
  // `squares`: sums of squares of some of them (device); empty: of none, the norm is taken from the
  // gradients as they are now. `squared`: of which.
  using Squared = std::vector<std::pair<const float*, size_t>>;
  Status decide(std::span<const double> learning_rates, std::optional<double> momentum,
                std::span<const double> squares, const Squared& squared);
  // Launches the update of all weights.
  Status update();
  // Launches the update of one part's weights on one SM in `sm_share` unless `wanted` (device) is
  // zero. Returns a kernel's error.
  int update_part(int part, const uint32_t* wanted, int sm_share, void* stream) const;
  // Step counts into the optimizer it stands in for.
  void write_counts();

  const FlatParts& parts() const { return parts_; }
  const float* loss_scale() const { return adamw_.loss_scale; }  // device; null: no scaling
  const kernels::AdamwControl* control() const { return adamw_.control; }

 private:
  float* seen_whole(const at::Tensor& moments) const;
  void make_segments();
  void make_ranges(const Squared& squared);
  Status upload_segments();

  Of of_;
  FlatParts parts_;
  device::Stream& stream_;
  UploadRing& uploads_;
  std::vector<kernels::AdamwSegment> segments_;
  at::Tensor segments_device_, steps_, factors_, rates_, partial_, segment_of_;
  kernels::AdamwStep adamw_;
  at::Tensor ranges_;  // of gradients whose squares nobody has summed:
  Squared squared_;    // all but these
  at::Tensor chunks_;  // by part
  std::optional<FlatRange> own_;
  at::Tensor own_chunks_;
};

}  // namespace aerie::train
