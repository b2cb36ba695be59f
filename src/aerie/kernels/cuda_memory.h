// Memory of the CUDA module: arenas on the device, page-locked blocks on the host.
#pragma once

#include <cstddef>
#include <memory>

#include "aerie/base/status.h"
#include "aerie/device/arena.h"

namespace aerie::kernels {

// On the current device.
Result<std::unique_ptr<device::Arena>> make_cuda_arena();

// Page-locked host memory. Large blocks are touched by several threads before they are locked:
// cudaHostAlloc does both in one, page by page, and holds up every other call meanwhile.
Result<void*> allocate_pinned_memory(size_t bytes);
void free_pinned_memory(void* pointer);

}  // namespace aerie::kernels
