#include "aerie/device/warm_up.h"

#include "aerie/base/clock.h"

namespace aerie::device {

GpuWarmUp::GpuWarmUp(int gpu_index, bool with_torch) {
  thread_ = std::thread([this, gpu_index, with_torch] {
    Clock& clock = Clock::real();
    const double start = clock.monotonic_s();
    const Result<GpuModule*> module = gpu_module();
    const double loaded = clock.monotonic_s();
    if (module.ok()) (void)(*module)->make_context(gpu_index);
    const double made = clock.monotonic_s();
    // Beside torch's libraries and whatever the caller does next: whoever needs a GEMM first
    // waits for the rest of it. An error would come again there.
    if (module.ok())
      cublas_ = std::thread([gpu = *module, gpu_index] { (void)gpu->load_cublas(gpu_index); });
    if (with_torch) (void)load_torch_cuda();
    times_.libraries_s = loaded - start + clock.monotonic_s() - made;
    times_.context_s = made - loaded;
  });
}

GpuWarmUp::~GpuWarmUp() {
  (void)wait();
  if (cublas_.joinable()) cublas_.join();
}

GpuWarmUp::Times GpuWarmUp::wait() {
  if (thread_.joinable()) thread_.join();
  return times_;
}

}  // namespace aerie::device
