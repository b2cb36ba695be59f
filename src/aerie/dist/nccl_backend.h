// NCCL lives in a module of its own (libaerie_nccl.so beside the executable): the executable links
// no CUDA library. Only for process_group.cc and the module.
#pragma once

#include <cstdint>

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "aerie/base/status.h"

namespace aerie::dist {

struct NcclOptions {
  int rank = 0, size = 1;
  int gpu_index = 0;
  int64_t timeout_ms = 0;
};

// What NCCL is told by variables of the environment, which it reads once; before its first use.
//
// Every rank captures a step when its own shape comes again: one may replay a graph where another
// launches the same collective by itself. NCCL does the same in both cases as long as no capture
// registers the buffers it finds, which all ranks would have to do for the same collective.
void set_nccl_variables();

Result<c10::intrusive_ptr<c10d::Backend>> make_nccl_backend(
    const c10::intrusive_ptr<c10d::Store>& store, const NcclOptions& options);

// What the module exports under the name kNcclModuleEntry. Throws what torch throws.
using NcclModuleEntry = void(const c10::intrusive_ptr<c10d::Store>& store,
                             const NcclOptions& options,
                             c10::intrusive_ptr<c10d::Backend>* backend);
inline constexpr const char* kNcclModuleEntry = "aerie_nccl_backend_1";

}  // namespace aerie::dist
