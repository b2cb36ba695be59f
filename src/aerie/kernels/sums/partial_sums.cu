// Eight groups of threads share the parts of 32 columns; the blocks of all sums are one grid.
#include "aerie/kernels/device.h"
#include "aerie/kernels/sums/partial_sums.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int kGroups = kThreads / 32;

// Sum i has blocks first[i] to first[i + 1].
struct Jobs {
  PartialSums list;
  int first[PartialSums::kMost + 1];
};

__global__ void __launch_bounds__(kThreads) add_partials_kernel(Jobs a) {
  AERIE_SHARED(float, sums, kThreads);
  int job = 0, end = a.list.count;
  while (end - job > 1) {
    const int middle = (job + end) / 2;
    if (a.first[middle] <= int(blockIdx.x)) {
      job = middle;
    } else {
      end = middle;
    }
  }
  const int block = int(blockIdx.x) - a.first[job];
  const PartialSum s = a.list.sums[job];
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int column = block * 32 + lane;
  float sum = 0.0f;
  if (column < s.columns) {
    const float* at = s.partial + column;
    // Eight loads in flight.
    int p = group;
    for (; p + 7 * kGroups < s.parts; p += 8 * kGroups) {
      float v[8];
      AERIE_UNROLL
      for (int i = 0; i < 8; ++i) v[i] = at[(p + i * kGroups) * s.stride];
      sum += ((v[0] + v[1]) + (v[2] + v[3])) + ((v[4] + v[5]) + (v[6] + v[7]));
    }
    AERIE_UNROLL_BY(4)
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
  Jobs jobs;
  jobs.list = a;
  jobs.first[0] = 0;
  for (int i = 0; i < a.count; ++i)
    jobs.first[i + 1] = jobs.first[i] + ceil_div(a.sums[i].columns, 32);
  const int blocks = jobs.first[a.count];
  if (blocks == 0) return kOk;
  return launch(stream, {dim3(unsigned(blocks)), dim3(kThreads)}, add_partials_kernel, jobs);
}

}  // namespace aerie::kernels::AERIE_BACKEND
