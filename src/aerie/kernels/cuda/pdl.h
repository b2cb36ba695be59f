// Programmatic dependent launch (PDL): a kernel that starts while its predecessor still runs.
#pragma once

#include "aerie/kernels/cuda/launch.h"

namespace aerie::kernels::AERIE_BACKEND {

#ifdef __CUDACC__
// Until everything that was launched before has ended and its results are visible: what comes
// before this may run earlier where the launch allows it.
__device__ __forceinline__ void griddepcontrol_wait() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
#endif

}  // namespace aerie::kernels::AERIE_BACKEND
