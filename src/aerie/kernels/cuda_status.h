// CUDA's answers as a Status, and its objects for the length of a scope; for the module's own
// files.
#pragma once

#include <cuda_runtime.h>

#include "aerie/base/status.h"
#include "aerie/base/strings.h"

namespace aerie::kernels {

inline Status cuda_status(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return ok_status();
  const std::string text = str_cat(what, ": ", cudaGetErrorString(error));
  return error == cudaErrorMemoryAllocation ? out_of_memory(text) : internal_error(text);
}

#define AERIE_CUDA(call) AERIE_RETURN_IF_ERROR(::aerie::kernels::cuda_status((call), #call))

// Destroys a CUDA object at the end of a scope.
template <typename Handle, cudaError_t (*destroy)(Handle)>
struct Owned {
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle != nullptr) destroy(handle);
  }
  Handle handle = nullptr;
};
using OwnedStream = Owned<cudaStream_t, cudaStreamDestroy>;
using OwnedEvent = Owned<cudaEvent_t, cudaEventDestroy>;
using OwnedGraph = Owned<cudaGraph_t, cudaGraphDestroy>;
using OwnedGraphExec = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;
using OwnedMemory = Owned<void*, cudaFree>;

}  // namespace aerie::kernels
