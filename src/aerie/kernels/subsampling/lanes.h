// Neighbouring channels of a thread, taps of a 3x3 window, and the backward step that all strided
// depthwise convolutions share. Included by the CUDA sources of this folder alone.
#pragma once

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

// What every backward kernel of a strided depthwise convolution does at a place (m, n) of its
// output: its input has up to four values there, at (2m, 2n) to (2m+1, 2n+1), and these were read
// by the outputs (m, n), (m, n+1), (m+1, n), (m+1, n+1). grads[2*dm + dn] are theirs. Gives the
// gradient of input (2m + place / 2, 2n + place % 2) behind its ReLU and adds to the taps'.
template <int place, int N, typename Weight>
__device__ inline Lanes<N> depthwise_sums(const Lanes<N>* grads, const Lanes<N>& value,
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
  return out;
}
// The same in front of the ReLU.
template <int place, int N, typename Weight>
__device__ inline Lanes<N> depthwise_place(const Lanes<N>* grads, const Lanes<N>& value,
                                           const Weight& weight, Taps<N>& d_weight) {
  Lanes<N> out = depthwise_sums<place>(grads, value, weight, d_weight);
  AERIE_UNROLL
  for (int i = 0; i < N; ++i) out.v[i] = value.v[i] > 0.0f ? out.v[i] : 0.0f;
  return out;
}

// Partial results of a block: 20 sections of one value per channel, the taps of the first
// convolution, its bias, the taps of the second, its bias.
constexpr int kSections = 20;
constexpr int kBias0 = 9, kTaps1 = 10, kBias1 = 19;

}  // namespace
}  // namespace aerie::kernels::AERIE_BACKEND
