// A warp owns a strip of frames of 64 channels, a lane two neighbouring ones, and walks along time
// with everything in registers: the pointwise part is done once per value (and per tap of overlap
// with the next strip), nothing of the convolution itself goes through shared memory. The eight
// warps of a block take neighbouring strips, whose overlap they find in the cache, and add their
// sums at the end. Backward:
//   grad_gated[s] = sum over k of weight[k] * g[s + left - k]
//   grad_weight[k] = sum over s of gated[s] * g[s + left - k]
#include <type_traits>

#include "aerie/kernels/attention/mma.h"
#include "aerie/kernels/conv/gated_conv.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kCols = 64;
constexpr int kShortStrip = kConvRows / kWarps;  // frames of a warp
constexpr int kLongStrip = 2 * kShortStrip;
static_assert(kShortStrip * kWarps == kConvRows);

struct Pair {
  float x, y;
};
// Two neighbouring values as they stand in memory.
template <typename T>
struct alignas(2 * sizeof(T)) RawPair {
  uint32_t w[sizeof(T) / 2];
};
__device__ inline Pair unpack(const RawPair<float>& raw) {
  Pair out;
  memcpy(&out.x, &raw.w[0], 4);
  memcpy(&out.y, &raw.w[1], 4);
  return out;
}
template <typename T>
__device__ inline Pair unpack(const RawPair<T>& raw) {
  return {to_float(T{uint16_t(raw.w[0] & 0xffffu)}), to_float(T{uint16_t(raw.w[0] >> 16)})};
}
template <typename T>
__device__ inline RawPair<T> load_raw_pair(const T* p) {
  return *reinterpret_cast<const RawPair<T>*>(p);
}
// The same where addresses are computed one by one: an instruction of its own, or the compiler
// makes one piece of code of this and of loads at constant distances.
template <typename T>
__device__ inline RawPair<T> load_scattered_pair(const T* p) {
#ifdef __CUDA_ARCH__
  RawPair<T> out;
  if constexpr (sizeof(T) == 2) {
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(out.w[0]) : "l"(p));
  } else {
    asm volatile("ld.global.nc.v2.b32 {%0,%1}, [%2];" : "=r"(out.w[0]), "=r"(out.w[1]) : "l"(p));
  }
  return out;
#else
  return load_raw_pair(p);
#endif
}
__device__ inline Pair load_pair(const float* p) {
  return unpack(load_raw_pair(p));
}
template <typename T>
__device__ inline RawPair<T> pack_pair(Pair value) {
  RawPair<T> raw;
  if constexpr (sizeof(T) == 2) {
    raw.w[0] = pack<T>(value.x, value.y);
  } else {
    memcpy(&raw.w[0], &value.x, 4);
    memcpy(&raw.w[1], &value.y, 4);
  }
  return raw;
}
template <typename T>
__device__ inline void store_pair(T* p, Pair value) {
  *reinterpret_cast<RawPair<T>*>(p) = pack_pair<T>(value);
}
// sum += a * b
__device__ inline void add_product(Pair& sum, const Pair& a, const Pair& b) {
  sum.x += a.x * b.x;
  sum.y += a.y * b.y;
}
__device__ inline void add(Pair& sum, const Pair& a) {
  sum.x += a.x;
  sum.y += a.y;
}
__device__ inline Pair pair_or_zero(const float* p, int at) {
  return p != nullptr ? load_pair(p + at) : Pair{0.0f, 0.0f};
}

// sigmoid(x + bias)
struct GateBias {
  float bias, scaled;
  __device__ explicit GateBias(float value) : bias(value), scaled(value * -1.4426950408889634f) {}
};
template <typename T>
__device__ inline float gate_of(float x, const GateBias& b) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2) {
    float out;
    asm("rcp.approx.ftz.f32 %0, %1;"
        : "=f"(out)
        : "f"(1.0f + fast_exp2(fmaf(x, -1.4426950408889634f, b.scaled))));
    return out;
  }
#endif
  return sigmoid_for<T>(x + b.bias);
}

// What a warp works on. The number of the warp comes from lane 0, so that the compiler knows it to
// be the same in all lanes and does the arithmetic of frames once for all.
struct Strip {
  int item, begin, warp, lane;
  int first_row, rows;  // of the item
  int column;           // of this lane
  bool inside;          // whether that channel exists
  int read;             // the column, or one that exists
};
template <int kStrip>
__device__ inline Strip strip_of(const GatedConv& a) {
  constexpr int kRows = kStrip * kWarps;
  const int tiles = (a.frames + kRows - 1) / kRows;
  Strip s;
  s.warp = __shfl_sync(kFullWarp, int(threadIdx.x) / 32, 0);
  s.lane = int(threadIdx.x) % 32;
  s.item = int(blockIdx.y) / tiles;
  s.begin = int(blockIdx.y) % tiles * kRows + s.warp * kStrip;
  s.first_row = first_row(a.layout, s.item, a.frames);
  s.rows = rows_of(a.layout, s.item, a.frames);
  s.column = int(blockIdx.x) * kCols + s.lane * 2;
  s.inside = s.column < a.channels;
  s.read = s.inside ? s.column : 0;
  return s;
}
// A row that exists, for loads whose value is not used otherwise.
__device__ inline int existing(int t, int rows) {
  t = t < rows ? t : rows - 1;
  return t > 0 ? t : 0;
}

// The block's weights as (taps, kCols) in shared memory: read from device memory in order, where a
// thread's own would be scattered. Asked for first, put down when everything else is under way; to
// be followed by a barrier.
template <int kTaps>
struct BlockWeights {
  static constexpr int kEach = (kTaps * kCols + kThreads - 1) / kThreads;
  float values[kEach];
  __device__ explicit BlockWeights(const GatedConv& a) {
    const int first = int(blockIdx.x) * kCols * kTaps, all = a.channels * kTaps;
    AERIE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int at = int(threadIdx.x) + i * kThreads;
      values[i] = at < kTaps * kCols && first + at < all ? a.weight[first + at] : 0.0f;
    }
  }
  __device__ void put(float* weights) const {
    AERIE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int at = int(threadIdx.x) + i * kThreads;
      if (at < kTaps * kCols) weights[at % kTaps * kCols + at / kTaps] = values[i];
    }
  }
};

// kChannels: when known at compile time, for addresses without arithmetic, or 0.
template <typename T, int kTaps, int kChannels>
__global__ void __launch_bounds__(kThreads, 2) gated_conv_kernel(GatedConv a) {
  const int channels = kChannels > 0 ? kChannels : a.channels;
  constexpr int kStrip = kShortStrip, kRows = kStrip + kTaps - 1;
  AERIE_SHARED(float, weights, kTaps* kCols);
  AERIE_SHARED(float, moments, 2 * kWarps * kCols);
  const BlockWeights<kTaps> block_weights(a);
  const Strip strip = strip_of<kStrip>(a);
  const size_t first_row = strip.first_row;
  const int length = a.lengths[strip.item] < strip.rows ? a.lengths[strip.item] : strip.rows;
  const T* x = static_cast<const T*>(a.x) + first_row * 2 * channels + strip.read;
  // Most strips have nothing but frames that exist and count. Loads do not wait for the length.
  const int first = strip.begin - a.left;
  const bool present = first >= 0 && first + kRows <= strip.rows;
  const bool plain = first >= 0 && first + kRows <= length;
  RawPair<T> left[kRows], right[kRows];
  const auto load = [&](auto all) {
    const T* from = x + first * 2 * channels;
    AERIE_UNROLL
    for (int j = 0; j < kRows; ++j) {
      if constexpr (decltype(all)::value) {
        left[j] = load_raw_pair(from + 2 * j * channels);
        right[j] = load_raw_pair(from + (2 * j + 1) * channels);
      } else {
        const T* row = x + existing(first + j, strip.rows) * 2 * channels;
        left[j] = load_scattered_pair(row);
        right[j] = load_scattered_pair(row + channels);
      }
    }
  };
  if (present) {
    load(std::true_type());
  } else {
    load(std::false_type());
  }
  const Pair left_bias = pair_or_zero(a.gate_bias, strip.read);
  const Pair right_bias = pair_or_zero(a.gate_bias, channels + strip.read);
  const GateBias gate_bias[2] = {GateBias(right_bias.x), GateBias(right_bias.y)};
  const Pair bias = pair_or_zero(a.bias, strip.read);
  block_weights.put(weights);
  __syncthreads();
  Pair weight[kTaps], sums[kStrip];
  AERIE_UNROLL
  for (int k = 0; k < kTaps; ++k) weight[k] = load_pair(weights + k * kCols + strip.lane * 2);
  AERIE_UNROLL
  for (int s = 0; s < kStrip; ++s) sums[s] = bias;
  const auto convolve = [&](auto all) {
    AERIE_UNROLL
    for (int j = 0; j < kRows; ++j) {
      const bool valid = decltype(all)::value || (first + j >= 0 && first + j < length);
      Pair value = unpack(left[j]);
      const Pair gate = unpack(right[j]);
      value.x = (value.x + left_bias.x) * gate_of<T>(gate.x, gate_bias[0]);
      value.y = (value.y + left_bias.y) * gate_of<T>(gate.y, gate_bias[1]);
      value = {valid ? value.x : 0.0f, valid ? value.y : 0.0f};
      AERIE_UNROLL
      for (int k = 0; k < kTaps; ++k)
        if (j - k >= 0 && j - k < kStrip) add_product(sums[j - k], weight[k], value);
    }
  };
  if (plain) {
    convolve(std::true_type());
  } else if (first < length) {  // otherwise there is nothing but the bias
    convolve(std::false_type());
  }
  T* out = static_cast<T*>(a.out) + first_row * channels + strip.column;
  out += strip.begin * channels;
  AERIE_UNROLL
  for (int s = 0; s < kStrip; ++s) {
    const RawPair<T> raw = pack_pair<T>(sums[s]);
    if (strip.inside && strip.begin + s < strip.rows)
      *reinterpret_cast<RawPair<T>*>(out + s * channels) = raw;
    sums[s] = unpack(raw);
  }
  if (a.statistics == nullptr) return;  // the whole grid leaves
  // Mean and squared deviations of the strip, then of the block's strips together.
  const int limit = statistics_limit(a.counted, strip.item, a.frames);
  const auto counted = [&](int begin, int most) {
    const int rest = limit - begin;
    return rest < 0 ? 0 : rest < most ? rest : most;
  };
  const int count = counted(strip.begin, kStrip);
  Pair mean = {0.0f, 0.0f}, squares = {0.0f, 0.0f};
  AERIE_UNROLL
  for (int s = 0; s < kStrip; ++s)
    if (s < count) add(mean, sums[s]);
  const float share = count > 0 ? 1.0f / float(count) : 0.0f;
  mean = {mean.x * share, mean.y * share};
  AERIE_UNROLL
  for (int s = 0; s < kStrip; ++s) {
    const Pair off = {sums[s].x - mean.x, sums[s].y - mean.y};
    if (s < count) add_product(squares, off, off);
  }
  store_pair(moments + strip.warp * kCols + strip.lane * 2, mean);
  store_pair(moments + (kWarps + strip.warp) * kCols + strip.lane * 2, squares);
  __syncthreads();
  if (strip.warp != 0 || !strip.inside) return;
  const int total = counted(strip.begin, kConvRows);
  const float inverse = total > 0 ? 1.0f / float(total) : 0.0f;
  Pair all = {0.0f, 0.0f};
  AERIE_UNROLL
  for (int w = 0; w < kWarps; ++w) {
    const float part = float(counted(strip.begin + w * kStrip, kStrip)) * inverse;
    add_product(all, load_pair(moments + w * kCols + strip.lane * 2), {part, part});
  }
  squares = {0.0f, 0.0f};
  AERIE_UNROLL
  for (int w = 0; w < kWarps; ++w) {
    const float frames = float(counted(strip.begin + w * kStrip, kStrip));
    const Pair one = load_pair(moments + w * kCols + strip.lane * 2);
    const Pair off = {one.x - all.x, one.y - all.y};
    add(squares, load_pair(moments + (kWarps + w) * kCols + strip.lane * 2));
    add_product(squares, off, {off.x * frames, off.y * frames});
  }
  float* to = a.statistics + size_t(blockIdx.y) * 2 * channels + strip.column;
  store_pair(to, all);
  store_pair(to + channels, squares);
}

// The gradient through SiLU and BatchNorm of a channel:
//   g = gain * grad * slope(gain * x + shift) - (offset + slant * x)
struct NormGradient {
  float gain, shift, offset, slant;
};
__device__ inline NormGradient norm_gradient(float mean, float rstd, float weight, float bias,
                                             float mean_grad, float mean_product) {
  const float gain = weight * rstd, slant = gain * rstd * mean_product;
  return {gain, bias - mean * gain, gain * mean_grad - mean * slant, slant};
}
template <typename T>
__device__ inline float undo_norm(const NormGradient& n, float x, float grad) {
  const float z = fmaf(x, n.gain, n.shift), open = sigmoid_for<T>(z);
  const float slope = fmaf(open, fmaf(-open, z, z), open);
  return n.gain * (grad * slope) - fmaf(x, n.slant, n.offset);
}

template <typename T, int kTaps, int kChannels, int kStrip>
__global__ void __launch_bounds__(kThreads, 2) gated_conv_backward_kernel(GatedConvBackward a) {
  const int channels = kChannels > 0 ? kChannels : a.forward.channels;
  constexpr int kChunk = kStrip % 4 == 0 ? 4 : kStrip;  // frames that are loaded together
  constexpr int kSections = kTaps + 3;                  // of sums: taps, bias, gate biases
  constexpr int kStride = kCols + 4;
  AERIE_SHARED(float, weights, kTaps* kCols);
  AERIE_SHARED(float, totals, kThreads);
  AERIE_SHARED(float, rows, kWarps* kSections* kStride);
  const GatedConv& f = a.forward;
  const BlockWeights<kTaps> block_weights(f);
  const Strip strip = strip_of<kStrip>(f);
  // Totals of BatchNorm's sums: two threads share the parts of a column.
  float sums_of_part[kBatchNormParts / 2];
  {
    const int which = threadIdx.x / kCols % 2, half = threadIdx.x / (2 * kCols);
    const int channel = int(blockIdx.x) * kCols + threadIdx.x % kCols;
    const int parts =
        channel < channels ? batch_norm_parts(num_rows(f.layout, f.batch, f.frames)) : 0;
    const float* from = a.norm_partial + (2 * half + which) * channels + channel;
    AERIE_UNROLL
    for (int p = 0; p < kBatchNormParts / 2; ++p)
      sums_of_part[p] = 2 * p + half < parts ? from[4 * p * channels] : 0.0f;
  }
  const Pair mean = load_pair(a.mean + strip.read), rstd = load_pair(a.rstd + strip.read);
  const Pair norm_weight = load_pair(a.norm_weight + strip.read);
  const Pair norm_bias = load_pair(a.norm_bias + strip.read);
  const size_t first_row = strip.first_row;
  const int limit = statistics_limit(f.counted, strip.item, f.frames);
  const int length = f.lengths[strip.item] < strip.rows ? f.lengths[strip.item] : strip.rows;
  const int present = limit < strip.rows ? limit : strip.rows;  // rows that count
  // Row j of the gradient is frame first + j; output s has read rows s to s + kTaps - 1.
  const int first = strip.begin + f.left - kTaps + 1;

  const T* conv = static_cast<const T*>(f.out) + first_row * channels + strip.read;
  const T* grad_out = static_cast<const T*>(a.grad_out) + first_row * channels + strip.read;
  const T* x = static_cast<const T*>(f.x) + first_row * 2 * channels + strip.read;
  T* grad_x = static_cast<T*>(a.grad_x) + first_row * 2 * channels + strip.column;
  struct Arrived {
    RawPair<T> x, grad;
  };
  // Most strips have nothing but frames that exist and count.
  const bool plain =
      first >= 0 && first + kStrip + kTaps - 1 <= present && strip.begin + kStrip <= length;
  conv += first * channels;
  grad_out += first * channels;
  x += strip.begin * 2 * channels;
  grad_x += strip.begin * 2 * channels;
  const auto load_arrived = [&](auto all, int j) {
    if constexpr (decltype(all)::value)
      return Arrived{load_raw_pair(conv + j * channels), load_raw_pair(grad_out + j * channels)};
    const int row = existing(first + j, strip.rows) - first;
    return Arrived{load_scattered_pair(conv + row * channels),
                   load_scattered_pair(grad_out + row * channels)};
  };
  struct Gates {
    RawPair<T> left, right;
  };
  const auto load_gates = [&](auto all, int s) {
    if constexpr (decltype(all)::value)
      return Gates{load_raw_pair(x + s * 2 * channels), load_raw_pair(x + (s * 2 + 1) * channels)};
    const T* row = x + (existing(strip.begin + s, strip.rows) - strip.begin) * 2 * channels;
    return Gates{load_scattered_pair(row), load_scattered_pair(row + channels)};
  };
  Arrived ahead[kTaps - 1], arrived[kChunk];
  Gates gates[kChunk];
  const auto load = [&](auto all) {
    AERIE_UNROLL
    for (int j = 0; j < kTaps - 1; ++j) ahead[j] = load_arrived(all, j);
    AERIE_UNROLL
    for (int i = 0; i < kChunk; ++i) {
      arrived[i] = load_arrived(all, kTaps - 1 + i);
      gates[i] = load_gates(all, i);
    }
  };
  if (first >= 0 && first + kStrip + kTaps - 1 <= strip.rows) {
    load(std::true_type());
  } else {
    load(std::false_type());
  }

  int total = f.batch * limit;
  if (f.counted.lengths != nullptr) {
    total = 0;
    for (int b = 0; b < f.batch; ++b) total += statistics_limit(f.counted, b, f.frames);
  }
  const float inverse = total > 0 ? 1.0f / float(total) : 0.0f;
  float part_sum = 0.0f;
  AERIE_UNROLL
  for (int p = 0; p < kBatchNormParts / 2; ++p) part_sum += sums_of_part[p];
  totals[threadIdx.x] = part_sum;
  block_weights.put(weights);
  __syncthreads();
  NormGradient norm[2];
  {
    Pair grads = load_pair(totals + strip.lane * 2);
    Pair products = load_pair(totals + kCols + strip.lane * 2);
    add(grads, load_pair(totals + 2 * kCols + strip.lane * 2));
    add(products, load_pair(totals + 3 * kCols + strip.lane * 2));
    norm[0] = norm_gradient(mean.x, rstd.x, norm_weight.x, norm_bias.x, grads.x * inverse,
                            products.x * inverse);
    norm[1] = norm_gradient(mean.y, rstd.y, norm_weight.y, norm_bias.y, grads.y * inverse,
                            products.y * inverse);
  }
  const Pair left_bias = pair_or_zero(f.gate_bias, strip.read);
  const Pair right_bias = pair_or_zero(f.gate_bias, channels + strip.read);
  const GateBias gate_bias[2] = {GateBias(right_bias.x), GateBias(right_bias.y)};
  Pair weight[kTaps], d_weight[kTaps] = {};
  Pair d_bias = {0.0f, 0.0f}, d_left = {0.0f, 0.0f}, d_right = {0.0f, 0.0f};
  AERIE_UNROLL
  for (int k = 0; k < kTaps; ++k) weight[k] = load_pair(weights + k * kCols + strip.lane * 2);

  Pair window[kTaps];  // rows of the gradient; row j at j % kTaps
  const auto receive = [&](auto all, int j, const Arrived& from) {
    const int t = first + j;
    const bool counts = decltype(all)::value || (t >= 0 && t < present);
    const Pair out = unpack(from.x), grad = unpack(from.grad);
    const Pair g = {counts ? undo_norm<T>(norm[0], out.x, grad.x) : 0.0f,
                    counts ? undo_norm<T>(norm[1], out.y, grad.y) : 0.0f};
    // Every frame counts in one strip; rows in the middle are this one's for any left context.
    const bool own = j >= kTaps - 1 && j < kStrip;
    if (own || (t >= strip.begin && t < strip.begin + kStrip)) add(d_bias, g);
    window[j % kTaps] = g;
  };
  // Beyond the length, the gradient counts for the bias alone.
  const auto pass = [&] {
    Arrived all_rows[kStrip];
    AERIE_UNROLL
    for (int s = 0; s < kStrip; ++s)
      all_rows[s] = load_arrived(std::false_type(), kTaps - 1 - f.left + s);
    AERIE_UNROLL
    for (int s = 0; s < kStrip; ++s) {
      const int t = strip.begin + s;
      const Pair out = unpack(all_rows[s].x), grad = unpack(all_rows[s].grad);
      const Pair g = {undo_norm<T>(norm[0], out.x, grad.x), undo_norm<T>(norm[1], out.y, grad.y)};
      if (t < present) add(d_bias, g);
      if (!strip.inside || t >= strip.rows) continue;
      store_pair(grad_x + s * 2 * channels, {0.0f, 0.0f});
      store_pair(grad_x + (s * 2 + 1) * channels, {0.0f, 0.0f});
    }
  };
  const auto walk = [&](auto all) {
    AERIE_UNROLL
    for (int j = 0; j < kTaps - 1; ++j) receive(all, j, ahead[j]);
    AERIE_UNROLL
    for (int chunk = 0; chunk < kStrip; chunk += kChunk) {
      Arrived now[kChunk];
      Gates here[kChunk];
      AERIE_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        now[i] = arrived[i];
        here[i] = gates[i];
        if (chunk + kChunk >= kStrip) continue;
        arrived[i] = load_arrived(all, kTaps - 1 + chunk + kChunk + i);
        gates[i] = load_gates(all, chunk + kChunk + i);
      }
      AERIE_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        const int s = chunk + i, t = strip.begin + s;
        receive(all, s + kTaps - 1, now[i]);
        const bool valid = decltype(all)::value || t < length;
        Pair left = unpack(here[i].left), right = unpack(here[i].right);
        const Pair open = {valid ? gate_of<T>(right.x, gate_bias[0]) : 0.0f,
                           valid ? gate_of<T>(right.y, gate_bias[1]) : 0.0f};
        const Pair value = {valid ? (left.x + left_bias.x) * open.x : 0.0f,
                            valid ? (left.y + left_bias.y) * open.y : 0.0f};
        Pair sum = {0.0f, 0.0f};
        AERIE_UNROLL
        for (int k = 0; k < kTaps; ++k) {
          const Pair g = window[(s + kTaps - 1 - k) % kTaps];
          add_product(sum, weight[k], g);
          add_product(d_weight[k], value, g);
        }
        left = {sum.x * open.x, sum.y * open.y};
        right = {sum.x * value.x, sum.y * value.y};
        right = {fmaf(-open.x, right.x, right.x), fmaf(-open.y, right.y, right.y)};
        add(d_left, left);
        add(d_right, right);
        if (!strip.inside || (!decltype(all)::value && t >= strip.rows)) continue;
        store_pair(grad_x + s * 2 * channels, left);
        store_pair(grad_x + (s * 2 + 1) * channels, right);
      }
    }
  };
  if (plain) {
    walk(std::true_type());
  } else if (strip.begin < length) {
    walk(std::false_type());
  } else {
    pass();
  }

  // Frames that count and have no row: nothing arrives at them, and the bias is all there was.
  const int begin = strip.begin > strip.rows ? strip.begin : strip.rows;
  const int end = strip.begin + kStrip < limit ? strip.begin + kStrip : limit;
  if (begin < end) {
    const Pair bias = unpack(pack_pair<T>(pair_or_zero(f.bias, strip.read)));
    const float count = float(end - begin);
    add_product(d_bias, {count, count},
                {undo_norm<T>(norm[0], bias.x, 0.0f), undo_norm<T>(norm[1], bias.y, 0.0f)});
  }

  const auto put_row = [&](int section, Pair value) {
    store_pair(rows + (strip.warp * kSections + section) * kStride + strip.lane * 2, value);
  };
  AERIE_UNROLL
  for (int k = 0; k < kTaps; ++k) put_row(k, d_weight[k]);
  put_row(kTaps, d_bias);
  put_row(kTaps + 1, d_left);
  put_row(kTaps + 2, d_right);
  __syncthreads();
  // As weight (C,K), bias (C), gate bias (2C), each in the order of memory.
  float* part = a.partial + size_t(blockIdx.y) * kSections * channels;
  for (int i = threadIdx.x; i < kSections * kCols; i += kThreads) {
    const bool tap = i < kTaps * kCols;
    const int which = tap ? i % kTaps : i / kCols, local = tap ? i / kTaps : i % kCols;
    const int channel = int(blockIdx.x) * kCols + local;
    if (channel >= channels) continue;
    float sum = 0.0f;
    AERIE_UNROLL
    for (int w = 0; w < kWarps; ++w) sum += rows[(w * kSections + which) * kStride + local];
    part[tap ? channel * kTaps + which : which * channels + channel] = sum;
  }
}

bool covered(const GatedConv& a) {
  return a.batch > 0 && a.frames > 0 && a.channels > 0 && a.channels % 8 == 0 && a.left >= 0 &&
         a.left < a.kernel && (a.kernel == 5 || a.kernel == 9);
}

int parts_of(const GatedConv& a, int strip) {
  return a.batch * ceil_div(a.frames, strip * kWarps);
}
LaunchShape shape_of(const GatedConv& a, int strip) {
  return {dim3(unsigned(ceil_div(a.channels, kCols)), unsigned(parts_of(a, strip))),
          dim3(kThreads)};
}
// Long strips overlap less and have less to do before and behind them, but are fewer. What a strip
// takes is counted in instructions.
bool long_strips_pay(const GatedConv& a) {
  const auto cost = [&](int strip) {
    const float waves = float(parts_of(a, strip)) * float(ceil_div(a.channels, kCols)) /
                        float(2 * multiprocessors());
    return (waves > 1.0f ? waves : 1.0f) * float(860 + 106 * strip);
  };
  return cost(kLongStrip) < cost(kShortStrip);
}

// Calls body with the type, the taps and the channels as constants.
template <typename Body>
int with_constants(const GatedConv& a, Body body) {
  using Five = std::integral_constant<int, 5>;
  using Nine = std::integral_constant<int, 9>;
  using Any = std::integral_constant<int, 0>;
  return dispatch(a.dtype, [&](auto zero) {
    if (a.kernel == 5) return body(zero, Five(), Any());
    if constexpr (sizeof(zero) == 2) {
      if (a.channels == 512) return body(zero, Nine(), std::integral_constant<int, 512>());
      if (a.channels == 1024) return body(zero, Nine(), std::integral_constant<int, 1024>());
    }
    return body(zero, Nine(), Any());
  });
}

}  // namespace

int gated_conv(const GatedConv& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  return with_constants(a, [&](auto zero, auto taps, auto channels) {
    return launch(stream, shape_of(a, kShortStrip),
                  gated_conv_kernel<decltype(zero), taps(), channels()>, a);
  });
}

int gated_conv_backward(const GatedConvBackward& a, void* stream) {
  const GatedConv& f = a.forward;
  if (!covered(f)) return kUnsupported;
  int parts = 0;
  AERIE_TRY(with_constants(f, [&](auto zero, auto taps, auto channels) {
    const auto start = [&](auto strip) {
      parts = parts_of(f, strip());
      return launch(stream, shape_of(f, strip()),
                    gated_conv_backward_kernel<decltype(zero), taps(), channels(), strip()>, a);
    };
    if constexpr (channels() > 0) {
      if (long_strips_pay(f)) return start(std::integral_constant<int, kLongStrip>());
    }
    return start(std::integral_constant<int, kShortStrip>());
  }));
  ColumnSums sums;
  sums.sections = 1;
  sums.parts = parts;
  sums.stride = size_t(f.channels) * (f.kernel + 3);
  sums.accumulate = a.accumulate;
  struct {
    float* out;
    int begin, width;
  } const targets[] = {{a.grad_weight, 0, f.kernel},
                       {a.grad_bias, f.kernel, 1},
                       {a.grad_gate_bias, f.kernel + 1, 2}};
  for (const auto& target : targets) {
    if (target.out == nullptr) continue;
    sums.out[0] = target.out;
    sums.width = f.channels * target.width;
    sums.partial = a.partial + size_t(f.channels) * target.begin;
    AERIE_TRY(finish_column_sums(stream, sums, a.later));
  }
  return kOk;
}

}  // namespace aerie::kernels::AERIE_BACKEND
