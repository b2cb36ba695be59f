// What a step of a shape does on a device: every choice between ways that give the same result, in
// one place. A plain function of sizes and of a device model, asked before a NestStep is made;
// `aerie bench step --plan` prints it (step_plan_text.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "aerie/kernels/attention/attention.h"
#include "aerie/kernels/device_model.h"

namespace aerie::kernels {

struct NestStepConfig;

// What runs on NestStepInputs::side, overlapping the pass.
enum class Overlap {
  kNone,
  // Reductions that nobody in the pass waits for: of biases and norms, and attention's dR. They are
  // deferred to the next wgrad, which leaves some SMs idle, and the layer before waits for those of
  // a layer. A few buffers alternate.
  kReductions,
  // wgrad, reductions and the GEMMs of positions, for few rows, whose kernels leave most of a
  // device idle. Only the end of the step waits. What they read has memory of its own until then,
  // and nothing is recomputed.
  kWgrad,
};

struct StepPlan {
  // Less memory: what norms and SiLU put out is computed again in backward, where their inputs are
  // read anyway.
  bool recompute = true;
  // More memory, in 16-bit types: attention's unnormalised P stays for backward
  // (Attention::saved_p) instead of being recomputed. Gradients differ by its rounding.
  bool save_p = false;
  Overlap overlap = Overlap::kNone;
  // The optimizer's update runs as a branch of the next step's forward pass.
  bool overlap_update = false;
  // Of the device model.
  int sms = DeviceModel{}.sms;
  int wgrad_sm_share = DeviceModel{}.wgrad_sm_share;
  int update_sm_share = DeviceModel{}.update_sm_share;
  size_t prefetch_bytes = DeviceModel{}.prefetch_bytes;

  bool overlaps_wgrad() const { return overlap == Overlap::kWgrad; }
  bool defers_reductions() const { return overlap == Overlap::kReductions; }
};

struct PlanLimits {
  // Activation memory is short: nothing is kept that can be recomputed, nothing overlaps.
  bool recompute = false;
  // This is a part of a batch that did not fit: there is no memory to spare either, but shapes
  // decide about recomputation.
  bool part = false;
  int64_t parameters = 0;  // trainable; 0: the update overlaps nothing
};

// The plan for the shape of `config`, whose own plan is not looked at.
StepPlan make_step_plan(const NestStepConfig& config, const DeviceModel& device,
                        const PlanLimits& limits);
// The plan as it is carried out: without gradients nothing overlaps, with Overlap::kWgrad nothing
// is recomputed.
StepPlan effective_plan(const StepPlan& plan, bool training);
// What a log or table calls a policy: "none", "reductions", "wgrad".
const char* overlap_name(Overlap overlap);
// Takes the next thing that costs memory out of a plan; false: nothing is left.
bool give_up_memory(StepPlan& plan);

// Parts of make_step_plan().
bool cheap_to_recompute(const NestStepConfig& config, const DeviceModel& device);
bool saved_p_pays(const NestStepConfig& config, const DeviceModel& device);
// The sizes of a layer's attention.
Attention attention_of(const NestStepConfig& config);
bool update_overlaps(int64_t parameters, int64_t layers, int64_t rows, const DeviceModel& device);

}  // namespace aerie::kernels
