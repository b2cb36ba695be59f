// A warp has whole rows in registers: one read and one write of everything. Sums over rows go to
// per-block partial results that a second launch adds in a fixed order.
//
// What counts is how long a row waits: all that it needs is asked for before anything is used or
// stored. In backward, parameters and dropout's bits come by way of shared memory, without a
// register, while the row is on its way.
#include "aerie/kernels/cuda/cp_async.h"
#include "aerie/kernels/device.h"
#include "aerie/kernels/norm/layer_norm.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

// Backward reads it, long after what else forward writes.
template <typename T>
__device__ inline void store_normalized(T* p, const Vec8& x) {
  if constexpr (sizeof(T) == 2) {
    store_evict_first(p, pack8<T>(x));
  } else {
    store8(p, x);
  }
}

constexpr int kWarps = 4;

// Mean and 1/std of the row that a warp holds; zeros behind its end.
template <int kVecs>
__device__ inline void normalize(const Vec8* x, int vecs, int channels, float eps, float* mean,
                                 float* rstd) {
  float total = 0.0f;
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) AERIE_UNROLL
  for (int k = 0; k < 8; ++k) total += x[j].v[k];
  *mean = warp_sum(total) / float(channels);
  float squares = 0.0f;
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    if (int(threadIdx.x % 32) + 32 * j >= vecs) continue;
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) squares += (x[j].v[k] - *mean) * (x[j].v[k] - *mean);
  }
  *rstd = 1.0f / sqrtf(warp_sum(squares) / float(channels) + eps);
}

// A row of shared memory: kVecs * 256 values, the halves of a lane's vector apart, so that lanes
// lie side by side.
__device__ inline Vec4* half_of_vec(float* values, int j, int half) {
  return reinterpret_cast<Vec4*>(values + j * 256 + half * 128 + threadIdx.x % 32 * 4);
}
__device__ inline int column_of(int at) {
  return (at % 128 / 4 + at / 256 * 32) * 8 + at % 256 / 128 * 4 + at % 4;
}
__device__ inline Vec8 load_staged(const float* values, int j) {
  Vec8 out;
  AERIE_UNROLL
  for (int half = 0; half < 2; ++half) {
    const Vec4 four = *half_of_vec(const_cast<float*>(values), j, half);
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) out.v[half * 4 + k] = four.v[k];
  }
  return out;
}

// Starts copies of parameters, row after row; a null pointer means zeros. finish_stage() ends them.
template <int kVecs, typename... Sources>
__device__ inline void stage(float* to, int channels, const float* first, Sources... others) {
  constexpr int kFours = kVecs * 64;
  for (int i = threadIdx.x; i < kFours; i += blockDim.x) {
    const int column = column_of(i * 4);
    Vec4* at = reinterpret_cast<Vec4*>(to) + i;
    const auto copy = [&](const float* from) {
      const bool there = from != nullptr && column < channels;
      cp_async16(at, there ? from + column : first, there);
      at += kFours;
    };
    copy(first);
    (copy(others), ...);
  }
}
__device__ inline void finish_stage() {
  cp_async_wait_all();
  __syncthreads();
}

// kFull: as many channels as lanes have room for. kNext: with a norm behind it.
template <typename T, int kVecs, bool kFull, bool kNext>
__global__ void __launch_bounds__(kWarps * 32) layer_norm_forward_kernel(LayerNormForward a) {
  constexpr int kWidth = kVecs * 256;
  const int channels = kFull ? kWidth : a.channels;
  const int lane = threadIdx.x % 32;
  const int row = blockIdx.x * kWarps + threadIdx.x / 32;
  if (row >= num_rows(a.layout, a.batch, a.frames)) return;  // whole warps leave
  const int vecs = channels / 8;
  const size_t base = size_t(row) * channels;
  Vec8 x[kVecs] = {};
  Raw8<T> arrived[kVecs] = {};
  Vec8 y_bias[kVecs] = {};
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    const int vec = lane + 32 * j;
    if (vec >= vecs) continue;
    if (a.residual != nullptr) x[j] = load8(a.residual + base + vec * 8);
    if (a.y != nullptr) arrived[j] = load_raw(static_cast<const T*>(a.y) + base + vec * 8);
    if (a.y_bias != nullptr) y_bias[j] = load8(a.y_bias + vec * 8);
  }
  const bool draws = a.dropout.threshold != 0 && a.y != nullptr;
  const RowPosition place = draws ? position_of(a.layout, row, a.frames) : RowPosition{};
  const RandomState state = draws ? *a.dropout.state : RandomState{};
  Dropout dropout = a.dropout;
  dropout.state = &state;
  uint32_t kept[kVecs] = {};
  if (a.y != nullptr) {
    AERIE_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      const int vec = lane + 32 * j;
      if (vec >= vecs) continue;
      float factors[8];
      const uint32_t bits = dropout8(dropout, uint64_t(place.item),
                                     uint64_t(place.frame) * channels + vec * 8, factors);
      const Vec8 y = unpack(arrived[j]);
      AERIE_UNROLL
      for (int k = 0; k < 8; ++k) x[j].v[k] += a.scale * (factors[k] * (y.v[k] + y_bias[j].v[k]));
      kept[j] = bits;
    }
  }
  // Asked for before anything is stored, which the compiler would keep in this order.
  Vec8 weights[kVecs] = {}, biases[kVecs] = {};
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    const int vec = lane + 32 * j;
    if (vec >= vecs) continue;
    weights[j] = load8(a.weight + vec * 8);
    biases[j] = load8(a.bias + vec * 8);
  }
  if (a.keep != nullptr && a.y != nullptr) {
    AERIE_UNROLL
    for (int j = 0; j < kVecs; ++j)
      if (lane + 32 * j < vecs) a.keep[base / 8 + lane + 32 * j] = uint8_t(kept[j]);
  }
  if (a.sum != nullptr) {
    AERIE_UNROLL
    for (int j = 0; j < kVecs; ++j)
      if (lane + 32 * j < vecs) store8(a.sum + base + (lane + 32 * j) * 8, x[j]);
  }
  float mean, rstd;
  normalize<kVecs>(x, vecs, channels, a.eps, &mean, &rstd);
  if (lane == 0) a.rstd[row] = rstd;
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    const int vec = lane + 32 * j;
    if (vec >= vecs) continue;
    const Vec8 weight = weights[j], bias = biases[j];
    Vec8 normal, out;
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) {
      normal.v[k] = (x[j].v[k] - mean) * rstd;
      out.v[k] = normal.v[k] * weight.v[k] + bias.v[k];
    }
    if (a.normalized != nullptr)
      store_normalized(static_cast<T*>(a.normalized) + base + vec * 8, normal);
    if (a.out != nullptr) store8(static_cast<T*>(a.out) + base + vec * 8, out);
    if (a.out_float != nullptr) store8(a.out_float + base + vec * 8, out);
    x[j] = out;
    if constexpr (kNext) {
      weights[j] = load8(a.next.weight + vec * 8);
      biases[j] = load8(a.next.bias + vec * 8);
    }
  }
  if constexpr (!kNext) return;
  normalize<kVecs>(x, vecs, channels, a.eps, &mean, &rstd);
  if (lane == 0) {
    a.next.mean[row] = mean;
    a.next.rstd[row] = rstd;
  }
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j) {
    const int vec = lane + 32 * j;
    if (vec >= vecs) continue;
    const Vec8 weight = weights[j], bias = biases[j];
    Vec8 out;
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) out.v[k] = (x[j].v[k] - mean) * rstd * weight.v[k] + bias.v[k];
    store8(static_cast<T*>(a.next.out) + base + vec * 8, out);
  }
}

// Sums over a warp's rows live in shared memory: registers would leave room for half the warps, and
// what counts is how many rows are under way at once.
__host__ __device__ constexpr int backward_sums(bool next) {
  return next ? 5 : 3;
}
__host__ __device__ constexpr int backward_params(bool next) {
  return next ? 4 : 2;
}
// Warps of a block, at most: registers and shared memory have room for so many.
constexpr int backward_warps(int vecs, bool next, int at_once) {
  if (vecs > 4) return next ? 4 : 5;
  if (vecs > 2) return next ? 8 : 12;
  return at_once > 1 ? 12 : 16;
}
constexpr size_t backward_shared(int vecs, bool next, int at_once, int warps) {
  return size_t(warps * backward_sums(next) + backward_params(next)) * vecs * 256 * sizeof(float) +
         size_t(warps) * at_once * vecs * 32;
}

__device__ inline Vec8 product_of(const Vec8& x, const Vec8& y) {
  Vec8 out;
  AERIE_UNROLL
  for (int k = 0; k < 8; ++k) out.v[k] = x.v[k] * y.v[k];
  return out;
}

__device__ inline void add_to_row_sum(float* sum, int j, const Vec8& x, bool first) {
  AERIE_UNROLL
  for (int half = 0; half < 2; ++half) {
    Vec4* const at = half_of_vec(sum, j, half);
    Vec4 value = first ? Vec4{} : *at;
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) value.v[k] += x.v[half * 4 + k];
    *at = value;
  }
}

// How backward is compiled. kNext: with a norm behind it. kFull: for kVecs * 256 channels,
// or for as many as there are. kAtOnce: rows that a warp has under way, whose sums are added before
// they go to shared memory.
template <typename T, int kVecs, bool kNext, bool kFull, int kAtOnce>
struct RowsBackward {
  static constexpr int kWidth = kVecs * 256;
  static constexpr int kBitsOfRow = kVecs * 32;
  // What is needed again behind a sum over the row stays in registers, or is recomputed.
  static constexpr bool kStays = kAtOnce == 1 && kVecs <= 4;
  static constexpr int kStaying = kStays ? kVecs : 1;

  const LayerNormBackward& a;
  int row[kAtOnce];
  bool there[kAtOnce];  // others are zero
  float rstd[kAtOnce], next_mean[kAtOnce], next_rstd[kAtOnce];
  Vec8 more[kAtOnce][kVecs];  // grad_sum, or grad_out_float where a norm follows
  Raw8<T> normal[kAtOnce][kVecs], grad[kAtOnce][kVecs], next_grad[kAtOnce][kNext ? kVecs : 1];

  __device__ explicit RowsBackward(const LayerNormBackward& args) : a(args) {}
  __device__ int channels() const { return kFull ? kWidth : a.channels; }
  __device__ static int vec_of(int j) { return int(threadIdx.x % 32) + 32 * j; }
  __device__ bool inside(int j) const { return kFull || vec_of(j) < channels() / 8; }
  __device__ size_t place(int r, int j) const {
    return size_t(row[r]) * channels() + vec_of(j) * 8;
  }

  // Asks for rows from `begin` on, `step` apart. `kept`: where dropout's bits go, (kAtOnce, kVecs,
  // 32), by the time of cp_async_wait_all(); where kFull.
  __device__ void fetch(int begin, int step, int rows, uint8_t* kept) {
    const float* const from = kNext ? a.grad_out_float : a.grad_sum;
    AERIE_UNROLL
    for (int r = 0; r < kAtOnce; ++r) {
      row[r] = begin + r * step;
      there[r] = kAtOnce == 1 || row[r] < rows;
      AERIE_UNROLL
      for (int j = 0; j < kVecs; ++j) {
        const bool some = there[r] && inside(j);
        const size_t at = place(r, j);
        normal[r][j] = some ? load_raw(static_cast<const T*>(a.normalized) + at) : Raw8<T>{};
        more[r][j] = some && from != nullptr ? load8(from + at) : Vec8{};
        grad[r][j] = some && a.grad_out != nullptr
                         ? load_raw(static_cast<const T*>(a.grad_out) + at)
                         : Raw8<T>{};
        if constexpr (kNext)
          next_grad[r][j] =
              some ? load_raw(static_cast<const T*>(a.grad_next_out) + at) : Raw8<T>{};
      }
      const int lane = threadIdx.x % 32;
      if (kFull && there[r] && a.dropout.threshold != 0 && lane < 2 * kVecs)
        cp_async16(kept + r * kBitsOfRow + lane * 16,
                   a.keep + size_t(row[r]) * channels() / 8 + lane * 16, true);
      rstd[r] = there[r] ? a.rstd[row[r]] : 0.0f;
      next_mean[r] = kNext && there[r] ? a.next.mean[row[r]] : 0.0f;
      next_rstd[r] = kNext && there[r] ? a.next.rstd[row[r]] : 0.0f;
    }
  }

  // The gradient of the norm's output; with a norm behind it in `more` once that is done.
  __device__ Vec8 grad_of(int r, int j) const {
    if constexpr (kNext) return more[r][j];
    return unpack(grad[r][j]);
  }

  // What the norm behind this one normalized.
  __device__ Vec8 behind(int r, int j, const float* params) const {
    const Vec8 mine = unpack(normal[r][j]);
    const Vec8 weight = load_staged(params, j), bias = load_staged(params + kWidth, j);
    Vec8 out;
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k)
      out.v[k] = (mine.v[k] * weight.v[k] + bias.v[k] - next_mean[r]) * next_rstd[r];
    return out;
  }

  // Through the norm behind this one: `more` becomes the gradient of this one's output.
  __device__ void next_backward(const float* params, float* sums, bool first) {
    float mean_grad[kAtOnce] = {}, mean_product[kAtOnce] = {};
    Vec8 same_values[kStaying], same_grads[kStaying];
    AERIE_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      if (!inside(j)) continue;
      const Vec8 weight = load_staged(params + 2 * kWidth, j);
      Vec8 products = {}, grads = {};
      AERIE_UNROLL
      for (int r = 0; r < kAtOnce; ++r) {
        const Vec8 values = behind(r, j, params), arriving = unpack(next_grad[r][j]);
        const Vec8 weighted = product_of(arriving, weight);
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k) {
          products.v[k] += arriving.v[k] * values.v[k];
          grads.v[k] += arriving.v[k];
          mean_grad[r] += weighted.v[k];
          mean_product[r] += weighted.v[k] * values.v[k];
        }
        if constexpr (kStays) {
          same_values[j] = values;
          same_grads[j] = weighted;
        }
        if (a.next.out != nullptr && there[r]) {
          const Vec8 bias = load_staged(params + 3 * kWidth, j);
          Vec8 again;
          AERIE_UNROLL
          for (int k = 0; k < 8; ++k) again.v[k] = values.v[k] * weight.v[k] + bias.v[k];
          store8(static_cast<T*>(a.next.out) + place(r, j), again);
        }
      }
      add_to_row_sum(sums, j, products, first);
      add_to_row_sum(sums + kWidth, j, grads, first);
    }
    AERIE_UNROLL
    for (int r = 0; r < kAtOnce; ++r) {
      mean_grad[r] = warp_sum(mean_grad[r]) / float(channels());
      mean_product[r] = warp_sum(mean_product[r]) / float(channels());
    }
    AERIE_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      if (!inside(j)) continue;
      AERIE_UNROLL
      for (int r = 0; r < kAtOnce; ++r) {
        Vec8 values, weighted;
        if constexpr (kStays) {
          values = same_values[j];
          weighted = same_grads[j];
        } else {
          values = behind(r, j, params);
          weighted = product_of(unpack(next_grad[r][j]), load_staged(params + 2 * kWidth, j));
        }
        const Vec8 own = unpack(grad[r][j]);
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k)
          more[r][j].v[k] += own.v[k] + next_rstd[r] * (weighted.v[k] - mean_grad[r] -
                                                        values.v[k] * mean_product[r]);
      }
    }
  }

  __device__ void finish(const uint8_t* kept, const float* params, float* mine, bool first) {
    if constexpr (kNext) next_backward(params, mine + 3 * kWidth, first);
    float mean_grad[kAtOnce] = {}, mean_product[kAtOnce] = {};
    Vec8 same_grads[kStaying];
    AERIE_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      if (!inside(j)) continue;
      const Vec8 weight = load_staged(params, j);
      Vec8 products = {}, grads = {};
      AERIE_UNROLL
      for (int r = 0; r < kAtOnce; ++r) {
        const Vec8 arriving = grad_of(r, j), values = unpack(normal[r][j]);
        const Vec8 weighted = product_of(arriving, weight);
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k) {
          products.v[k] += arriving.v[k] * values.v[k];
          grads.v[k] += arriving.v[k];
          mean_grad[r] += weighted.v[k];
          mean_product[r] += weighted.v[k] * values.v[k];
        }
        if constexpr (kStays) same_grads[j] = weighted;
        if (a.out != nullptr && there[r]) {
          const Vec8 bias = load_staged(params + kWidth, j);
          Vec8 again;
          AERIE_UNROLL
          for (int k = 0; k < 8; ++k) again.v[k] = values.v[k] * weight.v[k] + bias.v[k];
          store8(static_cast<T*>(a.out) + place(r, j), again);
        }
      }
      add_to_row_sum(mine, j, products, first);
      add_to_row_sum(mine + kWidth, j, grads, first);
    }
    AERIE_UNROLL
    for (int r = 0; r < kAtOnce; ++r) {
      mean_grad[r] = warp_sum(mean_grad[r]) / float(channels());
      mean_product[r] = warp_sum(mean_product[r]) / float(channels());
    }
    const float scale = a.dropout.threshold == 0 ? 1.0f : a.dropout.scale;
    AERIE_UNROLL
    for (int j = 0; j < kVecs; ++j) {
      if (!inside(j)) continue;
      Vec8 grads = {};
      AERIE_UNROLL
      for (int r = 0; r < kAtOnce; ++r) {
        const size_t at = place(r, j);
        const Vec8 values = unpack(normal[r][j]);
        Vec8 weighted;
        if constexpr (kStays)
          weighted = same_grads[j];
        else
          weighted = product_of(grad_of(r, j), load_staged(params, j));
        Vec8 out = kNext ? Vec8{} : more[r][j];
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k)
          out.v[k] += rstd[r] * (weighted.v[k] - mean_grad[r] - values.v[k] * mean_product[r]);
        if (there[r]) store8(a.grad_residual + at, out);
        if (a.grad_y == nullptr) continue;
        const uint32_t bits = a.dropout.threshold == 0 ? 0xffu
                              : !kFull                 ? a.keep[at / 8]
                                                       : kept[r * kBitsOfRow + vec_of(j)];
        float factors[8];
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k) factors[k] = (bits >> k) & 1u ? scale : 0.0f;
        AERIE_UNROLL
        for (int k = 0; k < 8; ++k) {
          out.v[k] *= a.scale * factors[k];
          grads.v[k] += out.v[k];
        }
        if (there[r]) store8(static_cast<T*>(a.grad_y) + at, out);
      }
      if (a.grad_y != nullptr) add_to_row_sum(mine + 2 * kWidth, j, grads, first);
    }
  }
};

template <typename T, int kVecs, bool kNext, bool kFull, int kAtOnce>
__global__ void __launch_bounds__(backward_warps(kVecs, kNext, kAtOnce) * 32, 1)
    layer_norm_backward_kernel(LayerNormBackward a) {
  constexpr int kSums = backward_sums(kNext), kWidth = kVecs * 256;
  const int channels = kFull ? kWidth : a.channels;
  const int warps = blockDim.x / 32;
  AERIE_DYNAMIC_SHARED(memory);
  float* const params = reinterpret_cast<float*>(memory);
  float* const sums = params + backward_params(kNext) * kWidth;  // (warps, kSums, kWidth)
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int rows = num_rows(a.layout, a.batch, a.frames), vecs = channels / 8;
  float* const mine = sums + warp * kSums * kWidth;
  uint8_t* const kept =
      reinterpret_cast<uint8_t*>(sums + warps * kSums * kWidth) + warp * kAtOnce * kVecs * 32;
  // Where warps have one turn each, neighbours are in one block; where some have one more, these
  // are in all blocks.
  const int each = warps * kAtOnce;
  int row = kNext ? warp * kAtOnce * gridDim.x + blockIdx.x : blockIdx.x * each + warp * kAtOnce;
  const int apart = kNext ? gridDim.x : 1;
  if constexpr (kNext) {
    stage<kVecs>(params, channels, a.weight, a.bias, a.next.weight,
                 a.next.out != nullptr ? a.next.bias : nullptr);
  } else {
    stage<kVecs>(params, channels, a.weight, a.out != nullptr ? a.bias : nullptr);
  }
  bool first = true;
  for (; row < rows; row += gridDim.x * each) {
    RowsBackward<T, kVecs, kNext, kFull, kAtOnce> some(a);
    some.fetch(row, apart, rows, kept);
    if (first) {
      finish_stage();
    } else {
      cp_async_wait_all();
      __syncwarp();
    }
    some.finish(kept, params, mine, first);
    __syncwarp();
    first = false;
  }
  if (first) finish_stage();  // of warps without rows

  // Sums that nothing was added to: of warps without rows, of y without a gradient, behind the row.
  AERIE_UNROLL
  for (int j = 0; j < kVecs; ++j)
    for (int which = 0; which < kSums; ++which)
      if (first || lane + 32 * j >= vecs || (which == 2 && a.grad_y == nullptr))
        add_to_row_sum(mine + which * kWidth, j, Vec8{}, true);
  __syncthreads();
  float* partial = a.partial + size_t(blockIdx.x) * kSums * channels;
  for (int i = threadIdx.x; i < kSums * kWidth / 4; i += blockDim.x) {
    const int column = column_of(i * 4 % kWidth);
    if (column >= channels) continue;
    Vec4 total = {};
    AERIE_UNROLL_BY(8)
    for (int w = 0; w < warps; ++w) {
      const Vec4 one = reinterpret_cast<const Vec4*>(sums + w * kSums * kWidth)[i];
      AERIE_UNROLL
      for (int k = 0; k < 4; ++k) total.v[k] += one.v[k];
    }
    *reinterpret_cast<Vec4*>(partial + i * 4 / kWidth * channels + column) = total;
  }
}

// Calls body with the number of 8-vectors per lane as a constant.
template <typename Body>
int with_vecs(int channels, Body body) {
  if (channels % 8 != 0 || channels <= 0 || channels > 2048) return kUnsupported;
  if (channels <= 256) return body(std::integral_constant<int, 1>{});
  if (channels <= 512) return body(std::integral_constant<int, 2>{});
  if (channels <= 1024) return body(std::integral_constant<int, 4>{});
  return body(std::integral_constant<int, 8>{});
}

}  // namespace

int layer_norm_forward(const LayerNormForward& a, void* stream) {
  const int rows = num_rows(a.layout, a.batch, a.frames);
  return dispatch(a.dtype, [&](auto zero) {
    return with_vecs(a.channels, [&](auto vecs) {
      constexpr int kVecs = decltype(vecs)::value;
      const LaunchShape shape{dim3(unsigned(ceil_div(rows, kWarps))), dim3(kWarps * 32)};
      const auto start = [&](auto full, auto next) {
        return launch(stream, shape,
                      layer_norm_forward_kernel<decltype(zero), kVecs, decltype(full)::value,
                                                decltype(next)::value>,
                      a);
      };
      const auto choose = [&](auto next) {
        return a.channels == kVecs * 256 ? start(std::true_type{}, next)
                                         : start(std::false_type{}, next);
      };
      return rows == 0                  ? kOk
             : a.next.weight != nullptr ? choose(std::true_type{})
                                        : choose(std::false_type{});
    });
  });
}

int layer_norm_backward(const LayerNormBackward& a, void* stream) {
  const int rows = num_rows(a.layout, a.batch, a.frames);
  const bool draws = a.dropout.threshold != 0 && a.keep == nullptr;
  if (rows == 0 || draws ||
      (a.next.weight != nullptr ? a.grad_sum != nullptr : a.grad_out_float != nullptr))
    return kUnsupported;
  int parts = 0;
  AERIE_TRY(dispatch(a.dtype, [&](auto zero) {
    return with_vecs(a.channels, [&](auto vecs) {
      constexpr int kVecs = decltype(vecs)::value;
      const auto start = [&](auto next, auto full, auto at_once) {
        constexpr bool kNext = decltype(next)::value, kFull = decltype(full)::value;
        constexpr int kAtOnce = decltype(at_once)::value;
        // Few rows are spread over all SMs, four warps of a block at least; more in turns of about
        // the same size.
        constexpr int kMost = backward_warps(kVecs, kNext, kAtOnce);
        const int turns = ceil_div(rows, kLayerNormParts * kMost * kAtOnce);
        int warps = ceil_div(rows, kLayerNormParts * turns * kAtOnce);
        warps = warps < 4 ? 4 : warps < kMost ? warps : kMost;
        const int wanted = ceil_div(rows, warps * kAtOnce);
        parts = wanted < kLayerNormParts ? wanted : kLayerNormParts;
        return launch(stream,
                      {dim3(unsigned(parts)), dim3(unsigned(warps) * 32),
                       backward_shared(kVecs, kNext, kAtOnce, warps)},
                      layer_norm_backward_kernel<decltype(zero), kVecs, kNext, kFull, kAtOnce>, a);
      };
      constexpr std::integral_constant<int, 1> kOne;
      constexpr std::integral_constant<int, sizeof(zero) == 2 && kVecs <= 2 ? 2 : 1> kPair;
      constexpr int kManyRows = 8;  // of an SM
      const bool full = a.channels == kVecs * 256;
      const auto choose = [&](auto next) {
        if (!full) return start(next, std::false_type{}, kOne);
        return rows < kManyRows * kLayerNormParts ? start(next, std::true_type{}, kOne)
                                                  : start(next, std::true_type{}, kPair);
      };
      return a.next.weight != nullptr ? choose(std::true_type{}) : choose(std::false_type{});
    });
  }));
  ColumnSums sums = column_sums(a.grad_weight, a.channels, a.partial, parts, a.accumulate);
  sums.out[1] = a.grad_bias;
  sums.out[2] = a.grad_y_bias;
  sums.out[3] = a.grad_next_weight;
  sums.out[4] = a.grad_next_bias;
  sums.sections = a.next.weight != nullptr ? 5 : 3;
  return finish_column_sums(stream, sums, a.deferred);
}

}  // namespace aerie::kernels::AERIE_BACKEND
