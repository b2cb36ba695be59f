// The asynchronous parts of the emulation: one tile of a GEMM through TMA, mbarriers, wgmma and
// stmatrix, and what becomes of it when something is missing.
#include <vector>

#include <gtest/gtest.h>

#include "aerie/kernels/cuda/mbarrier.h"
#include "aerie/kernels/cuda/named_barrier.h"
#include "aerie/kernels/cuda/tma.h"
#include "aerie/kernels/cuda/warpgroup.h"
#include "aerie/kernels/cuda/wgmma.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::emulated::sm90_test {
namespace {

using emulation::Order;
constexpr Order kOrders[] = {Order::kForward, Order::kReverse, Order::kShuffled};

enum Mistake {
  kNone,
  kOtherParity,      // of the barrier that the loads complete
  kTooManyBytes,     // are expected
  kTooFewBytes,      // are expected: the phase ends early
  kNotFenced,        // before the TMA store
  kNoWgmmaFence,     //
  kNoWgmmaWait,      //
  kNoStoreWait,      // at the end
  kNoInit,           // of the barrier
  kWrittenOver,      // the barrier
  kStrayArrival,     // one more than the barrier is for
  kTwoArrivals,      // the barrier is for two, one comes
  kOutside,          // a load behind the end of shared memory
  kNotAligned,       // a load's destination
  kOtherDescriptor,  // in one lane
};

// C (64 x 64, bf16) = A B^T, both of 64 rows and k: 128 threads multiply, one of the last warp
// loads.
struct Arguments {
  TensorMap a, b, c;
  int k_tiles;
  Mistake mistake;
};
constexpr int kBox = 64 * 128, kStages = 2, kBytes = 1024 + (2 * kStages + 1) * kBox + 64;

__global__ void one_tile(Arguments g) {
  AERIE_DYNAMIC_SHARED(raw);
  const uint32_t shared = (shared_address(raw) + 1023) / 1024 * 1024;
  const uint32_t out = shared + 2 * kStages * kBox, full = out + kBox, empty = full + 8 * kStages;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  if (warp == 0 && elect_one()) {
    for (int s = 0; s < kStages; ++s) {
      if (g.mistake != kNoInit) mbarrier_init(full + 8 * s, g.mistake == kTwoArrivals ? 2 : 1);
      mbarrier_init(empty + 8 * s, 4);
    }
    fence_mbarrier_init();
  }
  __syncthreads();
  if (g.mistake == kWrittenOver && threadIdx.x == 5) store_word(full, 0, 0);
  if (warp == 4) {
    if (!elect_one()) return;
    for (int i = 0; i < g.k_tiles; ++i) {
      const int stage = i % kStages;
      mbarrier_wait(empty + 8 * stage, uint32_t(i / kStages + 1) % 2);
      const int wrong = g.mistake == kTooManyBytes ? 16 : g.mistake == kTooFewBytes ? -kBox : 0;
      mbarrier_arrive_expect_tx(full + 8 * stage, uint32_t(2 * kBox + wrong));
      if (g.mistake == kStrayArrival) mbarrier_arrive(full + 8 * stage);
      uint32_t to = shared + uint32_t(2 * stage * kBox);
      if (g.mistake == kOutside) to = out + kBox + 1024;
      if (g.mistake == kNotAligned) to += 512;
      tma_load_2d(to, &g.a, i * 64, 0, full + 8 * stage);
      tma_load_2d(to + kBox, &g.b, i * 64, 0, full + 8 * stage);
    }
    return;
  }
  float sums[32];
  for (int i = 0; i < g.k_tiles; ++i) {
    const int stage = i % kStages;
    mbarrier_wait(full + 8 * stage,
                  uint32_t(i / kStages + (g.mistake == kOtherParity ? 1 : 0)) % 2);
    const uint64_t a = smem_descriptor(shared + uint32_t(2 * stage * kBox), 16);
    const uint64_t b = smem_descriptor(shared + uint32_t((2 * stage + 1) * kBox), 16);
    if (g.mistake != kNoWgmmaFence) wgmma_fence();
    for (unsigned k = 0; k < 4; ++k)
      wgmma<Bf16, 0>(sums, a + 2 * k + (g.mistake == kOtherDescriptor && lane == 3 ? 2 : 0),
                     b + 2 * k, k == 0 ? i : 1);
    wgmma_commit();
    if (g.mistake != kNoWgmmaWait) wgmma_wait<0>();
    if (lane == 0) mbarrier_arrive(empty + 8 * stage);
  }
  const uint32_t to = out + uint32_t(lane / 16 * 1024 + lane % 8 * 128 +
                                     ((warp * 2 + lane / 8 % 2) ^ (lane % 8)) * 16);
  for (unsigned i = 0; i < 32; i += 8)
    stmatrix_trans(to + i * 256, pack<Bf16>(sums[i], sums[i + 1]),
                   pack<Bf16>(sums[i + 2], sums[i + 3]), pack<Bf16>(sums[i + 4], sums[i + 5]),
                   pack<Bf16>(sums[i + 6], sums[i + 7]));
  if (g.mistake != kNotFenced) fence_proxy_async();
  warpgroup_sync(1);
  if (threadIdx.x != 0) return;
  tma_store_2d(&g.c, 0, 0, out);
  tma_store_commit();
  if (g.mistake != kNoStoreWait) tma_store_wait_read();
}

// C^T as the epilogue leaves it: rows of B's rows. Ragged: what lies outside stays as it was.
class Tile {
 public:
  explicit Tile(int k_tiles, Mistake mistake = kNone) {
    const auto value = [](int i, int j) { return float((i * 7 + j * 3) % 11 - 5); };
    const int k = k_tiles * 64 - 8;  // the last columns are outside
    const auto fill = [&](std::vector<Bf16>& to, int salt) {
      for (int i = 0; i < kRows; ++i)
        for (int j = 0; j < k; ++j) to[size_t(i * k + j)] = from_float<Bf16>(value(i + salt, j));
    };
    a_.resize(size_t(kRows * k));
    b_.resize(size_t(kRows * k));
    c_.assign(size_t(kRows * kStride), Bf16{0x1234});
    fill(a_, 0);
    fill(b_, 5);
    make_tensor_map(g_.a, Dtype::kBF16, a_.data(), kRows, k, k, 64);
    make_tensor_map(g_.b, Dtype::kBF16, b_.data(), kRows, k, k, 64);
    make_tensor_map(g_.c, Dtype::kBF16, c_.data(), kRows, kRows, kStride, 64);
    g_.k_tiles = k_tiles;
    g_.mistake = mistake;
  }
  void run() { launch(nullptr, {dim3(1), dim3(160), size_t(kBytes)}, one_tile, g_); }
  // How many values of C are not what they should be.
  int wrong() const {
    int out = 0;
    const int k = g_.k_tiles * 64 - 8;
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < kStride; ++j) {
        float sum = 0.0f;
        for (int l = 0; l < k && j < kRows; ++l)
          sum += to_float(a_[size_t(j * k + l)]) * to_float(b_[size_t(i * k + l)]);
        const Bf16 expected = j < kRows ? from_float<Bf16>(sum) : Bf16{0x1234};
        out += c_[size_t(i * kStride + j)].bits != expected.bits ? 1 : 0;
      }
    return out;
  }

 private:
  static constexpr int kRows = 56, kStride = 64;
  std::vector<Bf16> a_, b_, c_;
  Arguments g_;
};

TEST(Sm90EmulationTest, ATileOfAGemm) {
  for (const Order order : kOrders)
    for (const int k_tiles : {1, 2, 3, 5}) {
      emulation::set_order(order);
      Tile tile(k_tiles);
      tile.run();
      EXPECT_EQ(tile.wrong(), 0) << "order " << int(order) << ", k tiles " << k_tiles;
    }
  emulation::set_order(Order::kForward);
}

void run_in(Order order, int k_tiles, Mistake mistake) {
  emulation::set_order(order);
  Tile tile(k_tiles, mistake);
  tile.run();
  if (tile.wrong() > 0) emulation::stop("wrong values");
}

TEST(Sm90EmulationDeathTest, MistakesStopTheProgram) {
  const auto dies = [](Mistake mistake, const char* text, Order order = Order::kForward) {
    EXPECT_DEATH(run_in(order, 2, mistake), text) << int(mistake);
  };
  dies(kTooManyBytes, "nothing ends a thread's wait for an mbarrier's phase");
  dies(kTooFewBytes, "a block ends before its TMA copies", Order::kReverse);
  dies(kOtherParity, "a block ends before its TMA copies", Order::kReverse);
  dies(kNotFenced, "read without fence_proxy_async by a TMA store");
  dies(kNoWgmmaFence, "wgmma without wgmma_fence");
  dies(kNoWgmmaWait, "a block ends before its wgmma", Order::kReverse);
  dies(kNoStoreWait, "a block ends before its TMA copies");
  dies(kNoInit, "an mbarrier that was not initialised");
  dies(kWrittenOver, "an mbarrier was written over");
  dies(kStrayArrival, "more arrivals than it was initialised for");
  dies(kTwoArrivals, "nothing ends a thread's wait for an mbarrier's phase");
  dies(kOutside, "an address outside shared memory");
  dies(kNotAligned, "begins at a multiple of 1024 bytes");
  dies(kOtherDescriptor, "differ in the descriptors of a wgmma");
}

}  // namespace
}  // namespace aerie::kernels::emulated::sm90_test
