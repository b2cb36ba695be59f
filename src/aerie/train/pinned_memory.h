// Page-locked host memory for batches, which a GPU copies without the processor's help.
#pragma once

#include "aerie/data/batch.h"

namespace aerie::train {

// For copies to this GPU. Null where there is none. Lives for ever.
data::HostAllocator* pinned_memory(int64_t gpu_index);

}  // namespace aerie::train
