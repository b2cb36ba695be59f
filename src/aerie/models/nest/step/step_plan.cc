#include "aerie/models/nest/step/step_plan.h"

#include "aerie/models/nest/step/packed_rows.h"

namespace aerie::kernels {

bool cheap_to_recompute(const NestStepConfig& config, const DeviceModel& device) {
  return static_cast<size_t>(step_rows(config)) * static_cast<size_t>(config.feed_forward) *
             dtype_size(config.dtype) <=
         device.recompute_bytes;
}

Attention attention_of(const NestStepConfig& config) {
  Attention out;
  out.dtype = config.dtype;
  out.batch = config.batch;
  out.frames = config.frames / 8;
  out.heads = config.heads;
  out.dim = config.width / config.heads;
  return out;
}

bool saved_p_pays(const NestStepConfig& config, const DeviceModel& device) {
  if (!config.training || config.dtype == Dtype::kF32) return false;
  AttentionBackward b;
  b.forward = attention_of(config);
  b.sms = device.sms;
  const size_t square = attention_p_size(config.batch, config.heads, b.forward.frames);
  return attention_fused(b) || square * dtype_size(config.dtype) <= device.saved_p_bytes;
}

bool update_overlaps(int64_t parameters, int64_t layers, int64_t rows, const DeviceModel& device) {
  return rows <= device.overlap_update_rows &&
         (parameters <= layers * device.small_layer_parameters ||
          rows >= device.overlap_update_min_rows);
}

StepPlan make_step_plan(const NestStepConfig& config, const DeviceModel& device,
                        const PlanLimits& limits) {
  StepPlan out;
  const bool spare = !limits.recompute && !limits.part;
  const int rows = step_rows(config);
  out.recompute = limits.recompute || cheap_to_recompute(config, device);
  out.save_p = spare && saved_p_pays(config, device);
  // Reductions alone, forward and backward as one graph: 16 x 15 s 7,361 to 7,169 us, 64 x 15 s 0.4
  // to 2 % less, for a tensor of the feed-forward modules' hidden width. Not tried in float32.
  if (spare && config.training)
    out.overlap = rows <= device.overlap_wgrad_rows ? Overlap::kWgrad
                  : config.dtype != Dtype::kF32     ? Overlap::kReductions
                                                    : Overlap::kNone;
  out.overlap_update = config.training && limits.parameters > 0 &&
                       update_overlaps(limits.parameters, config.layers, rows, device);
  out.sms = device.sms;
  out.wgrad_sm_share = device.wgrad_sm_share;
  out.update_sm_share = device.update_sm_share;
  out.prefetch_bytes = device.prefetch_bytes;
  return out;
}

StepPlan effective_plan(const StepPlan& plan, bool training) {
  StepPlan out = plan;
  if (!training) out.overlap = Overlap::kNone;
  if (out.overlaps_wgrad()) out.recompute = false;
  return out;
}

const char* overlap_name(Overlap overlap) {
  switch (overlap) {
    case Overlap::kNone:
      return "none";
    case Overlap::kReductions:
      return "reductions";
    case Overlap::kWgrad:
      break;
  }
  return "wgrad";
}

bool give_up_memory(StepPlan& plan) {
  if (plan.save_p) {
    plan.save_p = false;
    return true;
  }
  if (plan.recompute && plan.overlap == Overlap::kNone) return false;
  plan.recompute = true;
  plan.overlap = Overlap::kNone;
  return true;
}

}  // namespace aerie::kernels
