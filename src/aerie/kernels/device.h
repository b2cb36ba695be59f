// What kernel sources (.cu) include: CUDA under nvcc, its emulation under the host compiler, and
// the helpers that most kernels share. The rest of the toolkit is included where it is used:
//   cuda/mma.h            warp-level mma, ldmatrix, stmatrix
//   cuda/wgmma.h          warpgroup mma and its shared-memory descriptors
//   cuda/tma.h            TMA descriptors, tile loads and stores
//   cuda/pipeline.h       the ring of stages between TMA and wgmma
//   cuda/mbarrier.h       mbarriers in shared memory, by phase parity
//   cuda/named_barrier.h  the block's sixteen named barriers
//   cuda/cp_async.h       cp.async, prefetches to L2
//   cuda/warpgroup.h      elect_one, setmaxnreg
//   cuda/pdl.h            programmatic dependent launch
#pragma once

#include "aerie/kernels/cuda/dropout.h"
#include "aerie/kernels/cuda/launch.h"
#include "aerie/kernels/cuda/math.h"
#include "aerie/kernels/cuda/packing.h"
#include "aerie/kernels/cuda/reductions.h"
