// Averaged weights (ema.safetensors of a checkpoint) as a whole model. The averages cover the
// parameters alone; buffers (BatchNorm's statistics, the filterbank) are the model's own, as in
// NeMo's `-EMA` files.
#pragma once

#include <string>
#include <vector>

#include "aerie/archive/tensor_writer.h"

namespace aerie::archive {

// The tensors of `model`, in their order, with the averages in place of the parameters. An error
// when an average has no place in the model, or a parameter no average.
Result<std::vector<OutTensor>> with_averages(std::vector<OutTensor> model,
                                             const std::vector<OutTensor>& averages);

// Buffers that NeMo's strict restore asks for beside these parameters and that are not there, in
// the order of what they belong to; none for whole models. `batch_norm`: the encoder's norms are
// (conv_norm_type); others have the same names and no buffers.
std::vector<std::string> missing_buffers(const std::vector<OutTensor>& tensors, bool batch_norm);

}  // namespace aerie::archive
