// The arrays of a nuScenes batch (data/nuscenes/nuscenes_assembler.h) as the model takes them.
#pragma once

#include <c10/core/Device.h>

#include "aerie/base/status.h"
#include "aerie/data/batch.h"
#include "aerie/models/bev/bev_model.h"

namespace aerie::bev {

// Pictures and truth on `device`; on the CPU they are views of the batch's memory, as the matrices
// always are, and must not outlive it.
Result<BevBatch> to_bev_batch(const data::Batch& batch, const nn::RandomKey& random,
                              at::Device device);

// Samples [begin, end) of a batch, with the random numbers they have in the whole.
BevBatch batch_samples(const BevBatch& batch, int64_t begin, int64_t end);

}  // namespace aerie::bev
