// What kernel sources (.cu) include: CUDA under nvcc, its emulation under the host compiler, and
// the helpers that most kernels share.
#pragma once

#ifdef __CUDACC__
#include <cuda_runtime.h>
#define AERIE_BACKEND cuda
#define AERIE_UNROLL _Pragma("unroll")
#define AERIE_PRAGMA(text) _Pragma(#text)
#define AERIE_UNROLL_BY(n) AERIE_PRAGMA(unroll n)
// Shared memory of a block. AERIE_SHARED(type, name, count) declares a pointer-like array. Dynamic
// memory begins as swizzled operands of wgmma must.
#define AERIE_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define AERIE_DYNAMIC_SHARED(name) extern __shared__ __align__(1024) unsigned char name[]
#else
#include "aerie/kernels/emulation/emulation.h"
#define AERIE_BACKEND emulated
#define AERIE_UNROLL
#define AERIE_UNROLL_BY(n)
#define AERIE_SHARED(type, name, count)  \
  static const char name##_tag = 0;      \
  type* const name = static_cast<type*>( \
      ::aerie::kernels::emulation::block_shared(&name##_tag, sizeof(type) * (count)))
#define AERIE_DYNAMIC_SHARED(name) \
  unsigned char* const name =      \
      static_cast<unsigned char*>(::aerie::kernels::emulation::dynamic_shared())
#endif

#include <cmath>

#include "aerie/kernels/per_device.h"
#include "aerie/kernels/sums/partial_sums.h"
#include "aerie/kernels/types.h"

namespace aerie::kernels::AERIE_BACKEND {

constexpr unsigned kFullWarp = 0xffffffffu;

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
};

// Starts a kernel; arguments are converted to its parameter types.
#ifdef __CUDACC__
template <typename... Params, typename... Given>
int launch(void* stream, LaunchShape shape, void (*kernel)(Params...), const Given&... given) {
  if (shape.shared_bytes > 48 * 1024) {
    const cudaError_t error =
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, int(shape.shared_bytes));
    if (error != cudaSuccess) return int(error);
  }
  kernel<<<shape.grid, shape.block, shape.shared_bytes, static_cast<cudaStream_t>(stream)>>>(
      given...);
  return int(cudaGetLastError());
}
#else
template <typename... Params, typename... Given>
int launch(void*, LaunchShape shape, void (*kernel)(Params...), const Given&... given) {
  auto body = [&] { kernel(given...); };
  emulation::run_grid(
      shape.grid, shape.block, shape.shared_bytes,
      [](void* context) { (*static_cast<decltype(body)*>(context))(); }, &body);
  return kOk;
}
#endif

#define AERIE_TRY(call)                   \
  do {                                    \
    const int try_code = (call);          \
    if (try_code != kOk) return try_code; \
  } while (false)

#ifdef __CUDACC__
// The device that launches go to; -1 where there is none.
inline int current_device() {
  int device = 0;
  return cudaGetDevice(&device) == cudaSuccess ? device : -1;
}
// 0 where it cannot be told.
inline int device_attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  return cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess ? value : 0;
}
// Of the current device: 9 on Hopper.
inline int compute_major() {
  static PerDevice majors;
  const int device = current_device();
  return majors.get(device,
                    [&] { return device_attribute(cudaDevAttrComputeCapabilityMajor, device); });
}
#endif

// array + index, of an array that may not be there, and then is not used. A macro: a function
// changes the machine code.
#ifdef __CUDACC__
#define AERIE_PART_OF(array, ...) ((array) + __VA_ARGS__)
#else
#define AERIE_PART_OF(array, ...) ((array) != nullptr ? (array) + __VA_ARGS__ : nullptr)
#endif

// Of the current device; the emulation has a few.
inline int multiprocessors() {
#ifdef __CUDACC__
  static PerDevice counts;
  const int device = current_device();
  return counts.get(device, [&] {
    const int found = device_attribute(cudaDevAttrMultiProcessorCount, device);
    return found > 0 ? found : 1;
  });
#else
  return 4;
#endif
}

template <typename A, typename B>
__host__ __device__ constexpr A ceil_div(A a, B b) {
  return static_cast<A>((a + b - 1) / b);
}

// Eight neighbouring values as floats. 16-bit types move as one 16-byte access, float as two.
struct alignas(16) Bits16 {
  uint32_t w[4];
};
struct Vec8 {
  float v[8];
};

__device__ inline Vec8 load8(const float* p) {
  Vec8 out;
  const Bits16 a = reinterpret_cast<const Bits16*>(p)[0];
  const Bits16 b = reinterpret_cast<const Bits16*>(p)[1];
  AERIE_UNROLL
  for (int i = 0; i < 4; ++i) {
    memcpy(&out.v[i], &a.w[i], 4);
    memcpy(&out.v[4 + i], &b.w[i], 4);
  }
  return out;
}
template <typename T>
__device__ inline Vec8 load8(const T* p) {
  Vec8 out;
  const Bits16 a = *reinterpret_cast<const Bits16*>(p);
  AERIE_UNROLL
  for (int i = 0; i < 4; ++i) {
    out.v[2 * i] = to_float(T{static_cast<uint16_t>(a.w[i] & 0xffffu)});
    out.v[2 * i + 1] = to_float(T{static_cast<uint16_t>(a.w[i] >> 16)});
  }
  return out;
}
// 16 bytes that nobody reads soon: they leave the cache first.
__device__ inline void store_for_later(void* p, const Bits16& x) {
#ifdef __CUDACC__
  __stcs(reinterpret_cast<uint4*>(p), make_uint4(x.w[0], x.w[1], x.w[2], x.w[3]));
#else
  *static_cast<Bits16*>(p) = x;
#endif
}
__device__ inline void store8(float* p, const Vec8& x) {
  Bits16 a, b;
  AERIE_UNROLL
  for (int i = 0; i < 4; ++i) {
    memcpy(&a.w[i], &x.v[i], 4);
    memcpy(&b.w[i], &x.v[4 + i], 4);
  }
  reinterpret_cast<Bits16*>(p)[0] = a;
  reinterpret_cast<Bits16*>(p)[1] = b;
}
template <typename T>
__device__ inline uint32_t pack2(float low, float high) {
  return static_cast<uint32_t>(from_float<T>(low).bits) |
         (static_cast<uint32_t>(from_float<T>(high).bits) << 16);
}
template <typename T>
__device__ inline Bits16 pack8(const Vec8& x) {
  Bits16 a;
  AERIE_UNROLL
  for (int i = 0; i < 4; ++i) a.w[i] = pack2<T>(x.v[2 * i], x.v[2 * i + 1]);
  return a;
}
template <typename T>
__device__ inline void store8(T* p, const Vec8& x) {
  *reinterpret_cast<Bits16*>(p) = pack8<T>(x);
}

// Eight values as they lie in memory: half the registers of Vec8 for 16-bit types. In whole words:
// taking 16-bit ones apart is work that would wait for the load.
template <typename T>
struct alignas(16) Raw8 {
  uint32_t w[2 * sizeof(T)];
};
template <typename T>
__device__ inline Raw8<T> load_raw(const T* p) {
  Raw8<T> out;
  AERIE_UNROLL
  for (int i = 0; i < int(sizeof(T) / 2); ++i) {
    const Bits16 bits = reinterpret_cast<const Bits16*>(p)[i];
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) out.w[4 * i + k] = bits.w[k];
  }
  return out;
}
template <typename T>
__device__ inline Vec8 unpack(const Raw8<T>& raw) {
  Vec8 out;
  AERIE_UNROLL
  for (int i = 0; i < 4; ++i) {
    out.v[2 * i] = to_float(T{static_cast<uint16_t>(raw.w[i] & 0xffffu)});
    out.v[2 * i + 1] = to_float(T{static_cast<uint16_t>(raw.w[i] >> 16)});
  }
  return out;
}
__device__ inline Vec8 unpack(const Raw8<float>& raw) {
  Vec8 out;
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) memcpy(&out.v[k], &raw.w[k], 4);
  return out;
}

// Sum and maximum over a warp, the same value in every lane.
template <typename T>
__device__ inline T warp_sum(T value) {
  AERIE_UNROLL
  for (int mask = 16; mask > 0; mask >>= 1) value += __shfl_xor_sync(kFullWarp, value, mask);
  return value;
}
__device__ inline float warp_max(float value) {
  AERIE_UNROLL
  for (int mask = 16; mask > 0; mask >>= 1)
    value = fmaxf(value, __shfl_xor_sync(kFullWarp, value, mask));
  return value;
}

// Half 0 or 1 of a word against a threshold that has moved to the upper half of `limit`: the lower
// bits of the word decide nothing. A threshold of 2^16 does not fit; there the scale is zero as
// well.
__device__ inline uint32_t dropout_limit(const Dropout& dropout) {
  return (dropout.threshold > 0xffffu ? 0xffffu : dropout.threshold) << 16;
}
__device__ inline bool half_above(uint32_t word, int half, uint32_t limit) {
  return (half == 0 ? word << 16 : word) >= limit;
}

// Dropout factors of the eight values from `index` on (a multiple of 8) of stream (site, row), and
// which of them are kept: one Philox block.
__device__ inline uint32_t dropout8(const Dropout& dropout, uint64_t row, uint64_t index,
                                    float* out) {
  const RandomState& state = *dropout.state;
  const PhiloxBlock block = philox_block(state.dropout_key, dropout.site, item_position(state, row),
                                         uint32_t(index >> 3));
  const uint32_t limit = dropout_limit(dropout);
  uint32_t bits = 0;
  AERIE_UNROLL
  for (int i = 0; i < 8; ++i) {
    const bool kept = half_above(block.v[i / 2], i % 2, limit);
    out[i] = kept ? dropout.scale : 0.0f;
    bits |= kept ? 1u << i : 0u;
  }
  return dropout.scale != 0.0f ? bits : 0u;
}

// The same through the keep bits of an earlier pass when there are any (one byte per eight values);
// without dropout, everything is kept.
__device__ inline uint32_t dropout8(const Dropout& dropout, const uint8_t* keep, uint64_t vec,
                                    uint64_t row, uint64_t index, float* out) {
  if (dropout.threshold != 0 && keep == nullptr) return dropout8(dropout, row, index, out);
  const uint32_t bits = dropout.threshold == 0 ? 0xffu : keep[vec];
  const float scale = dropout.threshold == 0 ? 1.0f : dropout.scale;
  AERIE_UNROLL
  for (int i = 0; i < 8; ++i) out[i] = (bits >> i) & 1u ? scale : 0.0f;
  return bits;
}

// The device's approximation: off by the last place or two, and without branches.
__device__ inline float fast_sqrt(float x) {
#ifdef __CUDA_ARCH__
  float out;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(out) : "f"(x));
  return out;
#else
  return sqrtf(x);
#endif
}

__device__ inline float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}
// For values that are rounded to T: the device's approximations (relative errors below 1e-6 where
// it matters) where T has 16 bits.
template <typename T>
__device__ inline float sigmoid_for(float x) {
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) == 2) {
    float out;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(x * -1.4426950408889634f));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(out) : "f"(1.0f + out));
    return out;
  }
#endif
  return sigmoid(x);
}
// d/dx of x*sigmoid(x).
template <typename T>
__device__ inline float silu_slope_for(float x) {
  const float s = sigmoid_for<T>(x);
  return s * (1.0f + x * (1.0f - s));
}

// Column sums of partial results, the second stage of every reduction over rows: for columns c of
// section s (all sections are `width` wide), out[s][c] (+)= sum over p of partial[p][s][c]. The
// order of the sum is fixed. Sections without a destination are left out.
struct ColumnSums {
  float* out[5] = {};
  int sections = 0;
  int width = 0;
  const float* partial = nullptr;
  int parts = 0;
  size_t stride = 0;  // from part to part; 0: sections * width
  bool accumulate = false;
};
constexpr int kColumnThreads = 256;
template <int kThreads>
__global__ void __launch_bounds__(kThreads) sum_columns(ColumnSums a) {
  // 8 groups of threads share the parts of 32 columns.
  AERIE_SHARED(float, sums, kThreads);
  const int lane = threadIdx.x % 32, group = threadIdx.x / 32;
  const int column = blockIdx.x * 32 + lane, columns = a.sections * a.width;
  float sum = 0.0f;
  if (column < columns)
    for (int p = group; p < a.parts; p += kThreads / 32)
      sum += a.partial[size_t(p) * (a.stride > 0 ? a.stride : size_t(columns)) + column];
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (group != 0 || column >= columns) return;
  for (int g = 1; g < kThreads / 32; ++g) sum += sums[g * 32 + lane];
  float* out = a.out[column / a.width];
  if (out == nullptr) return;
  out += column % a.width;
  *out = a.accumulate ? *out + sum : sum;
}
// Adds the columns that the eight warps of a block have summed (8 per lane, from `column` on) and
// writes them as partial result number blockIdx.y. `sums` has room for kColumnThreads * 8 values.
__device__ inline void write_partial(float* partial, int columns, int column, const Vec8& sum,
                                     float* sums) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) sums[(warp * 8 + k) * 32 + lane] = sum.v[k];
  __syncthreads();
  // Thread t adds column t of the block's 256: its eight warps in order.
  const int k = threadIdx.x / 32;
  float total = 0.0f;
  for (int w = 0; w < kColumnThreads / 32; ++w) total += sums[(w * 8 + k) * 32 + lane];
  if (column < columns) partial[size_t(blockIdx.y) * columns + column + k] = total;
}

inline int launch_column_sums(void* stream, const ColumnSums& a) {
  return launch(stream, {dim3(unsigned(ceil_div(a.sections * a.width, 32))), dim3(kColumnThreads)},
                sum_columns<kColumnThreads>, a);
}

// The same later, in one launch with others (partial_sums.h), where there is a list with room.
inline int finish_column_sums(void* stream, const ColumnSums& a, PartialSums* later) {
  if (later == nullptr || later->count + a.sections > PartialSums::kMost)
    return launch_column_sums(stream, a);
  for (int s = 0; s < a.sections; ++s) {
    if (a.out[s] == nullptr) continue;
    PartialSum& sum = later->sums[later->count++];
    sum.partial = a.partial + size_t(s) * a.width;
    sum.out = a.out[s];
    sum.stride = int64_t(a.stride > 0 ? a.stride : size_t(a.sections) * a.width);
    sum.parts = a.parts;
    sum.columns = a.width;
    sum.accumulate = a.accumulate;
  }
  return kOk;
}

}  // namespace aerie::kernels::AERIE_BACKEND
