// The asynchronous parts of compute capability 9.0 for the emulation (emulation.h): mbarriers, TMA
// tile copies, warpgroup mma (wgmma) and the proxies through which they see shared memory. cuda/*.h
// call what is here where nvcc would have the instruction.
//
// A copy or a wgmma is done at some moment between its issue and what waits for it. Which moment is
// a matter of the order of threads: at once (forward), as late as anything still depends on it
// (reverse; the latest copy first), or drawn (shuffled). What goes wrong on a device now and then,
// because something was not waited for, then goes wrong here every time. Beyond wrong results it
// stops the program with a message for
//   - addresses outside the block's shared memory, alignment that TMA or wgmma do not take;
//   - mbarriers that were not initialised, were written over, or get more arrivals or fewer bytes
//     than they expect, and waits that nothing ends;
//   - shared memory written by threads and read by TMA or wgmma without fence_proxy_async;
//   - wgmma without wgmma_fence, blocks that end before their copies.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aerie::kernels::emulation {

// A two-dimensional tensor of 16-bit values in boxes of 64 columns, as a TMA descriptor has it.
struct TensorMap {
  unsigned char* data = nullptr;
  int rows = 0, columns = 0;
  size_t stride_bytes = 0;
  int box_rows = 0;
};

void mbarrier_init(uint32_t address, int arrivals);
void mbarrier_arrive(uint32_t address, uint32_t expect_tx_bytes);
// Until the phase of this parity has ended.
void mbarrier_wait(uint32_t address, uint32_t parity);

// Boxes at column x, row y, with the 128-byte swizzle.
void tma_load(uint32_t to, const TensorMap& map, int x, int y, uint32_t barrier);
void tma_store(const TensorMap& map, int x, int y, uint32_t from);
void tma_store_commit();
void tma_store_wait_read();

// A thread has written so many bytes of shared memory (whole granules of 16).
void note_shared_write(uint32_t address, size_t bytes);
void fence_proxy_async();

// d (+)= A(64 x 16) B(16 x columns) of the calling thread's warpgroup, of which it holds columns /
// 2 values. Transposed operands have rows of k ("MN-major").
struct Wgmma {
  float* d;
  int columns;
  uint64_t a, b;  // descriptors
  bool transpose_a, transpose_b, add;
  float (*widen)(uint16_t bits);
};
void wgmma_issue(const Wgmma& operation);
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int pending);

// For tests of tests: the wait, arrival, fence of that number (0: the first) in a launch is made
// with the other parity, or not at all.
enum class Fault { kNone, kOtherParity, kNoArrival, kNoFence };
void plant_fault(Fault fault, uint64_t number);

// For the scheduler: at a block's begin and end; between threads (idle: no thread can go on).
// Whether anything was done.
void begin_async(unsigned threads);
void end_async();
bool advance_async(bool idle);

}  // namespace aerie::kernels::emulation
