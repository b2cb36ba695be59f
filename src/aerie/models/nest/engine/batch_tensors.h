// From the loader's batch in host memory to the tensors of the model.
#pragma once

#include <ATen/core/Tensor.h>

#include "aerie/base/status.h"
#include "aerie/data/speech/speech_batch.h"
#include "aerie/models/nest/nest_batch.h"
#include "aerie/nn/random_fill.h"

namespace aerie::train {

// On the CPU float32 rows are not copied: the result refers to the batch, which must stay until the
// step is done. int16 audio becomes float32 by 2^-15; where mixing was left to the consumer it is
// done here, by the kernel of the device (the reference on the CPU). A batch without samples gives
// tensors without rows.
Result<nest::NestBatch> to_nest_batch(const data::SpeechBatch& batch, const nn::RandomKey& random,
                                      at::Device device);

}  // namespace aerie::train
