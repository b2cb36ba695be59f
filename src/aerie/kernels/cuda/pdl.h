// Programmatic dependent launch (PDL): a kernel that starts while its predecessor still runs.
#pragma once

#include "aerie/kernels/cuda/launch.h"

namespace aerie::kernels::AERIE_BACKEND {

// Until everything that was launched before has ended and its results are visible: what comes
// before this may run earlier where the launch allows it (launch_pdl()).
__device__ __forceinline__ void griddepcontrol_wait() {
#ifdef __CUDACC__
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Starts a kernel that waits for what was launched before by itself. Clusters of one: blocks then
// go to the device's parts (GPCs) strictly in turn, as persistent kernels expect of their first
// tiles.
template <typename Arguments>
int launch_pdl(void* stream, const LaunchShape& shape, void (*kernel)(Arguments),
               const Arguments& a) {
#ifdef __CUDACC__
  AERIE_TRY(int(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                     int(shape.shared_bytes))));
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {1, 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = attributes;
  config.numAttrs = 2;
  return int(cudaLaunchKernelEx(&config, kernel, a));
#else
  return launch(stream, shape, kernel, a);
#endif
}

}  // namespace aerie::kernels::AERIE_BACKEND
