// CUDA's answers as a Status, for the module's own files.
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

}  // namespace aerie::kernels
