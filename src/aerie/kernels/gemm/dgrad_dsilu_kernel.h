// The kernels of dgrad_dsilu.h: the ping-pong schedule of persistent_gemm_kernel.h with a longer
// epilogue, on accumulators in registers while the other warpgroup is in its main loop. Dropout's
// keep bits are read before a tile's main loop and wait in shared memory. x comes by TMA into two
// buffers for alternate tiles, gradients replace it there and are stored from there.
#pragma once

#include "aerie/kernels/gemm/dgrad_dsilu.h"
#include "aerie/kernels/gemm/persistent_gemm_kernel.h"

namespace aerie::kernels::AERIE_BACKEND {

// Tiles of one type each, compiled apart.
int dgrad_dsilu_bf16(const DgradDsilu& a, void* stream);
int dgrad_dsilu_half(const DgradDsilu& a, void* stream);

struct DsiluArguments {
  GemmArguments gemm;  // without a bias
  TensorMap x;         // what forward's GEMM gave
  const float* bias;
  const uint8_t* keep;  // null: everything is kept
  float scale;
  int rows;
  bool keep_words;  // keep bits of 32 of N are an aligned word
  float* partial;
};

namespace dsilu {

using namespace persistent;

constexpr int kPanels = 2;  // of 64 of N that a warpgroup has of a tile

// Twice the panels of a tile, and the keep bits of two warpgroups.
template <int kGroups>
struct DsiluLayout : Layout<kGroups, 2 * kPanels, 2 * 8 * kGroups * 16, 64> {
  using Base = Layout<kGroups, 2 * kPanels, 2 * 8 * kGroups * 16, 64>;
  static constexpr int kKeepBytes = Base::kRows * 16;  // of a warpgroup
  static constexpr int kKeep = Base::kMore;
  static_assert(Base::kStages >= 4);
};

// A tile's keep bits on their way to shared memory: a word for two neighbouring rows and 16 of N,
// as a lane's accumulators lie. A thread has 32 of N of a row at a time, asked for early: load().
template <int kRows>
class KeepBits {
 public:
  __device__ __forceinline__ void load(const DsiluArguments& a, int row, int output) {
    if (a.keep == nullptr) return;
    AERIE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int unit = threadIdx.x % 128 + i * 128, channels = a.gemm.n;
      int at = row + unit / kWords;
      if (at >= a.rows) at = a.rows - 1;
      const int column = output + unit % kWords * 32;
      const uint8_t* const from = a.keep + (size_t(at) * channels + column) / 8;
      words_[i] = 0;
      if (a.keep_words) {
        if (column < channels) words_[i] = *reinterpret_cast<const uint32_t*>(from);
      } else {
        for (int n = 0; n < 4; ++n)
          if (column + 8 * n < channels) words_[i] |= uint32_t(from[n]) << 8 * n;
      }
    }
  }
  __device__ __forceinline__ void put(const DsiluArguments& a, uint32_t to) {
    AERIE_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int unit = threadIdx.x % 128 + i * 128, local = unit / kWords, part = unit % kWords;
      if (kUnits % 128 != 0 && unit >= kUnits) break;
      const uint32_t word = a.keep != nullptr ? words_[i] : 0xffffffffu;
      const uint32_t at = to + local / 2 * (16 * kPanels) + part * 8 + local % 2 * 2;
      store_shared_u16(at, word);
      store_shared_u16(at + 4, word >> 16);
    }
  }

 private:
  static constexpr int kWords = 2 * kPanels, kUnits = kRows * kWords, kEach = (kUnits + 127) / 128;

  uint32_t words_[kEach];
};

// `on` where the sign of byte kByte is set.
template <int kByte>
__device__ __forceinline__ float factor(uint32_t word, float on) {
  return __uint_as_float(byte_perm(word, 0, 0x8888u + 0x1111u * kByte) & __float_as_uint(on));
}

// The gradient of one value.
template <typename T>
__device__ __forceinline__ float dsilu_grad(float x, float grad, float kept) {
  const float s = sigmoid_for<T>(x);
  return grad * (kept * (s * (1.0f + x * (1.0f - s))));
}

// The weight is (K, N).
template <typename T, int kGroups>
__global__ void __launch_bounds__(384, 1)
    dgrad_dsilu_kernel(const __grid_constant__ DsiluArguments a) {
#ifdef AERIE_SM90A_CODE
  using L = DsiluLayout<kGroups>;
  constexpr int kHandoffThreads = 128 + 32;
  // Loads operands; the next warps: load x, store gradients.
  constexpr int kProducerWarp = kConsumerThreads / 32;
  AERIE_DYNAMIC_SHARED_BYTES(raw);
  const GemmArguments& g = a.gemm;
  const uint32_t shared = (shared_address(raw) + 1023) / 1024 * 1024;
  const uint32_t full = shared + L::kBarriers;
  const sm90::Ring ring = {shared, full, full + 8 * L::kStages};
  // Two of each, for alternate tiles, as their buffers.
  const uint32_t order = full + 16 * kMaxStages, stored = order + 16, x_full = order + 32;
  const auto wait_for = [&](uint32_t barrier, int count) {
    mbarrier_wait(barrier + 8 * (count % 2), count / 2 % 2);
  };
  const auto buffer = [&](int count) { return shared + L::kOut + count % 2 * (2 * L::kOutBytes); };
  const int warp = __shfl_sync(kFullWarp, int(threadIdx.x) / 32, 0);
  if (warp == 0 && elect_one()) {
    sm90::init_ring<L::kStages>(ring, 4);
    mbarrier_init(order, 4);
    mbarrier_init(order + 8, 4);
    for (int s = 0; s < 2; ++s) {
      mbarrier_init(stored + 8 * s, 1);
      mbarrier_init(x_full + 8 * s, 1);
    }
    fence_mbarrier_init();
  }
  if (warp == kProducerWarp && elect_one()) {
    prefetch_tensormap(&g.weight);
    prefetch_tensormap(&g.in);
    prefetch_tensormap(&g.out);
    prefetch_tensormap(&a.x);
  }
  __syncthreads();
  griddepcontrol_wait();
  const int tiles = g.tiles_n * g.tiles_m, lane = threadIdx.x % 32;
  if (warp >= kProducerWarp) {
    warpgroup_reg_dealloc<40>();
    if (warp == kProducerWarp && elect_one()) {
      PipelineState<L::kStages> state{0, 1};
      uint32_t slice = blockIdx.x;
      for (int i = blockIdx.x; i < tiles; i += gridDim.x) {
        const TileCoord<L::kRows> tile(g, i);
        sm90::produce<L::kStageBytes>(ring, state, g.k_tiles,
                                      [&](int k_tile, uint32_t to, uint32_t barrier) {
                                        load_operands<1>(g, tile.n, tile.m, k_tile, to, barrier);
                                        prefetch_slice(g, slice);
                                        slice += gridDim.x;
                                      });
      }
    }
    if (warp == kProducerWarp + 1 && elect_one()) {
      for (int i = blockIdx.x, count = 0; i < tiles; i += gridDim.x, ++count) {
        const TileCoord<L::kRows> tile(g, i);
        AERIE_UNROLL
        for (int p = 0; p < 2; ++p)
          if (tile.n + p * 64 < g.n) tma_prefetch_2d(&a.x, tile.n + p * 64, tile.m);
        if (count > 1) wait_for(stored, count - 2);
        const uint32_t barrier = x_full + 8 * (count % 2);
        mbarrier_arrive_expect_tx(barrier, 2 * L::kOutBytes);
        AERIE_UNROLL
        for (int p = 0; p < 2; ++p)
          tma_load_2d(buffer(count) + p * L::kOutBytes, &a.x, tile.n + p * 64, tile.m, barrier);
      }
    }
    if (warp == kProducerWarp + 2) {
      for (int i = blockIdx.x, count = 0; i < tiles; i += gridDim.x, ++count) {
        const TileCoord<L::kRows> tile(g, i);
        handoff_sync<kHandoffThreads>(count);
        if (elect_one()) {
          AERIE_UNROLL
          for (int p = 0; p < 2; ++p)
            if (tile.n + p * 64 < g.n)
              tma_store_2d(&g.out, tile.n + p * 64, tile.m, buffer(count) + p * L::kOutBytes);
          tma_store_commit();
          tma_store_wait_read();
          mbarrier_arrive(stored + 8 * (count % 2));
        }
        __syncwarp();
      }
    }
    return;
  }
  warpgroup_reg_alloc<232>();
  const int warpgroup = warp / 4, part = warp % 4;
  // Where this lane's row of four 8 x 8 results begins, and its decisions.
  const uint32_t to =
      lane / 16 * 1024 + lane % 8 * kRowBytes + ((part * 2 + lane / 8 % 2) ^ (lane % 8)) * 16;
  const uint32_t keep = shared + L::kKeep + warpgroup * L::kKeepBytes,
                 kept = keep + lane % 4 * (16 * kPanels) + part * 4;
  // Descriptors of the first stage: others lie at distances that can be added.
  const uint64_t a0 = smem_descriptor(shared, 16), b0 = smem_descriptor(shared + kWeightBytes, 16);
  PipelineState<L::kStages> state{0, 0};
  KeepBits<L::kRows> keep_bits;
  const int first_tile = blockIdx.x + warpgroup * gridDim.x;
  if (first_tile < tiles) {
    const TileCoord<L::kRows> tile(g, first_tile);
    keep_bits.load(a, tile.m, tile.n);
  }
  for (int i = blockIdx.x, count = 0; i < tiles; i += gridDim.x, ++count) {
    const TileCoord<L::kRows> tile(g, i);
    if (count % 2 != warpgroup) continue;
    // Nobody reads decisions of the tile before any more.
    warpgroup_sync(1 + warpgroup);
    keep_bits.put(a, keep);
    const int output = tile.n + part * 16 + lane / 4;
    float bias[kPanels][2];
    AERIE_UNROLL
    for (int p = 0; p < kPanels; ++p) AERIE_UNROLL
    for (int n = 0; n < 2; ++n) {
      const int at = output + p * 64 + n * 8;
      bias[p][n] = a.bias != nullptr && at < g.n ? a.bias[at] : 0.0f;
    }
    const int before = count * g.k_tiles;
    state.stage = before % L::kStages;
    state.phase = before / L::kStages % 2;
    // The other warpgroup has issued all wgmma of its tile.
    mbarrier_wait(order + 8 * warpgroup, (count / 2 + warpgroup + 1) % 2);
    constexpr int kSums = 4 * kGroups;
    float sums[kPanels][kSums];
    sm90::consume<L::kStageBytes>(
        ring, state, g.k_tiles, lane, a0, b0, sums,
        [&](int k_tile, uint64_t a_at, uint64_t b_at) {
          multiply_panels<T, 1>(sums, a_at, b_at, k_tile);
        },
        [&] {
          if (lane == 0) mbarrier_arrive(order + 8 * (1 - warpgroup));
        });
    warpgroup_sync(1 + warpgroup);  // keep bits are there
    const int next = i + 2 * int(gridDim.x);
    if (next < tiles) {
      const TileCoord<L::kRows> other(g, next);
      keep_bits.load(a, other.m, other.n);
    }
    const uint32_t here = buffer(count) + to;
    // The signs of bytes 0 and 2: whether this output's values in two rows are kept; of 1 and 3: of
    // eight outputs further.
    const auto kept_word = [&](int p, int j) {
      return load_shared_u32(kept + j * (64 * kPanels) + p * 16) << (7 - lane / 4);
    };
    wait_for(x_full, count);
    AERIE_UNROLL
    for (int p = 0; p < kPanels; ++p) {
      const uint32_t at = here + p * L::kOutBytes;
      float totals[2] = {0.0f, 0.0f};
      uint32_t x[2][4];  // of two pairs of groups of eight rows
      const auto load_x = [&](int j) {
        uint32_t(&into)[4] = x[j / 2 % 2];
        if (j + 1 < kGroups)
          ldmatrix_trans(at + j * 1024, into[0], into[1], into[2], into[3]);
        else
          ldmatrix_trans(at + j * 1024, into[0], into[1]);
      };
      load_x(0);
      AERIE_UNROLL
      for (int j = 0; j < kGroups; j += 2) {
        if (j + 2 < kGroups) load_x(j + 2);
        uint32_t grads[4];
        AERIE_UNROLL
        for (int n = 0; n < (j + 1 < kGroups ? 4 : 2); ++n) {
          const uint32_t bits = kept_word(p, j + n / 2);
          const uint32_t word = x[j / 2 % 2][n];
          // Rounded, as a GEMM of its own would leave them.
          const uint32_t in = pack<T>(sums[p][4 * j + 2 * n], sums[p][4 * j + 2 * n + 1]);
          const float kept0 = n % 2 == 0 ? factor<0>(bits, a.scale) : factor<1>(bits, a.scale);
          const float kept1 = n % 2 == 0 ? factor<2>(bits, a.scale) : factor<3>(bits, a.scale);
          const float grad0 = dsilu_grad<T>(low_of<T>(word) + bias[p][n % 2], low_of<T>(in), kept0);
          const float grad1 =
              dsilu_grad<T>(high_of<T>(word) + bias[p][n % 2], high_of<T>(in), kept1);
          totals[n % 2] += grad0;
          totals[n % 2] += grad1;
          grads[n] = pack<T>(grad0, grad1);
        }
        if (j + 1 < kGroups)
          stmatrix_trans(at + j * 1024, grads[0], grads[1], grads[2], grads[3]);
        else
          stmatrix_trans(at + j * 1024, grads[0], grads[1]);
      }
      if (a.partial != nullptr) {
        AERIE_UNROLL
        for (int n = 0; n < 2; ++n) {
          totals[n] += __shfl_xor_sync(kFullWarp, totals[n], 1);
          totals[n] += __shfl_xor_sync(kFullWarp, totals[n], 2);
          const int column = output + p * 64 + n * 8;
          if (lane % 4 == 0 && column < g.n)
            a.partial[size_t(tile.m / L::kRows) * g.n + column] = totals[n];
        }
      }
    }
    fence_proxy_async();
    handoff_arrive<kHandoffThreads>(count);
  }
#else
  __trap();  // not launched where this is all there is
#endif
}

template <typename T, int kRows>
int start(const Gemm& g, const SiluBackward& s, void* stream) {
  DsiluArguments a;
  if (!set_arguments<1, kRows>(a.gemm, g) ||
      !make_tensor_map(a.x, g.dtype, s.x, g.m, g.n, g.n, kRows))
    return kUnsupported;
  a.bias = s.bias;
  a.keep = s.dropout.threshold != 0 ? s.keep : nullptr;
  a.keep_words = g.n % 32 == 0 && reinterpret_cast<uintptr_t>(s.keep) % 4 == 0;
  a.scale = s.dropout.threshold != 0 ? s.dropout.scale : 1.0f;
  a.rows = g.m;
  a.partial = s.grad_bias != nullptr ? s.partial : nullptr;
  return launch_pdl(
      stream,
      persistent_grid(a.gemm.tiles_n * a.gemm.tiles_m, 384, DsiluLayout<kRows / 8>::kSharedBytes),
      PdlBlocks::kGpcsInTurn, dgrad_dsilu_kernel<T, kRows / 8>, a);
}

// With the tile that the GEMM names.
template <typename T>
int start(const DgradDsilu& a, void* stream) {
#define AERIE_DSILU_CASE(n) \
  if (a.gemm.tile.m == n) return start<T, n>(a.gemm, a.silu, stream);
  AERIE_DSILU_TILE_M(AERIE_DSILU_CASE)
#undef AERIE_DSILU_CASE
  return kUnsupported;
}

}  // namespace dsilu
}  // namespace aerie::kernels::AERIE_BACKEND
