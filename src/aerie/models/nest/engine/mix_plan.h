// The mixing plan of a batch as kernels/mix reads it. No torch here.
#pragma once

#include "aerie/data/speech/speech_batch.h"
#include "aerie/kernels/mix/mix_rows.h"

namespace aerie::train {

// Writes an item a row, of the batch, and its segments; nothing is added where the rows are mixed
// already.
void write_mix_plan(const data::SpeechBatch& batch, kernels::MixRowsItem* items,
                    kernels::MixRowsSegment* segments);

// Rows of one array of a batch; null: there are none.
void point_at(const data::HostArray* array, const void* rows, const float** f32,
              const int16_t** i16);

}  // namespace aerie::train
