// Everything that a plan implies for the kernels of a step, to be printed: which attention
// backward, which kernel and tile for every GEMM of a layer and of the head. Kernels decide by the
// same functions when they are called.
#pragma once

#include <string>
#include <vector>

#include "aerie/models/nest/step/nest_step.h"

namespace aerie::kernels {

struct GemmChoice {
  std::string name;  // "feed_forward.first fprop"
  int m = 0, n = 0, k = 0;
  std::string kernel;  // "cuBLASLt", "sm90 128x96 ping-pong", "sm90 grouped wgrad", ...
};

// Of what backward of attention is: "fused", "saved-P", "recompute" or, in float32, "plain".
std::string attention_backward_name(const NestStepConfig& config);
// GEMMs with weights, in the order they run; backward only in training. Weights of q, k and v lie
// side by side.
std::vector<GemmChoice> gemm_choices(const NestStepConfig& config, const DeviceModel& device);

// Trainable parameters of a model of these sizes; use_bias: of the encoder's layers.
int64_t count_parameters(const NestStepConfig& config, bool use_bias);

// A page of text: shape, device model, plan and kernels.
std::string plan_text(const NestStepConfig& config, const DeviceModel& device);

}  // namespace aerie::kernels
