// Programmatic dependent launch (PDL): a kernel that starts while its predecessor still runs.
#pragma once

#include "aerie/kernels/cuda/launch.h"

namespace aerie::kernels::AERIE_BACKEND {

// Until everything that was launched before has ended and its results are visible: what comes
// before this may run earlier where the launch allows it (launch_pdl()).
__device__ __forceinline__ void griddepcontrol_wait() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Kernels launched behind this one may come to their places from here on.
__device__ __forceinline__ void griddepcontrol_launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// Where blocks go: wherever there is room, or, in clusters of one, to the device's parts (GPCs)
// strictly in turn, as persistent kernels expect of their first tiles.
enum class PdlBlocks { kAnywhere, kGpcsInTurn };

// Starts a kernel that waits for what was launched before by itself; where the device cannot, it is
// launched like any other.
template <typename... Params, typename... Given>
int launch_pdl(void* stream, const LaunchShape& shape, [[maybe_unused]] PdlBlocks blocks,
               void (*kernel)(Params...), const Given&... given) {
#ifdef __CUDACC__
  if (compute_major() >= 9) {
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
    config.numAttrs = blocks == PdlBlocks::kGpcsInTurn ? 2 : 1;
    return int(cudaLaunchKernelEx(&config, kernel, given...));
  }
#endif
  return launch(stream, shape, kernel, given...);
}

}  // namespace aerie::kernels::AERIE_BACKEND
