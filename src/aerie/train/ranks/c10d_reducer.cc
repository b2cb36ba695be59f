#include "aerie/train/ranks/c10d_reducer.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <torch/csrc/distributed/c10d/logger.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>

#include "aerie/base/late_span.h"
#include "aerie/train/graph/torch_status.h"
#include "aerie/train/ranks/c10d_group.h"

namespace aerie::train {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

std::optional<at::ScalarType> narrow_type(Compression compression) {
  switch (compression) {
    case Compression::kFp16:
      return at::kHalf;
    case Compression::kBf16:
      return at::kBFloat16;
    case Compression::kNone:
      break;
  }
  return std::nullopt;
}

// Divides a bucket, in 16 bits where asked for (as torch's compression hooks do), adds it up over
// the ranks and hands it back.
class BucketHook final : public c10d::CppCommHookInterface<Group> {
 public:
  BucketHook(Group group, std::optional<at::ScalarType> narrow, bool by_gloo)
      : CppCommHookInterface(std::move(group)), narrow_(narrow), by_gloo_(by_gloo) {}
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const at::Tensor whole = bucket.getBufferRef();
    at::Tensor sent = narrow_ ? whole.to(*narrow_) : whole;
    sent.div_(state_->getSize());
    std::vector<at::Tensor> tensors{sent};
    const auto work = state_->allreduce(tensors);
    const bool staged = by_gloo_ && whole.is_cuda();
    return work->getFuture()->then(
        [whole, sent, work, staged](c10::ivalue::Future&) {
          std::optional<c10::DeviceGuard> guard;
          if (staged) {
            guard.emplace(whole.device());
            work->synchronize();
          }
          if (!sent.is_same(whole)) whole.copy_(sent);
          if (staged) wait_for_stream(whole.device());
          return c10::IValue(whole);
        },
        c10::TensorType::get());
  }

 private:
  // Gloo's future is complete before its copy back to the device is, and nobody who waits for the
  // future waits for that copy.
  static void wait_for_stream(at::Device device) {
    c10::Event copied(device.type());
    copied.record(at::accelerator::getCurrentStream(device.index()));
    copied.synchronize();
  }

  std::optional<at::ScalarType> narrow_;
  bool by_gloo_;
};

class C10dReducer final : public GradientReducer {
 public:
  C10dReducer(Group group, nn::ParameterRegistry& registry, C10dReducerOptions options)
      : options_(std::move(options)) {
    std::unordered_map<size_t, std::string> names;
    for (const int64_t index : registry.trainable()) {
      names[params_.size()] = registry.entries()[static_cast<size_t>(index)].name;
      params_.push_back(registry.tensor(index));
      counters_.bytes += params_.back().numel() * 4;
    }
    used_ = std::make_shared<std::vector<uint8_t>>(params_.size(), 0);
    for (size_t i = 0; i < params_.size(); ++i)
      hooks_.push_back(
          params_[i].register_hook([used = used_, last = last_grad_, i](const at::Tensor& grad) {
            if (grad.defined()) (*used)[i] = 1;
            *last = span_moment();
          }));
    const std::vector<bool> sparse(params_.size(), false);
    const auto first = static_cast<size_t>(options_.first_bucket_bytes);
    const auto rest = static_cast<size_t>(options_.bucket_bytes);
    // Sizes matter from the second step on, when the order of the backward pass is known, unless
    // nobody will ask for it.
    const bool rebuilds = options_.static_graph || !options_.find_unused;
    const auto planned =
        std::get<0>(c10d::compute_bucket_assignment_by_size(params_, {first, rest}, sparse));
    counters_.buckets = static_cast<int64_t>(planned.size());
    auto buckets = rebuilds ? std::get<0>(c10d::compute_bucket_assignment_by_size(
                                  params_, {std::numeric_limits<size_t>::max()}, sparse))
                            : planned;
    std::reverse(buckets.begin(), buckets.end());
    if (options_.compression != Compression::kNone) counters_.bytes /= 2;
    reducer_ = std::make_shared<c10d::Reducer>(
        params_, std::move(buckets), group, sparse, options_.bucket_bytes, options_.find_unused,
        /*gradient_as_bucket_view=*/false, std::move(names), options_.first_bucket_bytes,
        /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        std::vector<int64_t>());
    // It is told, without asking, that the graph has changed.
    logger_ = std::make_shared<c10d::Logger>(reducer_);
    reducer_->set_logger(logger_);
    if (options_.static_graph) reducer_->set_static_graph();
    const bool staged =
        registry.device().is_cuda() &&
        group->getBackend(registry.device().type())->getBackendName() != std::string("nccl");
    if (options_.compression == Compression::kFp16 && !staged)
      reducer_->register_builtin_comm_hook(c10d::BuiltinCommHookType::FP16_COMPRESS);
    else if (options_.compression != Compression::kNone || staged)
      reducer_->register_comm_hook(
          std::make_unique<BucketHook>(group, narrow_type(options_.compression), staged));
    // Values and flags take the same way as with flat gradients.
    FlatReducerOptions others;
    others.explain = options_.explain;
    values_ = make_flat_reducer(
        options_.values != nullptr ? options_.values : make_rank_group(std::move(group)),
        registry.device(), std::move(others));
  }

  ~C10dReducer() override {
    for (size_t i = 0; i < params_.size(); ++i) params_[i].remove_hook(hooks_[i]);
  }

  Status attach(float*, const FlatParts&) override { return ok_status(); }
  int begin(int, void*) override { return 0; }
  int finish(void*) override { return 0; }
  int add_up(float* values, int64_t count, void* stream) override {
    return values_->add_up(values, count, stream);
  }
  int add_up_wide(double* values, int64_t count, void* stream) override {
    return values_->add_up_wide(values, count, stream);
  }
  Status unite(std::span<uint8_t> flags) override { return values_->unite(flags); }
  Status add_up_on_host(std::span<double> values) override {
    return values_->add_up_on_host(values);
  }
  Status error(int code) const override { return values_->error(code); }
  int world() const override { return values_->world(); }
  bool recordable() const override { return false; }
  ReducerCounters counters() const override { return counters_; }

  bool watches_backward() const override { return true; }

  Status before_backward(const at::Tensor& loss) override {
    try {
      reducer_->prepare_for_forward();
      const at::Tensor from = loss.defined() ? loss : nothing();
      std::vector<at::Tensor> outputs;
      if (options_.find_unused && !options_.static_graph) outputs.push_back(from);
      reducer_->prepare_for_backward(outputs);
      if (!loss.defined()) from.backward();
      return ok_status();
    } catch (const std::exception& error) {
      return failure(error);
    }
  }

  Status after_backward() override {
    try {
      if (options_.static_graph && counters_.steps == 0) reducer_->delay_all_reduce();
      // Behind the last gradient of its own a rank has waited for the others.
      add_span_since(kWaitSpan, last_grad_->exchange(0));
      reducer_->check_finalized();
      // By the order of the first pass; here, where no rank has anything else to wait for.
      reducer_->rebuild_buckets();
      ++counters_.steps;
      return ok_status();
    } catch (const std::exception& error) {
      return failure(error);
    }
  }

 private:
  // Zero, and zero gradients, for the parameters that other passes have used.
  at::Tensor nothing() const {
    const bool none = std::find(used_->begin(), used_->end(), 1) == used_->end();
    at::Tensor sum = at::zeros({}, params_.front().options().requires_grad(false));
    for (size_t i = 0; i < params_.size(); ++i)
      if (none || (*used_)[i] != 0) sum = sum + (params_[i] * 0.0).sum();
    return sum;
  }

  Status failure(const std::exception& error) const {
    if (std::string(error.what()).find("finished reduction in the prior iteration") !=
        std::string::npos)
      return invalid_argument("some parameters got no gradient in this step on this rank")
          .with_hint("trainer.strategy=ddp_find_unused_parameters_true waits for the others alone")
          .with_context("adding up gradients over ranks");
    const Status status = torch_status(error);
    return (options_.explain ? options_.explain(status) : status)
        .with_context("adding up gradients over ranks");
  }

  C10dReducerOptions options_;
  std::vector<at::Tensor> params_;
  std::vector<unsigned> hooks_;
  std::shared_ptr<std::vector<uint8_t>> used_;
  std::shared_ptr<std::atomic<int64_t>> last_grad_ = std::make_shared<std::atomic<int64_t>>(0);
  std::shared_ptr<c10d::Reducer> reducer_;
  std::shared_ptr<c10d::Logger> logger_;
  std::unique_ptr<GradientReducer> values_;
  ReducerCounters counters_;
};

}  // namespace

Result<std::unique_ptr<GradientReducer>> make_c10d_reducer(Group group,
                                                           nn::ParameterRegistry& registry,
                                                           C10dReducerOptions options) {
  try {
    return std::unique_ptr<GradientReducer>(
        std::make_unique<C10dReducer>(std::move(group), registry, std::move(options)));
  } catch (const std::exception& error) {
    return torch_status(error).with_context("setting up the reduction of gradients");
  }
}

}  // namespace aerie::train
