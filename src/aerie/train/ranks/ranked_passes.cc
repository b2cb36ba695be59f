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

Result<std::unique_ptr<RankedPasses>> RankedPasses::create(std::shared_ptr<EngineRanks> ranks,
                                                           nn::ParameterRegistry& registry) {
  std::unique_ptr<RankedPasses> out(new RankedPasses(std::move(ranks), registry));
  // Parameters are declared in about the order in which a forward pass uses them.
  const auto count = static_cast<int64_t>(registry.trainable().size());
  const int parts = static_cast<int>(std::clamp<int64_t>(count, 1, kMostParts));
  int64_t next = 0;
  const FlatParts flat = make_flat_parts(registry, parts, [&](const nn::ParamInfo&) {
    return static_cast<int>(next++ * parts / count);
  });
  out->num_parts_ = flat.size();
  AERIE_RETURN_IF_ERROR(
      out->reducer().attach(registry.flat_grads().mutable_data_ptr<float>(), flat));
  if (!out->reducer().watches_backward())
    out->watch_ = std::make_unique<BackwardWatch>(registry, flat);
  if (out->ranks_->exchange())
    out->exchange_ = [self = out.get()](const kernels::ExchangedSums& sums, void* on) {
      ++self->exchanges_;
      if (!self->script_done_) self->script_.push_back({sums.layer, sums.backward, sums.count});
      return self->ranks_->exchange()(sums, on);
    };
  return out;
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
  const int code = reducer().begin(part, stream());
  if (code_ == 0) code_ = code;
}

Status RankedPasses::backward(const at::Tensor& loss, bool last, bool whole,
                              const std::function<void()>& run) {
  const bool itself = last && reducer().watches_backward();
  const bool watched = last && !itself && whole;
  ranks_->group().set_phase(dist::Phase::kBackward);
  if (itself) AERIE_RETURN_IF_ERROR(reducer().before_backward(loss));
  if (watched) watch_->arm([this](int part) { begin_part(part); });
  run();
  if (watched) watch_->finish();
  script_done_ = true;
  if (!itself) return ok_status();
  reduced_ = true;
  return reducer().after_backward();
}

// Autograd runs what is ready in the reverse order of its making, and whatever a layer's gradient
// waits for was made behind it: layers come back in exactly the reverse order.
Status RankedPasses::learn_script() {
  if (script_done_) return ok_status();
  if (!rehearsal_)
    return invalid_argument("this rank has no samples in its first step")
        .with_hint("train on fewer devices, or with a smaller batch on each");
  script_.clear();
  const kernels::ExchangeSums note = [this](const kernels::ExchangedSums& sums, void*) {
    script_.push_back({sums.layer, sums.backward, sums.count});
    return 0;
  };
  AERIE_RETURN_IF_ERROR(rehearsal_(note));
  for (size_t i = script_.size(); i-- > 0;)
    script_.push_back({script_[i].layer, /*backward=*/true, script_[i].count - 1});
  script_done_ = true;
  return ok_status();
}

Status RankedPasses::exchange_nothing() {
  const Exchanged& next = script_[static_cast<size_t>(exchanges_) % script_.size()];
  const int64_t channels = next.backward ? next.count / 2 : (next.count - 1) / 2;
  nn::ExchangedNorm norm;
  norm.exchange = &exchange_;
  norm.layer = next.layer;
  try {
    const at::NoGradGuard no_grad;
    // Layers are numbered by their weight; statistics are declared behind it.
    norm.running_mean = registry_.tensor(next.layer + 2);
    norm.running_var = registry_.tensor(next.layer + 3);
    if (nn::exchange_no_frames(norm, channels, registry_.device(), next.backward) && !next.backward)
      registry_.tensor(next.layer + 4).add_(1);
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
  if (!reducer().watches_backward()) {
    while (begun_ < num_parts_) begin_part(num_parts_ - 1 - begun_);
    return ok_status();
  }
  if (std::exchange(reduced_, true)) return ok_status();
  // Zero gradients for everything are none.
  const std::vector<uint8_t> flags(has_grad.begin(), has_grad.end());
  const at::AutoGradMode enable(true);
  AERIE_RETURN_IF_ERROR(reducer().before_backward({}));
  AERIE_RETURN_IF_ERROR(reducer().after_backward());
  std::copy(flags.begin(), flags.end(), has_grad.begin());
  return ok_status();
}

Status RankedPasses::finish_parts() {
  const int code = reducer().finish(stream());
  if (code_ == 0) code_ = code;
  return code_ == 0 ? ok_status() : reducer().error(code_);
}

Status RankedPasses::agree(Status status, int64_t passes, bool ends_window,
                           std::span<uint8_t> has_grad,
                           const std::function<Status(const Status&)>& vote) {
  const bool failed = status.code() == StatusCode::kOutOfMemory;
  if (!status.ok() && !failed) return status;  // ends this rank, and thereby all
  if (failed && ends_window && reducer().watches_backward())
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
    AERIE_RETURN_IF_ERROR(reducer().unite(std::span(&any, 1)));
    if (any != 0 && !failed) status = out_of_memory("another rank has no memory for its batch");
  }
  if (status.code() == StatusCode::kOutOfMemory && ends_window && !reducer().watches_backward())
    AERIE_RETURN_IF_ERROR(finish_parts());
  return status;
}

Status RankedPasses::finish(std::span<uint8_t> has_grad) {
  AERIE_RETURN_IF_ERROR(begin_rest(has_grad));
  if (!reducer().watches_backward()) AERIE_RETURN_IF_ERROR(finish_parts());
  ranks_->group().set_phase(dist::Phase::kUpdate);
  return reducer().unite(has_grad);
}

}  // namespace aerie::train
