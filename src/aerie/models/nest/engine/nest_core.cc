#include "aerie/models/nest/engine/nest_core.h"

#include <algorithm>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "aerie/base/strings.h"
#include "aerie/models/nest/config/run_config.h"
#include "aerie/models/nest/nest_task.h"
#include "aerie/models/nest/step_setup.h"
#include "aerie/nn/exchanged_norm.h"
#include "aerie/train/graph/autograd_parts.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::train {
namespace {

void empty_device_cache(at::Device device) {
  if (device.is_cuda()) at::accelerator::emptyCache();
}

}  // namespace

struct NestCore::Rollback {
  bool window_open = false;
  size_t micros = 0;
  PassMark passes;
  int64_t divisor = 0, frames = 0;
};

nest::NestBatch batch_rows(const nest::NestBatch& batch, int64_t begin, int64_t end) {
  nest::NestBatch out = batch;
  const int64_t count = end - begin;
  out.audio = batch.audio.narrow(0, begin, count);
  out.noisy = batch.noisy.narrow(0, begin, count);
  out.lengths = batch.lengths.narrow(0, begin, count);
  out.noisy_lengths = batch.noisy_lengths.narrow(0, begin, count);
  // The parts see the same frames as the whole.
  if (out.padded_samples <= 0) out.padded_samples = batch.capacity();
  out.random = batch.random.from(begin);
  return out;
}

Result<std::unique_ptr<NestCore>> NestCore::create(std::unique_ptr<nest::NestModel> model,
                                                   const config::RunConfig& config) {
  try {
    std::unique_ptr<NestCore> core(new NestCore());
    core->model_ = std::move(model);
    core->spans_.emplace(core->model_->parameters().device());
    nn::ParameterRegistry& registry = core->model_->parameters();
    set_process_switches(config.trainer, config.aerie.tf32, registry.device());
    AERIE_ASSIGN_OR_RETURN(
        core->optimizer_,
        optim::Optimizer::create(registry, config.model.optim, config.model.optim_param_groups,
                                 config.aerie.no_weight_decay));
    core->clip_ = {config.trainer.gradient_clip_val, config.trainer.gradient_clip_algorithm};
    core->loss_scale_ = config.aerie.loss_scale;
    core->detect_anomaly_ = config.trainer.detect_anomaly;
    core->nan_when_empty_ = config.aerie.empty_mask == config::EmptyMask::kNan;
    core->set_precision(config.trainer.precision);
    core->ema_ = make_ema(registry, config.exp_manager.ema);
    core->has_grad_ = watch_gradients(registry);
    core->statistics_ = batch_norm_statistics(registry);
    return core;
  } catch (const std::exception& error) {
    return torch_status(error).with_context("setting up the engine");
  }
}

NestCore::~NestCore() = default;

void NestCore::set_precision(config::Precision precision) {
  precision_ = precision;
  scaler_.reset();
  if (precision != config::Precision::k16Mixed) return;
  optim::GradScaler::Settings settings;
  if (loss_scale_) {
    settings.initial_scale = *loss_scale_;
    settings.dynamic = false;
  }
  scaler_ = std::make_unique<optim::GradScaler>(settings, device());
}

Result<config::Precision> NestCore::fall_back_precision() {
  AERIE_ASSIGN_OR_RETURN(const config::Precision lower, precision_below(precision_, device()));
  set_precision(lower);
  return precision_;
}

FlatParts NestCore::flat_parts() const {
  const auto layers = static_cast<int>(model_->settings().model.encoder.n_layers);
  return make_flat_parts(
      model_->parameters(), kernels::nest_num_parts(layers),
      [this](const nn::ParamInfo& info) { return nest::step_part(*model_, info.name); });
}

Status NestCore::set_reducer(GradientReducer* reducer) {
  if (window_open_) return internal_error("another reducer inside a window");
  watch_.reset();
  reducer_ = nullptr;
  if (reducer == nullptr) return ok_status();
  const FlatParts parts = flat_parts();
  AERIE_RETURN_IF_ERROR(
      reducer->attach(model_->parameters().flat_grads().mutable_data_ptr<float>(), parts));
  watch_ = std::make_unique<BackwardWatch>(model_->parameters(), parts);
  num_parts_ = parts.size();
  reducer_ = reducer;
  return ok_status();
}

Status NestCore::set_exchange(kernels::ExchangeSums exchange, bool recordable) {
  if (window_open_) return internal_error("another exchange inside a window");
  exchange_ = nullptr;
  // Other norms have nothing to exchange.
  if (exchange && model_->settings().model.encoder.conv_norm_type == config::ConvNorm::kBatchNorm)
    exchange_ = [this, exchange = std::move(exchange)](const kernels::ExchangedSums& sums,
                                                       void* on) {
      ++exchanges_;
      return exchange(sums, on);
    };
  exchange_recordable_ = recordable;
  return ok_status();
}

// In a pass every layer forward, and back from the last.
Status NestCore::exchange_next() {
  const config::EncoderConfig& encoder = model_->settings().model.encoder;
  const int64_t at = exchanges_ % (2 * encoder.n_layers);
  const bool backward = at >= encoder.n_layers;
  const int64_t layer = backward ? 2 * encoder.n_layers - 1 - at : at;
  const nn::ParameterRegistry& registry = model_->parameters();
  const std::string name = str_cat("encoder.layers.", layer, ".conv.batch_norm.");
  nn::ExchangedNorm norm;
  norm.exchange = &exchange_;
  norm.layer = static_cast<int>(layer);
  norm.running_mean = registry[name + "running_mean"];
  norm.running_var = registry[name + "running_var"];
  try {
    const at::NoGradGuard no_grad;
    if (nn::exchange_no_frames(norm, encoder.d_model, device(), backward) && !backward)
      registry[name + "num_batches_tracked"].add_(1);
    return ok_status();
  } catch (const std::exception& error) {
    return torch_status(error).with_context("a pass without samples");
  }
}

Status NestCore::exchange_nothing() {
  const config::EncoderConfig& encoder = model_->settings().model.encoder;
  if (!exchange_) return ok_status();
  for (int64_t i = 0; i < 2 * encoder.n_layers; ++i) AERIE_RETURN_IF_ERROR(exchange_next());
  return ok_status();
}

void* NestCore::stream() const {
  if (device().is_cpu()) return nullptr;
  return c10::impl::VirtualGuardImpl(device().type()).getStream(device()).native_handle();
}

void NestCore::begin_part(int part) {
  ++reducing_;
  const int code = reducer_->begin(part, stream());
  if (reducer_code_ == 0) reducer_code_ = code;
}

// What no backward pass has begun, as on a rank without samples.
Status NestCore::begin_rest() {
  if (!reducer_->watches_backward()) {
    while (reducing_ < num_parts_) begin_part(num_parts_ - 1 - reducing_);
    return ok_status();
  }
  if (std::exchange(watched_pass_, true)) return ok_status();
  // Zero gradients for everything are none.
  const std::vector<uint8_t> flags = *has_grad_;
  {
    const at::AutoGradMode enable(true);
    AERIE_RETURN_IF_ERROR(reducer_->before_backward({}));
    AERIE_RETURN_IF_ERROR(reducer_->after_backward());
  }
  *has_grad_ = flags;
  return ok_status();
}

Status NestCore::finish_reduction() {
  AERIE_RETURN_IF_ERROR(begin_rest());
  if (!reducer_->watches_backward()) {
    const int code = reducer_->finish(stream());
    if (reducer_code_ == 0) reducer_code_ = code;
    if (reducer_code_ != 0) return reducer_->error(reducer_code_);
  }
  return reducer_->unite(*has_grad_);
}

Result<int64_t> NestCore::over_ranks(int64_t frames) {
  if (reducer_ != nullptr) {
    auto all = static_cast<double>(frames);
    AERIE_RETURN_IF_ERROR(reducer_->add_up_on_host(std::span(&all, 1)));
    frames = static_cast<int64_t>(all);
  }
  return std::max<int64_t>(frames, 1);
}

Status NestCore::show_state(bool gather) {
  return show_whole_state(*optimizer_, reducer_, stream(), gather);
}

void NestCore::hide_state(bool written) {
  optimizer_->hide_whole(written);
}

void NestCore::open_window(const std::vector<at::Tensor>& statistics) {
  model_->parameters().zero_grad();
  reducing_ = reducer_code_ = 0;
  watched_pass_ = false;
  window_divisor_ = window_frames_ = 0;
  window_.clear();
  std::fill(has_grad_->begin(), has_grad_->end(), uint8_t{0});
  statistics_at_open_ = statistics;
  window_open_ = true;
}

void NestCore::drop_window() {
  window_open_ = false;
  window_.clear();
  statistics_at_open_.clear();
}

NestCore::Rollback NestCore::mark() const {
  Rollback out;
  out.window_open = window_open_;
  out.micros = window_.size();
  out.divisor = window_divisor_;
  out.frames = window_frames_;
  out.passes = mark_passes(model_->parameters(), statistics_, *has_grad_,
                           /*with_grads=*/window_open_ && !window_.empty());
  return out;
}

void NestCore::roll_back(const Rollback& mark) {
  roll_back_passes(mark.passes, model_->parameters(), statistics_, *has_grad_);
  reducing_ = reducer_code_ = 0;
  watched_pass_ = false;
  window_divisor_ = mark.divisor;
  window_frames_ = mark.frames;
  window_.resize(mark.micros);
  if (!mark.window_open) drop_window();
  empty_device_cache(device());
}

Status NestCore::add(int64_t count, const MakeBatch& batch, int64_t accumulate, int64_t split,
                     bool ends_window, const Vote& vote) {
  AERIE_CHECK(accumulate >= 1 && split >= 1, "accumulate ", accumulate, ", split ", split);
  if (ema_ && ema_->swapped()) return internal_error("training while averaged weights are in use");
  Rollback before;
  try {
    before = mark();
    if (!window_open_) open_window(before.passes.statistics);
  } catch (const std::exception& error) {
    // Nothing but copies was made.
    empty_device_cache(device());
    return torch_status(error).with_context("training step");
  }
  Status status;
  exchanges_ = 0;
  try {
    status = run_all(count, batch, accumulate, split, ends_window);
  } catch (const std::exception& error) {
    status = torch_status(error);
  }
  if (reducer_ != nullptr) status = agree(std::move(status), count * split, ends_window, vote);
  if (status.ok()) return status;
  return roll_back_after(std::move(status), [&] { roll_back(before); })
      .with_context("training step");
}

Status NestCore::run_all(int64_t count, const MakeBatch& batch, int64_t accumulate, int64_t split,
                         bool ends_window) {
  Weight weight;
  weight.accumulate = accumulate;
  std::vector<nest::NestBatch> all;  // of a global loss, which is known before the first
  if (global_loss_) {
    for (int64_t i = 0; i < count; ++i) {
      AERIE_ASSIGN_OR_RETURN(nest::NestBatch made, batch(i));
      all.push_back(std::move(made));
    }
    AERIE_ASSIGN_OR_RETURN(weight, weigh(all, split));
  }
  if (broadcast_statistics_ && window_.empty()) {
    std::vector<at::Tensor> statistics;
    for (const int64_t i : statistics_) statistics.push_back(model_->parameters().tensor(i));
    AERIE_RETURN_IF_ERROR(broadcast_statistics_(std::move(statistics)));
  }
  for (int64_t i = 0; i < count; ++i) {
    nest::NestBatch made;
    if (global_loss_) {
      made = std::move(all[static_cast<size_t>(i)]);
    } else {
      AERIE_ASSIGN_OR_RETURN(made, batch(i));
    }
    auto micro = run_micro(made, weight, split, ends_window && i + 1 == count);
    if (!micro.ok())
      return refine_torch_status(micro.status()).with_context(str_cat("micro-batch ", i));
    window_.push_back(std::move(micro).value());
  }
  return ok_status();
}

Result<NestCore::Weight> NestCore::weigh(const std::vector<nest::NestBatch>& batches,
                                         int64_t split) {
  int64_t frames = 0;
  for (const nest::NestBatch& batch : batches) {
    if (batch.size() == 0) continue;
    AERIE_ASSIGN_OR_RETURN(const int64_t masked,
                           masked_frames(batch, std::min(split, batch.size())));
    frames += masked;
  }
  AERIE_ASSIGN_OR_RETURN(frames, over_ranks(frames));
  window_frames_ += frames;
  // Where a window comes in several requests, the first has set the divisor; finish() makes up for
  // it.
  if (window_divisor_ == 0) window_divisor_ = frames;
  Weight weight;
  weight.global = true;
  const int world = reducer_ != nullptr ? reducer_->world() : 1;  // a mean over them follows
  weight.of_sum = static_cast<double>(world) / static_cast<double>(window_divisor_);
  return weight;
}

Status NestCore::agree(Status status, int64_t passes, bool ends_window, const Vote& vote) {
  const bool failed = status.code() == StatusCode::kOutOfMemory;
  if (!status.ok() && !failed) return status;  // ends this rank, and thereby all
  if (failed && ends_window && reducer_->watches_backward())
    return internal_error(status.message())
        .with_hint(
            "other ranks are in the middle of this step: lower batch_size, or set "
            "trainer.strategy.gradient_as_bucket_view=true, which can try again with smaller "
            "parts");
  if (failed && exchange_) {
    // The others wait in theirs.
    empty_device_cache(device());
    const int64_t layers = model_->settings().model.encoder.n_layers;
    while (exchanges_ < passes * 2 * layers) AERIE_RETURN_IF_ERROR(exchange_next());
  }
  // In the order of those that have begun them in their passes.
  if (ends_window) AERIE_RETURN_IF_ERROR(begin_rest());
  if (vote) {
    status = vote(status);
  } else {
    uint8_t any = failed ? 1 : 0;
    AERIE_RETURN_IF_ERROR(reducer_->unite(std::span(&any, 1)));
    if (any != 0 && !failed) status = out_of_memory("another rank has no memory for its batch");
  }
  if (status.code() != StatusCode::kOutOfMemory) return status;
  if (ends_window && !reducer_->watches_backward()) {
    const int code = reducer_->finish(stream());
    if (reducer_code_ != 0 || code != 0) return reducer_->error(code);
  }
  return status;
}

Result<NestCore::Micro> NestCore::run_micro(const nest::NestBatch& batch, const Weight& weight,
                                            int64_t split, bool last) {
  const auto options = at::TensorOptions(device());
  Micro micro;
  const int64_t rows = batch.size();
  if (rows == 0) {
    // Other ranks had samples in this step, this one had none.
    micro.loss = at::zeros({}, options.dtype(at::kFloat));
    micro.count = at::zeros({}, options.dtype(at::kLong));
    micro.frames = at::zeros({}, options.dtype(at::kLong));
    for (int64_t p = 0; p < split; ++p) AERIE_RETURN_IF_ERROR(exchange_nothing());
    return micro;
  }
  at::Tensor factor =
      at::full({}, weight.global ? weight.of_sum : 1.0 / static_cast<double>(weight.accumulate),
               options.dtype(at::kFloat));
  if (scaler_) factor = factor * scaler_->scale();
  // All ranks make as many passes when they meet in them.
  const int64_t parts = exchange_ ? split : std::min(split, rows);
  if (parts == 1 && !weight.global) {
    AERIE_ASSIGN_OR_RETURN(const nest::NestOutput out, forward(batch, /*training=*/true));
    AERIE_RETURN_IF_ERROR(backward(out.loss * factor, last));
    micro.loss = out.loss.detach().to(at::kFloat);
    micro.count = out.loss_parts.count;
    micro.frames = out.encoded_lengths.sum();
    return micro;
  }
  double of_part = 1.0;
  if (!weight.global) {
    AERIE_ASSIGN_OR_RETURN(const int64_t total, masked_frames(batch, std::min(parts, rows)));
    of_part = 1.0 / static_cast<double>(std::max<int64_t>(total, 1));
  }
  at::Tensor sum;
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t begin = rows * p / parts, end = rows * (p + 1) / parts;
    if (begin == end) {
      AERIE_RETURN_IF_ERROR(exchange_nothing());
      continue;
    }
    const nest::NestBatch part = parts == 1 ? batch : batch_rows(batch, begin, end);
    AERIE_ASSIGN_OR_RETURN(const nest::NestOutput out, forward(part, /*training=*/true));
    AERIE_RETURN_IF_ERROR(backward(out.loss_parts.sum * of_part * factor, last && end == rows));
    const at::Tensor part_sum = out.loss_parts.sum.detach();
    const at::Tensor part_frames = out.encoded_lengths.sum();
    sum = sum.defined() ? sum + part_sum : part_sum;
    micro.count = micro.count.defined() ? micro.count + out.loss_parts.count : out.loss_parts.count;
    micro.frames = micro.frames.defined() ? micro.frames + part_frames : part_frames;
  }
  micro.loss = nest::mean_loss({sum, micro.count}, nan_when_empty_).to(at::kFloat);
  return micro;
}

Result<nest::NestOutput> NestCore::forward(const nest::NestBatch& batch, bool training) {
  if (training) enter(dist::Phase::kForward);
  const DeviceSpans::Scope span(*spans_, training ? "forward" : "evaluate");
  nest::ForwardOptions options;
  options.training = training;
  options.policy = nn::DtypePolicy(precision_);
  options.mask_spans = forced_masks_;
  if (training && exchange_) options.exchange = &exchange_;
  std::string culprit;
  if (detect_anomaly_) options.tap = first_nonfinite(&culprit);
  auto out = model_->forward(batch, options);
  if (out.ok() && !culprit.empty())
    return internal_error(
               str_cat("detect_anomaly: the first value that is not finite is ", culprit))
        .with_hint("look at the audio of this batch, lower model.optim.lr, or use precision 32");
  return out;
}

Status NestCore::backward(const at::Tensor& loss, bool last) {
  enter(dist::Phase::kBackward);
  const DeviceSpans::Scope span(*spans_, "backward");
  // Recomputed layers add to shared parameters one by one: all parts come behind the pass then.
  const bool watches_itself = last && reducer_ != nullptr && reducer_->watches_backward();
  const bool watched = last && reducer_ != nullptr && !watches_itself && !model_->recomputes();
  try {
    if (watches_itself) AERIE_RETURN_IF_ERROR(reducer_->before_backward(loss));
    if (watched) watch_->arm([this](int part) { begin_part(part); });
    run_backward(loss, detect_anomaly_);
    if (watched) watch_->finish();
    if (watches_itself) {
      watched_pass_ = true;
      return reducer_->after_backward();
    }
    return ok_status();
  } catch (const std::exception& error) {
    return torch_status(error).with_context("backward pass");
  }
}

Result<int64_t> NestCore::masked_frames(const nest::NestBatch& batch, int64_t split) {
  at::NoGradGuard no_grad;
  const config::LossConfig& loss = model_->settings().model.loss;
  const nest::Preprocessor& preprocessor = model_->preprocessor();
  const int64_t samples = batch.padded_samples > 0 ? batch.padded_samples : batch.capacity();
  const int64_t rows = batch.size();
  const auto count = [&](const nn::RandomKey& key, const at::Tensor& lengths, int64_t frames) {
    const at::Tensor mask = nest::mask_from_spans(
        forced_masks_ != nullptr ? *forced_masks_ : model_->masking().draw(key, lengths), frames);
    return nest::loss_frames(mask, loss.combine_time_steps, loss.mask_threshold)
        .sum()
        .item<int64_t>();
  };
  if (!model_->settings().post_conv) {
    const at::Tensor noisy = batch.noisy_lengths.to(at::kCPU).contiguous();
    at::Tensor lengths = at::empty({rows}, at::kLong);
    for (int64_t b = 0; b < rows; ++b)
      lengths.data_ptr<int64_t>()[b] = preprocessor.frames_of(noisy.data_ptr<int64_t>()[b]);
    return count(batch.random, lengths, preprocessor.padded_frames_of(samples));
  }
  // Lengths behind the subsampling are its own business: ask it, part by part.
  int64_t total = 0;
  for (int64_t p = 0; p < split; ++p) {
    const nest::NestBatch part = batch_rows(batch, rows * p / split, rows * (p + 1) / split);
    const nest::Features features =
        preprocessor.forward(part.noisy.narrow(1, 0, samples), part.noisy_lengths, {});
    nn::ForwardContext context;
    context.policy = nn::DtypePolicy(precision_);
    const auto sub = model_->encoder().subsample(
        context, features.values.to(model_->parameters().dtype()), features.lengths);
    total += count(part.random, sub.lengths, sub.x.size(1));
  }
  return total;
}

std::string NestCore::first_nonfinite_gradient() const {
  const nn::ParameterRegistry& registry = model_->parameters();
  for (const int64_t index : registry.trainable())
    if (!at::isfinite(registry.grad(index)).all().item<bool>())
      return registry.entries()[static_cast<size_t>(index)].name;
  return "";
}

Result<StepOutcome> NestCore::finish(std::span<const double> learning_rates) {
  if (!window_open_) return internal_error("finish() without micro-batches");
  if (learning_rates.size() != optimizer_->groups().size())
    return internal_error(str_cat(learning_rates.size(), " learning rates for ",
                                  optimizer_->groups().size(), " parameter groups"));
  try {
    at::NoGradGuard no_grad;
    std::optional<DeviceSpans::Scope> span(std::in_place, *spans_, "optimizer");
    nn::ParameterRegistry& registry = model_->parameters();
    const auto options = at::TensorOptions(device());
    std::vector<at::Tensor> losses, counts, frames;
    for (const Micro& micro : window_) {
      losses.push_back(micro.loss);
      counts.push_back(micro.count);
      frames.push_back(micro.frames);
    }
    if (losses.empty()) {
      losses.push_back(at::zeros({}, options.dtype(at::kFloat)));
      counts.push_back(at::zeros({}, options.dtype(at::kLong)));
      frames.push_back(counts.back());
    }
    const at::Tensor loss = at::stack(losses);
    const at::Tensor count = at::stack(counts);

    if (reducer_ != nullptr) {
      const Status reduced = finish_reduction();
      if (!reduced.ok()) {
        drop_window();
        return reduced;
      }
    }
    enter(dist::Phase::kUpdate);
    const at::Tensor scale =
        scaler_ ? scaler_->scale().clone() : at::ones({}, options.dtype(at::kFloat));
    const bool shards = reducer_ != nullptr && reducer_->shards();
    at::Tensor grads = registry.flat_grads();
    std::function<void(const at::Tensor&)> add_up_squares;
    if (shards) {
      const FlatRange own = reducer_->owned();
      if (!optimizer_->kept()) optimizer_->keep(own.begin, own.begin + own.count);
      if (!reducer_->sums_everywhere()) {
        grads = grads.narrow(0, own.begin, own.count);
        add_up_squares = [&](const at::Tensor& squares) {
          const int code = reducer_->add_up_wide(squares.mutable_data_ptr<double>(), 1, stream());
          TORCH_CHECK(code == 0, reducer_->error(code).message());
        };
      }
    }
    if (global_loss_ && window_frames_ != window_divisor_)
      grads.mul_(static_cast<double>(window_divisor_) / static_cast<double>(window_frames_));
    const optim::GradientReport report = optim::prepare_gradients(
        grads, scaler_ ? scaler_->inverse() : at::Tensor(), clip_, add_up_squares);
    // NeMo's NaN for an empty mask comes with zero gradients and counts as a step.
    at::Tensor bad_loss =
        at::isfinite(loss).logical_not().logical_and(count > 0).any().to(at::kFloat);
    // Of a global loss, what all ranks have of it.
    std::vector<at::Tensor> extra;
    if (global_loss_)
      extra.push_back(
          at::stack({at::where(count > 0, loss.to(at::kDouble) * count.to(at::kDouble), 0.0).sum(),
                     count.sum().to(at::kDouble)}));
    if (reducer_ != nullptr) {
      // All ranks skip, or none does.
      int code = reducer_->add_up(bad_loss.mutable_data_ptr<float>(), 1, stream());
      if (code == 0 && global_loss_)
        code = reducer_->add_up_wide(extra[0].mutable_data_ptr<double>(), 2, stream());
      if (code != 0) {
        drop_window();
        return reducer_->error(code);
      }
      bad_loss = bad_loss.clamp_max(1.0);
    }
    const at::Tensor found = at::maximum(report.found_inf, bad_loss);

    if (detect_anomaly_ && !(scaler_ && scaler_->settings().dynamic) &&
        found.item<float>() != 0.0f) {
      const std::string name = first_nonfinite_gradient();
      drop_window();
      return internal_error(name.empty() ? std::string("detect_anomaly: the loss is not finite")
                                         : str_cat("detect_anomaly: the gradient of ", name,
                                                   " is the first that is not finite"))
          .with_hint("look at the audio of this batch, lower model.optim.lr, or use precision 32");
    }

    if (ema_) ema_->begin();
    optimizer_->step(learning_rates, found, *has_grad_);
    if (shards) {
      const int code = reducer_->gather(registry.flat_params(), stream());
      TORCH_CHECK(code == 0, reducer_->error(code).message());
    }
    if (ema_) ema_->update(found);
    keep_statistics(registry, statistics_, statistics_at_open_, found);
    if (scaler_) scaler_->update(found);

    span.reset();
    // One transfer for all numbers of the step.
    SpanScope read_back("read-back");
    extra.insert(extra.begin(),
                 {at::stack({report.norm, found.to(at::kDouble), scale.to(at::kDouble)}),
                  loss.to(at::kDouble), count.to(at::kDouble), at::stack(frames).to(at::kDouble)});
    const at::Tensor numbers = at::cat(extra).to(at::kCPU);
    read_back.end();
    spans_->flush();
    const double* value = numbers.const_data_ptr<double>();
    const size_t num = losses.size();
    StepOutcome out;
    out.grad_norm = value[0];
    out.skipped = value[1] != 0.0;
    out.loss_scale = value[2];
    for (size_t i = 0; i < num; ++i) {
      const double micro_loss = value[3 + i];
      const auto masked = static_cast<int64_t>(value[3 + num + i]);
      out.micro_losses.push_back(micro_loss);
      out.loss += micro_loss / static_cast<double>(num);
      nest::add_frames(out, masked, static_cast<int64_t>(value[3 + 2 * num + i]));
      if (masked == 0) ++out.without_loss;
    }
    if (const double* sums = value + 3 + 3 * num; global_loss_ && sums[1] > 0.0)
      out.loss = sums[0] / sums[1];
    drop_window();
    return out;
  } catch (const std::exception& error) {
    // Whatever it was, the update may be half done: this is no "try again with smaller parts".
    drop_window();
    const Status status = torch_status(error);
    return internal_error(status.message()).with_context("optimizer step").with_hint(status.hint());
  }
}

Result<EvalOutcome> NestCore::evaluate(const nest::NestBatch& batch) {
  const int64_t rows = batch.size();
  EvalOutcome outcome;
  if (rows == 0) {
    outcome.counted = false;
    return outcome;
  }
  // Items do not see each other in eval mode, so a batch may be cut wherever it fits.
  for (int64_t parts = 1;; parts = std::min(parts * 2, rows)) {
    Status status;
    try {
      at::NoGradGuard no_grad;
      at::Tensor sum, count;
      for (int64_t p = 0; p < parts && status.ok(); ++p) {
        auto out = forward(batch_rows(batch, rows * p / parts, rows * (p + 1) / parts),
                           /*training=*/false);
        if (!out.ok()) {
          status = refine_torch_status(out.status());
        } else {
          sum = p == 0 ? out->loss_parts.sum : sum + out->loss_parts.sum;
          count = p == 0 ? out->loss_parts.count : count + out->loss_parts.count;
        }
      }
      if (status.ok()) {
        const auto masked = count.item<int64_t>();
        outcome.sums = {static_cast<double>(masked)};
        outcome.loss = nest::mean_loss({sum, count}, nan_when_empty_).item<double>();
        outcome.counted = nan_when_empty_ || masked > 0;
        return outcome;
      }
    } catch (const std::exception& error) {
      status = torch_status(error);
    }
    if (status.code() != StatusCode::kOutOfMemory || parts >= rows)
      return std::move(status).with_context("evaluation");
    empty_device_cache(device());
  }
}

}  // namespace aerie::train
