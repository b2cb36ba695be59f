// Memory of the CUDA module: arenas on the device, page-locked blocks on the host.
#pragma once

#include <cstddef>
#include <memory>

#include "aerie/base/status.h"
#include "aerie/device/arena.h"

namespace aerie::kernels {

// On the current device.
Result<std::unique_ptr<device::Arena>> make_cuda_arena();

// Locks whole pages of memory that is there already, whatever is in it. Pages that nobody has used
// yet are touched by several threads first: the driver does it page by page, and holds up every
// other call meanwhile.
Status lock_memory(void* data, size_t bytes);

// Page-locked host memory; large blocks by lock_memory().
Result<void*> allocate_pinned_memory(size_t bytes);
void free_pinned_memory(void* pointer);

}  // namespace aerie::kernels
