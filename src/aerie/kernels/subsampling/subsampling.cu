// The first stage stands in first_stage.h and, on tensor cores, in first_tensor_*.h. The later ones
// are bound by memory: four channels per thread, and loads run ahead of their use.
#include "aerie/kernels/device.h"
#include "aerie/kernels/subsampling/first_stage.h"
#include "aerie/kernels/subsampling/first_tensor_backward.h"
#include "aerie/kernels/subsampling/first_tensor_forward.h"
#include "aerie/kernels/subsampling/subsampling.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kNextWidth = 4;
constexpr int kNextLanes = 64;  // threads side by side: 256 channels
constexpr int kNextThreads = 256;
constexpr int kNextRows = kNextThreads / kNextLanes;
constexpr int kNextAhead = 2;    // steps that loads run ahead in the forward pass
constexpr int kNextParts = 264;  // two blocks for each of 132 SMs
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
    Raw<T, 4> ahead[kNextAhead][3][2] = {};
    const auto fetch = [&](int n, Raw<T, 4>(&to)[3][2]) {
      if (n >= bins1) return;
      AERIE_UNROLL
      for (int r = 0; r < 3; ++r) AERIE_UNROLL
      for (int k = 0; k < 2; ++k)
        if (kInside || (live[r] && 2 * n + k < a.bins))
          to[r][k] = load_raw<4>(x + r * row_stride + k * a.channels);
      x += 2 * a.channels;
    };
    Four carried[3] = {};
    AERIE_UNROLL
    for (int n = 0; n < kNextAhead; ++n) fetch(n, ahead[n]);
    const auto step = [&](int n, Raw<T, 4>(&mine)[3][2]) {
      Raw<T, 4> now[3][2];
      AERIE_UNROLL
      for (int r = 0; r < 3; ++r) AERIE_UNROLL
      for (int k = 0; k < 2; ++k) now[r][k] = mine[r][k];
      fetch(n + kNextAhead, mine);
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
    };
    AERIE_UNROLL_BY(1)
    for (int n = 0; n < bins1; n += kNextAhead) AERIE_UNROLL
    for (int k = 0; k < kNextAhead; ++k)
      if (n + k < bins1) step(n + k, ahead[k]);
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
    const Vec8 bias = a.bias != nullptr ? load8(a.bias + column) : Vec8{};
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

bool covered(const FrontActivations& a) {
  return a.batch > 0 && a.batch < 65536 && a.frames > 0 && a.bins > 0 && a.channels > 0 &&
         a.channels % 8 == 0;
}

bool on_tensor_cores(const SubsampleFirst& a) {
  return a.dtype != Dtype::kF32 && strided(strided(a.bins)) <= kTensorBins;
}

int at_most(int units, int parts) {
  return units < parts ? units : parts;
}

}  // namespace

int subsample_first(const SubsampleFirst& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  if (on_tensor_cores(a)) {
    const int side = ceil_div(a.channels, kTensorChannels);
    const int rows = at_most(a.batch * strided(strided(a.frames)), ceil_div(kTensorBlocks, side));
    const LaunchShape shape{dim3(unsigned(side), unsigned(rows)), dim3(kTensorThreads),
                            kTensorShared};
    return a.dtype == Dtype::kBF16 ? launch(stream, shape, first_forward_tensor<Bf16>, a)
                                   : launch(stream, shape, first_forward_tensor<Half>, a);
  }
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
  const int frames2 = strided(strided(a.frames));
  int parts = 0;
  if (on_tensor_cores(a)) {
    const int side = ceil_div(a.channels, kBackChannels), rows = ceil_div(kBackBlocks, side);
    parts = at_most(a.batch * frames2, rows);
    const LaunchShape shape{dim3(unsigned(side), unsigned(parts)), dim3(kBackThreads), kBackShared};
    AERIE_TRY(a.dtype == Dtype::kBF16 ? launch(stream, shape, first_backward_tensor<Bf16>, b)
                                      : launch(stream, shape, first_backward_tensor<Half>, b));
  } else {
    parts = at_most(a.batch * ceil_div(frames2, kUnit), kSubsampleParts);
    const LaunchShape shape{
        dim3(unsigned(ceil_div(a.channels, kThreads * kWidth)), unsigned(parts)), dim3(kThreads),
        size_t(4 * kUnit + 1) * 4 * strided(strided(a.bins)) * sizeof(float)};
    if (shape.shared_bytes > 200 * 1024) return kUnsupported;
    AERIE_TRY(dispatch(a.dtype, [&](auto zero) {
      using T = decltype(zero);
      return strided(strided(a.bins)) == kUsualBins
                 ? launch(stream, shape, first_backward<T, kUsualBins>, b)
                 : launch(stream, shape, first_backward<T, 0>, b);
    }));
  }
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
  return launch_column_sums(stream,
                            column_sums(a.grad_bias, a.channels, a.partial, parts, a.accumulate));
}

}  // namespace aerie::kernels::AERIE_BACKEND
