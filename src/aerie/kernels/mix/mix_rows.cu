// One thread makes one sample of one row, so that segments of an item may overlap without atomics
// and their order is that of the plan. Bound by memory: reads 2 or 4 bytes a sample and as much
// again where something is mixed in, writes 4 or 8.
#include <cuda_runtime.h>

#include "aerie/kernels/mix/mix_rows.h"

namespace aerie::kernels {

namespace {

constexpr int kThreads = 256;

__device__ float value(const float* f32, const int16_t* i16, int64_t at) {
  return f32 != nullptr ? f32[at] : __fmul_rn(static_cast<float>(i16[at]), 1.0f / 32768.0f);
}

__global__ void __launch_bounds__(kThreads) mix_rows(float* audio, float* noisy, MixRowsArgs args) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= args.stride) return;
  for (int64_t b = blockIdx.y; b < args.rows; b += gridDim.y) {
    const int64_t at = b * args.stride + k;
    float sum = value(args.clean_f32, args.clean_i16, at);
    if (audio != nullptr) audio[at] = sum;
    const RowItem item = args.items[b];
    for (int32_t s = item.first_segment; s < item.first_segment + item.num_segments; ++s) {
      const RowSegment segment = args.segments[s];
      const int64_t inside = k - segment.dest_begin;
      if (inside < 0 || inside >= segment.length) continue;
      int64_t from = segment.source_begin + inside;
      if (from >= segment.source_period)
        from = static_cast<uint64_t>(from) % static_cast<uint64_t>(segment.source_period);
      from += segment.row * args.stride;
      const float source = segment.is_speech != 0 ? value(args.clean_f32, args.clean_i16, from)
                                                  : value(args.noise_f32, args.noise_i16, from);
      sum = __fadd_rn(sum, __fmul_rn(item.gain, source));
    }
    noisy[at] = sum;
  }
}

}  // namespace

int mix_rows_cuda(float* audio, float* noisy, const MixRowsArgs& args, CUstream_st* stream) {
  if (args.rows == 0 || args.stride == 0) return static_cast<int>(cudaSuccess);
  constexpr int64_t kMaxRowsAtOnce = 4096;
  const dim3 grid(static_cast<unsigned>((args.stride + kThreads - 1) / kThreads),
                  static_cast<unsigned>(args.rows < kMaxRowsAtOnce ? args.rows : kMaxRowsAtOnce));
  mix_rows<<<grid, kThreads, 0, stream>>>(audio, noisy, args);
  return static_cast<int>(cudaGetLastError());
}

}  // namespace aerie::kernels
