// The emulator itself: barriers, warp operations, shared memory and their misuse.
#include <vector>

#include <gtest/gtest.h>

#include "aerie/kernels/device.h"

namespace aerie::kernels::emulated::emulation_test {
namespace {

using emulation::Order;

__global__ void reverse_block(int* out, const int* in) {
  AERIE_SHARED(int, tile, 100);
  tile[threadIdx.x] = in[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  out[blockIdx.x * blockDim.x + threadIdx.x] = tile[blockDim.x - 1 - threadIdx.x];
}

TEST(EmulationTest, BarriersOrderSharedMemory) {
  std::vector<int> in(300), out(300);
  for (int i = 0; i < 300; ++i) in[static_cast<size_t>(i)] = i;
  for (const Order order : {Order::kForward, Order::kReverse, Order::kShuffled}) {
    emulation::set_order(order);
    launch(nullptr, {dim3(3), dim3(100)}, reverse_block, out.data(), in.data());
    for (int i = 0; i < 300; ++i)
      ASSERT_EQ(out[static_cast<size_t>(i)], i / 100 * 100 + 99 - i % 100);
  }
  emulation::set_order(Order::kForward);
}

// The first half hands over to the second, one value after the other.
__global__ void two_halves(int* out, int count) {
  AERIE_SHARED(int, box, 32);
  for (int i = 0; i < count; ++i) {
    if (threadIdx.x < 32) {
      if (i > 0) emulation::named_barrier(2, 64, true);
      box[threadIdx.x] = i * 100 + int(threadIdx.x);
      emulation::named_barrier(1, 64, false);
    } else {
      emulation::named_barrier(1, 64, true);
      out[i * 32 + int(threadIdx.x) - 32] = box[63 - threadIdx.x];
      if (i + 1 < count) emulation::named_barrier(2, 64, false);
    }
  }
}

TEST(EmulationTest, NamedBarriersHoldThoseWhoWait) {
  for (const Order order : {Order::kForward, Order::kReverse, Order::kShuffled}) {
    emulation::set_order(order);
    std::vector<int> out(5 * 32, -1);
    launch(nullptr, {dim3(1), dim3(64)}, two_halves, out.data(), 5);
    for (int i = 0; i < 5 * 32; ++i)
      ASSERT_EQ(out[static_cast<size_t>(i)], i / 32 * 100 + 31 - i % 32);
  }
  emulation::set_order(Order::kForward);
}

__global__ void half_a_barrier() {
  if (threadIdx.x < 32) emulation::named_barrier(3, 64, false);
}
TEST(EmulationDeathTest, ABlockThatLeavesABarrierHalfReached) {
  EXPECT_DEATH(launch(nullptr, {dim3(1), dim3(64)}, half_a_barrier), "some have come to a barrier");
}

__global__ void warp_operations(float* sums, unsigned* votes, int* shifted) {
  const int lane = threadIdx.x % 32;
  sums[threadIdx.x] = warp_sum(float(threadIdx.x));
  votes[threadIdx.x] = __ballot_sync(kFullWarp, lane % 3 == 0);
  shifted[threadIdx.x] = __shfl_up_sync(kFullWarp, int(threadIdx.x), 2);
}

TEST(EmulationTest, WarpOperationsExchangeAmongTheirLanesOnly) {
  std::vector<float> sums(64);
  std::vector<unsigned> votes(64);
  std::vector<int> shifted(64);
  launch(nullptr, {dim3(1), dim3(64)}, warp_operations, sums.data(), votes.data(), shifted.data());
  for (int i = 0; i < 64; ++i) {
    const size_t k = static_cast<size_t>(i);
    EXPECT_EQ(sums[k], i < 32 ? 496.0f : 496.0f + 1024.0f);
    EXPECT_EQ(votes[k], 0x49249249u);
    EXPECT_EQ(shifted[k], i % 32 < 2 ? i : i - 2);
  }
}

__global__ void read_before_write(float* out) {
  AERIE_SHARED(float, tile, 64);
  tile[threadIdx.x] = 1.0f;
  out[threadIdx.x] = tile[63 - threadIdx.x];  // no barrier
}

TEST(EmulationTest, AMissingBarrierShowsAsNan) {
  std::vector<float> out(64);
  launch(nullptr, {dim3(1), dim3(64)}, read_before_write, out.data());
  EXPECT_TRUE(std::isnan(out[0]));
}

__global__ void divergent() {
  if (threadIdx.x % 2 == 0) {
    __syncwarp();
  } else {
    warp_max(1.0f);
  }
}
__global__ void early_exit(int* out) {
  if (threadIdx.x >= 40) return;
  __syncthreads();
  out[threadIdx.x] = 1;
}

TEST(EmulationTest, ThreadsThatLeftDoNotHoldUpABarrier) {
  std::vector<int> out(40);
  launch(nullptr, {dim3(1), dim3(64)}, early_exit, out.data());
  EXPECT_EQ(out, std::vector<int>(40, 1));
}

TEST(EmulationDeathTest, DivergentWarpOperationsAbort) {
  EXPECT_DEATH(launch(nullptr, {dim3(1), dim3(32)}, divergent), "differ in their operation");
}

}  // namespace
}  // namespace aerie::kernels::emulated::emulation_test
