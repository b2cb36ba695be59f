// The first stage is bound by arithmetic: a thread owns two channels, whose weights and sums stay
// in registers, and the features a block needs are a small tile of shared memory that all channels
// read together (broadcast), four neighbouring bins at a time. The later stages are bound by
// memory: four channels per thread, and loads run one step ahead of their use.
#include <type_traits>

#include "aerie/kernels/device.h"
#include "aerie/kernels/subsampling/subsampling.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

// Values of neighbouring channels.
template <int N>
struct Lanes {
  float v[N];
};
// The same as they stand in memory.
template <typename T, int N>
struct alignas(sizeof(T) * N) Raw {
  uint32_t w[sizeof(T) * N / 4];
};
template <int N>
__device__ inline Lanes<N> widen(const Raw<float, N>& raw) {
  Lanes<N> out;
  memcpy(out.v, raw.w, sizeof(out.v));
  return out;
}
template <typename T, int N>
__device__ inline Lanes<N> widen(const Raw<T, N>& raw) {
  Lanes<N> out;
  AERIE_UNROLL
  for (int i = 0; i < N; i += 2) {
    out.v[i] = to_float(T{static_cast<uint16_t>(raw.w[i / 2] & 0xffffu)});
    out.v[i + 1] = to_float(T{static_cast<uint16_t>(raw.w[i / 2] >> 16)});
  }
  return out;
}
template <int N, typename T>
__device__ inline Raw<T, N> load_raw(const T* p) {
  return *reinterpret_cast<const Raw<T, N>*>(p);
}
template <int N, typename T>
__device__ inline Lanes<N> load_lanes(const T* p) {
  return widen(load_raw<N>(p));
}
template <int N>
__device__ inline void store_lanes(float* p, const Lanes<N>& x) {
  Raw<float, N> raw;
  memcpy(raw.w, x.v, sizeof(x.v));
  *reinterpret_cast<Raw<float, N>*>(p) = raw;
}
template <typename T, int N>
__device__ inline void store_lanes(T* p, const Lanes<N>& x) {
  Raw<T, N> raw;
  AERIE_UNROLL
  for (int i = 0; i < N; i += 2) raw.w[i / 2] = pack2<T>(x.v[i], x.v[i + 1]);
  *reinterpret_cast<Raw<T, N>*>(p) = raw;
}
// sum += a * b
template <int N>
__device__ inline void add_product(Lanes<N>& sum, const Lanes<N>& a, const Lanes<N>& b) {
  AERIE_UNROLL
  for (int i = 0; i < N; ++i) sum.v[i] += a.v[i] * b.v[i];
}
template <int N>
__device__ inline void add_product(Lanes<N>& sum, const Lanes<N>& a, float b) {
  AERIE_UNROLL
  for (int i = 0; i < N; ++i) sum.v[i] += a.v[i] * b;
}
template <int N>
__device__ inline void add(Lanes<N>& sum, const Lanes<N>& a) {
  AERIE_UNROLL
  for (int i = 0; i < N; ++i) sum.v[i] += a.v[i];
}
template <int N>
__device__ inline Lanes<N> positive(Lanes<N> x) {
  AERIE_UNROLL
  for (int i = 0; i < N; ++i) x.v[i] = fmaxf(x.v[i], 0.0f);
  return x;
}

template <int N>
struct Taps {
  Lanes<N> v[9];
  __device__ const Lanes<N>& tap(int k) const { return v[k]; }
};
template <int N>
__device__ inline Taps<N> load_taps(const float* weight, int channel) {
  Taps<N> out;
  AERIE_UNROLL
  for (int i = 0; i < N; ++i) AERIE_UNROLL
  for (int k = 0; k < 9; ++k) out.v[k].v[i] = weight[(channel + i) * 9 + k];
  return out;
}

constexpr int kThreads = 128;
constexpr int kWidth = 2;
using Two = Lanes<kWidth>;

// Features [first_row, first_row + rows) of one item into shared memory; zero outside the item, and
// `width` (a multiple of 4) per row.
__device__ inline void load_tile(const SubsampleFirst& a, int item, int first_row, int rows,
                                 int width, float* tile) {
  const int length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
  const float* x = a.x + size_t(item) * a.frames * a.bins;
  for (int i = threadIdx.x; i < rows * width; i += kThreads) {
    const int t = first_row + i / width, f = i % width;
    tile[i] = t >= 0 && t < length && f < a.bins ? x[t * a.bins + f] : 0.0f;
  }
}

// Five bins of a row of the tile: 4n - 1 to 4n + 3.
struct Five {
  float v[5];
};
__device__ inline Five load_five(const float* row, int n, float before) {
  const Bits16 raw = *reinterpret_cast<const Bits16*>(row + 4 * n);
  Five out;
  out.v[0] = before;
  memcpy(out.v + 1, raw.w, 16);
  return out;
}

// relu(conv0) at bins 2n and 2n + 1 of kRows neighbouring middle rows; `x` are the rows of their
// windows. All of them together, so that many independent sums are under way.
template <int kRows>
__device__ inline void middle(const Five* x, const Taps<2>& weight, const Two& bias,
                              Two (*out)[2]) {
  AERIE_UNROLL
  for (int r = 0; r < kRows; ++r) out[r][0] = out[r][1] = bias;
  AERIE_UNROLL
  for (int k = 0; k < 9; ++k) AERIE_UNROLL
  for (int r = 0; r < kRows; ++r) AERIE_UNROLL
  for (int column = 0; column < 2; ++column)
    add_product(out[r][column], weight.v[k], x[2 * r + k / 3].v[2 * column + k % 3]);
  AERIE_UNROLL
  for (int r = 0; r < kRows; ++r) AERIE_UNROLL
  for (int column = 0; column < 2; ++column) out[r][column] = positive(out[r][column]);
}

constexpr int kTile = 4;        // output frames per block
constexpr int kUsualBins = 20;  // of the output, from 80 bins

// One block's outputs. kInside: all middle rows exist and their number of bins is even. kBins: bins
// of the output when known at compile time, for addresses without arithmetic, or 0.
template <typename T, int kBins, bool kInside>
__device__ inline void first_tile(const SubsampleFirst& a, const float* tile, int item, int begin,
                                  int c) {
  const int frames2 = strided(strided(a.frames));
  const int bins1 = strided(a.bins), bins2 = kBins > 0 ? kBins : strided(bins1), width = 4 * bins2;
  const int length1 = strided(a.lengths[item]), length2 = strided(length1);
  const Taps<2> weight0 = load_taps<2>(a.weight0, c), weight1 = load_taps<2>(a.weight1, c);
  const Two bias0 = load_lanes<2>(a.bias0 + c), bias1 = load_lanes<2>(a.bias1 + c);
  T* out = static_cast<T*>(a.out) + (size_t(item) * frames2 + begin) * bins2 * a.channels + c;
  const size_t stride = size_t(bins2) * a.channels;
  // Middle row r is frame 2 begin - 1 + r; its window begins at row 2r of the tile. Of every middle
  // row the column shared with the next output is carried.
  Two carried[2 * kTile + 1] = {};
  AERIE_UNROLL_BY(2)
  for (int n = 0; n < bins2; ++n) {
    Two sums[kTile];
    AERIE_UNROLL
    for (int o = 0; o < kTile; ++o) sums[o] = bias1;
    const auto five = [&](int row) {
      const float* from = tile + row * width;
      return load_five(from, n, n > 0 ? from[4 * n - 1] : 0.0f);
    };
    Five x[3];
    x[2] = five(0);
    AERIE_UNROLL
    for (int r = 0; r < 2 * kTile + 1; ++r) {
      x[0] = x[2];
      x[1] = five(2 * r + 1);
      x[2] = five(2 * r + 2);
      Two values[1][2];
      middle<1>(x, weight0, bias0, values);
      Two &one = values[0][0], &two = values[0][1];
      if (!kInside) {
        const int t1 = 2 * begin - 1 + r;
        const bool live = t1 >= 0 && t1 < length1;
        AERIE_UNROLL
        for (int i = 0; i < kWidth; ++i) {
          one.v[i] = live ? one.v[i] : 0.0f;
          two.v[i] = live && 2 * n + 1 < bins1 ? two.v[i] : 0.0f;
        }
      }
      AERIE_UNROLL
      for (int o = (r - 1) / 2; o <= r / 2; ++o) {
        if (o >= kTile) continue;
        const int kt = r - 2 * o;
        add_product(sums[o], weight1.v[kt * 3], carried[r]);
        add_product(sums[o], weight1.v[kt * 3 + 1], one);
        add_product(sums[o], weight1.v[kt * 3 + 2], two);
      }
      carried[r] = two;
    }
    AERIE_UNROLL
    for (int o = 0; o < kTile; ++o)
      if (kInside || begin + o < frames2)
        store_lanes(out + o * stride, kInside || begin + o < length2 ? sums[o] : Two{});
    out += a.channels;
  }
}

template <typename T, int kBins>
__global__ void __launch_bounds__(kThreads, 4) first_forward(SubsampleFirst a) {
  AERIE_DYNAMIC_SHARED(memory);
  float* tile = reinterpret_cast<float*>(memory);
  const int item = blockIdx.z, begin = blockIdx.y * kTile;
  const int frames2 = strided(strided(a.frames));
  const int bins1 = strided(a.bins), bins2 = kBins > 0 ? kBins : strided(bins1), width = 4 * bins2;
  const int length1 = strided(a.lengths[item]), length2 = strided(length1);
  const int c = (blockIdx.x * kThreads + threadIdx.x) * kWidth;
  if (begin >= length2) {  // the whole block
    if (c >= a.channels) return;
    const size_t rows = size_t(frames2 - begin < kTile ? frames2 - begin : kTile) * bins2;
    T* out = static_cast<T*>(a.out) + (size_t(item) * frames2 + begin) * bins2 * a.channels + c;
    for (size_t i = 0; i < rows; ++i) store_lanes(out + i * a.channels, Two{});
    return;
  }
  load_tile(a, item, begin * 4 - 3, kTile * 4 + 3, width, tile);
  __syncthreads();
  if (c >= a.channels) return;
  if (begin > 0 && 2 * (begin + kTile) <= length1 && bins1 % 2 == 0) {
    first_tile<T, kBins, true>(a, tile, item, begin, c);
  } else {
    first_tile<T, kBins, false>(a, tile, item, begin, c);
  }
}

// What every backward kernel of a strided depthwise convolution does at a place (m, n) of its
// output: its input has up to four values there, at (2m, 2n) to (2m+1, 2n+1), and these were read
// by the outputs (m, n), (m, n+1), (m+1, n), (m+1, n+1). grads[2*dm + dn] are theirs. Gives the
// gradient of input (2m + place / 2, 2n + place % 2) and adds to the taps' gradient.
template <int place, int N, typename Weight>
__device__ inline Lanes<N> depthwise_place(const Lanes<N>* grads, const Lanes<N>& value,
                                           const Weight& weight, Taps<N>& d_weight) {
  constexpr int dt = place / 2, df = place % 2;
  Lanes<N> out = {};
  AERIE_UNROLL
  for (int dm = 0; dm <= dt; ++dm) AERIE_UNROLL
  for (int dn = 0; dn <= df; ++dn) {
    const int k = (dt + 1 - 2 * dm) * 3 + df + 1 - 2 * dn;
    add_product(out, weight.tap(k), grads[2 * dm + dn]);
    add_product(d_weight.v[k], value, grads[2 * dm + dn]);
  }
  AERIE_UNROLL
  for (int i = 0; i < N; ++i) out.v[i] = value.v[i] > 0.0f ? out.v[i] : 0.0f;
  return out;
}

// Partial results of a block: 20 sections of one value per channel, the taps of the first
// convolution, its bias, the taps of the second, its bias.
constexpr int kSections = 20;
constexpr int kBias0 = 9, kTaps1 = 10, kBias1 = 19;

template <int place>
__device__ inline void first_place(const Five* x, const Two* grads, Two value,
                                   const Taps<2>& weight1, bool live, Taps<2>& d_weight0,
                                   Two& d_bias0, Taps<2>& d_weight1) {
  constexpr int dt = place / 2, df = place % 2;
  AERIE_UNROLL
  for (int i = 0; i < kWidth; ++i) value.v[i] = live ? value.v[i] : 0.0f;
  const Two d = depthwise_place<place>(grads, value, weight1, d_weight1);
  add(d_bias0, d);
  AERIE_UNROLL
  for (int k = 0; k < 9; ++k) add_product(d_weight0.v[k], d, x[2 * dt + k / 3].v[2 * df + k % 3]);
}

constexpr int kUnit = 2;  // output frames whose features a block has at a time

template <typename T, int kBins>
__global__ void __launch_bounds__(kThreads, 4) first_backward(SubsampleFirstBackward b) {
  AERIE_DYNAMIC_SHARED(memory);
  float* tile = reinterpret_cast<float*>(memory);
  const SubsampleFirst& a = b.forward;
  const int frames2 = strided(strided(a.frames));
  const int bins1 = strided(a.bins), bins2 = kBins > 0 ? kBins : strided(bins1), width = 4 * bins2;
  const int c = (blockIdx.x * kThreads + threadIdx.x) * kWidth;
  const bool mine = c < a.channels;
  Taps<2> weight0 = {}, weight1 = {}, d_weight0 = {}, d_weight1 = {};
  Two bias0 = {}, d_bias0 = {}, d_bias1 = {};
  if (mine) {
    weight0 = load_taps<2>(a.weight0, c);
    weight1 = load_taps<2>(a.weight1, c);
    bias0 = load_lanes<2>(a.bias0 + c);
  }
  const int units = (frames2 + kUnit - 1) / kUnit;  // of an item
  for (int unit = blockIdx.y; unit < a.batch * units; unit += gridDim.y) {
    const int item = unit / units, begin = unit % units * kUnit;
    const int length1 = strided(a.lengths[item]), length2 = strided(length1);
    if (begin >= length2) continue;  // the same for the whole block
    const T* grad = static_cast<const T*>(b.grad_out) +
                    (size_t(item) * frames2 + begin) * bins2 * a.channels + c;
    bool below = begin + 1 < length2 && begin + 1 < frames2;
    const auto grad_at = [&](int dm, int n) {
      Raw<T, 2> none = {};
      if (n >= bins2 || (dm == 1 && !below) || !mine) return none;
      return load_raw<2>(grad + (dm * bins2 + n) * a.channels);
    };
    // Gradients are asked for two steps before they are used, the first ones ahead of the barriers.
    Raw<T, 2> next[3][2];
    const auto ask = [&] {
      AERIE_UNROLL
      for (int n = 0; n < 3; ++n) AERIE_UNROLL
      for (int dm = 0; dm < 2; ++dm) next[n][dm] = grad_at(dm, n);
    };
    ask();
    __syncthreads();
    load_tile(a, item, 4 * begin - 1, 4 * kUnit + 1, width, tile);
    __syncthreads();
    if (!mine) continue;
    AERIE_UNROLL_BY(1)
    for (int m = begin; m < begin + kUnit && m < length2 && m < frames2; ++m) {
      const float* patch = tile + (m - begin) * 4 * width;
      const bool rows = 2 * m + 1 < length1;
      if (m > begin) {
        grad += size_t(bins2) * a.channels;
        below = m + 1 < length2 && m + 1 < frames2;
        ask();
      }
      // Inside, both middle rows and all their columns exist.
      const auto walk = [&](auto inside) {
        constexpr bool kInside = decltype(inside)::value;
        Two grads[4];
        grads[1] = widen(next[0][0]);
        grads[3] = widen(next[0][1]);
        Five x[5] = {};
        AERIE_UNROLL_BY(2)
        for (int n = 0; n < bins2; ++n) {
          grads[0] = grads[1];
          grads[2] = grads[3];
          AERIE_UNROLL
          for (int dm = 0; dm < 2; ++dm) {
            grads[1 + 2 * dm] = widen(next[1][dm]);
            next[1][dm] = next[2][dm];
            next[2][dm] = grad_at(dm, n + 3);
          }
          AERIE_UNROLL
          for (int r = 0; r < 5; ++r) x[r] = load_five(patch + r * width, n, x[r].v[4]);
          const bool column = kInside || 2 * n + 1 < bins1, row = kInside || rows;
          add(d_bias1, grads[0]);
          Two values[2][2];
          middle<2>(x, weight0, bias0, values);
          first_place<0>(x, grads, values[0][0], weight1, true, d_weight0, d_bias0, d_weight1);
          first_place<1>(x, grads, values[0][1], weight1, column, d_weight0, d_bias0, d_weight1);
          first_place<2>(x, grads, values[1][0], weight1, row, d_weight0, d_bias0, d_weight1);
          first_place<3>(x, grads, values[1][1], weight1, row && column, d_weight0, d_bias0,
                         d_weight1);
        }
      };
      if (rows && bins1 % 2 == 0) {
        walk(std::true_type());
      } else {
        walk(std::false_type());
      }
    }
  }
  if (!mine) return;
  float* partial = b.partial + size_t(blockIdx.y) * kSections * a.channels + c;
  AERIE_UNROLL
  for (int k = 0; k < 9; ++k) {
    store_lanes(partial + size_t(k) * a.channels, d_weight0.v[k]);
    store_lanes(partial + size_t(kTaps1 + k) * a.channels, d_weight1.v[k]);
  }
  store_lanes(partial + size_t(kBias0) * a.channels, d_bias0);
  store_lanes(partial + size_t(kBias1) * a.channels, d_bias1);
}

constexpr int kNextWidth = 4;
constexpr int kNextLanes = 64;  // threads side by side: 256 channels
constexpr int kNextThreads = 256;
constexpr int kNextRows = kNextThreads / kNextLanes;
constexpr int kNextParts = 264;  // two blocks for each of 132 multiprocessors
using Four = Lanes<kNextWidth>;

// relu(x + bias), or zero where there is nothing.
template <typename T>
__device__ inline Four activated(const Raw<T, 4>& raw, const Four& bias, bool live) {
  Four x = widen(raw);
  add(x, bias);
  x = positive(x);
  AERIE_UNROLL
  for (int i = 0; i < kNextWidth; ++i) x.v[i] = live ? x.v[i] : 0.0f;
  return x;
}

template <typename T>
__global__ void __launch_bounds__(kNextThreads) next_forward(SubsampleNext a) {
  const int c = (blockIdx.x * kNextLanes + threadIdx.x % kNextLanes) * kNextWidth;
  const int frames1 = strided(a.frames), bins1 = strided(a.bins);
  const int t1 = blockIdx.y * kNextRows + threadIdx.x / kNextLanes, item = blockIdx.z;
  if (c >= a.channels || t1 >= frames1) return;
  const int length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
  T* out = static_cast<T*>(a.out) + (size_t(item) * frames1 + t1) * bins1 * a.channels + c;
  if (t1 >= strided(length)) {
    for (int n = 0; n < bins1; ++n) store_lanes(out + size_t(n) * a.channels, Four{});
    return;
  }
  const Taps<4> weight1 = load_taps<4>(a.weight1, c);
  const Four bias0 = load_lanes<4>(a.bias0 + c), bias1 = load_lanes<4>(a.bias1 + c);
  const int64_t row_stride = int64_t(a.bins) * a.channels;
  const T* x =
      static_cast<const T*>(a.x) + (int64_t(item) * a.frames + 2 * t1 - 1) * row_stride + c;
  bool live[3];
  AERIE_UNROLL
  for (int r = 0; r < 3; ++r) live[r] = 2 * t1 - 1 + r >= 0 && 2 * t1 - 1 + r < length;
  // Inside, all three rows exist and bins come in pairs.
  const auto walk = [&](auto inside) {
    constexpr bool kInside = decltype(inside)::value;
    Raw<T, 4> ahead[3][2] = {};
    const auto fetch = [&](int n) {
      if (n >= bins1) return;
      AERIE_UNROLL
      for (int r = 0; r < 3; ++r) AERIE_UNROLL
      for (int k = 0; k < 2; ++k)
        if (kInside || (live[r] && 2 * n + k < a.bins))
          ahead[r][k] = load_raw<4>(x + r * row_stride + k * a.channels);
      x += 2 * a.channels;
    };
    Four carried[3] = {};
    fetch(0);
    AERIE_UNROLL_BY(2)
    for (int n = 0; n < bins1; ++n) {
      Raw<T, 4> now[3][2];
      AERIE_UNROLL
      for (int r = 0; r < 3; ++r) AERIE_UNROLL
      for (int k = 0; k < 2; ++k) now[r][k] = ahead[r][k];
      fetch(n + 1);
      Four sum = bias1;
      AERIE_UNROLL
      for (int r = 0; r < 3; ++r) {
        const Four one = activated(now[r][0], bias0, kInside || live[r]);
        const Four two = activated(now[r][1], bias0, kInside || (live[r] && 2 * n + 1 < a.bins));
        add_product(sum, weight1.v[r * 3], carried[r]);
        add_product(sum, weight1.v[r * 3 + 1], one);
        add_product(sum, weight1.v[r * 3 + 2], two);
        carried[r] = two;
      }
      store_lanes(out, sum);
      out += a.channels;
    }
  };
  if (live[0] && live[2] && a.bins % 2 == 0) {
    walk(std::true_type());
  } else {
    walk(std::false_type());
  }
}

// Taps that are read from shared memory whenever they are used.
struct SharedTaps {
  const float* at;
  __device__ Four tap(int k) const { return load_lanes<4>(at + k * kNextLanes * kNextWidth); }
};
// Loads behind this are not moved in front of it (out of a loop, into registers that are scarce).
__device__ inline void keep_in_place() {
#ifdef __CUDA_ARCH__
  asm volatile("" ::: "memory");
#endif
}

template <int place, typename T>
__device__ inline void next_place(const Raw<T, 4>& raw, T* grad_x, bool exists, bool live,
                                  const Four* grads, const Four& bias0, const SharedTaps& weight1,
                                  Four& d_bias0, Taps<4>& d_weight1) {
  if (!exists) return;
  const Four value = activated(raw, bias0, live);
  const Four d = depthwise_place<place>(grads, value, weight1, d_weight1);
  add(d_bias0, d);
  store_lanes(grad_x, d);
}

// The rows of a block take different places in time; their sums are added at the end.
template <typename T>
__global__ void __launch_bounds__(kNextThreads, 2) next_backward(SubsampleNextBackward b) {
  AERIE_SHARED(float, sums, kNextThreads* kNextWidth);
  AERIE_SHARED(float, taps, 9 * kNextLanes * kNextWidth);  // registers are for the sums
  const SubsampleNext& a = b.forward;
  const int lane = threadIdx.x % kNextLanes, sub = threadIdx.x / kNextLanes;
  const int c = (blockIdx.x * kNextLanes + lane) * kNextWidth;
  const bool mine = c < a.channels;
  const int frames1 = strided(a.frames), bins1 = strided(a.bins);
  Taps<4> d_weight1 = {};
  Four bias0 = {}, d_bias0 = {}, d_bias1 = {};
  if (mine) {
    bias0 = load_lanes<4>(a.bias0 + c);
    const Taps<4> weight1 = load_taps<4>(a.weight1, c);
    AERIE_UNROLL
    for (int k = 0; k < 9; ++k)
      if (sub == 0) store_lanes(taps + (k * kNextLanes + lane) * kNextWidth, weight1.v[k]);
  }
  __syncthreads();
  for (int unit = blockIdx.y * kNextRows + sub; unit < a.batch * frames1 && mine;
       unit += gridDim.y * kNextRows) {
    const int item = unit / frames1, m = unit % frames1;
    const int length = a.lengths[item] < a.frames ? a.lengths[item] : a.frames;
    const int length1 = strided(length);
    const size_t base = size_t(item) * a.frames * a.bins * a.channels + c;
    T* grad_x = static_cast<T*>(b.grad_x) + base;
    if (m >= length1) {
      for (int row = 2 * m * a.bins; row < (2 * m + 2) * a.bins && row < a.frames * a.bins; ++row)
        store_lanes(grad_x + size_t(row) * a.channels, Four{});
      continue;
    }
    const size_t row_stride = size_t(a.bins) * a.channels;
    const T* x = static_cast<const T*>(a.x) + base + 2 * m * row_stride;
    grad_x += 2 * m * row_stride;
    const T* grad =
        static_cast<const T*>(b.grad_out) + (size_t(item) * frames1 + m) * bins1 * a.channels + c;
    const size_t below_stride = size_t(bins1) * a.channels;
    const bool below = m + 1 < length1, second = 2 * m + 1 < length;
    // Inside, both input rows count and bins come in pairs.
    const auto walk = [&](auto inside) {
      constexpr bool kInside = decltype(inside)::value;
      Raw<T, 4> ahead_x[4] = {}, ahead_grad[2] = {};
      const auto fetch = [&](int n) {
        grad += a.channels;
        if (n + 1 < bins1) {
          ahead_grad[0] = load_raw<4>(grad);
          if (below) ahead_grad[1] = load_raw<4>(grad + below_stride);
        } else {
          ahead_grad[0] = ahead_grad[1] = Raw<T, 4>{};
        }
        if (n >= bins1) return;
        AERIE_UNROLL
        for (int place = 0; place < 4; ++place)
          if (kInside || ((place < 2 || second) && 2 * n + place % 2 < a.bins))
            ahead_x[place] = load_raw<4>(x + place / 2 * row_stride + place % 2 * a.channels);
        x += 2 * a.channels;
      };
      Four grads[4] = {};
      grads[1] = load_lanes<4>(grad);
      if (below) grads[3] = load_lanes<4>(grad + below_stride);
      fetch(0);
      AERIE_UNROLL_BY(1)
      for (int n = 0; n < bins1; ++n) {
        grads[0] = grads[1];
        grads[2] = grads[3];
        grads[1] = widen(ahead_grad[0]);
        grads[3] = widen(ahead_grad[1]);
        Raw<T, 4> now[4];
        AERIE_UNROLL
        for (int place = 0; place < 4; ++place) now[place] = ahead_x[place];
        fetch(n + 1);
        keep_in_place();
        const SharedTaps weight1 = {taps + lane * kNextWidth};
        const bool pair = kInside || 2 * n + 1 < a.bins, row = kInside || 2 * m + 1 < a.frames;
        const bool live = kInside || second;
        add(d_bias1, grads[0]);
        next_place<0>(now[0], grad_x, true, true, grads, bias0, weight1, d_bias0, d_weight1);
        next_place<1>(now[1], grad_x + a.channels, pair, true, grads, bias0, weight1, d_bias0,
                      d_weight1);
        next_place<2>(now[2], grad_x + row_stride, row, live, grads, bias0, weight1, d_bias0,
                      d_weight1);
        next_place<3>(now[3], grad_x + row_stride + a.channels, row && pair, live, grads, bias0,
                      weight1, d_bias0, d_weight1);
        grad_x += 2 * a.channels;
      }
    };
    if (second && a.bins % 2 == 0) {
      walk(std::true_type());
    } else {
      walk(std::false_type());
    }
  }
  float* partial = b.partial + size_t(blockIdx.y) * kSections * a.channels + c;
  AERIE_UNROLL
  for (int section = kBias0; section < kSections; ++section) {
    const int tap = section < kTaps1 || section >= kBias1 ? 0 : section - kTaps1;
    const Four value = section == kBias0 ? d_bias0 : section == kBias1 ? d_bias1 : d_weight1.v[tap];
    __syncthreads();  // the last section has been read
    store_lanes(sums + threadIdx.x * kNextWidth, value);
    __syncthreads();
    if (sub != 0 || !mine) continue;
    Four total = value;
    AERIE_UNROLL
    for (int other = 1; other < kNextRows; ++other)
      add(total, load_lanes<4>(sums + (other * kNextLanes + lane) * kNextWidth));
    store_lanes(partial + size_t(section) * a.channels, total);
  }
}

// Adds the blocks' partial results, sections [first_section, 20).
struct TapSums {
  float* out[4] = {};  // taps0, bias0, taps1, bias1; null: not wanted
  const float* partial = nullptr;
  int parts = 0, channels = 0, first_section = 0;
  bool accumulate = false;
};
__global__ void __launch_bounds__(kColumnThreads) sum_taps(TapSums a) {
  AERIE_SHARED(float, sums, kColumnThreads);
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int column = a.first_section * a.channels + blockIdx.x * 32 + lane;
  const bool live = column < kSections * a.channels;
  const size_t stride = size_t(kSections) * a.channels;
  float sum = 0.0f;
  if (live) {
    AERIE_UNROLL_BY(8)
    for (int p = group; p < a.parts; p += kColumnThreads / 32)
      sum += a.partial[p * stride + column];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (group != 0 || !live) return;
  for (int g = 1; g < kColumnThreads / 32; ++g) sum += sums[g * 32 + lane];
  const int section = column / a.channels, channel = column % a.channels;
  float* out = section < kBias0    ? a.out[0]
               : section == kBias0 ? a.out[1]
               : section < kBias1  ? a.out[2]
                                   : a.out[3];
  if (out == nullptr) return;
  if (section < kBias0) {
    out += channel * 9 + section;
  } else if (section == kBias0 || section == kBias1) {
    out += channel;
  } else {
    out += channel * 9 + section - kTaps1;
  }
  *out = a.accumulate ? *out + sum : sum;
}
int launch_tap_sums(void* stream, const TapSums& a) {
  return launch(stream,
                {dim3(unsigned(ceil_div((kSections - a.first_section) * a.channels, 32))),
                 dim3(kColumnThreads)},
                sum_taps, a);
}

constexpr int kReluWarps = kColumnThreads / 32;

// Forward and backward; threads walk down columns.
template <typename T>
__global__ void __launch_bounds__(kColumnThreads) relu_kernel(Relu a) {
  AERIE_SHARED(float, sums, kColumnThreads * 8);
  const int column = (blockIdx.x * 32 + threadIdx.x % 32) * 8;
  const int per_item = a.frames * a.bins, rows = a.batch * per_item;
  Vec8 sum = {};
  if (column < a.channels) {
    const Vec8 bias = load8(a.bias + column);
    for (int row = blockIdx.y * kReluWarps + threadIdx.x / 32; row < rows;
         row += gridDim.y * kReluWarps) {
      const size_t at = size_t(row) * a.channels + column;
      Vec8 out = {};
      if (row % per_item / a.bins < a.lengths[row / per_item]) {
        const Vec8 x = load8(static_cast<const T*>(a.x) + at);
        if (a.grad_out != nullptr) out = load8(static_cast<const T*>(a.grad_out) + at);
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k) {
          const float value = x.v[k] + bias.v[k];
          out.v[k] = value > 0.0f ? (a.grad_out != nullptr ? out.v[k] : value) : 0.0f;
          sum.v[k] += out.v[k];
        }
      }
      store8(static_cast<T*>(a.grad_out != nullptr ? a.grad_x : a.out) + at, out);
    }
  }
  if (a.grad_out != nullptr) write_partial(a.partial, a.channels, column, sum, sums);
}

template <typename Args>
bool covered(const Args& a) {
  return a.batch > 0 && a.batch < 65536 && a.frames > 0 && a.bins > 0 && a.channels > 0 &&
         a.channels % 8 == 0;
}

int at_most(int units, int parts) {
  return units < parts ? units : parts;
}

}  // namespace

int subsample_first(const SubsampleFirst& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  const LaunchShape shape{
      dim3(unsigned(ceil_div(a.channels, kThreads * kWidth)),
           unsigned(ceil_div(strided(strided(a.frames)), kTile)), unsigned(a.batch)),
      dim3(kThreads), size_t(kTile * 4 + 3) * 4 * strided(strided(a.bins)) * sizeof(float)};
  if (shape.shared_bytes > 200 * 1024) return kUnsupported;
  return dispatch(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    return strided(strided(a.bins)) == kUsualBins
               ? launch(stream, shape, first_forward<T, kUsualBins>, a)
               : launch(stream, shape, first_forward<T, 0>, a);
  });
}

int subsample_first_backward(const SubsampleFirstBackward& b, void* stream) {
  const SubsampleFirst& a = b.forward;
  if (!covered(a)) return kUnsupported;
  const int parts = at_most(a.batch * ceil_div(strided(strided(a.frames)), kUnit), kSubsampleParts);
  const LaunchShape shape{dim3(unsigned(ceil_div(a.channels, kThreads * kWidth)), unsigned(parts)),
                          dim3(kThreads),
                          size_t(4 * kUnit + 1) * 4 * strided(strided(a.bins)) * sizeof(float)};
  if (shape.shared_bytes > 200 * 1024) return kUnsupported;
  AERIE_TRY(dispatch(a.dtype, [&](auto zero) {
    using T = decltype(zero);
    return strided(strided(a.bins)) == kUsualBins
               ? launch(stream, shape, first_backward<T, kUsualBins>, b)
               : launch(stream, shape, first_backward<T, 0>, b);
  }));
  return launch_tap_sums(stream, {{b.grad_weight0, b.grad_bias0, b.grad_weight1, b.grad_bias1},
                                  b.partial,
                                  parts,
                                  a.channels,
                                  0,
                                  b.accumulate});
}

int subsample_next(const SubsampleNext& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  const LaunchShape shape{dim3(unsigned(ceil_div(a.channels, kNextLanes * kNextWidth)),
                               unsigned(ceil_div(strided(a.frames), kNextRows)), unsigned(a.batch)),
                          dim3(kNextThreads)};
  return dispatch(
      a.dtype, [&](auto zero) { return launch(stream, shape, next_forward<decltype(zero)>, a); });
}

int subsample_next_backward(const SubsampleNextBackward& b, void* stream) {
  const SubsampleNext& a = b.forward;
  if (!covered(a)) return kUnsupported;
  const int parts = at_most(ceil_div(a.batch * strided(a.frames), kNextRows), kNextParts);
  const LaunchShape shape{
      dim3(unsigned(ceil_div(a.channels, kNextLanes * kNextWidth)), unsigned(parts)),
      dim3(kNextThreads)};
  AERIE_TRY(dispatch(
      a.dtype, [&](auto zero) { return launch(stream, shape, next_backward<decltype(zero)>, b); }));
  return launch_tap_sums(stream, {{nullptr, b.grad_bias0, b.grad_weight1, b.grad_bias1},
                                  b.partial,
                                  parts,
                                  a.channels,
                                  kBias0,
                                  b.accumulate});
}

int relu(const Relu& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  const int parts = at_most(ceil_div(a.batch * a.frames * a.bins, kReluWarps), kSubsampleParts);
  const LaunchShape shape{dim3(unsigned(ceil_div(a.channels, 256)), unsigned(parts)),
                          dim3(kColumnThreads)};
  AERIE_TRY(dispatch(
      a.dtype, [&](auto zero) { return launch(stream, shape, relu_kernel<decltype(zero)>, a); }));
  if (a.grad_out == nullptr || a.grad_bias == nullptr) return kOk;
  ColumnSums sums;
  sums.out[0] = a.grad_bias;
  sums.sections = 1;
  sums.width = a.channels;
  sums.partial = a.partial;
  sums.parts = parts;
  sums.accumulate = a.accumulate;
  return launch_column_sums(stream, sums);
}

}  // namespace aerie::kernels::AERIE_BACKEND
