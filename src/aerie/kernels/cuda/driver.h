// Functions of libraries that are found at run time: nothing here links libcuda.
#pragma once

#include <cuda_runtime.h>

namespace aerie::kernels {

// A function that was looked up, as whatever pointer it is assigned to; null where there is none.
struct Symbol {
  void* found = nullptr;
  template <typename Function>
  operator Function*() const {
    return reinterpret_cast<Function*>(found);
  }
};

// One of the driver's.
inline Symbol driver_function(const char* name) {
  constexpr unsigned kSince = 12000;
  Symbol out;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion(name, &out.found, kSince, cudaEnableDefault, &result) !=
          cudaSuccess ||
      result != cudaDriverEntryPointSuccess) {
    (void)cudaGetLastError();
    return {};
  }
  return out;
}

}  // namespace aerie::kernels
