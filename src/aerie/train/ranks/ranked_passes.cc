#include "aerie/train/ranks/ranked_passes.h"

#include <algorithm>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "aerie/nn/exchanged_norm.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::train {
namespace {

constexpr int kMostParts = 16;

}  // namespace

FlatParts parts_as_declared(const nn::ParameterRegistry& registry) {
  const auto count = static_cast<int64_t>(registry.trainable().size());
  const int parts = static_cast<int>(std::clamp<int64_t>(count, 1, kMostParts));
  int64_t next = 0;
  return make_flat_parts(registry, parts, [&](const nn::ParamInfo&) {
    return static_cast<int>(next++ * parts / count);
  });
}

Status RankedPasses::set_reducer(GradientReducer* reducer, const FlatParts& parts) {
  watch_.reset();
  reducer_ = nullptr;
  if (reducer == nullptr) return ok_status();
  AERIE_RETURN_IF_ERROR(reducer->attach(registry_.flat_grads().mutable_data_ptr<float>(), parts));
  if (!reducer->watches_backward()) watch_ = std::make_unique<BackwardWatch>(registry_, parts);
  num_parts_ = parts.size();
  reducer_ = reducer;
  return ok_status();
}

void RankedPasses::set_exchange(kernels::ExchangeSums exchange, std::vector<Exchanged> forward) {
  exchange_ = nullptr;
  script_ = std::move(forward);
  script_done_ = !script_.empty();
  if (script_done_) mirror_script();
  if (!exchange) return;
  exchange_ = [this, exchange = std::move(exchange)](const kernels::ExchangedSums& sums, void* on) {
    ++exchanges_;
    if (!script_done_) note(sums);
    return exchange(sums, on);
  };
}

void* RankedPasses::stream() const {
  const at::Device device = registry_.device();
  if (device.is_cpu()) return nullptr;
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device).native_handle();
}

void RankedPasses::open_window() {
  begun_ = code_ = 0;
  reduced_ = false;
}

void RankedPasses::begin_part(int part) {
  ++begun_;
  const int code = reducer_->begin(part, stream());
  if (code_ == 0) code_ = code;
}

Status RankedPasses::backward(const at::Tensor& loss, bool last, bool whole,
                              const std::function<void()>& run) {
  const bool itself = last && reducer_ != nullptr && reducer_->watches_backward();
  const bool watched = last && reducer_ != nullptr && !itself && whole;
  enter(dist::Phase::kBackward);
  if (itself) AERIE_RETURN_IF_ERROR(reducer_->before_backward(loss));
  if (watched) watch_->arm([this](int part) { begin_part(part); });
  run();
  if (watched) watch_->finish();
  script_done_ = true;
  if (!itself) return ok_status();
  reduced_ = true;
  return reducer_->after_backward();
}

Status RankedPasses::learn_script() {
  if (script_done_) return ok_status();
  if (!rehearsal_)
    return invalid_argument("this rank has no samples in its first step")
        .with_hint("train on fewer devices, or with a smaller batch on each");
  script_.clear();
  AERIE_RETURN_IF_ERROR(rehearsal_([this](const kernels::ExchangedSums& sums, void*) {
    note(sums);
    return 0;
  }));
  mirror_script();
  script_done_ = true;
  return ok_status();
}

void RankedPasses::note(const kernels::ExchangedSums& sums) {
  script_.push_back({sums.layer, sums.count / 2, sums.layer, sums.backward});
}

// Autograd runs what is ready in the reverse order of its making, and whatever a layer's gradient
// waits for was made behind it: layers come back in exactly the reverse order.
void RankedPasses::mirror_script() {
  for (size_t i = script_.size(); i-- > 0;) {
    script_.push_back(script_[i]);
    script_.back().backward = true;
  }
}

Status RankedPasses::exchange_nothing() {
  const Exchanged& next = script_[static_cast<size_t>(exchanges_) % script_.size()];
  nn::ExchangedNorm norm;
  norm.exchange = &exchange_;
  norm.layer = next.layer;
  try {
    const at::NoGradGuard no_grad;
    norm.running_mean = registry_.tensor(next.weight + 2);
    norm.running_var = registry_.tensor(next.weight + 3);
    if (nn::exchange_no_frames(norm, next.channels, registry_.device(), next.backward) &&
        !next.backward)
      registry_.tensor(next.weight + 4).add_(1);
    return ok_status();
  } catch (const std::exception& error) {
    return torch_status(error).with_context("a pass without samples");
  }
}

Status RankedPasses::without_samples() {
  if (!exchange_) return ok_status();
  AERIE_RETURN_IF_ERROR(learn_script());
  for (size_t i = 0; i < script_.size(); ++i) AERIE_RETURN_IF_ERROR(exchange_nothing());
  return ok_status();
}

// What no backward pass has begun, as on a rank without samples.
Status RankedPasses::begin_rest(std::span<uint8_t> has_grad) {
  if (!reducer_->watches_backward()) {
    while (begun_ < num_parts_) begin_part(num_parts_ - 1 - begun_);
    return ok_status();
  }
  if (std::exchange(reduced_, true)) return ok_status();
  // Zero gradients for everything are none.
  const std::vector<uint8_t> flags(has_grad.begin(), has_grad.end());
  const at::AutoGradMode enable(true);
  AERIE_RETURN_IF_ERROR(reducer_->before_backward({}));
  AERIE_RETURN_IF_ERROR(reducer_->after_backward());
  std::copy(flags.begin(), flags.end(), has_grad.begin());
  return ok_status();
}

Status RankedPasses::finish_parts() {
  const int code = reducer_->finish(stream());
  if (code_ == 0) code_ = code;
  return code_ == 0 ? ok_status() : reducer_->error(code_);
}

Status RankedPasses::agree(Status status, int64_t passes, bool ends_window,
                           std::span<uint8_t> has_grad,
                           const std::function<Status(const Status&)>& vote) {
  const bool failed = status.code() == StatusCode::kOutOfMemory;
  if (!status.ok() && !failed) return status;  // ends this rank, and thereby all
  if (failed && ends_window && reducer_->watches_backward())
    return internal_error(status.message())
        .with_hint(
            "other ranks are in the middle of this step: use smaller batches, or set "
            "trainer.strategy.gradient_as_bucket_view=true, which can try again with smaller "
            "parts");
  if (failed && exchange_) {
    // The others wait in theirs.
    AERIE_RETURN_IF_ERROR(learn_script());
    const int64_t all = passes * static_cast<int64_t>(script_.size());
    while (exchanges_ < all) AERIE_RETURN_IF_ERROR(exchange_nothing());
  }
  // In the order of those that have begun them in their passes.
  if (ends_window) AERIE_RETURN_IF_ERROR(begin_rest(has_grad));
  if (vote) {
    status = vote(status);
  } else {
    uint8_t any = failed ? 1 : 0;
    AERIE_RETURN_IF_ERROR(reducer_->unite(std::span(&any, 1)));
    if (any != 0 && !failed) status = out_of_memory("another rank has no memory for its batch");
  }
  if (status.code() == StatusCode::kOutOfMemory && ends_window && !reducer_->watches_backward())
    AERIE_RETURN_IF_ERROR(finish_parts());
  return status;
}

Status RankedPasses::finish(std::span<uint8_t> has_grad) {
  AERIE_RETURN_IF_ERROR(begin_rest(has_grad));
  if (!reducer_->watches_backward()) AERIE_RETURN_IF_ERROR(finish_parts());
  enter(dist::Phase::kUpdate);
  return reducer_->unite(has_grad);
}

}  // namespace aerie::train
