#include "aerie/train/ranks/collective_times.h"

#include <algorithm>

#include <ATen/DeviceAccelerator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>

#include "aerie/base/clock.h"
#include "aerie/dist/torch_group.h"
#include "aerie/train/graph/torch_status.h"
#include "aerie/train/ranks/c10d_group.h"

namespace aerie::train {

Result<std::vector<CollectiveTime>> time_all_reduces(dist::ProcessGroup& group, int gpu_index,
                                                     const std::vector<int64_t>& bytes, int calls) {
  try {
    const at::NoGradGuard no_grad;
    const at::Device device = gpu_index < 0
                                  ? at::Device(at::kCPU)
                                  : at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(gpu_index));
    const auto ranks = make_rank_group(dist::torch_group(group));
    Clock& clock = Clock::real();
    std::vector<CollectiveTime> out;
    for (const int64_t size : bytes) {
      const at::Tensor values =
          at::ones({std::max<int64_t>(1, size / 4)}, at::TensorOptions(device).dtype(at::kFloat));
      std::vector<int64_t> times;  // nanoseconds
      // The first calls set up connections.
      for (int call = -2; call < calls; ++call) {
        if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
        AERIE_RETURN_IF_ERROR(group.barrier());
        const double begin = clock.monotonic_s();
        ranks->all_reduce({values}, RankGroup::Op::kSum)();
        if (!device.is_cpu()) at::accelerator::synchronizeDevice(device.index());
        const auto taken = static_cast<int64_t>((clock.monotonic_s() - begin) * 1e9);
        if (call >= 0) times.push_back(taken);
      }
      AERIE_RETURN_IF_ERROR(group.max(times));
      std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2),
                       times.end());
      out.push_back({values.numel() * 4, static_cast<double>(times[times.size() / 2]) * 1e-9});
    }
    return out;
  } catch (const std::exception& error) {
    return group.explain(torch_status(error)).with_context("timing all-reduces");
  }
}

}  // namespace aerie::train
