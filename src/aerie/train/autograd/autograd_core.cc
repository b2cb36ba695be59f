#include "aerie/train/autograd/autograd_core.h"

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/anomaly_mode.h>

#include "aerie/base/strings.h"
#include "aerie/device/gpu.h"
#include "aerie/nn/cpu_runtime.h"
#include "aerie/nn/dtype_policy.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::train {

// What passes change, as it was before them.
struct AutogradCore::Mark {
  bool window_open = false;
  at::Tensor grads;  // undefined: there were none
  std::vector<uint8_t> has_grad;
  std::vector<at::Tensor> statistics;
  int64_t divisor = 0, count = 0;
};

namespace {

bool is_statistic(const nn::ParamInfo& info) {
  if (!info.is_buffer || info.alias_of >= 0) return false;
  return ends_with(info.name, ".running_mean") || ends_with(info.name, ".running_var") ||
         ends_with(info.name, ".num_batches_tracked");
}

std::shared_ptr<std::vector<uint8_t>> watch_gradients(const nn::ParameterRegistry& registry) {
  auto flags = std::make_shared<std::vector<uint8_t>>(registry.trainable().size(), 0);
  for (size_t t = 0; t < flags->size(); ++t) {
    registry.tensor(registry.trainable()[t]).register_hook([flags, t](const at::Tensor& grad) {
      if (grad.defined()) (*flags)[t] = 1;
    });
  }
  return flags;
}

Result<config::Precision> precision_below(config::Precision precision, at::Device device) {
  if (precision != config::Precision::k16Mixed)
    return unsupported(
        str_cat("nothing to fall back to from precision ", config::precision_name(precision)));
  bool bf16 = true;
  if (device.is_cuda()) {
    const auto& gpus = device::driver().gpus;
    const auto index = static_cast<size_t>(std::max<int>(0, device.index()));
    bf16 = index < gpus.size() && gpus[index].compute_major >= 8;
  }
  return bf16 ? config::Precision::kBf16Mixed : config::Precision::k32;
}

}  // namespace

void set_process_switches(const config::TrainerConfig& trainer, config::Tf32 tf32,
                          at::Device device, bool fixed_workspace) {
  at::Context& context = at::globalContext();
  nn::set_tf32(tf32);
  const bool deterministic = trainer.deterministic != config::Deterministic::kNo;
  // Which algorithm is the fastest is another one the next time, and so are the last bits.
  context.setBenchmarkCuDNN(trainer.benchmark && !deterministic);
  // cuBLAS is repeatable only with a fixed workspace; it reads this when it starts.
  if ((deterministic || fixed_workspace) && device.is_cuda())
    ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", 0);
  context.setDeterministicCuDNN(deterministic);
  context.setDeterministicAlgorithms(deterministic,
                                     trainer.deterministic == config::Deterministic::kWarn);
  // Filling fresh memory with NaN is a debugging aid of that mode, not part of determinism.
  context.setDeterministicFillUninitializedMemory(false);
  nn::prepare_cpu_runtime();
}

std::function<void(const std::string&, const at::Tensor&)> first_nonfinite(std::string* culprit) {
  return [culprit](const std::string& name, const at::Tensor& value) {
    if (culprit->empty() && value.is_floating_point() &&
        !at::isfinite(value.detach()).all().item<bool>())
      *culprit = name;
  };
}

AutogradCore::AutogradCore(std::shared_ptr<void> model, nn::ParameterRegistry& registry)
    : owner_(std::move(model)), registry_(registry), spans_(registry.device()), passes_(registry) {}

void AutogradCore::set_up(std::unique_ptr<optim::Optimizer> optimizer,
                          const config::TrainerConfig& trainer, const config::EmaConfig& ema,
                          const optim::GradScaler::Settings& scaling,
                          const optim::ClipSettings& clip) {
  optimizer_ = std::move(optimizer);
  scaling_ = scaling;
  clip_ = clip;
  detect_anomaly_ = trainer.detect_anomaly;
  set_precision(trainer.precision);
  if (ema.enable)
    ema_ = std::make_unique<optim::Ema>(registry_, ema.decay, ema.every_n_steps,
                                        ema.cpu_offload && device().is_cuda());
  has_grad_ = watch_gradients(registry_);
  for (int64_t i = 0; i < registry_.size(); ++i)
    if (is_statistic(registry_.entries()[static_cast<size_t>(i)])) statistics_.push_back(i);
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;
  for (const int64_t i : statistics_)
    by_dtype[registry_.tensor(i).scalar_type()].push_back(registry_.tensor(i));
  for (auto& [dtype, tensors] : by_dtype) statistics_by_dtype_.push_back(std::move(tensors));
}

std::vector<at::Tensor> AutogradCore::read_statistics() const {
  std::vector<at::Tensor> out;
  for (const std::vector<at::Tensor>& tensors : statistics_by_dtype_) {
    std::vector<at::Tensor> rows;
    for (const at::Tensor& t : tensors) rows.push_back(t.detach().view({-1}));
    out.push_back(at::cat(rows));
  }
  return out;
}

void AutogradCore::write_statistics(const std::vector<at::Tensor>& values) const {
  for (size_t k = 0; k < statistics_by_dtype_.size(); ++k) {
    const std::vector<at::Tensor>& tensors = statistics_by_dtype_[k];
    std::vector<at::Tensor> parts;
    int64_t at = 0;
    for (const at::Tensor& t : tensors) {
      parts.push_back(values[k].narrow(0, at, t.numel()).view(t.sizes()));
      at += t.numel();
    }
    at::_foreach_copy_(tensors, parts);
  }
}

void AutogradCore::release_memory() {
  if (device().is_cuda()) at::accelerator::emptyCache();
}

void AutogradCore::set_precision(config::Precision precision) {
  precision_ = precision;
  scaler_.reset();
  if (precision == config::Precision::k16Mixed)
    scaler_ = std::make_unique<optim::GradScaler>(scaling_, device());
}

Result<config::Precision> AutogradCore::fall_back_precision() {
  AERIE_ASSIGN_OR_RETURN(const config::Precision lower, precision_below(precision_, device()));
  set_precision(lower);
  return precision_;
}

Status AutogradCore::set_reducer(GradientReducer* reducer) {
  if (window_open_) return internal_error("another reducer inside a window");
  return passes_.set_reducer(reducer, reducer != nullptr ? flat_parts() : FlatParts());
}

Status AutogradCore::set_exchange(kernels::ExchangeSums exchange, bool recordable) {
  if (window_open_) return internal_error("another exchange inside a window");
  passes_.set_exchange(std::move(exchange));
  exchange_recordable_ = recordable;
  return ok_status();
}

Result<int64_t> AutogradCore::over_ranks(int64_t count) const {
  if (reducer() != nullptr) {
    auto all = static_cast<double>(count);
    AERIE_RETURN_IF_ERROR(reducer()->add_up_on_host(std::span(&all, 1)));
    count = static_cast<int64_t>(all);
  }
  return std::max<int64_t>(count, 1);
}

Status AutogradCore::show_state(bool gather) {
  if (!optimizer_->kept()) return ok_status();
  try {
    optimizer_->show_whole();
    if (!gather) return ok_status();
    for (const at::Tensor& buffer : optimizer_->buffers())
      if (const int code = reducer()->gather(buffer, passes_.stream()); code != 0)
        return reducer()->error(code);
    return ok_status();
  } catch (const std::exception& error) {
    return torch_status(error).with_context("collecting the optimizer's state");
  }
}

void AutogradCore::hide_state(bool written) {
  optimizer_->hide_whole(written);
}

void AutogradCore::open_window(const std::vector<at::Tensor>& statistics) {
  registry_.zero_grad();
  passes_.open_window();
  window_divisor_ = window_count_ = 0;
  std::fill(has_grad_->begin(), has_grad_->end(), uint8_t{0});
  statistics_at_open_ = statistics;
  window_open_ = true;
}

void AutogradCore::drop_window() {
  window_open_ = false;
  statistics_at_open_.clear();
}

AutogradCore::Mark AutogradCore::mark() const {
  Mark out;
  out.window_open = window_open_;
  out.divisor = window_divisor_;
  out.count = window_count_;
  out.has_grad = *has_grad_;
  out.statistics = read_statistics();
  if (window_open_) out.grads = registry_.flat_grads().clone();
  return out;
}

void AutogradCore::roll_back(const Mark& mark) {
  const at::NoGradGuard no_grad;
  write_statistics(mark.statistics);
  if (mark.grads.defined()) registry_.flat_grads().copy_(mark.grads);
  *has_grad_ = mark.has_grad;
  passes_.open_window();
  window_divisor_ = mark.divisor;
  window_count_ = mark.count;
  if (!mark.window_open) drop_window();
  release_memory();
}

Status AutogradCore::in_window(const std::function<Status()>& passes, int64_t count,
                               bool ends_window, const Vote& vote) {
  if (ema_ && ema_->swapped()) return internal_error("training while averaged weights are in use");
  Mark before;
  try {
    before = mark();
    if (!window_open_) open_window(before.statistics);
  } catch (const std::exception& error) {
    // Nothing but copies was made.
    release_memory();
    return torch_status(error).with_context("training step");
  }
  Status status;
  passes_.open_request();
  try {
    if (broadcast_statistics_ && !before.window_open) {
      std::vector<at::Tensor> statistics;
      for (const int64_t i : statistics_) statistics.push_back(registry_.tensor(i));
      status = broadcast_statistics_(std::move(statistics));
    }
    if (status.ok()) status = passes();
  } catch (const std::exception& error) {
    status = torch_status(error);
  }
  if (reducer() != nullptr) {
    if (status.code() == StatusCode::kOutOfMemory) release_memory();
    status = passes_.agree(std::move(status), count, ends_window, *has_grad_, vote);
  }
  if (status.ok()) return status;
  return roll_back_after(std::move(status), [&] { roll_back(before); })
      .with_context("training step");
}

Result<int64_t> AutogradCore::divisor_for(int64_t count) {
  AERIE_ASSIGN_OR_RETURN(const int64_t all, over_ranks(count));
  window_count_ += all;
  // Where a window comes in several requests, the first has set the divisor; prepare_gradients()
  // makes up for it.
  if (window_divisor_ == 0) window_divisor_ = all;
  return window_divisor_;
}

Status AutogradCore::backward(const at::Tensor& loss, bool last, bool whole) {
  const DeviceSpans::Scope span(spans_, "backward");
  try {
    return passes_.backward(loss, last, whole, [&] {
      std::optional<torch::autograd::DetectAnomalyGuard> guard;
      if (detect_anomaly_) guard.emplace(/*check_nan=*/true);
      loss.backward();
    });
  } catch (const std::exception& error) {
    return torch_status(error).with_context("backward pass");
  }
}

Status AutogradCore::check_rates(std::span<const double> learning_rates) const {
  if (learning_rates.size() == optimizer_->groups().size()) return ok_status();
  return internal_error(str_cat(learning_rates.size(), " learning rates for ",
                                optimizer_->groups().size(), " parameter groups"));
}

Status AutogradCore::reduce() {
  if (reducer() == nullptr) return ok_status();
  if (Status reduced = passes_.finish(*has_grad_); !reduced.ok()) {
    drop_window();
    return reduced;
  }
  if (shards() && !optimizer_->kept()) {
    const FlatRange own = reducer()->owned();
    optimizer_->keep(own.begin, own.begin + own.count);
  }
  return ok_status();
}

optim::GradientReport AutogradCore::prepare_gradients() {
  at::Tensor grads = registry_.flat_grads();
  std::function<void(const at::Tensor&)> add_up_squares;
  if (shards() && !reducer()->sums_everywhere()) {
    const FlatRange own = reducer()->owned();
    grads = grads.narrow(0, own.begin, own.count);
    add_up_squares = [this](const at::Tensor& squares) {
      const Status added = add_up(squares);
      TORCH_CHECK(added.ok(), added.message());
    };
  }
  if (global_loss_ && window_count_ != window_divisor_)
    grads.mul_(static_cast<double>(window_divisor_) / static_cast<double>(window_count_));
  return optim::prepare_gradients(grads, scaler_ ? scaler_->inverse() : at::Tensor(), clip_,
                                  add_up_squares);
}

Status AutogradCore::add_up(const at::Tensor& values) {
  if (reducer() == nullptr) return ok_status();
  const int64_t count = values.numel();
  void* const stream = passes_.stream();
  const int code = values.scalar_type() == at::kDouble
                       ? reducer()->add_up_wide(values.mutable_data_ptr<double>(), count, stream)
                       : reducer()->add_up(values.mutable_data_ptr<float>(), count, stream);
  if (code == 0) return ok_status();
  drop_window();
  return reducer()->error(code);
}

void AutogradCore::update(std::span<const double> learning_rates, const at::Tensor& found) {
  if (ema_) ema_->begin();
  optimizer_->step(learning_rates, found, *has_grad_);
  if (shards()) {
    const int code = reducer()->gather(registry_.flat_params(), passes_.stream());
    TORCH_CHECK(code == 0, reducer()->error(code).message());
  }
  if (ema_) ema_->update(found);
  const at::Tensor skipped = found != 0;
  std::vector<at::Tensor> statistics = read_statistics();
  for (size_t k = 0; k < statistics.size(); ++k)
    statistics[k] = at::where(skipped, statistics_at_open_[k], statistics[k]);
  write_statistics(statistics);
  if (scaler_) scaler_->update(found);
}

Status AutogradCore::half_done(const Status& status) {
  drop_window();
  return internal_error(status.message()).with_context("optimizer step").with_hint(status.hint());
}

}  // namespace aerie::train
