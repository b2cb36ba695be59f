// One thread makes one sample of one row, so that segments of an item may overlap without atomics
// and their order is that of the plan. Bound by memory: reads 2 or 4 bytes a sample and as much
// again where something is mixed in, writes 4 or 8.
#include "aerie/kernels/device.h"
#include "aerie/kernels/mix/mix_rows.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kMaxRowsAtOnce = 4096;

// Not fused: as the CPU does it.
__device__ float scaled(float gain, float value) {
#ifdef __CUDACC__
  return __fmul_rn(gain, value);
#else
  const volatile float product = gain * value;
  return product;
#endif
}

__device__ float sample(const float* f32, const int16_t* i16, int64_t at) {
  return f32 != nullptr ? f32[at] : float(i16[at]) * (1.0f / 32768.0f);
}

__global__ void __launch_bounds__(kThreads) mix_rows_kernel(MixRows a) {
  const int64_t k = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= a.stride) return;
  for (int64_t b = blockIdx.y; b < a.rows; b += gridDim.y) {
    const int64_t at = b * a.stride + k;
    float sum = sample(a.clean_f32, a.clean_i16, at);
    if (a.audio != nullptr) a.audio[at] = sum;
    const MixRowsItem item = a.items[b];
    for (int s = item.first_segment; s < item.first_segment + item.num_segments; ++s) {
      const MixRowsSegment segment = a.segments[s];
      const int64_t inside = k - segment.dest_begin;
      if (inside < 0 || inside >= segment.length) continue;
      int64_t from = segment.source_begin + inside;
      if (from >= segment.source_period) from %= segment.source_period;
      from += segment.row * a.stride;
      sum += scaled(item.gain, segment.is_speech != 0 ? sample(a.clean_f32, a.clean_i16, from)
                                                      : sample(a.noise_f32, a.noise_i16, from));
    }
    a.noisy[at] = sum;
  }
}

}  // namespace

int mix_rows(const MixRows& a, void* stream) {
  if (a.rows <= 0 || a.stride <= 0) return kUnsupported;
  const int64_t rows = a.rows < kMaxRowsAtOnce ? a.rows : kMaxRowsAtOnce;
  return launch(
      stream,
      {dim3(unsigned(ceil_div(a.stride, int64_t(kThreads))), unsigned(rows)), dim3(kThreads)},
      mix_rows_kernel, a);
}

}  // namespace aerie::kernels::AERIE_BACKEND
