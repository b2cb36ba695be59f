// Runs CUDA kernels on the CPU, for tests: the same source that nvcc compiles for the device is
// compiled by the host compiler with this header (through device.h) and executed thread by thread.
//
// A block's threads are fibers of one OS thread. A fiber runs until it meets a barrier or a warp
// operation, so that __syncthreads, bar.sync and bar.arrive, shuffles, votes, ldmatrix and mma have
// their device meaning; so have mbarriers, TMA and wgmma (sm90.h). What it finds, beyond wrong
// results:
//   - shared memory starts as NaN bytes in every block and is a heap allocation of the exact size,
//     so that the address sanitizer sees accesses out of bounds and tests see values never written;
//   - the order of threads can be reversed or shuffled (set_order): a missing barrier then shows;
//   - lanes that meet different warp operations, and barriers that can never be reached, abort with
//     a message.
//
// Blocks run one after the other in grid order. One launch at a time, from one OS thread.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace aerie::kernels::emulation {

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  Dim3() = default;
  Dim3(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// The built-in variables of the thread that is running.
inline Dim3 thread_idx, block_idx, block_dim, grid_dim;

enum class Order { kForward, kReverse, kShuffled };
void set_order(Order order);
Order order();

// Runs body() once for every thread of the grid.
void run_grid(Dim3 grid, Dim3 block, size_t shared_bytes, void (*body)(void*), void* context);

// Shared memory of this block: one allocation per call site (tag), and the dynamic one.
void* block_shared(const void* tag, size_t bytes);
void* dynamic_shared();

// Shared memory by address, as instructions name it. Dynamic memory begins at a multiple of 16 and
// of nothing more. Stops where `bytes` from an address on are not the block's.
uint32_t shared_address(const void* p);
void* shared_pointer(uint32_t address, size_t bytes);

// Ends the program with a message that names the thread.
[[noreturn]] void stop(const char* text, const char* detail = "");

// Until ready(context): asked between other threads.
void wait_until(bool (*ready)(const void*), const void* context, const char* what);
unsigned thread_index();  // in the block

void sync_block();
// A named barrier (1 to 15) that `threads` of the block come to, of which some wait.
constexpr unsigned kNamedBarriers = 16;
void named_barrier(unsigned number, unsigned threads, bool waits);

// All lanes of a warp put `bytes` (at most 32) into their slots; returns the slots of the warp's 32
// lanes. `what` names the operation: all lanes must agree on it.
struct Slot {
  alignas(16) unsigned char bytes[32];
};
const Slot* exchange(const char* what, const void* data, size_t bytes);
unsigned lane_index();

template <typename T>
T shuffle(const char* what, T value, unsigned from) {
  const Slot* slots = exchange(what, &value, sizeof(T));
  T out;
  std::memcpy(&out, slots[from & 31u].bytes, sizeof(T));
  return out;
}

}  // namespace aerie::kernels::emulation

// The part of CUDA C++ that the kernels use.
#define __global__
#define __device__
#define __host__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (::aerie::kernels::emulation::thread_idx)
#define blockIdx (::aerie::kernels::emulation::block_idx)
#define blockDim (::aerie::kernels::emulation::block_dim)
#define gridDim (::aerie::kernels::emulation::grid_dim)

namespace aerie::kernels::emulated {

using dim3 = emulation::Dim3;
using std::isfinite;

inline void __syncthreads() {
  emulation::sync_block();
}
inline void __syncwarp() {
  emulation::exchange("syncwarp", nullptr, 0);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return emulation::shuffle("shfl_xor", value, emulation::lane_index() ^ unsigned(mask));
}
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  return emulation::shuffle("shfl", value, unsigned(lane));
}
template <typename T>
T __shfl_up_sync(unsigned, T value, int delta) {
  const unsigned lane = emulation::lane_index();
  const T other = emulation::shuffle("shfl_up", value, lane - unsigned(delta));
  return lane >= unsigned(delta) ? other : value;
}
inline unsigned __ballot_sync(unsigned, int predicate) {
  const emulation::Slot* slots = emulation::exchange("ballot", &predicate, sizeof(predicate));
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) {
    int value = 0;
    std::memcpy(&value, slots[lane].bytes, sizeof(value));
    bits |= value != 0 ? 1u << lane : 0u;
  }
  return bits;
}
inline float __uint_as_float(unsigned bits) {
  float out;
  std::memcpy(&out, &bits, 4);
  return out;
}
inline unsigned __float_as_uint(float value) {
  unsigned out;
  std::memcpy(&out, &value, 4);
  return out;
}
struct alignas(8) float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) {
  return {x, y};
}
inline int __popc(unsigned bits) {
  return __builtin_popcount(bits);
}

}  // namespace aerie::kernels::emulated
