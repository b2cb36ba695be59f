// Bound by memory: one 16-byte access per operand and thread. Backward walks down columns, so that
// sums for the bias stay in registers.
#include "aerie/kernels/activation/activation.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = kColumnThreads;
constexpr int kWarps = kThreads / 32;

// Forward, blocks stay: they walk down the rows with the next one on its way, while the draws of
// dropout keep them busy.
constexpr int kForwardBlocks = 5 * 132;  // that run at the same time

__device__ inline void pack8(const Vec8& x, Raw8<float>& out) {
  memcpy(out.w, x.v, sizeof(out.w));
}
template <typename T>
__device__ inline void pack8(const Vec8& x, Raw8<T>& out) {
  AERIE_UNROLL
  for (int i = 0; i < 4; ++i) out.w[i] = pack2<T>(x.v[2 * i], x.v[2 * i + 1]);
}

// Decisions of dropout without a comparison per value: draws are 16-bit numbers in the halves of
// words, and the mean of a draw and of 2^16 - threshold reaches 2^15 where the draw reaches the
// threshold. The sign of a half then says whether its value is kept.
struct Decisions {
  uint32_t w[4];

  __device__ Decisions(const PhiloxBlock& draws, uint32_t threshold) {
    const uint32_t other = (0x10000u - threshold) * 0x10001u;
    AERIE_UNROLL
    for (int i = 0; i < 4; ++i)
      w[i] = (draws.v[i] & other) + (((draws.v[i] ^ other) & 0xfffefffeu) >> 1);
  }
  // Zeros in place of what is not kept.
  template <typename T>
  __device__ void apply(Raw8<T>& values) const {
    AERIE_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (sizeof(T) == 2) {
        values.w[i] &= byte_perm(w[i], 0, 0xbb99u);
      } else {
        values.w[2 * i] &= byte_perm(w[i], 0, 0x9999u);
        values.w[2 * i + 1] &= byte_perm(w[i], 0, 0xbbbbu);
      }
    }
  }
  // A bit per value.
  __device__ uint32_t bits() const {
    uint32_t even_odd = 0;  // of even values from bit 0 on, of odd ones from bit 16
    AERIE_UNROLL
    for (int i = 0; i < 4; ++i) even_odd |= (w[i] >> (15 - 2 * i)) & (0x10001u << 2 * i);
    return (even_odd | even_odd >> 15) & 0xffu;
  }
};

template <typename T, bool kDraws>
__global__ void __launch_bounds__(kThreads, 5) silu_forward_kernel(SiluForward a) {
  RandomState state = kDraws ? *a.dropout.state : RandomState{};
  // From lane 0, so that the compiler knows the key to be the same in all lanes and computes those
  // of the rounds once.
  state.dropout_key.k0 = __shfl_sync(kFullWarp, state.dropout_key.k0, 0);
  state.dropout_key.k1 = __shfl_sync(kFullWarp, state.dropout_key.k1, 0);
  const int column = int(blockIdx.y * blockDim.x + threadIdx.x) * 8;
  if (column >= a.channels) return;
  const int rows = num_rows(a.layout, a.batch, a.frames);
  const float scale = kDraws ? a.dropout.scale : 1.0f;
  const Vec8 bias = a.bias != nullptr ? load8(a.bias + column) : Vec8{};
  Raw8<T> next = {};
  RowPosition next_place = {};
  const T* const x_begin = static_cast<const T*>(a.x);
  int row = int(blockIdx.x);
  size_t at = size_t(row) * a.channels + column;
  const size_t step = size_t(gridDim.x) * a.channels;
  // Zero, which the compiler does not know: what it takes for the same in all lanes goes to
  // registers that have to wait for it, and places are asked for ahead.
  const int zero = column < 0 ? 1 : 0;
  next = load_raw(x_begin + at);
  if constexpr (kDraws) next_place = position_of(a.layout, row + zero, a.frames);
  for (; row < rows; row += int(gridDim.x), at += step) {
    Vec8 x = unpack(next);
    const RowPosition place = next_place;
    const int following = row + int(gridDim.x);
    if (following < rows) {
      next = load_raw(x_begin + at + step);
      if constexpr (kDraws) next_place = position_of(a.layout, following + zero, a.frames);
    }
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) {
      x.v[k] += bias.v[k];
      x.v[k] *= sigmoid_for<T>(x.v[k]) * scale;
    }
    uint32_t bits = 0xffu;
    Raw8<T> out;
    pack8(x, out);
    if constexpr (kDraws) {
      const Decisions keep(
          philox_block(state.dropout_key, a.dropout.site,
                       item_position(state, uint32_t(place.item)),
                       uint32_t(place.frame) * uint32_t(a.channels / 8) + uint32_t(column / 8)),
          a.dropout.threshold);
      keep.apply(out);
      bits = keep.bits();
    }
    if (a.keep != nullptr) a.keep[at / 8] = uint8_t(bits);
    *reinterpret_cast<Raw8<T>*>(static_cast<T*>(a.out) + at) = out;
  }
}

// Backward, two rows are on their way: with what is stored between, the compiler would wait for
// one before it asks for the next.
template <typename T>
__global__ void __launch_bounds__(kThreads, 4) silu_backward_kernel(SiluBackward a) {
  AERIE_SHARED(float, sums, kThreads * 8);
  const int column = (blockIdx.x * 32 + threadIdx.x % 32) * 8;
  const int rows = num_rows(a.layout, a.batch, a.frames);
  const bool reads = a.dropout.threshold != 0;
  const float scale = a.dropout.threshold == 0 ? 1.0f : a.dropout.scale;
  Vec8 sum = {};
  if (column < a.channels) {
    struct Arrived {
      Raw8<T> x, grad;
      uint32_t keep;
    };
    const auto fetch = [&](int row) {
      Arrived out;
      const size_t at = size_t(row < rows ? row : rows - 1) * a.channels + column;
      out.x = load_raw(static_cast<const T*>(a.x) + at);
      out.grad = load_raw(static_cast<const T*>(a.grad_out) + at);
      out.keep = reads ? a.keep[at / 8] : 0xffu;
      return out;
    };
    const int step = int(gridDim.y) * kWarps;
    int row = int(blockIdx.y) * kWarps + int(threadIdx.x) / 32;
    const auto use = [&](Arrived& arrived) {
      Vec8 x = unpack(arrived.x), grad = unpack(arrived.grad);
      const uint32_t bits = arrived.keep;
      const Vec8 bias = a.bias != nullptr ? load8(a.bias + column) : Vec8{};
      arrived = fetch(row + 2 * step);
      const size_t at = size_t(row) * a.channels + column;
      float factors[8];
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) factors[k] = (bits >> k) & 1u ? scale : 0.0f;
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) {
        x.v[k] += bias.v[k];
        const float s = sigmoid_for<T>(x.v[k]);
        grad.v[k] *= factors[k] * (s * (1.0f + x.v[k] * (1.0f - s)));
        sum.v[k] += grad.v[k];
        x.v[k] *= s * factors[k];
      }
      store8(static_cast<T*>(a.grad_x) + at, grad);
      if (a.out != nullptr) store8(static_cast<T*>(a.out) + at, x);
      row += step;
    };
    Arrived even = fetch(row), odd = fetch(row + step);
    while (row < rows) {
      use(even);
      if (row < rows) use(odd);
    }
  }
  if (a.grad_bias != nullptr) write_partial(a.partial, a.channels, column, sum, sums);
}

int parts_of(int rows) {
  const int wanted = ceil_div(rows, kWarps);
  return wanted < kActivationParts ? wanted : kActivationParts;
}

}  // namespace

int silu_forward(const SiluForward& a, void* stream) {
  if (!a.covered()) return kUnsupported;
  return dispatch(a.dtype, [&](auto zero) {
    const int lanes = ceil_div(a.channels, 256) * 32;  // a thread for eight channels
    const int threads = lanes < kThreads ? lanes : kThreads, columns = ceil_div(lanes, threads);
    const int rows = num_rows(a.layout, a.batch, a.frames);
    const int most = kForwardBlocks * (kThreads / threads) / columns;
    const LaunchShape shape{dim3(unsigned(rows < most ? rows : most), unsigned(columns)),
                            dim3(unsigned(threads))};
    return a.dropout.threshold != 0
               ? launch(stream, shape, silu_forward_kernel<decltype(zero), true>, a)
               : launch(stream, shape, silu_forward_kernel<decltype(zero), false>, a);
  });
}

int silu_backward(const SiluBackward& a, void* stream) {
  if (!a.covered() || (a.dropout.threshold != 0 && a.keep == nullptr)) return kUnsupported;
  const int rows = num_rows(a.layout, a.batch, a.frames);
  AERIE_TRY(dispatch(a.dtype, [&](auto zero) {
    const LaunchShape shape{dim3(unsigned(ceil_div(a.channels, 256)), unsigned(parts_of(rows))),
                            dim3(kThreads)};
    return launch(stream, shape, silu_backward_kernel<decltype(zero)>, a);
  }));
  if (a.grad_bias == nullptr) return kOk;
  return finish_column_sums(
      stream, column_sums(a.grad_bias, a.channels, a.partial, parts_of(rows), a.accumulate),
      a.deferred);
}

}  // namespace aerie::kernels::AERIE_BACKEND
