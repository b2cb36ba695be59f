// Half a warp transforms a frame: its 512 samples are 256 complex numbers, 16 per lane, and two
// 16-point transforms in registers with one exchange through shared memory give their spectrum. A
// block takes 16 neighbouring frames and prepares their samples (dither, pre-emphasis) once.
#include "aerie/kernels/device.h"
#include "aerie/kernels/features/log_mel.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kWarpFrames = 4;
constexpr int kFrames = kWarps * kWarpFrames;
constexpr int kHalfRows = 16;        // lanes that share a frame, and numbers per lane
constexpr int kExchangeStride = 17;  // complex numbers; lanes write columns and read rows
constexpr int kPowerStride = 272;    // two frames side by side fall into different banks
// A warp's powers. The exchange of its two transforms needs four rows and uses the last ones, of
// which the first two are overwritten with powers at the very end.
constexpr int kPowerRows = kWarpFrames + 2;
constexpr int kPackedWeights = 640;  // of the filterbank, when its bands are as narrow as mel bands

struct alignas(8) Complex {
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

// cos(2 pi k / 32) for k = 0..8.
__host__ __device__ constexpr float cosine32(int k) {
  constexpr float kQuarter[9] = {1.0f,         0.980785280f, 0.923879533f,
                                 0.831469612f, 0.707106781f, 0.555570233f,
                                 0.382683432f, 0.195090322f, 0.0f};
  return kQuarter[k];
}
// exp(-2 pi i k / 32) for k = 0..23.
template <int k>
__device__ inline Complex turn32() {
  if constexpr (k <= 8) return {cosine32(k), -cosine32(8 - k)};
  if constexpr (k > 8 && k <= 16) return {-cosine32(16 - k), -cosine32(k - 8)};
  return {-cosine32(k > 16 ? k - 16 : 0), cosine32(k > 16 ? 24 - k : 0)};
}

// Sixteen points. Value k of the result stands at place_of(k).
__host__ __device__ constexpr int place_of(int k) {
  return 4 * (k % 4) + k / 4;
}
__device__ inline void dft16(Complex* x) {
  AERIE_UNROLL
  for (int n = 0; n < 4; ++n) dft4(x[n], x[n + 4], x[n + 8], x[n + 12]);
  x[5] = x[5] * turn32<2>();
  x[9] = x[9] * turn32<4>();
  x[13] = x[13] * turn32<6>();
  x[6] = x[6] * turn32<4>();
  x[10] = times_minus_i(x[10]);
  x[14] = x[14] * turn32<12>();
  x[7] = x[7] * turn32<6>();
  x[11] = x[11] * turn32<12>();
  x[15] = x[15] * turn32<18>();
  AERIE_UNROLL
  for (int k = 0; k < 4; ++k) dft4(x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3]);
}

__device__ inline float quick_divide(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdividef(a, b);
#else
  return a / b;
#endif
}
__device__ inline float quick_root(float x) {
#ifdef __CUDA_ARCH__
  float out;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
#else
  return sqrtf(x);
#endif
}
__device__ inline uint32_t bits_of(float x) {
  uint32_t out;
  memcpy(&out, &x, 4);
  return out;
}
__device__ inline float float_of(uint32_t bits) {
  float out;
  memcpy(&out, &bits, 4);
  return out;
}

// u32x2_to_normals() in float32, within 1e-6 of it: the reductions are done on the integers, where
// they are exact.
__device__ inline void quick_normals(uint32_t a, uint32_t b, float* first, float* second) {
  // log((a + 1) / 2^32) = exponent * log 2 + log(1 + f), f in [-0.3, 0.41].
  const bool near_one = a >= 0xb4000000u;
  const float whole = float(a + 1u);
  const uint32_t above = bits_of(whole) - 0x3f340000u;  // 0.703125
  const int shift = int(above >> 23);
  const float f = near_one ? float(~a) * -2.3283064365386963e-10f
                           : float_of(bits_of(whole) - (uint32_t(shift) << 23)) - 1.0f;
  const float exponent = near_one ? 0.0f : float(shift - 32);
  const float s = quick_divide(f, 2.0f + f), s2 = s * s;  // log(1 + f) = 2 atanh(s)
  const float tail = ((0.22222222f * s2 + 0.28571429f) * s2 + 0.4f) * s2 + 0.66666667f;
  const float log_u = exponent * 0.69314718f + (2.0f * s + s * s2 * tail);
  const float radius = quick_root(fmaxf(-2.0f * log_u, 0.0f));
  // The angle is a number of right angles and a rest within 45 degrees.
  const uint32_t quarter = (b + 0x20000000u) >> 30;
  const float angle = float(int32_t(b - (quarter << 30))) * 1.4629180792671596e-09f;
  const float square = angle * angle;
  const float sine =
      angle + angle * square *
                  (((2.7557319e-6f * square - 1.9841270e-4f) * square + 8.3333333e-3f) * square -
                   0.16666667f);
  const float cosine =
      ((((2.4801587e-5f * square - 1.3888889e-3f) * square + 4.1666667e-2f) * square - 0.5f) *
       square) +
      1.0f;
  const float x = (quarter & 1u) != 0 ? sine : cosine, y = (quarter & 1u) != 0 ? cosine : sine;
  *first = quarter == 1 || quarter == 2 ? -radius * x : radius * x;
  *second = quarter >= 2 ? -radius * y : radius * y;
}

// The samples from `first` (a multiple of 4) on behind dither and pre-emphasis, four per lane; zero
// outside the row and outside [begin, end), which no window reaches. Lane 0 is there for the last
// sample of its group alone.
__device__ inline void prepare_samples(const LogMel& a, int row, int first, int groups, int begin,
                                       int end, float* tile) {
  const float* audio = a.audio + size_t(row) * a.samples;
  const int length = a.lengths[row] < a.samples ? a.lengths[row] : a.samples;
  const bool aligned = a.samples % 4 == 0;
  const uint32_t signal = uint32_t(row / a.items);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  PhiloxKey key = {};
  uint64_t position = 0;
  if (a.dither > 0.0f) {
    key = a.state->dither_key;
    position = item_position(*a.state, uint64_t(row % a.items));
  }
  for (int base = warp * 31 - 1; base + 1 < groups; base += kWarps * 31) {
    const int group = base + lane, n = first + 4 * group;
    const bool needed = n + 4 >= begin && n < end && n + 4 > 0 && n < length;
    float x[4] = {};
    if (needed) {
      if (aligned && n + 4 <= length) {
        const Bits16 raw = *reinterpret_cast<const Bits16*>(audio + n);
        memcpy(x, raw.w, sizeof(x));
      } else {
        AERIE_UNROLL
        for (int k = 0; k < 4; ++k)
          if (n + k < length) x[k] = audio[n + k];
      }
      if (a.dither > 0.0f) {
        const PhiloxBlock draws = philox_block(key, signal, position, uint32_t(n) >> 2);
        float normals[4];
        quick_normals(draws.v[0], draws.v[1], &normals[0], &normals[1]);
        quick_normals(draws.v[2], draws.v[3], &normals[2], &normals[3]);
        AERIE_UNROLL
        for (int k = 0; k < 4; ++k) x[k] += a.dither * normals[k];
      }
    }
    float previous = __shfl_up_sync(kFullWarp, x[3], 1);
    if (lane == 0 || group >= groups) continue;
    float out[4];
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) {
      out[k] = needed && n + k < length ? fmaf(-a.preemphasis, previous, x[k]) : 0.0f;
      previous = x[k];
    }
    Bits16 raw;
    memcpy(raw.w, out, sizeof(out));
    *reinterpret_cast<Bits16*>(tile + 4 * group) = raw;
  }
}

// Four times the power at bin k and at its mirror image 256 - k, from the packed spectrum at both;
// `turn` is exp(-2 pi i k / 512).
__device__ inline void unpack(Complex z, Complex mirror, Complex turn, float* low, float* high) {
  const Complex even = {z.re + mirror.re, z.im - mirror.im};
  const Complex odd = Complex{z.im + mirror.im, mirror.re - z.re} * turn;
  const Complex sum = even + odd, difference = even - odd;
  *low = sum.re * sum.re + sum.im * sum.im;
  *high = difference.re * difference.re + difference.im * difference.im;
}

// Factors of the transform, in shared memory: registers are better spent on more warps.
struct Factors {
  Complex window[kFftSize / 2];
  Complex turns[kFftSize / 2];  // (16,16): exp(-2 pi i column k / 256) at [k][column]
};

template <int k>
__device__ inline void powers_from(const Complex* z, Complex base, int column, int partner,
                                   float* powers) {
  // Lane 0 is its own partner, and its numbers are mirrored around another place.
  const Complex given = column == 0 ? z[place_of((16 - k) % 16)] : z[place_of(15 - k)];
  const Complex mirror = {__shfl_sync(kFullWarp, given.re, partner),
                          __shfl_sync(kFullWarp, given.im, partner)};
  float low, high;
  unpack(z[place_of(k)], mirror, base * turn32<k>(), &low, &high);
  powers[column + 16 * k] = low;
  powers[kFftSize / 2 - column - 16 * k] = high;
  if constexpr (k < 7) powers_from<k + 1>(z, base, column, partner, powers);
}

// One frame per half warp: four times the powers of its spectrum.
__device__ inline void transform(const Factors& factors, Complex base, const float* samples,
                                 bool even_hop, Complex* exchange, float* powers, int lane) {
  const int column = lane % kHalfRows;
  Complex x[16];
  AERIE_UNROLL
  for (int r = 0; r < 16; ++r) {
    const float* from = samples + 2 * (column + 16 * r);
    Complex value;
    if (even_hop) {
      value = *reinterpret_cast<const Complex*>(from);
    } else {
      value = Complex{from[0], from[1]};
    }
    const Complex window = factors.window[column + 16 * r];
    x[r] = Complex{value.re * window.re, value.im * window.im};
  }
  dft16(x);
  AERIE_UNROLL
  for (int k = 0; k < 16; ++k)
    exchange[column * kExchangeStride + k] =
        k == 0 ? x[place_of(k)] : x[place_of(k)] * factors.turns[k * 16 + column];
  __syncwarp();
  AERIE_UNROLL
  for (int n = 0; n < 16; ++n) x[n] = exchange[n * kExchangeStride + column];
  __syncwarp();
  dft16(x);
  const int partner = lane - column + (16 - column) % 16;
  powers_from<0>(x, base, column, partner, powers);
  if (column == 0) {
    const Complex middle = x[place_of(8)];
    powers[kFftSize / 4] = 4.0f * (middle.re * middle.re + middle.im * middle.im);
  }
}

// Copies the bands of the filterbank behind each other into shared memory, a thread per band.
// offsets[bin] is where one begins, or -1 for those that did not fit. `totals`: one per warp.
__device__ inline void pack_bands(const LogMel& a, float* weights, int* offsets, int* totals) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int before = 0;
  for (int first = 0; first < a.bins; first += kThreads) {
    const int bin = first + threadIdx.x;
    const int from = bin < a.bins ? a.bands[2 * bin] : 0;
    const int width = bin < a.bins ? a.bands[2 * bin + 1] - from : 0;
    int sum = width;
    AERIE_UNROLL
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(kFullWarp, sum, step);
      sum += lane >= step ? other : 0;
    }
    __syncthreads();  // the last totals have been read
    if (lane == 31) totals[warp] = sum;
    __syncthreads();
    int offset = before + sum - width;
    AERIE_UNROLL
    for (int w = 0; w < kWarps; ++w) {
      offset += w < warp ? totals[w] : 0;
      before += totals[w];
    }
    const bool fits = offset + width <= kPackedWeights;
    if (bin < a.bins) offsets[bin] = fits ? offset : -1;
    if (!fits) continue;
    const float* row = a.filterbank + size_t(bin < a.bins ? bin : 0) * kFftBins + from;
    for (int k = 0; k < width; k += 8) {
      float values[8];
      AERIE_UNROLL
      for (int i = 0; i < 8; ++i) values[i] = k + i < width ? row[k + i] : 0.0f;
      AERIE_UNROLL
      for (int i = 0; i < 8; ++i)
        if (k + i < width) weights[offset + k + i] = values[i];
    }
  }
}

// One band of two frames.
__device__ inline void add_band(const float* weights, const float* powers, int width, float* sums) {
  AERIE_UNROLL_BY(4)
  for (int k = 0; k < width; ++k) AERIE_UNROLL
  for (int i = 0; i < kWarpFrames / 2; ++i)
    sums[i] += weights[k] * powers[2 * i * kPowerStride + k];
}

__global__ void __launch_bounds__(kThreads, 5) log_mel_kernel(LogMel a) {
  AERIE_DYNAMIC_SHARED(memory);
  float* all_powers = reinterpret_cast<float*>(memory);
  float* weights = all_powers + kWarps * kPowerRows * kPowerStride;
  float* tile = weights + kPackedWeights;  // samples of all frames
  const int groups = ((kFrames - 1) * a.hop + kFftSize + 3) / 4;
  int* offsets = reinterpret_cast<int*>(tile + 4 * groups);
  AERIE_SHARED(int, totals, kWarps);
  AERIE_SHARED(Factors, factors, 1);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int row = blockIdx.y, first_frame = blockIdx.x * kFrames;
  int valid = a.lengths[row] / a.hop;
  valid = valid < a.frames ? valid : a.frames;
  if (first_frame >= valid) return;  // the whole block
  const int frames = valid - first_frame < kFrames ? valid - first_frame : kFrames;
  const int left = (kFftSize - a.window_length) / 2;
  const int first_sample = first_frame * a.hop - kFftSize / 2;

  pack_bands(a, weights, offsets, totals);
  prepare_samples(a, row, first_sample, groups, first_sample + left,
                  first_sample + (frames - 1) * a.hop + left + a.window_length, tile);
  const int column = lane % kHalfRows, half = lane / kHalfRows;
  const auto turn_of = [&](int k) { return Complex{a.twiddles[2 * k], a.twiddles[2 * k + 1]}; };
  for (int i = threadIdx.x; i < kFftSize / 2; i += kThreads) {
    const int w = 2 * i - left;
    factors->window[i] = Complex{w >= 0 && w < a.window_length ? a.window[w] : 0.0f,
                                 w + 1 >= 0 && w + 1 < a.window_length ? a.window[w + 1] : 0.0f};
    factors->turns[i] = turn_of(2 * (i / 16) * (i % 16));
  }
  const Complex base = turn_of(column);
  __syncthreads();

  float* powers = all_powers + warp * kPowerRows * kPowerStride;
  const int begin = warp * kWarpFrames;
  if (begin >= frames) return;  // the whole warp, and no barrier follows
  Complex* exchange = reinterpret_cast<Complex*>(powers + (kWarpFrames - 2) * kPowerStride) +
                      half * kHalfRows * kExchangeStride;
  AERIE_UNROLL_BY(1)
  for (int f = half; f < kWarpFrames; f += 2)
    transform(factors[0], base, tile + (begin + f) * a.hop, a.hop % 2 == 0, exchange,
              powers + f * kPowerStride, lane);
  __syncwarp();

  // Sixteen bands at once, whose widths are alike; every lane has two frames of its band.
  powers += half * kPowerStride;
  for (int bin = column; bin < a.bins; bin += kHalfRows) {
    const int from = a.bands[2 * bin], to = a.bands[2 * bin + 1];
    float sums[kWarpFrames / 2] = {};
    if (offsets[bin] >= 0) {
      add_band(weights + offsets[bin], powers + from, to - from, sums);
    } else {
      add_band(a.filterbank + size_t(bin) * kFftBins + from, powers + from, to - from, sums);
    }
    AERIE_UNROLL
    for (int i = 0; i < kWarpFrames / 2; ++i) {
      const int frame = begin + half + 2 * i;
      if (frame < frames)
        a.out[(size_t(row) * a.frames + first_frame + frame) * a.bins + bin] = logf(
            a.clamp_guard ? fmaxf(0.25f * sums[i], a.log_guard) : 0.25f * sums[i] + a.log_guard);
    }
  }
}

constexpr int kNormThreads = 256;
constexpr int kNormBins = 8;

// A block has eight bins of a row. Its values are read once and stay in registers, unless there are
// more than kHeld per thread: the rest is read again.
template <int kVec, int kHeld>
__global__ void __launch_bounds__(kNormThreads, kHeld > 12 ? 2 : 3)
    normalize_kernel(NormalizeFeatures a) {
  constexpr int kLanes = kNormBins / kVec;      // threads side by side
  constexpr int kStep = kNormThreads / kLanes;  // frames at once
  constexpr int kNormWarps = kNormThreads / 32;
  AERIE_SHARED(float, scratch, kNormWarps* kNormBins);
  struct Values {
    float v[kVec];
  };
  const int row = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int column = threadIdx.x % kLanes * kVec, bin = blockIdx.y * kNormBins + column;
  const int first = threadIdx.x / kLanes;
  const bool live = bin < a.bins;
  const int length = a.lengths[row] < a.frames ? a.lengths[row] : a.frames;
  const float* x = a.x + size_t(row) * a.frames * a.bins + bin;
  float* out = a.out + size_t(row) * a.frames * a.bins + bin;
  const auto load = [&](int t) {
    Values value = {};
    if (!live || t >= length) return value;
    if constexpr (kVec == 4) {
      const Bits16 raw = *reinterpret_cast<const Bits16*>(x + t * a.bins);
      memcpy(value.v, raw.w, sizeof(value.v));
    } else {
      value.v[0] = x[t * a.bins];
    }
    return value;
  };
  // Sum over the threads that share a bin; all of them get it.
  const auto bin_sum = [&](Values value) {
    AERIE_UNROLL
    for (int i = 0; i < kVec; ++i) AERIE_UNROLL
    for (int mask = 16; mask >= kLanes; mask >>= 1)
      value.v[i] += __shfl_xor_sync(kFullWarp, value.v[i], mask);
    __syncthreads();  // the last sum has been read
    AERIE_UNROLL
    for (int i = 0; i < kVec; ++i)
      if (lane < kLanes) scratch[warp * kNormBins + column + i] = value.v[i];
    __syncthreads();
    Values total = {};
    for (int w = 0; w < kNormWarps; ++w) AERIE_UNROLL
    for (int i = 0; i < kVec; ++i) total.v[i] += scratch[w * kNormBins + column + i];
    return total;
  };
  Values held[kHeld], sum = {}, squares = {};
  AERIE_UNROLL
  for (int j = 0; j < kHeld; ++j) held[j] = load(first + j * kStep);
  AERIE_UNROLL
  for (int j = 0; j < kHeld; ++j) AERIE_UNROLL
  for (int i = 0; i < kVec; ++i) sum.v[i] += held[j].v[i];
  for (int t = first + kHeld * kStep; t < length; t += kStep) {
    const Values value = load(t);
    AERIE_UNROLL
    for (int i = 0; i < kVec; ++i) sum.v[i] += value.v[i];
  }
  Values mean = bin_sum(sum);
  AERIE_UNROLL
  for (int i = 0; i < kVec; ++i) mean.v[i] /= float(length);
  const auto add_square = [&](const Values& value) {
    AERIE_UNROLL
    for (int i = 0; i < kVec; ++i)
      squares.v[i] += (value.v[i] - mean.v[i]) * (value.v[i] - mean.v[i]);
  };
  AERIE_UNROLL
  for (int j = 0; j < kHeld; ++j)
    if (first + j * kStep < length) add_square(held[j]);
  for (int t = first + kHeld * kStep; t < length; t += kStep) add_square(load(t));
  Values scale = bin_sum(squares);
  if (!live) return;
  Values hidden = {};
  const uint8_t* mask = a.mask != nullptr && row >= a.first_masked_row
                            ? a.mask + size_t(row - a.first_masked_row) * a.frames
                            : nullptr;
  AERIE_UNROLL
  for (int i = 0; i < kVec; ++i) {
    const float deviation = length > 1 ? sqrtf(scale.v[i] / float(length - 1)) : 0.0f;
    scale.v[i] = 1.0f / (deviation + a.guard);
    if (mask != nullptr) hidden.v[i] = a.embedding[bin + i];
  }
  const auto store = [&](int t, Values value) {
    if (t >= a.frames) return;
    const bool masked = mask != nullptr && mask[t] != 0;
    AERIE_UNROLL
    for (int i = 0; i < kVec; ++i)
      value.v[i] = masked       ? hidden.v[i]
                   : t < length ? (value.v[i] - mean.v[i]) * scale.v[i]
                                : a.pad_value;
    if constexpr (kVec == 4) {
      Bits16 raw;
      memcpy(raw.w, value.v, sizeof(value.v));
      *reinterpret_cast<Bits16*>(out + t * a.bins) = raw;
    } else {
      out[t * a.bins] = value.v[0];
    }
  };
  AERIE_UNROLL
  for (int j = 0; j < kHeld; ++j) store(first + j * kStep, held[j]);
  for (int t = first + kHeld * kStep; t < a.frames; t += kStep) store(t, load(t));
}

}  // namespace

int log_mel(const LogMel& a, void* stream) {
  if (a.rows <= 0 || a.rows > 65535 || a.items <= 0 || a.frames <= 0 || a.hop <= 0 || a.bins <= 0 ||
      a.window_length > kFftSize)
    return kUnsupported;
  const size_t groups = (size_t(kFrames - 1) * a.hop + kFftSize + 3) / 4;
  const size_t shared = sizeof(float) * (size_t(kWarps * kPowerRows * kPowerStride) +
                                         kPackedWeights + 4 * groups + a.bins);
  if (shared > 200 * 1024) return kUnsupported;
  return launch(
      stream,
      {dim3(unsigned(ceil_div(a.frames, kFrames)), unsigned(a.rows)), dim3(kThreads), shared},
      log_mel_kernel, a);
}

int normalize_features(const NormalizeFeatures& a, void* stream) {
  if (a.rows <= 0 || a.frames <= 0 || a.bins <= 0 || int64_t(a.frames) * a.bins >= (1 << 30))
    return kUnsupported;
  const LaunchShape shape{dim3(unsigned(a.rows), unsigned(ceil_div(a.bins, kNormBins))),
                          dim3(kNormThreads)};
  const auto held = [&](int passes) { return a.frames <= passes * kNormThreads / 2; };
  if (a.bins % 4 != 0) return launch(stream, shape, normalize_kernel<1, 24>, a);
  if (held(4)) return launch(stream, shape, normalize_kernel<4, 4>, a);
  if (held(12)) return launch(stream, shape, normalize_kernel<4, 12>, a);
  return launch(stream, shape, normalize_kernel<4, 24>, a);
}

}  // namespace aerie::kernels::AERIE_BACKEND
