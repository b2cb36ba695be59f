// Which kernel runs where, and the sums at the end of backward.
#include <type_traits>

#include "aerie/kernels/attention/attention.h"
#include "aerie/kernels/attention/attention_float.h"
#include "aerie/kernels/attention/attention_launch.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kFinishThreads = 256;

// Adds the groups of items; on tensor cores the last group does.
__global__ void __launch_bounds__(kFinishThreads) add_groups_float(AttentionBackward b) {
  const Attention& a = b.forward;
  const int dense = a.heads * a.dim, rows = 2 * a.frames - 1;
  const int vec = blockIdx.x * kFinishThreads + threadIdx.x;
  if (vec >= rows * (dense / 4)) return;
  const int row = vec / (dense / 4), column = vec % (dense / 4) * 4;
  Vec4 sum = {};
  AERIE_UNROLL
  for (int group = 0; group < kAttentionGroups; ++group) {
    const Vec4 more = load4(b.r_partial + (size_t(group) * rows + row) * dense + column);
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) sum.v[k] += more.v[k];
  }
  *reinterpret_cast<Vec4*>(static_cast<float*>(b.grad_r) + size_t(row) * b.grad_r_stride + column) =
      sum;
}

// Heads whose rows move in pieces of 16 bytes.
bool whole(const Attention& a) {
  return a.dim == 64 || a.dim == 128;
}
bool covered(const Attention& a) {
  const bool plain = a.dtype == Dtype::kF32;
  return a.batch > 0 && a.frames > 0 && a.frames <= 8192 && a.heads > 0 && a.heads <= 255 &&
         a.dim > 0 && a.dim % 4 == 0 && a.dim <= (plain ? 256 : 128);
}
// Whether rows that are so many values apart can be read and written.
bool aligned(const Attention& a, int stride, int r_stride) {
  const int values = a.dtype != Dtype::kF32 && whole(a) ? 8 : 4;
  return stride % values == 0 && r_stride % values == 0;
}

// Calls body with a value of the 16-bit type.
template <typename Body>
int for_type(const Attention& a, Body body) {
  return a.dtype == Dtype::kBF16 ? body(Bf16{}) : body(Half{});
}
template <typename T>
int forward_with(const Attention& a, void* stream) {
  if (!whole(a)) return padded_forward<T>(a, stream);
  return a.dim == 64 ? forward_mma<T, 64, false>(a, stream) : forward_mma<T, 128, false>(a, stream);
}
template <typename T>
int backward_with(const AttentionBackward& b, void* stream) {
  if (!whole(b.forward)) return padded_backward<T>(b, stream);
  return b.forward.dim == 64 ? backward_mma<T, 64, false>(b, stream)
                             : backward_mma<T, 128, false>(b, stream);
}

int backward_float(const AttentionBackward& b, void* stream) {
  const Attention& a = b.forward;
  const dim3 block(kFloatThreads);
  AERIE_TRY(launch(stream,
                   {grid_of(a, a.frames, kFloatRows, a.batch), block, dq_float_shared(a.dim)},
                   attention_dq_float, b));
  AERIE_TRY(launch(stream, {grid_of(a, a.frames, kFloatWarps * 8, a.batch), block},
                   attention_dkv_float, b));
  AERIE_TRY(launch(stream,
                   {grid_of(a, 2 * a.frames - 1, kFloatWarps * 8, attention_groups(a)), block},
                   attention_dr_float, b));
  const int vecs = (2 * a.frames - 1) * (a.heads * a.dim / 4);
  return launch(stream, {dim3(unsigned(ceil_div(vecs, kFinishThreads))), dim3(kFinishThreads)},
                add_groups_float, b);
}

}  // namespace

int attention(const Attention& a, void* stream) {
  if (!covered(a) || !aligned(a, a.stride, a.r_stride)) return kUnsupported;
  if (a.dtype != Dtype::kF32)
    return for_type(a, [&](auto type) { return forward_with<decltype(type)>(a, stream); });
  return launch(
      stream,
      {grid_of(a, a.frames, kFloatRows, a.batch), dim3(kFloatThreads), forward_float_shared(a.dim)},
      attention_forward_float, a);
}

int attention_backward(const AttentionBackward& b, void* stream) {
  const Attention& a = b.forward;
  if (!covered(a) || !aligned(a, a.stride, a.r_stride) ||
      !aligned(a, b.grad_stride, b.grad_r_stride))
    return kUnsupported;
  if (a.dtype != Dtype::kF32 && a.dropout.threshold != 0 && a.keep == nullptr &&
      a.saved_p == nullptr)
    return kUnsupported;
  if (b.defer_dr && (b.deferred == nullptr || b.deferred->count + 2 > PartialSums::kMost))
    return kUnsupported;
  AERIE_TRY(a.dtype == Dtype::kF32 ? backward_float(b, stream) : for_type(a, [&](auto type) {
    return backward_with<decltype(type)>(b, stream);
  }));
  const int dense = a.heads * a.dim, tiles = attention_tiles(a.frames);
  const bool plain = a.dtype == Dtype::kF32;
  const bool on_chip = is_fused(b);
  const int parts_u =
      on_chip ? attention_slots(b) : a.batch * (plain ? ceil_div(a.frames, kFloatRows) : tiles);
  const int parts_v = plain ? parts_u : (on_chip ? 1 : attention_groups(a)) * 2 * tiles;
  PartialSums now, *sums = &now;
  if (b.deferred != nullptr && b.deferred->count + 2 <= PartialSums::kMost) sums = b.deferred;
  sums->sums[sums->count++] = {b.partial, b.grad_bias_u, dense, parts_u, dense, b.accumulate};
  sums->sums[sums->count++] = {
      b.partial + size_t(parts_u) * dense, b.grad_bias_v, dense, parts_v, dense, b.accumulate};
  return sums == &now ? add_partials(now, stream) : kOk;
}

int attention_positions(const AttentionBackward& b, void* stream) {
  if (!b.defer_dr || !covered(b.forward) || !is_fused(b)) return kOk;
  return for_type(b.forward, [&](auto type) {
    using T = decltype(type);
    return whole(b.forward) ? reduce_dr<T, false>(b, stream) : padded_reduce_dr<T>(b, stream);
  });
}

}  // namespace aerie::kernels::AERIE_BACKEND
