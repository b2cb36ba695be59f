// Which kernel runs where, and the sums at the end of backward.
#include <type_traits>

#include "aerie/kernels/attention/attention.h"
#include "aerie/kernels/attention/attention_backward.h"
#include "aerie/kernels/attention/attention_float.h"
#include "aerie/kernels/attention/attention_forward.h"
#include "aerie/kernels/attention/attention_query_grad.h"
#include "aerie/kernels/attention/attention_resident.h"
#include "aerie/kernels/attention/attention_saved_grad.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kFinishThreads = 256;

// Adds the groups of items; on tensor cores the last group does.
__global__ void __launch_bounds__(kFinishThreads) add_groups_float(AttentionBackward b) {
  const Attention& a = b.forward;
  const int dense = a.heads * a.dim, rows = 2 * a.frames - 1;
  const int vec = blockIdx.x * kFinishThreads + threadIdx.x;
  if (vec >= rows * (dense / 8)) return;
  const int row = vec / (dense / 8), column = vec % (dense / 8) * 8;
  Vec8 sum = {};
  AERIE_UNROLL
  for (int group = 0; group < kAttentionGroups; ++group) {
    const Vec8 more = load8(b.p_partial + (size_t(group) * rows + row) * dense + column);
    AERIE_UNROLL
    for (int k = 0; k < 8; ++k) sum.v[k] += more.v[k];
  }
  store8(static_cast<float*>(b.grad_p) + size_t(row) * b.grad_p_stride + column, sum);
}

bool covered(const Attention& a) {
  if (a.batch <= 0 || a.frames <= 0 || a.frames > 8192 || a.heads <= 0 || a.heads > 255 ||
      a.stride % 8 != 0 || a.p_stride % 8 != 0)
    return false;
  if (a.dtype != Dtype::kFloat) return a.dim == 64 || a.dim == 128;
  return a.dim > 0 && a.dim % 8 == 0 && a.dim <= 256;
}

dim3 grid_of(const Attention& a, int rows, int per_block, int layers) {
  return dim3(unsigned(ceil_div(rows, per_block)), unsigned(a.heads), unsigned(layers));
}

// Calls body with a value of the 16-bit type and the number of values per head.
template <typename Body>
int for_type(const Attention& a, Body body) {
  const auto with = [&](auto type) {
    return a.dim == 64 ? body(type, std::integral_constant<int, 64>{})
                       : body(type, std::integral_constant<int, 128>{});
  };
  return a.dtype == Dtype::kBf16 ? with(Bf16{}) : with(Half{});
}

template <typename T, int kDim>
int forward_mma(const Attention& a, void* stream) {
  const LaunchShape shape{grid_of(a, a.frames, kTile, a.batch), dim3(kMmaThreads),
                          query_shared<kDim>()};
  const auto with = [&](auto saves) {
    constexpr bool kSave = decltype(saves)::value;
    return a.dropout.threshold != 0
               ? launch(stream, shape, attention_forward_mma<T, kDim, true, kSave>, a)
               : launch(stream, shape, attention_forward_mma<T, kDim, false, kSave>, a);
  };
  return a.saved != nullptr ? with(std::true_type{}) : with(std::false_type{});
}

// Whether a block may have so much shared memory.
bool has_shared([[maybe_unused]] size_t bytes) {
#ifdef __CUDACC__
  int device = 0, most = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device) ==
             cudaSuccess &&
         bytes <= size_t(most);
#else
  return true;
#endif
}
bool resident(const AttentionBackward& b) {
  return b.forward.saved != nullptr && attention_resident(b) &&
         has_shared(resident_shared<kAttentionResidentDim>());
}
template <typename T>
int add_positions(const AttentionBackward& b, void* stream) {
  constexpr int kDim = kAttentionResidentDim;
  const Attention& a = b.forward;
  const int blocks = 2 * attention_tiles(a.frames) * (kDim / 16);
  return launch(stream, {dim3(unsigned(blocks), unsigned(a.heads)), dim3(kPositionThreads)},
                attention_add_positions<T, kDim>, b, attention_slots(b));
}
template <typename T>
int backward_resident(const AttentionBackward& b, void* stream) {
  constexpr int kDim = kAttentionResidentDim;
  const Attention& a = b.forward;
  const int slots = attention_slots(b);
  const LaunchShape shape{dim3(unsigned(a.heads), unsigned(slots)), dim3(kResidentThreads),
                          resident_shared<kDim>()};
  AERIE_TRY(launch(stream, shape, attention_resident_mma<T, kDim>, b));
  return b.positions_later ? kOk : add_positions<T>(b, stream);
}

// launch() for a kernel that waits for the ones before by itself, wait_for_launches(): where the
// device can, it comes to its place earlier.
template <typename... Params, typename... Given>
int launch_early(void* stream, LaunchShape shape, void (*kernel)(Params...),
                 const Given&... given) {
#ifdef __CUDACC__
  static const bool can = [] {
    int device = 0, major = 0;
    return cudaGetDevice(&device) == cudaSuccess &&
           cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ==
               cudaSuccess &&
           major >= 9;
  }();
  if (can) {
    AERIE_TRY(int(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                       cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       int(shape.shared_bytes))));
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = shape.grid;
    config.blockDim = shape.block;
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &attribute;
    config.numAttrs = 1;
    return int(cudaLaunchKernelEx(&config, kernel, given...));
  }
#endif
  return launch(stream, shape, kernel, given...);
}

template <typename T, int kDim, int kGroups>
int query_grads(const AttentionBackward& b, void* stream) {
  const Attention& a = b.forward;
  const LaunchShape shape{grid_of(a, a.frames, kGroups * kTile, a.batch),
                          dim3(kGroups * kMmaThreads), QueryTiles<T, kDim, kGroups>::kBytes};
  return a.dropout.threshold != 0 && a.keep == nullptr
             ? launch_early(stream, shape, attention_query_grad_mma<T, kDim, kGroups, true>, b)
             : launch_early(stream, shape, attention_query_grad_mma<T, kDim, kGroups, false>, b);
}

template <typename T, int kDim, int kGroups, int kAtATime>
int saved_grads(const AttentionBackward& b, void* stream) {
  const Attention& a = b.forward;
  return launch_early(stream,
                      {grid_of(a, a.frames, kGroups * kTile, a.batch), dim3(kGroups * kMmaThreads),
                       SavedTiles<T, kDim, kGroups>::kBytes},
                      attention_saved_grad_mma<T, kDim, kGroups, kAtATime>, b);
}

template <typename T, int kDim>
int backward_mma(const AttentionBackward& b, void* stream) {
  const Attention& a = b.forward;
  if (resident(b)) return backward_resident<T>(b, stream);
  // Of heads with 128 values a multiprocessor has room for three tiles of queries only where they
  // share what they read; for a few items, more blocks are better.
  constexpr int kGroups = kDim == 128 ? 3 : 1, kAtATime = kDim == 128 ? 1 : 3;
  const bool full =
      3 * a.batch * a.heads * ceil_div(a.frames, kGroups * kTile) >= b.multiprocessors &&
      has_shared(QueryTiles<T, kDim, kGroups>::kBytes);
  if (a.saved != nullptr) {
    AERIE_TRY((full ? saved_grads<T, kDim, kGroups, kAtATime>(b, stream)
                    : saved_grads<T, kDim, 1, kAtATime>(b, stream)));
  } else {
    AERIE_TRY(
        (full ? query_grads<T, kDim, kGroups>(b, stream) : query_grads<T, kDim, 1>(b, stream)));
  }
  return launch_early(stream, {sum_grid(a), dim3(kMmaThreads), sum_shared<kDim>()},
                      attention_sums_mma<T, kDim>, b);
}

int backward_float(const AttentionBackward& b, void* stream) {
  const Attention& a = b.forward;
  const dim3 block(kFloatThreads);
  AERIE_TRY(launch(
      stream, {grid_of(a, a.frames, kFloatRows, a.batch), block, query_grad_float_shared(a.dim)},
      attention_query_grad_float, b));
  AERIE_TRY(launch(stream, {grid_of(a, a.frames, kFloatWarps * 8, a.batch), block},
                   attention_key_grad_float, b));
  AERIE_TRY(launch(stream,
                   {grid_of(a, 2 * a.frames - 1, kFloatWarps * 8, attention_groups(a)), block},
                   attention_position_grad_float, b));
  const int vecs = (2 * a.frames - 1) * (a.heads * a.dim / 8);
  return launch(stream, {dim3(unsigned(ceil_div(vecs, kFinishThreads))), dim3(kFinishThreads)},
                add_groups_float, b);
}

}  // namespace

int attention(const Attention& a, void* stream) {
  if (!covered(a)) return kUnsupported;
  if (a.dtype != Dtype::kFloat)
    return for_type(a, [&](auto type, auto dim) {
      return forward_mma<decltype(type), decltype(dim)::value>(a, stream);
    });
  return launch(
      stream,
      {grid_of(a, a.frames, kFloatRows, a.batch), dim3(kFloatThreads), forward_float_shared(a.dim)},
      attention_forward_float, a);
}

int attention_backward(const AttentionBackward& b, void* stream) {
  const Attention& a = b.forward;
  if (!covered(a) || b.grad_stride % 8 != 0 || b.grad_p_stride % 8 != 0) return kUnsupported;
  if (b.positions_later && (b.later == nullptr || b.later->count + 2 > PartialSums::kMost))
    return kUnsupported;
  AERIE_TRY(
      a.dtype == Dtype::kFloat ? backward_float(b, stream) : for_type(a, [&](auto type, auto dim) {
        return backward_mma<decltype(type), decltype(dim)::value>(b, stream);
      }));
  const int dense = a.heads * a.dim, tiles = attention_tiles(a.frames);
  const bool plain = a.dtype == Dtype::kFloat;
  const bool on_chip = resident(b);
  const int parts_u =
      on_chip ? attention_slots(b) : a.batch * (plain ? ceil_div(a.frames, kFloatRows) : tiles);
  const int parts_v = plain ? parts_u : (on_chip ? 1 : attention_groups(a)) * 2 * tiles;
  PartialSums now, *sums = &now;
  if (b.later != nullptr && b.later->count + 2 <= PartialSums::kMost) sums = b.later;
  sums->sums[sums->count++] = {b.partial, b.grad_bias_u, dense, parts_u, dense, b.accumulate};
  sums->sums[sums->count++] = {
      b.partial + size_t(parts_u) * dense, b.grad_bias_v, dense, parts_v, dense, b.accumulate};
  return sums == &now ? add_partials(now, stream) : kOk;
}

int attention_positions(const AttentionBackward& b, void* stream) {
  if (!b.positions_later || !covered(b.forward) || !resident(b)) return kOk;
  return b.forward.dtype == Dtype::kBf16 ? add_positions<Bf16>(b, stream)
                                         : add_positions<Half>(b, stream);
}

}  // namespace aerie::kernels::AERIE_BACKEND
