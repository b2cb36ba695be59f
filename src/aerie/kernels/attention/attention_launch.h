// Launches of attention on tensor cores, included by attention's .cu files alone. Padded heads have
// their kernels in attention_padded_*.cu: every file compiles by itself.
#pragma once

#include <type_traits>

#include "aerie/kernels/attention/attention_dkv.h"
#include "aerie/kernels/attention/attention_dq.h"
#include "aerie/kernels/attention/attention_forward.h"
#include "aerie/kernels/attention/attention_fused_backward.h"

namespace aerie::kernels::AERIE_BACKEND {

// Heads that are neither 64 nor 128 wide.
template <typename T>
int padded_forward(const Attention& a, void* stream);
template <typename T>
int padded_backward(const AttentionBackward& b, void* stream);
template <typename T>
int padded_reduce_dr(const AttentionBackward& b, void* stream);

inline dim3 grid_of(const Attention& a, int rows, int per_block, int layers) {
  return dim3(unsigned(ceil_div(rows, per_block)), unsigned(a.heads), unsigned(layers));
}

template <typename T, int kDim, bool kPadded>
int forward_mma(const Attention& a, void* stream) {
  const LaunchShape shape{grid_of(a, a.frames, kTile, a.batch), dim3(kMmaThreads),
                          query_shared<kDim>()};
  const auto with = [&](auto saves) {
    constexpr bool kSave = decltype(saves)::value;
    return a.dropout.threshold != 0
               ? launch(stream, shape, attention_forward_mma<T, kDim, kPadded, true, kSave>, a)
               : launch(stream, shape, attention_forward_mma<T, kDim, kPadded, false, kSave>, a);
  };
  return a.saved_p != nullptr ? with(std::true_type{}) : with(std::false_type{});
}

// Whether a block may have so much shared memory.
inline bool has_shared([[maybe_unused]] size_t bytes) {
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
inline bool is_fused(const AttentionBackward& b) {
  return b.forward.saved_p != nullptr && attention_fused(b) &&
         has_shared(fused_shared<kAttentionFusedDim>());
}
template <typename T, bool kPadded>
int reduce_dr(const AttentionBackward& b, void* stream) {
  constexpr int kDim = kAttentionFusedDim;
  const Attention& a = b.forward;
  const int blocks = 2 * attention_tiles(a.frames) * (kDim / 16);
  return launch(stream, {dim3(unsigned(blocks), unsigned(a.heads)), dim3(kPositionThreads)},
                attention_reduce_dr<T, kDim, kPadded>, b, attention_slots(b));
}
template <typename T, bool kPadded>
int fused_backward(const AttentionBackward& b, void* stream) {
  constexpr int kDim = kAttentionFusedDim;
  const Attention& a = b.forward;
  const int slots = attention_slots(b);
  const LaunchShape shape{dim3(unsigned(a.heads), unsigned(slots)), dim3(kFusedThreads),
                          fused_shared<kDim>()};
  AERIE_TRY(launch(stream, shape, attention_fused_backward_mma<T, kDim, kPadded>, b));
  return b.defer_dr ? kOk : reduce_dr<T, kPadded>(b, stream);
}

template <typename T, int kDim, bool kPadded, int kWarpgroups>
int dq(const AttentionBackward& b, void* stream) {
  const Attention& a = b.forward;
  const auto with = [&](auto saved) {
    constexpr bool kSavedP = decltype(saved)::value;
    return launch_pdl(
        stream,
        {grid_of(a, a.frames, kWarpgroups * kTile, a.batch), dim3(kWarpgroups * kMmaThreads),
         DqTiles<T, kDim, kWarpgroups, kSavedP>::kBytes},
        PdlBlocks::kAnywhere, attention_dq_mma<T, kDim, kPadded, kWarpgroups, kSavedP>, b);
  };
  return a.saved_p != nullptr ? with(std::true_type{}) : with(std::false_type{});
}

template <typename T, int kDim, bool kPadded>
int backward_mma(const AttentionBackward& b, void* stream) {
  const Attention& a = b.forward;
  if constexpr (kDim == kAttentionFusedDim)
    if (is_fused(b)) return fused_backward<T, kPadded>(b, stream);
  // Padded heads have one kernel for both: they are rare.
  constexpr int kWarpgroups = kDim == 128 && !kPadded ? 3 : 1;
  const bool full =
      attention_query_tiles(b) > 1 && has_shared(DqTiles<T, kDim, kWarpgroups, false>::kBytes);
  AERIE_TRY(
      (full ? dq<T, kDim, kPadded, kWarpgroups>(b, stream) : dq<T, kDim, kPadded, 1>(b, stream)));
  return launch_pdl(stream, {sum_grid(a), dim3(kMmaThreads), sum_shared<kDim>()},
                    PdlBlocks::kAnywhere, attention_dkv_mma<T, kDim, kPadded>, b);
}

}  // namespace aerie::kernels::AERIE_BACKEND
