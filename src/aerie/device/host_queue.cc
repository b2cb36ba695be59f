#include <cstring>
#include <utility>

#include "aerie/device/queue.h"

namespace aerie::device {
namespace {

Status kernel_status(int code, const char* what) {
  return code == 0 ? ok_status() : internal_error(str_cat(what, ": kernel error ", code));
}

class HostFence final : public Fence {
 public:
  Status set() override { return ok_status(); }
  bool passed() override { return true; }
  Status wait() override { return ok_status(); }
};

class HostRecording final : public Recording {
 public:
  explicit HostRecording(std::function<int(void*)> work) : work_(std::move(work)) {}
  Status queue() override { return kernel_status(work_(nullptr), "recorded work"); }

 private:
  std::function<int(void*)> work_;
};

class HostQueue final : public Queue {
 public:
  explicit HostQueue(const kernels::KernelTable& kernels) : kernels_(kernels) {}
  const kernels::KernelTable& kernels() const override { return kernels_; }
  void* stream() const override { return nullptr; }
  Status copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return ok_status();
  }
  Result<std::unique_ptr<Fence>> make_fence() override {
    return std::unique_ptr<Fence>(std::make_unique<HostFence>());
  }
  Status wait_for(Fence&) override { return ok_status(); }
  Result<std::unique_ptr<Recording>> record(std::function<int(void*)> work) override {
    return std::unique_ptr<Recording>(std::make_unique<HostRecording>(std::move(work)));
  }
  Status synchronize() override { return ok_status(); }
  Status status_of(int code, const char* what) const override { return kernel_status(code, what); }

 private:
  const kernels::KernelTable& kernels_;
};

}  // namespace

std::unique_ptr<Queue> host_queue(const kernels::KernelTable& kernels) {
  return std::make_unique<HostQueue>(kernels);
}

}  // namespace aerie::device
