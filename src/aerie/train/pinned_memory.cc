#include "aerie/train/pinned_memory.h"

#include <algorithm>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <vector>

#include "aerie/base/log.h"
#include "aerie/device/gpu.h"

namespace aerie::train {
namespace {

// Plain memory whose pages are locked once it has been filled for the first time: batches can be
// read while the CUDA libraries load and the context is made, by as many threads as there are, and
// locking pages that are there already is quick.
class PinnedAllocator final : public data::HostAllocator {
 public:
  explicit PinnedAllocator(int gpu_index) : gpu_index_(gpu_index) {}

  void* allocate(size_t bytes) override {
    return data::HostAllocator::pageable().allocate(whole_pages(bytes));
  }

  void settle(void* data, size_t bytes) override {
    const Status status = lock(data, whole_pages(bytes));
    if (status.ok()) {
      const std::lock_guard guard(mutex_);
      locked_.insert(data);
      return;
    }
    static std::once_flag warned;
    std::call_once(warned, [&] {
      log_warn("data", "batches stay in pageable memory, which a GPU copies more slowly: ",
               status.to_string());
    });
  }

  void deallocate(void* data, size_t bytes) override {
    if (take_locked(data)) {
      const auto module = device::gpu_module();
      if (module.ok() && (*module)->make_context(gpu_index_).ok()) (*module)->unlock_pages(data);
    }
    data::HostAllocator::pageable().deallocate(data, whole_pages(bytes));
  }

  const char* kind() const override { return "pinned"; }

 private:
  // No page may hold anything else: at least one huge page, at whose start such a block lies.
  static size_t whole_pages(size_t bytes) {
    constexpr size_t kHugePage = size_t{2} << 20;
    return (std::max<size_t>(1, bytes) + kHugePage - 1) / kHugePage * kHugePage;
  }

  Status lock(void* data, size_t bytes) const {
    AERIE_ASSIGN_OR_RETURN(device::GpuModule* const module, device::gpu_module());
    // From a thread that has not chosen a device this would make a context on the first one.
    AERIE_RETURN_IF_ERROR(module->make_context(gpu_index_));
    return module->lock_pages(data, bytes);
  }

  bool take_locked(void* data) {
    const std::lock_guard guard(mutex_);
    return locked_.erase(data) > 0;
  }

  int gpu_index_;
  std::mutex mutex_;
  std::unordered_set<void*> locked_;
};

}  // namespace

data::HostAllocator* pinned_memory(int64_t gpu_index) {
  const size_t gpus = device::driver().gpus.size();
  if (gpu_index < 0 || static_cast<size_t>(gpu_index) >= gpus) return nullptr;
  static const auto* const allocators = [gpus]() {
    auto* out = new std::vector<std::unique_ptr<PinnedAllocator>>;
    for (size_t i = 0; i < gpus; ++i)
      out->push_back(std::make_unique<PinnedAllocator>(static_cast<int>(i)));
    return out;
  }();
  return (*allocators)[static_cast<size_t>(gpu_index)].get();
}

}  // namespace aerie::train
