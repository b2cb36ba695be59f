#include "aerie/train/nest/pinned_memory.h"

#include <memory>
#include <vector>

#include "aerie/device/gpu.h"

namespace aerie::train {
namespace {

class PinnedAllocator final : public data::HostAllocator {
 public:
  PinnedAllocator(device::GpuModule* module, int gpu_index)
      : module_(module), gpu_index_(gpu_index) {}
  void* allocate(size_t bytes) override {
    // From a thread that has not chosen a device this would make a context on the first one.
    if (!module_->make_context(gpu_index_).ok()) return nullptr;
    auto block = module_->allocate_pinned(bytes);
    return block.ok() ? *block : nullptr;
  }
  void deallocate(void* data, size_t) override { module_->free_pinned(data); }
  const char* kind() const override { return "pinned"; }

 private:
  device::GpuModule* module_;
  int gpu_index_;
};

}  // namespace

data::HostAllocator* pinned_memory(int64_t gpu_index) {
  const size_t gpus = device::driver().gpus.size();
  if (gpu_index < 0 || static_cast<size_t>(gpu_index) >= gpus) return nullptr;
  static const auto* const allocators = [gpus]() {
    auto* out = new std::vector<std::unique_ptr<PinnedAllocator>>;
    if (const auto module = device::gpu_module(); module.ok())
      for (size_t i = 0; i < gpus; ++i)
        out->push_back(std::make_unique<PinnedAllocator>(*module, static_cast<int>(i)));
    return out;
  }();
  return allocators->empty() ? nullptr : (*allocators)[static_cast<size_t>(gpu_index)].get();
}

}  // namespace aerie::train
