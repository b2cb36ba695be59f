#include "aerie/train/ranks/collective_times.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>

#include "aerie/base/clock.h"
#include "aerie/dist/torch_group.h"
#include "aerie/train/graph/torch_status.h"
#include "aerie/train/ranks/c10d_group.h"

namespace aerie::train {
namespace {

// Median over the calls of the slowest rank's time; seconds.
Result<double> slowest(dist::ProcessGroup& group, std::vector<int64_t> times_ns) {
  AERIE_RETURN_IF_ERROR(group.max(times_ns));
  const auto middle = times_ns.begin() + static_cast<std::ptrdiff_t>(times_ns.size() / 2);
  std::nth_element(times_ns.begin(), middle, times_ns.end());
  return static_cast<double>(*middle) * 1e-9;
}

class GlooLoad final : public ReductionLoad {
 public:
  GlooLoad(dist::ProcessGroup& group, c10::intrusive_ptr<c10d::ProcessGroup> own, int64_t bytes,
           int64_t piece)
      : group_(group),
        ranks_(make_rank_group(std::move(own))),
        values_(at::ones({std::max<int64_t>(1, bytes / 4)}, at::kFloat)),
        piece_(std::clamp<int64_t>(piece / 4, 1, values_.numel())),
        thread_([this] { run(); }) {}
  ~GlooLoad() override { end(); }

  Result<double> stop() override {
    end();
    if (!failure_.ok()) return group_.explain(failure_).with_context("all-reduces beside steps");
    return slowest(group_, times_ns_);
  }

 private:
  void end() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }

  // Goes on until all ranks have said that they are done: each makes the same calls.
  void run() {
    try {
      const at::NoGradGuard no_grad;
      Clock& clock = Clock::real();
      at::Tensor goes_on = at::ones({1}, at::kFloat);
      for (int64_t at = 0; goes_on.const_data_ptr<float>()[0] > 0.0f; at += piece_) {
        if (at + piece_ > values_.numel()) at = 0;
        const double begin = clock.monotonic_s();
        ranks_->all_reduce({values_.narrow(0, at, piece_)}, RankGroup::Op::kMax)();
        times_ns_.push_back(static_cast<int64_t>((clock.monotonic_s() - begin) * 1e9));
        goes_on.fill_(ends_ ? 0.0 : 1.0);
        ranks_->all_reduce({goes_on}, RankGroup::Op::kMax)();
      }
    } catch (const std::exception& error) {
      failure_ = torch_status(error);
    }
  }

  dist::ProcessGroup& group_;
  std::unique_ptr<RankGroup> ranks_;
  at::Tensor values_;
  int64_t piece_;
  std::atomic<bool> ends_{false};
  std::vector<int64_t> times_ns_;
  Status failure_;
  std::thread thread_;
};

}  // namespace

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
      AERIE_ASSIGN_OR_RETURN(const double seconds, slowest(group, std::move(times)));
      out.push_back({values.numel() * 4, seconds});
    }
    return out;
  } catch (const std::exception& error) {
    return group.explain(torch_status(error)).with_context("timing all-reduces");
  }
}

Result<double> time_copies(dist::ProcessGroup& group, int64_t bytes, int calls) {
  try {
    const at::NoGradGuard no_grad;
    Clock& clock = Clock::real();
    const at::Tensor from = at::ones({std::max<int64_t>(1, bytes / 4)}, at::kFloat);
    at::Tensor to = at::ones_like(from);
    std::vector<int64_t> times;
    for (int call = 0; call < calls; ++call) {
      AERIE_RETURN_IF_ERROR(group.barrier());
      const double begin = clock.monotonic_s();
      to.copy_(from);
      times.push_back(static_cast<int64_t>((clock.monotonic_s() - begin) * 1e9));
    }
    return slowest(group, std::move(times));
  } catch (const std::exception& error) {
    return torch_status(error).with_context("timing copies");
  }
}

Result<std::unique_ptr<ReductionLoad>> ReductionLoad::start(dist::ProcessGroup& group,
                                                            int64_t bytes, int64_t piece) {
  try {
    AERIE_ASSIGN_OR_RETURN(auto own, dist::another_torch_group(group, "load"));
    return std::unique_ptr<ReductionLoad>(
        std::make_unique<GlooLoad>(group, std::move(own), bytes, piece));
  } catch (const std::exception& error) {
    return torch_status(error).with_context("all-reduces beside steps");
  }
}

}  // namespace aerie::train
