#include "aerie/kernels/emulation/emulation.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include "aerie/base/philox.h"
#include "aerie/kernels/emulation/sm90.h"

#if defined(__SANITIZE_ADDRESS__)
#define AERIE_ASAN_FIBERS 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define AERIE_ASAN_FIBERS 1
#endif
#endif
#ifdef AERIE_ASAN_FIBERS
#include <sanitizer/common_interface_defs.h>
#endif

#ifdef __x86_64__
// Saves what a call must preserve, stores the stack pointer and takes over another one. ucontext
// would do, but makes two system calls per switch, and kernels switch millions of times.
extern "C" void aerie_fiber_switch(void** save, void* load);
asm(R"(
.text
.type aerie_fiber_switch,@function
aerie_fiber_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size aerie_fiber_switch,.-aerie_fiber_switch
)");
#else
#include <ucontext.h>
#endif

namespace aerie::kernels::emulation {
namespace {

constexpr size_t kStackBytes = 256 << 10;
constexpr unsigned kMaxThreads = 1024;

enum class State { kReady, kAtBarrier, kAtNamed, kAtWarp, kWaiting, kDone };

#ifdef __x86_64__
using Context = void*;
void switch_to(Context* save, Context* load) {
  aerie_fiber_switch(save, *load);
}
void make_context(Context* context, unsigned char* stack, void (*entry)()) {
  // As if aerie_fiber_switch had saved six registers below its return address; the stack is
  // aligned as at a function's first instruction.
  void** top = reinterpret_cast<void**>(stack + kStackBytes) - 2;
  top[0] = reinterpret_cast<void*>(entry);
  top[1] = nullptr;
  top -= 6;
  std::fill_n(top, 6, nullptr);
  *context = top;
}
#else
using Context = ucontext_t;
void switch_to(Context* save, Context* load) {
  swapcontext(save, load);
}
void make_context(Context* context, unsigned char* stack, void (*entry)()) {
  getcontext(context);
  context->uc_stack.ss_sp = stack;
  context->uc_stack.ss_size = kStackBytes;
  makecontext(context, entry, 0);
}
#endif

struct Fiber {
  Context context{};
  unsigned char* stack = nullptr;
  State state = State::kDone;
  unsigned index = 0;
  Dim3 thread;
  unsigned barrier = 0;  // the named one that it waits at
  // kWaiting
  bool (*ready)(const void*) = nullptr;
  const void* wanted = nullptr;
  const char* what = nullptr;
};

struct Warp {
  Slot slots[2][32] = {};
  unsigned generation = 0;
  unsigned arrived = 0;
  unsigned alive = 0;
  const char* what = nullptr;
};

// A barrier of some of a block's threads.
struct NamedBarrier {
  unsigned arrived = 0, threads = 0;
};

struct Shared {
  const void* tag;
  std::unique_ptr<unsigned char, decltype(&std::free)> memory;
  size_t bytes;
  uint32_t address;
};

Context scheduler;
[[maybe_unused]] const void* scheduler_stack = nullptr;
[[maybe_unused]] size_t scheduler_stack_bytes = 0;
std::vector<Fiber> fibers;  // kept from launch to launch; they wait for the next block
Fiber* running = nullptr;
std::vector<Warp> warps;
std::vector<Shared> shared;
void* dynamic = nullptr;
unsigned alive = 0, at_barrier = 0;
NamedBarrier named_barriers[kNamedBarriers];
void (*kernel_body)(void*) = nullptr;
void* kernel_context = nullptr;
Order thread_order = Order::kForward;

void to_scheduler() {
#ifdef AERIE_ASAN_FIBERS
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, scheduler_stack, scheduler_stack_bytes);
#endif
  switch_to(&running->context, &scheduler);
#ifdef AERIE_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_stack_bytes);
#endif
}

void resume(Fiber& fiber) {
  running = &fiber;
  thread_idx = fiber.thread;
#ifdef AERIE_ASAN_FIBERS
  void* fake = nullptr;
  __sanitizer_start_switch_fiber(&fake, fiber.stack, kStackBytes);
#endif
  switch_to(&scheduler, &fiber.context);
#ifdef AERIE_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}

void release(State from, unsigned first, unsigned last) {
  for (unsigned i = first; i < last && i < fibers.size(); ++i)
    if (fibers[i].state == from) fibers[i].state = State::kReady;
}

void check_barrier() {
  if (at_barrier == 0 || at_barrier < alive) return;
  at_barrier = 0;
  release(State::kAtBarrier, 0, static_cast<unsigned>(fibers.size()));
}

void check_warp(unsigned number) {
  Warp& warp = warps[number];
  if (warp.arrived == 0 || warp.arrived < warp.alive) return;
  warp.arrived = 0;
  ++warp.generation;
  release(State::kAtWarp, number * 32, number * 32 + 32);
}

void fiber_main() {
#ifdef AERIE_ASAN_FIBERS
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
#endif
  while (true) {
    kernel_body(kernel_context);
    running->state = State::kDone;
    --alive;
    --warps[running->index / 32].alive;
    check_barrier();
    check_warp(running->index / 32);
    to_scheduler();
  }
}

void prepare_fibers(unsigned count) {
  if (count > kMaxThreads || count == 0) stop("a block needs 1 to 1024 threads");
  if (fibers.capacity() == 0) fibers.reserve(kMaxThreads);
  while (fibers.size() < count) {
    Fiber fiber;
    void* stack = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) stop("no memory for a fiber's stack");
    fiber.stack = static_cast<unsigned char*>(stack);
    fiber.index = static_cast<unsigned>(fibers.size());
    fibers.push_back(fiber);
    make_context(&fibers.back().context, fibers.back().stack, fiber_main);
  }
}

std::vector<unsigned> order_of(unsigned count, uint64_t salt) {
  std::vector<unsigned> order(count);
  for (unsigned i = 0; i < count; ++i)
    order[i] = thread_order == Order::kReverse ? count - 1 - i : i;
  if (thread_order == Order::kShuffled) {
    RandomStream random(1, Purpose::kTest, 0, salt);
    for (unsigned i = count; i > 1; --i)
      std::swap(order[i - 1], order[static_cast<size_t>(random.below(i))]);
  }
  return order;
}

void run_block(Dim3 block, size_t shared_bytes, uint64_t number) {
  const unsigned count = block.x * block.y * block.z;
  warps.assign((count + 31) / 32, Warp());
  shared.clear();
  dynamic = shared_bytes > 0 ? block_shared(&dynamic, shared_bytes) : nullptr;
  alive = count;
  at_barrier = 0;
  for (unsigned i = 0; i < count; ++i) {
    fibers[i].state = State::kReady;
    fibers[i].thread = Dim3(i % block.x, i / block.x % block.y, i / block.x / block.y);
    ++warps[i / 32].alive;
  }
  begin_async(count);
  const std::vector<unsigned> order = order_of(count, number);
  while (alive > 0) {
    bool progress = false;
    for (const unsigned i : order) {
      Fiber& fiber = fibers[i];
      if (fiber.state == State::kWaiting && fiber.ready(fiber.wanted)) fiber.state = State::kReady;
      if (fiber.state != State::kReady) continue;
      resume(fiber);
      advance_async(false);
      progress = true;
    }
    if (progress || advance_async(true)) continue;
    for (unsigned i = 0; i < count; ++i)
      if (fibers[i].state == State::kWaiting) {
        thread_idx = fibers[i].thread;
        stop("nothing ends a thread's wait for ", fibers[i].what);
      }
    stop("threads wait for a barrier that the others never reach");
  }
  end_async();
  for (NamedBarrier& barrier : named_barriers)
    if (barrier.arrived != 0) stop("a block ends while some have come to a barrier");
  shared.clear();
}

}  // namespace

void stop(const char* text, const char* detail) {
  std::fprintf(stderr, "kernel emulation: %s%s (block %u,%u,%u thread %u,%u)\n", text, detail,
               block_idx.x, block_idx.y, block_idx.z, thread_idx.x, thread_idx.y);
  std::abort();
}

void set_order(Order order) {
  thread_order = order;
}

Order order() {
  return thread_order;
}

void run_grid(Dim3 grid, Dim3 block, size_t shared_bytes, void (*body)(void*), void* context) {
  prepare_fibers(block.x * block.y * block.z);
  kernel_body = body;
  kernel_context = context;
  block_dim = block;
  grid_dim = grid;
  uint64_t number = 0;
  for (unsigned z = 0; z < grid.z; ++z)
    for (unsigned y = 0; y < grid.y; ++y)
      for (unsigned x = 0; x < grid.x; ++x) {
        block_idx = Dim3(x, y, z);
        run_block(block, shared_bytes, number++);
      }
}

void* block_shared(const void* tag, size_t bytes) {
  for (const Shared& entry : shared)
    if (entry.tag == tag) return entry.memory.get();
  void* memory = nullptr;
  if (posix_memalign(&memory, 128, bytes) != 0) stop("no memory for shared memory");
  std::memset(memory, 0xFF, bytes);
  const uint32_t end = shared.empty() ? 0 : shared.back().address + uint32_t(shared.back().bytes);
  shared.push_back({tag,
                    {static_cast<unsigned char*>(memory), &std::free},
                    bytes,
                    (end + 1023) / 1024 * 1024 + 1024 + 16});
  return memory;
}

uint32_t shared_address(const void* p) {
  const unsigned char* const at = static_cast<const unsigned char*>(p);
  for (const Shared& entry : shared)
    if (at >= entry.memory.get() && at <= entry.memory.get() + entry.bytes)
      return entry.address + uint32_t(at - entry.memory.get());
  stop("a pointer that is not to shared memory");
}

void* shared_pointer(uint32_t address, size_t bytes) {
  for (const Shared& entry : shared)
    if (address >= entry.address && address + bytes <= entry.address + entry.bytes)
      return entry.memory.get() + (address - entry.address);
  stop("an address outside shared memory");
}

void* dynamic_shared() {
  return dynamic;
}

void sync_block() {
  ++at_barrier;
  if (at_barrier == alive) {
    check_barrier();
    return;
  }
  running->state = State::kAtBarrier;
  to_scheduler();
}

void named_barrier(unsigned number, unsigned threads, bool waits) {
  if (number == 0 || number >= kNamedBarriers) stop("named barriers are 1 to 15");
  NamedBarrier& barrier = named_barriers[number];
  if (barrier.arrived == 0) barrier.threads = threads;
  if (barrier.threads != threads) stop("threads differ in how many a barrier is for");
  if (++barrier.arrived == threads) {
    barrier.arrived = 0;
    for (Fiber& fiber : fibers)
      if (fiber.state == State::kAtNamed && fiber.barrier == number) fiber.state = State::kReady;
    return;
  }
  if (!waits) return;
  running->state = State::kAtNamed;
  running->barrier = number;
  to_scheduler();
}

void wait_until(bool (*ready)(const void*), const void* context, const char* what) {
  if (ready(context)) return;
  running->ready = ready;
  running->wanted = context;
  running->what = what;
  running->state = State::kWaiting;
  to_scheduler();
}

unsigned thread_index() {
  return running->index;
}

unsigned lane_index() {
  return running->index % 32;
}

const Slot* exchange(const char* what, const void* data, size_t bytes) {
  Warp& warp = warps[running->index / 32];
  if (warp.arrived == 0) warp.what = what;
  if (std::strcmp(warp.what, what) != 0) stop("lanes of a warp differ in their operation: ", what);
  const Slot* slots = warp.slots[warp.generation % 2];
  if (bytes > 0)
    std::memcpy(warp.slots[warp.generation % 2][running->index % 32].bytes, data, bytes);
  ++warp.arrived;
  if (warp.arrived == warp.alive) {
    check_warp(running->index / 32);
    return slots;
  }
  running->state = State::kAtWarp;
  to_scheduler();
  return slots;
}

}  // namespace aerie::kernels::emulation
