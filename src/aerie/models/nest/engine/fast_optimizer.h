// The optimizer of the fast engine: one kernel sequence (kernels/adamw/adamw.h) over the core's
// flat weights, gradients and moments. Groups, decay, clipping, scaler and average are the core's;
// step counts live here, one per segment, between write_counts() and refresh().
//
// A step is decided at its end; the weights follow with the next pass through the model, each part
// (models/nest/step/nest_step.h) just before it is read, or all at once.
//
// One thread; core and queue must outlive it.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/device/stream.h"
#include "aerie/kernels/kernel_table.h"
#include "aerie/models/nest/engine/nest_core.h"

namespace aerie::train {

// Whether an update is worth running beside a forward pass over so many rows of the encoder, and
// not before it.
bool update_beside(int64_t parameters, int64_t layers, int64_t rows);

class FastOptimizer {
 public:
  // Copies small host values to the device in order with the computation.
  using Upload = std::function<Status(void* to, const void* from, size_t bytes)>;

  FastOptimizer(NestCore& core, const config::RunConfig& config, device::Stream& queue,
                Upload upload);

  // Why such an optimizer needs the reference engine; empty: it does not.
  static std::string not_covered(const config::RunConfig& config);

  // From the core's present state. `shadow`: the 16-bit weights, undefined in float32; `control`
  // and `bad_loss` (not finite: skip the step) in device memory. Returns whether recorded calls of
  // update_part() are as they were.
  Result<bool> refresh(const at::Tensor& shadow, kernels::Dtype dtype,
                       kernels::AdamwControl* control, const float* bad_loss);
  // Queues norm and decision on the flat gradients, which stay as they are until the update.
  // `squares`: sums of squares of some of them (device); empty: of none. `squared`: of which.
  using Squared = std::vector<std::pair<const float*, size_t>>;
  Status decide(std::span<const double> learning_rates, std::optional<double> momentum,
                std::span<const double> squares, const Squared& squared);
  // Queues the update of all weights.
  Status update();
  // Queues the update of one part's weights unless `wanted` (device) is zero. Returns a kernel's
  // error.
  int update_part(int part, const uint32_t* wanted, void* stream) const;
  // Step counts into the core.
  void write_counts();

  const float* loss_scale() const { return adamw_.loss_scale; }  // device; null: no scaling
  const kernels::AdamwControl* control() const { return adamw_.control; }

 private:
  void make_segments();
  void make_parts();
  void make_stretches(const Squared& squared);
  Status upload_segments();

  NestCore& core_;
  const config::RunConfig& config_;
  device::Stream& queue_;
  Upload upload_;
  std::vector<kernels::AdamwSegment> segments_;
  at::Tensor segments_device_, steps_, factors_, rates_, partial_, segment_of_;
  kernels::AdamwStep adamw_;
  at::Tensor stretches_;         // of gradients whose squares nobody has summed:
  Squared squared_;              // all but these
  at::Tensor chunks_;            // by part
  std::vector<int32_t> begins_;  // of the parts in chunks_, and the end
};

}  // namespace aerie::train
