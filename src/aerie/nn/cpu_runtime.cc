#include "aerie/nn/cpu_runtime.h"

#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>

#include <ATen/Parallel.h>

#include "aerie/base/system.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace aerie::nn {
namespace {

bool is_set(const char* name) {
  return std::getenv(name) != nullptr;
}

// A step allocates and frees the same large tensors over and over. By default glibc gives large
// blocks back to the kernel at once and asks for new, zeroed pages the next time: a third of the
// time of a step. Kept blocks cost the memory of the largest step, which it needs anyway.
void keep_freed_memory() {
#ifdef __GLIBC__
  if (is_set("MALLOC_MMAP_THRESHOLD_") || is_set("MALLOC_TRIM_THRESHOLD_")) return;
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 0x7fffffff);
  mallopt(M_TOP_PAD, 64 << 20);
#endif
}

// GNU's OpenMP lets a thread that waits for the others spin for milliseconds. On a machine that is
// also doing something else (our own loader is enough) the thread waited for may not even be
// running, and the wait burns what it needs: up to four times the CPU time for the same step. The
// library spins briefly when it manages more threads than there are CPUs, and offers no other
// switch once the process has started; a second team of threads that stays asleep is what it takes.
void spin_briefly() {
  if (is_set("OMP_WAIT_POLICY") || is_set("GOMP_SPINCOUNT")) return;
  const int threads = at::get_num_threads();
  if (threads < 2) return;
  std::mutex mutex;
  std::condition_variable changed;
  bool ready = false;
  std::thread([&, threads] {
    at::set_num_threads(threads);
    at::parallel_for(0, threads, 1, [](int64_t, int64_t) {});
    {
      std::lock_guard lock(mutex);
      ready = true;
      changed.notify_all();
    }
    // The team lives as long as the thread that made it.
    std::mutex forever;
    std::unique_lock lock(forever);
    std::condition_variable never;
    while (true) never.wait(lock);
  }).detach();
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return ready; });
}

// oneDNN remembers which tile configuration a thread has loaded; something else in the process
// (MKL's own products) releases it, and the next bf16 product ends in an illegal instruction. Seen
// with torch 2.11 on processors with AMX; the instructions below it are enough for a CPU. Must come
// before the first product.
void avoid_amx() {
  if (is_set("ONEDNN_MAX_CPU_ISA") || is_set("DNNL_MAX_CPU_ISA")) return;
  ::setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16", 0);
}

}  // namespace

void prepare_cpu_runtime() {
  static std::once_flag once;
  std::call_once(once, [] {
    keep_freed_memory();
    avoid_amx();
    // torch counts the machine's cores, not those this process may use.
    if (!is_set("OMP_NUM_THREADS")) at::set_num_threads(physical_core_count());
    spin_briefly();
  });
}

}  // namespace aerie::nn
