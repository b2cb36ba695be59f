#include "aerie/train/nest/pinned_memory.h"

#include "aerie/device/gpu.h"

namespace aerie::train {
namespace {

class PinnedAllocator final : public data::HostAllocator {
 public:
  explicit PinnedAllocator(device::GpuModule* module) : module_(module) {}
  void* allocate(size_t bytes) override {
    auto block = module_->allocate_pinned(bytes);
    return block.ok() ? *block : nullptr;
  }
  void deallocate(void* data, size_t) override { module_->free_pinned(data); }
  const char* kind() const override { return "pinned"; }

 private:
  device::GpuModule* module_;
};

}  // namespace

data::HostAllocator* pinned_memory() {
  if (device::driver().gpus.empty()) return nullptr;
  static data::HostAllocator* const allocator = []() -> data::HostAllocator* {
    auto module = device::gpu_module();
    return module.ok() ? new PinnedAllocator(*module) : nullptr;
  }();
  return allocator;
}

}  // namespace aerie::train
