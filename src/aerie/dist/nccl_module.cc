// libaerie_nccl.so: ProcessGroupNCCL for the executable, which does not link torch's CUDA library.
#include <chrono>

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "aerie/dist/nccl_backend.h"

// The library must be the one this was compiled for: classes of torch are laid out by its version.
static_assert(NCCL_MAJOR == 2 && NCCL_MINOR == 28, "torch 2.11 is built with NCCL 2.28");

extern "C" __attribute__((visibility("default"))) void aerie_nccl_backend_1(
    const c10::intrusive_ptr<c10d::Store>& store, const aerie::dist::NcclOptions& options,
    c10::intrusive_ptr<c10d::Backend>* backend) {
  c10::cuda::set_device(static_cast<c10::DeviceIndex>(options.gpu_index));
  const auto nccl_options =
      c10d::ProcessGroupNCCL::Options::create(/*is_high_priority_stream=*/true);
  nccl_options->timeout = std::chrono::milliseconds(options.timeout_ms);
  auto nccl =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(store, options.rank, options.size, nccl_options);
  const at::Device device(at::kCUDA, static_cast<c10::DeviceIndex>(options.gpu_index));
  nccl->setBoundDeviceId(device);
  nccl->setSequenceNumberForGroup();
  // Now rather than at the first collective, so that a wrong set-up shows before the data is read.
  nccl->eagerConnectSingleDevice(device);
  *backend = std::move(nccl);
}
