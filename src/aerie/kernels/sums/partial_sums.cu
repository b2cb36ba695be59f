// Eight groups of threads share the parts of 32 columns; the blocks of all sums are one grid.
#include "aerie/kernels/device.h"
#include "aerie/kernels/sums/partial_sums.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = kThreads / 32;

__global__ void __launch_bounds__(kThreads) add_partials_kernel(PartialSums a) {
  AERIE_SHARED(float, sums, kThreads);
  int block = int(blockIdx.x), job = 0;
  for (; block >= ceil_div(a.sums[job].columns, 32); ++job)
    block -= ceil_div(a.sums[job].columns, 32);
  const PartialSum s = a.sums[job];
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int column = block * 32 + lane;
  float sum = 0.0f;
  if (column < s.columns) {
    const float* at = s.partial + column;
    // Four loads in flight.
    int p = group;
    for (; p + 3 * kGroups < s.parts; p += 4 * kGroups) {
      float v[4];
      AERIE_UNROLL
      for (int i = 0; i < 4; ++i) v[i] = at[(p + i * kGroups) * s.stride];
      sum += (v[0] + v[1]) + (v[2] + v[3]);
    }
    for (; p < s.parts; p += kGroups) sum += at[p * s.stride];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (group != 0 || column >= s.columns) return;
  AERIE_UNROLL
  for (int g = 1; g < kGroups; ++g) sum += sums[g * 32 + lane];
  s.out[column] = s.accumulate ? s.out[column] + sum : sum;
}

}  // namespace

int add_partials(const PartialSums& a, void* stream) {
  if (a.count < 0 || a.count > PartialSums::kMost) return kUnsupported;
  unsigned blocks = 0;
  for (int i = 0; i < a.count; ++i) blocks += unsigned(ceil_div(a.sums[i].columns, 32));
  if (blocks == 0) return kOk;
  return launch(stream, {dim3(blocks), dim3(kThreads)}, add_partials_kernel, a);
}

}  // namespace aerie::kernels::AERIE_BACKEND
