#include <cstring>
#include <utility>

#include "aerie/device/stream.h"

namespace aerie::device {
namespace {

Status kernel_status(int code, const char* what) {
  return code == 0 ? ok_status() : internal_error(str_cat(what, ": kernel error ", code));
}

class HostEvent final : public Event {
 public:
  Status record() override { return ok_status(); }
  bool passed() override { return true; }
  Status wait() override { return ok_status(); }
};

class HostGraph final : public Graph {
 public:
  explicit HostGraph(std::function<int(void*)> work) : work_(std::move(work)) {}
  Status launch() override { return kernel_status(work_(nullptr), "captured work"); }

 private:
  std::function<int(void*)> work_;
};

class HostStream final : public Stream {
 public:
  explicit HostStream(const kernels::KernelTable& kernels) : kernels_(kernels) {}
  const kernels::KernelTable& kernels() const override { return kernels_; }
  void* handle() const override { return nullptr; }
  Status copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
    return ok_status();
  }
  Result<std::unique_ptr<Event>> make_event() override {
    return std::unique_ptr<Event>(std::make_unique<HostEvent>());
  }
  Status wait_for(Event&) override { return ok_status(); }
  Result<std::unique_ptr<Graph>> capture(std::function<int(void*)> work) override {
    return std::unique_ptr<Graph>(std::make_unique<HostGraph>(std::move(work)));
  }
  Status synchronize() override { return ok_status(); }
  Status status_of(int code, const char* what) const override { return kernel_status(code, what); }

 private:
  const kernels::KernelTable& kernels_;
};

}  // namespace

std::unique_ptr<Stream> host_stream(const kernels::KernelTable& kernels) {
  return std::make_unique<HostStream>(kernels);
}

}  // namespace aerie::device
