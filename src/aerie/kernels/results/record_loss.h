// What a micro-batch leaves behind for the optimizer step: its loss and number of masked frames,
// and whether the step must be skipped because a loss is not finite.
#pragma once

#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct MicroResult {
  float loss;
  int32_t rows;  // masked frames
};

struct RecordLoss {
  const float* loss = nullptr;    // device scalar
  const int32_t* rows = nullptr;  // device scalar
  MicroResult* out = nullptr;
  bool add = false;           // one more part of a micro-batch that was cut
  bool first = false;         // of the step: `bad_loss` starts at 0
  float* bad_loss = nullptr;  // NaN once the loss of a micro-batch with masked frames is not finite
};

AERIE_DECLARE_KERNEL(record_loss, RecordLoss)

}  // namespace aerie::kernels
