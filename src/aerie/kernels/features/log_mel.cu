// One warp transforms two frames at once as real and imaginary part of one complex 512-point FFT:
// three radix-8 passes through shared memory. A block takes 16 neighbouring frames and prepares
// their samples (dither, pre-emphasis) once.
#include "aerie/kernels/device.h"
#include "aerie/kernels/features/log_mel.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kFrames = kWarps * 2;
constexpr float kHalfRoot = 0.70710678118654752f;

struct Complex {
  float re, im;
};
__device__ inline Complex operator+(Complex a, Complex b) {
  return {a.re + b.re, a.im + b.im};
}
__device__ inline Complex operator-(Complex a, Complex b) {
  return {a.re - b.re, a.im - b.im};
}
__device__ inline Complex operator*(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ inline Complex times_minus_i(Complex a) {
  return {a.im, -a.re};
}

__device__ inline void dft4(Complex& a, Complex& b, Complex& c, Complex& d) {
  const Complex even = a + c, odd = a - c, sum = b + d, turned = times_minus_i(b - d);
  a = even + sum;
  b = odd + turned;
  c = even - sum;
  d = odd - turned;
}

// Eight points, natural order in and out.
__device__ inline void dft8(Complex* x) {
  Complex e0 = x[0], e1 = x[2], e2 = x[4], e3 = x[6];
  Complex o0 = x[1], o1 = x[3], o2 = x[5], o3 = x[7];
  dft4(e0, e1, e2, e3);
  dft4(o0, o1, o2, o3);
  o1 = Complex{(o1.re + o1.im) * kHalfRoot, (o1.im - o1.re) * kHalfRoot};
  o2 = times_minus_i(o2);
  o3 = Complex{(o3.im - o3.re) * kHalfRoot, -(o3.re + o3.im) * kHalfRoot};
  x[0] = e0 + o0;
  x[1] = e1 + o1;
  x[2] = e2 + o2;
  x[3] = e3 + o3;
  x[4] = e0 - o0;
  x[5] = e1 - o1;
  x[6] = e2 - o2;
  x[7] = e3 - o3;
}

// In place, by one warp: 64 butterflies of eight points per pass, two per lane.
__device__ inline void fft512(Complex* data, const float* twiddles, int lane) {
  AERIE_UNROLL
  for (int p = 1; p < kFftSize; p *= 8) {
    Complex x[2][8];
    AERIE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int i = lane + 32 * h, k = i % p;
      AERIE_UNROLL
      for (int r = 0; r < 8; ++r) {
        const int turn = r * k * (64 / p);
        x[h][r] = data[i + r * 64] * Complex{twiddles[2 * turn], twiddles[2 * turn + 1]};
      }
      dft8(x[h]);
    }
    __syncwarp();
    AERIE_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int i = lane + 32 * h, k = i % p;
      AERIE_UNROLL
      for (int r = 0; r < 8; ++r) data[(i - k) * 8 + k + r * p] = x[h][r];
    }
    __syncwarp();
  }
}

// The samples [first, first + count) of a row behind dither and pre-emphasis; zero outside [0, n).
__device__ inline void prepare_samples(const LogMel& a, int row, int first, int count,
                                       float* tile) {
  const float* audio = a.audio + size_t(row) * a.samples;
  const int length = a.lengths[row] < a.samples ? a.lengths[row] : a.samples;
  const uint32_t signal = uint32_t(row / a.items);
  const auto dithered = [&](int n) {
    float x = audio[n];
    if (a.dither > 0.0f)
      x += a.dither * philox_normal(a.state->dither_key, signal,
                                    item_position(*a.state, uint64_t(row % a.items)), uint64_t(n));
    return x;
  };
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int n = first + i;
    float value = 0.0f;
    if (n >= 0 && n < length) {
      value = dithered(n);
      if (n > 0) value -= a.preemphasis * dithered(n - 1);
    }
    tile[i] = value;
  }
}

__global__ void __launch_bounds__(kThreads) log_mel_kernel(LogMel a) {
  AERIE_DYNAMIC_SHARED(memory);
  Complex* spectra = reinterpret_cast<Complex*>(memory);                // (warps, 512)
  float* tile = reinterpret_cast<float*>(spectra + kWarps * kFftSize);  // samples of all frames
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = blockIdx.y, first_frame = blockIdx.x * kFrames;
  int valid = a.lengths[row] / a.hop;
  valid = valid < a.frames ? valid : a.frames;
  if (first_frame >= valid) return;  // the whole block
  const int first_sample = first_frame * a.hop - kFftSize / 2;
  prepare_samples(a, row, first_sample, (kFrames - 1) * a.hop + kFftSize, tile);
  __syncthreads();

  const int frame = first_frame + warp * 2;
  Complex* data = spectra + warp * kFftSize;
  const int left = (kFftSize - a.window_length) / 2;
  for (int i = lane; i < kFftSize; i += 32) {
    const int w = i - left;
    const float window = w >= 0 && w < a.window_length ? a.window[w] : 0.0f;
    const float* samples = tile + warp * 2 * a.hop + i;
    data[i] = Complex{samples[0] * window, samples[a.hop] * window};
  }
  __syncwarp();
  fft512(data, a.twiddles, lane);

  // Powers of the two frames, put where the transform was: bin k beside its mirror image.
  for (int k = lane; k < kFftBins; k += 32) {
    const int mirror = (kFftSize - k) % kFftSize;
    const Complex z = data[k], m = data[mirror];
    const float re0 = z.re + m.re, im0 = z.im - m.im, re1 = z.re - m.re, im1 = z.im + m.im;
    data[k] = Complex{(re0 * re0 + im0 * im0) * 0.25f, (re1 * re1 + im1 * im1) * 0.25f};
  }
  __syncwarp();
  for (int bin = lane; bin < a.bins; bin += 32) {
    const float* weights = a.filterbank + bin * kFftBins;
    float first = 0.0f, second = 0.0f;
    for (int k = a.bands[2 * bin]; k < a.bands[2 * bin + 1]; ++k) {
      first += weights[k] * data[k].re;
      second += weights[k] * data[k].im;
    }
    float* out = a.out + (size_t(row) * a.frames + frame) * a.bins + bin;
    const auto level = [&](float x) {
      return logf(a.clamp_guard ? fmaxf(x, a.log_guard) : x + a.log_guard);
    };
    if (frame < valid) out[0] = level(first);
    if (frame + 1 < valid) out[a.bins] = level(second);
  }
}

constexpr int kBins = 16;
constexpr int kLanes = 32;  // frames at once

// Sum over the threads that share a bin; all of them get it.
__device__ inline float bin_sum(float value, float* scratch) {
  __syncthreads();  // the last sum has been read
  scratch[threadIdx.x] = value;
  __syncthreads();
  float total = 0.0f;
  for (int i = 0; i < kLanes; ++i) total += scratch[i * kBins + threadIdx.x % kBins];
  return total;
}

__global__ void __launch_bounds__(kBins* kLanes) normalize_kernel(NormalizeFeatures a) {
  AERIE_SHARED(float, scratch, kBins* kLanes);
  const int row = blockIdx.x, bin = blockIdx.y * kBins + threadIdx.x % kBins;
  const int first = threadIdx.x / kBins;
  const bool live = bin < a.bins;
  const int length = a.lengths[row] < a.frames ? a.lengths[row] : a.frames;
  const float* x = a.x + size_t(row) * a.frames * a.bins + bin;
  float* out = a.out + size_t(row) * a.frames * a.bins + bin;

  float sum = 0.0f;
  for (int t = first; t < length && live; t += kLanes) sum += x[t * a.bins];
  const float mean = bin_sum(sum, scratch) / float(length);
  float squares = 0.0f;
  for (int t = first; t < length && live; t += kLanes)
    squares += (x[t * a.bins] - mean) * (x[t * a.bins] - mean);
  float deviation = sqrtf(bin_sum(squares, scratch) / float(length - 1));
  deviation = (length > 1 ? deviation : 0.0f) + a.guard;
  if (!live) return;
  const uint8_t* mask = a.mask != nullptr && row >= a.first_masked_row
                            ? a.mask + size_t(row - a.first_masked_row) * a.frames
                            : nullptr;
  for (int t = first; t < a.frames; t += kLanes) {
    float value = t < length ? (x[t * a.bins] - mean) / deviation : a.pad_value;
    if (mask != nullptr && mask[t] != 0) value = a.embedding[bin];
    out[t * a.bins] = value;
  }
}

}  // namespace

int log_mel(const LogMel& a, void* stream) {
  if (a.rows <= 0 || a.items <= 0 || a.frames <= 0 || a.hop <= 0 || a.bins <= 0 ||
      a.window_length > kFftSize)
    return kUnsupported;
  const size_t shared = sizeof(Complex) * kWarps * kFftSize +
                        sizeof(float) * (size_t(kFrames - 1) * a.hop + kFftSize);
  if (shared > 200 * 1024) return kUnsupported;
  return launch(
      stream,
      {dim3(unsigned(ceil_div(a.frames, kFrames)), unsigned(a.rows)), dim3(kThreads), shared},
      log_mel_kernel, a);
}

int normalize_features(const NormalizeFeatures& a, void* stream) {
  if (a.rows <= 0 || a.frames <= 0 || a.bins <= 0) return kUnsupported;
  return launch(stream,
                {dim3(unsigned(a.rows), unsigned(ceil_div(a.bins, kBins))), dim3(kBins * kLanes)},
                normalize_kernel, a);
}

}  // namespace aerie::kernels::AERIE_BACKEND
