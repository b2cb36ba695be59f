// Page-locked host memory for batches, which a GPU copies without the processor's help.
#pragma once

#include "aerie/data/host_batch.h"

namespace aerie::train {

// Null where there is no GPU. Lives for ever.
data::HostAllocator* pinned_memory();

}  // namespace aerie::train
