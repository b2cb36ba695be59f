// Half a warp transforms a frame: its 512 samples are 256 complex numbers, 16 per lane, and two
// 16-point transforms in registers with one exchange through shared memory give their spectrum. A
// block takes 16 neighbouring frames at a time and prepares their samples (dither, pre-emphasis)
// once. Blocks stay on the device and share out the frames that count; factors of the transform and
// the bands of the filterbank come to shared memory once.
#include <type_traits>

#include "aerie/kernels/device.h"
#include "aerie/kernels/features/log_mel.h"
#include "aerie/kernels/features/ragged_walk.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 128;
constexpr int kWarps = kThreads / 32;
constexpr int kWarpFrames = 4;
constexpr int kFrames = kWarps * kWarpFrames;
constexpr int kHalfRows = 16;                // lanes that share a frame, and numbers per lane
constexpr int kExchangeStride = 17;          // complex numbers; lanes write columns and read rows
constexpr int kPowers = 2 * (kFftBins + 1);  // of two frames, side by side
// A warp's powers of its first two frames, then the exchange, whose place the powers of the last
// two frames take at the very end.
constexpr int kExchange = 4 * kHalfRows * kExchangeStride;
constexpr int kWarpNumbers = kPowers + kExchange;
static_assert(kExchange >= kPowers);
constexpr int kPackedWeights = 768;  // of the filterbank, when its bands are as narrow as mel bands
constexpr int kBlocks = 132 * 5;     // that the device has room for

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

// Functions of the device where there are some; errors are absolute, of the order of 1e-6.
__device__ inline float quick_log2(float x) {
#ifdef __CUDA_ARCH__
  float out;
  asm("lg2.approx.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
#else
  return log2f(x);
#endif
}
__device__ inline void quick_sine_cosine(float x, float* sine, float* cosine) {
#ifdef __CUDA_ARCH__
  asm("sin.approx.f32 %0, %1;" : "=f"(*sine) : "f"(x));
  asm("cos.approx.f32 %0, %1;" : "=f"(*cosine) : "f"(x));
#else
  *sine = sinf(x);
  *cosine = cosf(x);
#endif
}

// x[0] and x[1] += scale * u32x2_to_normals(a, b), whose normals are met within 1e-5, and within
// 1e-3 where they are as small as that themselves: far below what float32 keeps of dithered audio.
__device__ inline void add_normals(uint32_t a, uint32_t b, float scale, float* x) {
  const float log_u = quick_log2((float(a) + 1.0f) * 2.3283064365386963e-10f);
  const float radius = scale * fast_sqrt(fmaxf(log_u * -1.3862943611198906f, 0.0f));
  float sine, cosine;
  quick_sine_cosine(float(int32_t(b)) * 1.4629180792671596e-09f, &sine, &cosine);
  x[0] += radius * cosine;
  x[1] += radius * sine;
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
  // Inside, all samples exist and are wanted.
  const auto walk = [&](auto inside) {
    constexpr bool kInside = decltype(inside)::value;
    AERIE_UNROLL_BY(1)
    for (int base = warp * 31 - 1; base + 1 < groups; base += kWarps * 31) {
      const int group = base + lane, n = first + 4 * group;
      const bool needed =
          kInside ? group < groups : n + 4 >= begin && n < end && n + 4 > 0 && n < length;
      float x[4] = {};
      if (needed) {
        if (kInside || (aligned && n + 4 <= length)) {
          const Bits16 raw = *reinterpret_cast<const Bits16*>(audio + n);
          memcpy(x, raw.w, sizeof(x));
        } else {
          AERIE_UNROLL
          for (int k = 0; k < 4; ++k)
            if (n + k < length) x[k] = audio[n + k];
        }
      }
      if (a.dither > 0.0f) {
        const PhiloxBlock draws = philox_block(key, signal, position, uint32_t(n) >> 2);
        if (kInside || needed) {
          add_normals(draws.v[0], draws.v[1], a.dither, x);
          add_normals(draws.v[2], draws.v[3], a.dither, x + 2);
        }
      }
      float previous = __shfl_up_sync(kFullWarp, x[3], 1);
      if (lane == 0 || group >= groups) continue;
      float out[4];
      AERIE_UNROLL
      for (int k = 0; k < 4; ++k) {
        const bool counts = kInside || (needed && n + k < length);
        out[k] = counts ? fmaf(-a.preemphasis, previous, x[k]) : 0.0f;
        previous = x[k];
      }
      Bits16 raw;
      memcpy(raw.w, out, sizeof(out));
      *reinterpret_cast<Bits16*>(tile + 4 * group) = raw;
    }
  };
  if (aligned && first >= 4 && first + 4 * groups <= length) {
    walk(std::true_type());
  } else {
    walk(std::false_type());
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

// Factors of the transform, in shared memory: registers are better spent on more warps. Everything
// there is dynamic: static memory is rounded up to 1024 bytes, which would cost a block.
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
  powers[2 * (column + 16 * k)] = low;
  powers[2 * (kFftSize / 2 - column - 16 * k)] = high;
  if constexpr (k < 7) powers_from<k + 1>(z, base, column, partner, powers);
}

// One frame per half warp: four times the powers of its spectrum, at every second place.
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
    powers[kFftSize / 2] = 4.0f * (middle.re * middle.re + middle.im * middle.im);
  }
}

// Where a band is in shared memory: its weights, a quarter of those of the filterbank (the powers
// are four times too large) and filled up with zeros to a multiple of four, and the first power
// they belong to.
struct PackedBand {
  uint16_t weights;  // kNone: did not fit
  uint8_t fours, first;
  static constexpr uint16_t kNone = 0xffff;
};

// Packs the filterbank, a thread per band. `totals`: one per warp.
__device__ inline void pack_bands(const LogMel& a, float* weights, PackedBand* bands, int* totals) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int before = 0;
  for (int start = 0; start < a.bins; start += kThreads) {
    const int bin = start + threadIdx.x;
    const int from = bin < a.bins ? a.bands[2 * bin] : 0;
    const int to = bin < a.bins ? a.bands[2 * bin + 1] : 0;
    const int width = (to - from + 3) / 4 * 4;
    const int first = from < kFftBins - width ? from : kFftBins - width;
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
    if (bin >= a.bins) continue;
    const bool fits = offset + width <= kPackedWeights && first >= 0 && first < 256;
    bands[bin] = {fits ? uint16_t(offset) : PackedBand::kNone, uint8_t(width / 4), uint8_t(first)};
    if (!fits) continue;
    const float* row = a.filterbank + size_t(bin) * kFftBins;
    for (int k = 0; k < width; k += 4) {
      float values[4];
      AERIE_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int at = first + k + i;
        values[i] = at >= from && at < to ? 0.25f * row[at] : 0.0f;
      }
      Bits16 raw;
      memcpy(raw.w, values, sizeof(values));
      *reinterpret_cast<Bits16*>(weights + offset + k) = raw;
    }
  }
}

// One band of two frames.
struct TwoSums {
  float v[2];
};
__device__ inline TwoSums packed_sums(const float* weights, const Complex* powers, int fours) {
  TwoSums out = {};
  AERIE_UNROLL_BY(1)
  for (int n = 0; n < fours; ++n) {
    const Bits16 raw = *reinterpret_cast<const Bits16*>(weights + 4 * n);
    float w[4];
    memcpy(w, raw.w, sizeof(w));
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) {
      const Complex both = powers[4 * n + k];
      out.v[0] += w[k] * both.re;
      out.v[1] += w[k] * both.im;
    }
  }
  return out;
}
__device__ inline TwoSums whole_sums(const float* row, const Complex* powers, int from, int to) {
  TwoSums out = {};
  AERIE_UNROLL_BY(1)
  for (int k = from; k < to; ++k) {
    out.v[0] += row[k] * (0.25f * powers[k].re);
    out.v[1] += row[k] * (0.25f * powers[k].im);
  }
  return out;
}

__device__ inline int valid_frames(const LogMel& a, int row) {
  const int valid = a.lengths[row] / a.hop;
  return valid < a.frames ? valid : a.frames;
}

__global__ void __launch_bounds__(kThreads, 5) log_mel_kernel(LogMel a) {
  AERIE_DYNAMIC_SHARED(memory);
  Factors* factors = reinterpret_cast<Factors*>(memory);
  float* numbers = reinterpret_cast<float*>(factors + 1);  // kWarpNumbers per warp
  float* weights = numbers + kWarps * kWarpNumbers;
  float* tile = weights + kPackedWeights;  // samples of all frames
  const int groups = ((kFrames - 1) * a.hop + kFftSize + 3) / 4;
  int* totals = reinterpret_cast<int*>(tile + 4 * groups);
  PackedBand* bands = reinterpret_cast<PackedBand*>(totals + kWarps);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto tiles_of = [&](int row) { return ceil_div(valid_frames(a, row), kFrames); };
  RaggedWalk walk = share_of(a.rows, tiles_of, blockIdx.x, gridDim.x);
  if (walk.left == 0) return;
  const int left = (kFftSize - a.window_length) / 2;
  const int column = lane % kHalfRows, half = lane / kHalfRows;
  const auto turn_of = [&](int k) { return Complex{a.twiddles[2 * k], a.twiddles[2 * k + 1]}; };
  for (int i = threadIdx.x; i < kFftSize / 2; i += kThreads) {
    const int w = 2 * i - left;
    factors->window[i] = Complex{w >= 0 && w < a.window_length ? a.window[w] : 0.0f,
                                 w + 1 >= 0 && w + 1 < a.window_length ? a.window[w + 1] : 0.0f};
    factors->turns[i] = turn_of(2 * (i / 16) * (i % 16));
  }
  const Complex base = turn_of(column);
  pack_bands(a, weights, bands, totals);
  float* own = numbers + warp * kWarpNumbers;
  Complex* exchange =
      reinterpret_cast<Complex*>(own + kPowers) + half * kHalfRows * kExchangeStride;
  const int begin = warp * kWarpFrames;

  AERIE_UNROLL_BY(1)
  for (; walk.left > 0; walk.advance(1, tiles_of)) {
    const int row = walk.item, first_frame = walk.at * kFrames;
    const int valid = valid_frames(a, row) - first_frame;  // from here on
    const int frames = valid < kFrames ? valid : kFrames;
    const int first_sample = first_frame * a.hop - kFftSize / 2;
    __syncthreads();  // the last samples have been used
    prepare_samples(a, row, first_sample, groups, first_sample + left,
                    first_sample + (frames - 1) * a.hop + left + a.window_length, tile);
    __syncthreads();
    if (begin >= frames) continue;  // the whole warp
    AERIE_UNROLL_BY(1)
    for (int i = 0; i < 2; ++i)
      transform(factors[0], base, tile + (begin + 2 * i + half) * a.hop, a.hop % 2 == 0, exchange,
                own + i * kPowers + half, lane);
    __syncwarp();

    // Sixteen bands at once, whose widths are alike; every lane has two frames of its band.
    const Complex* powers = reinterpret_cast<const Complex*>(own + half * kPowers);
    const int frame = begin + 2 * half;
    float* out = a.out + (size_t(row) * a.frames + first_frame + frame) * a.bins;
    AERIE_UNROLL_BY(1)
    for (int bin = column; bin < a.bins; bin += kHalfRows) {
      const PackedBand band = bands[bin];
      const TwoSums sums =
          band.weights != PackedBand::kNone
              ? packed_sums(weights + band.weights, powers + band.first, band.fours)
              : whole_sums(a.filterbank + size_t(bin) * kFftBins, powers, a.bands[2 * bin],
                           a.bands[2 * bin + 1]);
      AERIE_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float level = a.clamp_guard ? fmaxf(sums.v[i], a.log_guard) : sums.v[i] + a.log_guard;
        if (frame + i < frames) out[i * a.bins + bin] = 0.69314718056f * quick_log2(level);
      }
    }
    __syncwarp();
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
  const size_t shared =
      sizeof(Factors) + sizeof(float) * (size_t(kWarps * kWarpNumbers) + kPackedWeights +
                                         4 * groups + kWarps + a.bins);
  if (shared > 200 * 1024) return kUnsupported;
  const int64_t tiles = int64_t(a.rows) * ceil_div(a.frames, kFrames);
  return launch(stream, {dim3(unsigned(tiles < kBlocks ? tiles : kBlocks)), dim3(kThreads), shared},
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
