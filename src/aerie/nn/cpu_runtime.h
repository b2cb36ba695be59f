// Settings of the process for work on the CPU: threads of torch, the memory allocator, and how
// idle OpenMP threads wait.
#pragma once

namespace aerie::nn {

// Called by whatever is about to run a model. The first call decides; later ones do nothing. What
// the user set in the environment (OMP_NUM_THREADS, OMP_WAIT_POLICY, GOMP_SPINCOUNT, MALLOC_*) goes
// first.
void prepare_cpu_runtime();

}  // namespace aerie::nn
