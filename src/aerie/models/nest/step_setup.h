// A NestModel as the step made of kernels sees it (models/nest/step/nest_step.h): which settings it
// covers, and which tensor is which argument.
#pragma once

#include <functional>
#include <string>

#include "aerie/models/nest/config/nest_config.h"
#include "aerie/models/nest/nest_model.h"
#include "aerie/models/nest/step/nest_step.h"

namespace aerie::nest {

// Why a run with these settings cannot use NestStep, naming the key; empty: it can.
std::string not_covered_by_step(const config::ModelConfig& model,
                                const config::NestAerieConfig& aerie, config::Precision precision);

// What the step computes in.
kernels::Dtype step_dtype(config::Precision precision);

// Everything of the configuration except dtype, shapes, weights of the loss and memory options.
kernels::NestStepConfig step_config(const NestSettings& settings,
                                    const config::NestAerieConfig& aerie);
inline kernels::NestStepConfig step_config(const NestModel& model,
                                           const config::NestAerieConfig& aerie) {
  return step_config(model.settings(), aerie);
}

// Trainable parameters by `param` (a default NestParam where the model has none of that name),
// frozen tensors by pointer. Left to the caller: running statistics, positions, StepTables and the
// codebooks in float32.
using FindParam = std::function<kernels::NestParam(const std::string& name)>;
kernels::NestStepParams step_params(const NestModel& model, const FindParam& param);
// The part of the step (nest_num_parts()) that is the first to read a parameter.
int step_part(const NestModel& model, const std::string& name);

// Constants of the front end in host memory.
struct StepTables {
  std::vector<float> twiddles;
  std::vector<int32_t> bands;
  std::vector<int32_t> silent_tokens;
};
StepTables step_tables(const NestModel& model);

// Lengths that a batch has at the four time scales of the model.
struct StepLengths {
  int32_t frames = 0, frames_quarter = 0, frames_encoder = 0;
};
StepLengths step_lengths(const NestModel& model, int64_t samples);
// Feature frames to compute for rows of `samples`, and the encoder frames that the model itself
// would compute when padded to `samples`.
int64_t step_frames(const NestModel& model, int64_t samples);
int64_t step_frames_counted(const NestModel& model, int64_t samples);

}  // namespace aerie::nest
