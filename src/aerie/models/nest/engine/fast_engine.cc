#include "aerie/models/nest/engine/fast_engine.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "aerie/base/clock.h"
#include "aerie/base/strings.h"
#include "aerie/device/gpu.h"
#include "aerie/models/nest/config/run_config.h"
#include "aerie/models/nest/engine/batch_tensors.h"
#include "aerie/models/nest/nest_task.h"
#include "aerie/models/nest/step_setup.h"
#include "aerie/train/graph/batch_key.h"
#include "aerie/train/graph/torch_status.h"
#include "aerie/train/measure.h"

namespace aerie::train {
std::string FastEngine::not_covered(const config::RunConfig& config) {
  std::string reason = FlatOptimizer::not_covered(config.model.optim, config.exp_manager.ema);
  if (!reason.empty()) return reason;
  if (config.trainer.detect_anomaly) return "trainer.detect_anomaly";
  return nest::not_covered_by_step(config.model, config.aerie, config.trainer.precision);
}

FastEngine::FastEngine(const config::RunConfig& config, at::Device device)
    : config_(config), device_(device) {}

FastEngine::~FastEngine() {
  if (compute_ != nullptr) (void)compute_->synchronize();
  intake_.reset();
  plans_.reset();
  if (previous_stream_) {
    const c10::impl::VirtualGuardImpl guard(device_.type());
    guard.exchangeStream(*previous_stream_);
  }
}

Result<std::unique_ptr<FastEngine>> FastEngine::create(const config::RunConfig& config,
                                                       at::Device device) {
  AERIE_RETURN_IF_ERROR(device::load_torch_cuda());
  AERIE_ASSIGN_OR_RETURN(device::GpuModule * module, device::gpu_module());
  try {
    std::unique_ptr<FastEngine> engine(new FastEngine(config, device));
    const auto& gpus = device::driver().gpus;
    const auto index = static_cast<size_t>(std::max<c10::DeviceIndex>(device.index(), 0));
    if (index < gpus.size())
      engine->device_model_ = kernels::device_model_of(gpus[index].name, gpus[index].compute_major,
                                                       gpus[index].sms, gpus[index].l2_bytes);
    // All of this thread's work goes to one stream that graphs can be captured on.
    const c10::impl::VirtualGuardImpl guard(device.type());
    guard.setDevice(device);
    engine->stream_ = guard.getStreamFromGlobalPool(device, /*isHighPriority=*/false);
    engine->previous_stream_ = guard.exchangeStream(*engine->stream_);
    AERIE_ASSIGN_OR_RETURN(auto compute, module->make_stream(engine->stream_->native_handle()));
    const auto make_arena = [module] { return module->make_arena(); };
    AERIE_RETURN_IF_ERROR(engine->start(
        std::move(compute),
        {[module](bool high_priority) { return module->make_stream(nullptr, high_priority); },
         make_arena, make_arena}));
    return engine;
  } catch (const std::exception& error) {
    return torch_status(error).with_context("setting up the fast engine");
  }
}

Result<std::unique_ptr<FastEngine>> FastEngine::create_on_host(const config::RunConfig& config,
                                                               const kernels::KernelTable& kernels,
                                                               size_t room) {
  std::unique_ptr<FastEngine> engine(new FastEngine(config, at::Device(at::kCPU)));
  AERIE_RETURN_IF_ERROR(engine->start(
      device::host_stream(kernels),
      {[&](bool) -> Result<std::unique_ptr<device::Stream>> {
         return device::host_stream(kernels);
       },
       [] { return device::host_arena(); }, [room] { return device::host_arena(room); }}));
  return engine;
}

Status FastEngine::start(std::unique_ptr<device::Stream> compute, const Source& source) {
  compute_ = std::move(compute);
  AERIE_ASSIGN_OR_RETURN(copy_, source.make_stream(/*high_priority=*/false));
  AERIE_ASSIGN_OR_RETURN(auto side, source.make_stream(/*high_priority=*/false));
  AERIE_ASSIGN_OR_RETURN(update_, source.make_stream(/*high_priority=*/true));
  plans_ = std::make_unique<PlanCache<Shape, Plan>>(*compute_);
  for (auto* memory : {&memory_, &inputs_, &square_partials_, &whole_}) {
    AERIE_ASSIGN_OR_RETURN(auto arena, source.make_arena());
    GraphMemory::Hooks hooks;
    hooks.moved = [this] { plans_->drop_graphs(); };
    // Memory that torch keeps for later gives way.
    if (device_.is_cuda())
      hooks.make_room = [] {
        at::accelerator::emptyCache();
        return true;
      };
    *memory = std::make_unique<GraphMemory>(std::move(arena), std::move(hooks));
  }
  AERIE_ASSIGN_OR_RETURN(auto intake_memory, source.make_intake_arena());
  AERIE_ASSIGN_OR_RETURN(side_, kernels::SideStream::make(compute_.get(), std::move(side)));
  AERIE_ASSIGN_OR_RETURN(update_begin_, compute_->make_event());
  const auto layers = static_cast<int>(config_.model.encoder.n_layers);
  for (int part = 0; part < kernels::nest_num_parts(layers); ++part) {
    AERIE_ASSIGN_OR_RETURN(auto event, update_->make_event());
    part_updated_.push_back(std::move(event));
  }
  Clock& clock = Clock::real();
  const double start_s = clock.monotonic_s();
  AERIE_ASSIGN_OR_RETURN(auto model,
                         nest::NestModel::create(config_.model, config_.aerie, device_));
  const double weights_s = clock.monotonic_s();
  start_times_.emplace_back("initial weights", weights_s - start_s);
  AERIE_ASSIGN_OR_RETURN(core_, NestCore::create(std::move(model), config_));
  for (const optim::OptimizerGroup& group : core_->optimizer().groups())
    if (group.settings.amsgrad || group.settings.maximize)
      return unsupported("amsgrad and maximize need the reference engine");
  AERIE_ASSIGN_OR_RETURN(intake_,
                         BatchIntake::create(*compute_, *copy_, std::move(intake_memory), device_));

  const auto bytes = at::TensorOptions(device_).dtype(at::kByte);
  max_micros_ = std::max<int64_t>(1, config_.trainer.accumulate_grad_batches);
  const auto result_bytes = static_cast<int64_t>(kMicroResults) +
                            max_micros_ * static_cast<int64_t>(sizeof(kernels::MicroResult));
  results_ = at::zeros({result_bytes}, bytes);
  outputs_ = at::zeros({64}, bytes);
  const MakeHostMemory host = [device = device_](size_t size) {
    const at::Tensor block = host_memory(static_cast<int64_t>(size), device);
    return std::shared_ptr<uint8_t>(block.mutable_data_ptr<uint8_t>(), [block](uint8_t*) {});
  };
  AERIE_ASSIGN_OR_RETURN(uploads_, UploadRing::create(*compute_, host));
  device_phase_ = std::make_unique<DevicePhase>(*compute_, device_, host);
  AERIE_ASSIGN_OR_RETURN(
      under_way_, ResultRing<Pending>::create(*compute_, host, static_cast<size_t>(result_bytes)));
  const FlatOptimizer::Of of{
      core_->model().parameters(),
      core_->optimizer(),
      core_->ema(),
      config_.exp_manager.ema,
      {config_.trainer.gradient_clip_val, config_.trainer.gradient_clip_algorithm}};
  optimizer_ = std::make_unique<FlatOptimizer>(of, core_->flat_parts(), *compute_, *uploads_);
  const config::EncoderConfig& encoder = config_.model.encoder;
  const auto floats = bytes.dtype(at::kFloat);
  statistics_ = at::zeros({encoder.n_layers, 2, encoder.d_model}, floats);
  saved_statistics_ = at::zeros_like(statistics_);
  counters_ = at::zeros({encoder.n_layers}, bytes.dtype(at::kLong));
  saved_counters_ = at::zeros_like(counters_);
  codebooks_ = at::zeros_like(core_->model().parameters()["quantizer.codebooks"], floats);
  const nest::StepTables tables = nest::step_tables(core_->model());
  twiddles_ = at::empty({static_cast<int64_t>(tables.twiddles.size())}, floats);
  bands_ = at::empty({static_cast<int64_t>(tables.bands.size())}, bytes.dtype(at::kInt));
  silent_tokens_ =
      at::empty({static_cast<int64_t>(tables.silent_tokens.size())}, bytes.dtype(at::kInt));
  const double set_up_s = clock.monotonic_s();
  start_times_.emplace_back("engine", set_up_s - weights_s);
  AERIE_RETURN_IF_ERROR(probe());
  start_times_.emplace_back("loading kernels", clock.monotonic_s() - set_up_s);
  return ok_status();
}

// One short item through forward and backward: shapes that a kernel does not cover show up here and
// not in the first step. What it changed is made again before that.
Status FastEngine::probe() {
  AERIE_RETURN_IF_ERROR(refresh());
  // Writes back what was just read: loads the kernels that the first checkpoint would wait for.
  AERIE_RETURN_IF_ERROR(write_state());
  Shape shape;
  shape.batch = 1;
  shape.samples = 16 * core_->model().settings().model.preprocessor.hop_length();
  shape.rows = nest::step_frames(core_->model(), shape.samples) / 8;
  AERIE_ASSIGN_OR_RETURN(Plan * plan, plan_for(shape));
  AERIE_RETURN_IF_ERROR(reserve(*plan));
  at::from_blob(audio_of(*plan), {2 * shape.batch * shape.samples},
                at::TensorOptions(device_).dtype(at::kFloat))
      .zero_();
  const data::SpeechBatch nothing;
  AERIE_RETURN_IF_ERROR(upload_inputs(*plan, nothing, 0, {}, 0));
  const Status status = run_plan(*plan, /*accumulate=*/false, /*last=*/false);
  AERIE_RETURN_IF_ERROR(compute_->synchronize());
  core_->model().parameters().zero_grad();
  plans_->clear();
  stale_ = true;
  return status;
}

size_t FastEngine::own_memory_bytes() const {
  return memory_->size() + inputs_->size() + square_partials_->size() + whole_->size() +
         intake_->device_bytes();
}

Status FastEngine::state_written() {
  if (update_pending_)
    return internal_error("the state was written before the last step's update was done");
  window_open_ = false;
  stale_ = true;
  return ok_status();
}

// From the core to what this engine derives from it.
Status FastEngine::refresh() {
  if (!stale_) return ok_status();
  try {
    at::NoGradGuard no_grad;
    nn::ParameterRegistry& registry = core_->model().parameters();
    const kernels::Dtype dtype = nest::step_dtype(core_->precision());
    if (dtype != dtype_) {
      plans_->clear();
      positions_.clear();
      compute_weights_ = at::Tensor();
      dtype_ = dtype;
    }
    if (dtype != kernels::Dtype::kF32) {
      if (!compute_weights_.defined())
        compute_weights_ = at::empty_like(
            registry.flat_params(), registry.flat_params().options().dtype(torch_type(dtype)));
      compute_weights_.copy_(registry.flat_params());
    }
    for (int64_t i = 0; i < statistics_.size(0); ++i) {
      const std::string at = str_cat("encoder.layers.", i, ".conv.batch_norm.");
      statistics_[i][0].copy_(registry[at + "running_mean"]);
      statistics_[i][1].copy_(registry[at + "running_var"]);
      counters_[i].copy_(registry[at + "num_batches_tracked"]);
    }
    codebooks_.copy_(registry["quantizer.codebooks"]);
    const nest::StepTables tables = nest::step_tables(core_->model());
    twiddles_.copy_(at::tensor(tables.twiddles));
    bands_.copy_(at::tensor(tables.bands, at::kInt));
    silent_tokens_.copy_(at::tensor(tables.silent_tokens, at::kInt));
    if (shards() && !core_->optimizer().kept()) {
      const FlatRange own = core_->reducer()->owned();
      core_->optimizer().keep(own.begin, own.begin + own.count);
      optimizer_->own(own);
    }
    auto* results = results_.mutable_data_ptr<uint8_t>();
    AERIE_ASSIGN_OR_RETURN(const bool same,
                           optimizer_->refresh(core_->scaler(), compute_weights_, dtype_,
                                               reinterpret_cast<kernels::AdamwControl*>(results),
                                               reinterpret_cast<const float*>(results + kBadLoss)));
    // Graphs hold addresses and settings.
    if (!same) plans_->drop_graphs();
  } catch (const std::exception& error) {
    return torch_status(error).with_context("setting up the fast engine");
  }
  stale_ = false;
  return ok_status();
}

Status FastEngine::write_state() {
  AERIE_RETURN_IF_ERROR(finish_update());
  if (stale_) return ok_status();
  AERIE_RETURN_IF_ERROR(write_own_state());
  if (!shards()) return ok_status();
  // Other ranks' averages, and weights that passes do not read in float32.
  AERIE_RETURN_IF_ERROR(gather(core_->model().parameters().flat_params()));
  return core_->ema() != nullptr && core_->ema()->started() ? gather(core_->ema()->flat())
                                                            : ok_status();
}

Status FastEngine::write_own_state() {
  try {
    at::NoGradGuard no_grad;
    nn::ParameterRegistry& registry = core_->model().parameters();
    for (int64_t i = 0; i < statistics_.size(0); ++i) {
      const std::string at = str_cat("encoder.layers.", i, ".conv.batch_norm.");
      registry[at + "running_mean"].copy_(statistics_[i][0]);
      registry[at + "running_var"].copy_(statistics_[i][1]);
      registry[at + "num_batches_tracked"].copy_(counters_[i]);
    }
    optimizer_->write_counts();
    return ok_status();
  } catch (const std::exception& error) {
    return torch_status(error).with_context("collecting the state");
  }
}

kernels::SavedState FastEngine::saved_state() const {
  kernels::SavedState state;
  state.values = statistics_.mutable_data_ptr<float>();
  state.saved_values = saved_statistics_.mutable_data_ptr<float>();
  state.num_values = statistics_.numel();
  state.counters = counters_.mutable_data_ptr<int64_t>();
  state.saved_counters = saved_counters_.mutable_data_ptr<int64_t>();
  state.num_counters = counters_.numel();
  state.control = optimizer_->control();
  return state;
}

Status FastEngine::open_window() {
  window_.clear();
  window_has_gradients_ = window_reduced_ = false;
  window_divisor_ = window_frames_ = 0;
  if (ranks_ != nullptr && ranks_->broadcasts_buffers())
    AERIE_RETURN_IF_ERROR(ranks_->broadcast({statistics_, counters_}));
  const kernels::SavedState state = saved_state();
  AERIE_RETURN_IF_ERROR(compute_->status_of(
      compute_->kernels().save_state(state, compute_->handle()), "saving the statistics"));
  window_open_ = true;
  return ok_status();
}

// Forward and backward of what lies in the inputs, and its results.
Status FastEngine::run_and_record(Plan& plan, bool add, bool last) {
  AERIE_RETURN_IF_ERROR(run_plan(plan, window_has_gradients_, last));
  auto* results = results_.mutable_data_ptr<uint8_t>();
  const auto* outputs = outputs_.const_data_ptr<uint8_t>();
  kernels::RecordLoss record;
  record.loss = reinterpret_cast<const float*>(outputs);
  record.rows = reinterpret_cast<const int32_t*>(outputs + sizeof(float));
  record.out = reinterpret_cast<kernels::MicroResult*>(results + kMicroResults) + window_.size();
  record.add = add;
  record.first = !window_has_gradients_;
  record.bad_loss = reinterpret_cast<float*>(results + kBadLoss);
  const kernels::NestStep& step = *plan.step[window_has_gradients_ ? 1 : 0];
  window_square_partials_ = step.num_square_partials();
  window_squared_ = step.squared();
  window_has_gradients_ = true;
  return compute_->status_of(compute_->kernels().record_loss(record, compute_->handle()),
                             "recording the loss");
}

Status FastEngine::add_micro(const data::SpeechBatch& batch, const std::vector<Shape>& shapes,
                             const StepRequest& request, const nn::RandomKey& key, bool last) {
  if (static_cast<int64_t>(window_.size()) >= max_micros_)
    return internal_error(str_cat("more than ", max_micros_, " micro-batches in a step"));
  MicroInfo info;
  info.empty = batch.num_samples() == 0;
  for (const Shape& shape : shapes) info.room += shape.chosen;
  for (const int64_t samples : batch.noisy_audio_len())
    info.frames += nest::step_lengths(core_->model(), samples).frames_encoder;
  info.divisor = window_divisor_;
  if (info.empty) {
    AERIE_RETURN_IF_ERROR(exchange_nothing(request.split));
  } else if (passes(request.split, batch.num_samples()) > 1) {
    AERIE_RETURN_IF_ERROR(add_parts(batch, shapes, request, key, last, info));
  } else {
    AERIE_ASSIGN_OR_RETURN(Plan * plan, plan_for(shapes.front()));
    // Small copies first: as soon as these rows are mixed, the copy of the next batch begins, and
    // what the step still waited for would come behind it.
    AERIE_RETURN_IF_ERROR(upload_inputs(*plan, batch, 0, key, window_divisor_));
    AERIE_RETURN_IF_ERROR(intake_->load(batch, audio_of(*plan)));
    AERIE_RETURN_IF_ERROR(run_and_record(*plan, /*add=*/false, last));
  }
  window_.push_back(info);
  return ok_status();
}

Status FastEngine::add_parts(const data::SpeechBatch& batch, const std::vector<Shape>& shapes,
                             const StepRequest& request, const nn::RandomKey& key, bool last,
                             MicroInfo& info) {
  const int64_t rows = batch.num_samples(), samples = batch.capacity();
  const int64_t parts = passes(request.split, rows);
  AERIE_ASSIGN_OR_RETURN(int64_t total, masked_frames(batch, key, std::min(parts, rows)));
  info.no_mask = total == 0;
  if (window_divisor_ > 0) total = window_divisor_;
  auto* whole = static_cast<float*>(whole_->data());
  AERIE_RETURN_IF_ERROR(intake_->load(batch, whole));
  for (int64_t p = 0; p < parts; ++p) {
    const int64_t begin = rows * p / parts, end = rows * (p + 1) / parts;
    const Shape& shape = shapes[static_cast<size_t>(p)];
    if (begin == end) {
      AERIE_RETURN_IF_ERROR(exchange_nothing(1));
      continue;
    }
    AERIE_ASSIGN_OR_RETURN(Plan * plan, plan_for(shape));
    for (const int64_t signal : {0, 1})
      AERIE_RETURN_IF_ERROR(
          compute_->copy(audio_of(*plan) + signal * shape.batch * samples,
                         whole + (signal * rows + begin) * samples,
                         static_cast<size_t>(shape.batch * samples) * sizeof(float)));
    AERIE_RETURN_IF_ERROR(upload_inputs(*plan, batch, begin, key, total));
    AERIE_RETURN_IF_ERROR(run_and_record(*plan, /*add=*/begin > 0, last && end == rows));
  }
  return ok_status();
}

Result<int64_t> FastEngine::masked_frames(const data::SpeechBatch& batch, const nn::RandomKey& key,
                                          int64_t parts) {
  nest::NestBatch lengths;
  lengths.audio = at::empty({batch.num_samples(), 0});
  const std::vector<int64_t> noisy(batch.noisy_audio_len().begin(), batch.noisy_audio_len().end());
  lengths.noisy_lengths = at::tensor(noisy, at::kLong);
  lengths.padded_samples = batch.padded_length();
  lengths.random = key;
  return core_->masked_frames(lengths, parts);
}

Status FastEngine::prepare_all(const StepRequest& request, std::vector<std::vector<Shape>>& shapes,
                               size_t& last) {
  const DeviceSpans::Scope span(core_->spans(), kPhaseHostPrepare);
  for (size_t i = 0; i < request.micro_batches.size(); ++i) {
    const data::SpeechBatch* batch = data::speech_batch(request.micro_batches[i]);
    const int64_t rows = batch->num_samples();
    if (rows == 0) continue;
    if (request.finish) last = i;
    AERIE_RETURN_IF_ERROR(intake_->reserve(*batch));
    const int64_t parts = passes(request.split, rows);
    if (parts > 1)
      AERIE_RETURN_IF_ERROR(
          whole_->grow(static_cast<size_t>(2 * rows * batch->capacity()) * sizeof(float)));
    for (int64_t p = 0; p < parts; ++p) {
      const int64_t begin = rows * p / parts, end = rows * (p + 1) / parts;
      if (begin == end) {
        shapes[i].emplace_back();
        continue;
      }
      Shape shape = shape_of(*batch, begin, end - begin,
                             random_key(config_.aerie.seed, request.first_micro_step + i, *batch));
      shape.part = parts > 1;
      shape.global = core_->global_loss();
      shape.accumulate = request.accumulate;
      shapes[i].push_back(shape);
      AERIE_RETURN_IF_ERROR(prepare(shape));
    }
  }
  return ok_status();
}

Status FastEngine::submit(const StepRequest& request) {
  try {
    at::NoGradGuard no_grad;
    if (core_->ema() != nullptr && core_->ema()->swapped())
      return internal_error("training while averaged weights are in use");
    AERIE_RETURN_IF_ERROR(meet_ranks());
    device_phase_->tell(core_->group());
    AERIE_RETURN_IF_ERROR(refresh());
    std::vector<std::vector<Shape>> shapes(request.micro_batches.size());  // parts of micro-batches
    size_t last = request.micro_batches.size();  // of the window; there may be none here
    // All memory first: this is where a step can fail without having changed anything.
    Status prepared = prepare_all(request, shapes, last);
    if (GradientReducer* reducer = core_->reducer()) {
      // What one rank has no memory for, none begins. Other errors end this rank, and thereby all.
      uint8_t any = prepared.code() == StatusCode::kOutOfMemory ? 1 : 0;
      if (request.agree) {
        prepared = request.agree(prepared);
      } else if (prepared.ok() || any != 0) {
        AERIE_RETURN_IF_ERROR(reducer->unite(std::span(&any, 1)));
        if (prepared.ok() && any != 0)
          prepared = out_of_memory("another rank has no memory for its batch");
      }
    }
    AERIE_RETURN_IF_ERROR(prepared);
    if (!window_open_) AERIE_RETURN_IF_ERROR(open_window());
    AERIE_RETURN_IF_ERROR(weigh(request));
    {
      const DeviceSpans::Scope span(core_->spans(), kPhaseForwardBackward);
      for (size_t i = 0; i < request.micro_batches.size(); ++i)
        AERIE_RETURN_IF_ERROR(add_micro(data::speech_batch(*request.micro_batches[i]), shapes[i],
                                        request,
                                        random_key(config_.aerie.seed, request.first_micro_step + i,
                                                   *request.micro_batches[i]),
                                        i == last)
                                  .with_context(str_cat("micro-batch ", i)));
    }
    if (request.finish) AERIE_RETURN_IF_ERROR(finish_step(request));
    SpanScope wait("copy of the batch");
    return intake_->release();
  } catch (const std::exception& error) {
    return torch_status(error).with_context("training step");
  }
}

Status FastEngine::finish_update() {
  if (!update_pending_) return ok_status();
  AERIE_RETURN_IF_ERROR(optimizer_->update());
  update_pending_ = false;
  return shards() ? gather_weights() : ok_status();
}

Status FastEngine::finish_step(const StepRequest& request) {
  if (static_cast<int64_t>(request.learning_rates.size()) != num_param_groups())
    return internal_error(str_cat(request.learning_rates.size(), " learning rates for ",
                                  num_param_groups(), " parameter groups"));
  window_open_ = false;
  const bool reduces = core_->reducer() != nullptr;
  if (reduces) AERIE_RETURN_IF_ERROR(reduce_gradients());
  AERIE_RETURN_IF_ERROR(
      compute_->status_of(device_phase_->mark(dist::Phase::kUpdate), "telling the phase"));
  if (!window_has_gradients_) {
    // No rank-local samples in the whole step: nothing to update.
    AERIE_RETURN_IF_ERROR(collect_all());
    StepOutcome out;
    out.step = request.step;
    out.micro_losses.assign(window_.size(), 0.0);
    nest::add_frames(out, 0, 0);
    out.without_loss = static_cast<int64_t>(window_.size());
    finished_.push_back(std::move(out));
    return ok_status();
  }
  const DeviceSpans::Scope span(core_->spans(), kPhaseOptimizer);
  const bool scaled = core_->global_loss() && window_frames_ != window_divisor_;
  if (scaled)
    core_->model().parameters().flat_grads().mul_(static_cast<double>(window_divisor_) /
                                                  static_cast<double>(window_frames_));
  // Sums of squares that came with the gradients are those of this rank's.
  std::span<const double> squares(static_cast<const double*>(square_partials_->data()),
                                  !sums_squares() || scaled ? 0 : window_square_partials_);
  FlatOptimizer::Squared squared = window_squared_;
  if (shards() && !core_->reducer()->sums_everywhere()) {
    // Of all gradients, each rank having those of its own.
    const at::Tensor& grads = core_->model().parameters().flat_grads();
    const FlatRange own = core_->reducer()->owned();
    squared_norm_over_ranks_ = optim::l2_norm(grads.narrow(0, own.begin, own.count)).square();
    squared_norm_over_ranks_ = squared_norm_over_ranks_.to(device_).reshape({1});
    const int code = core_->reducer()->add_up_wide(
        squared_norm_over_ranks_.mutable_data_ptr<double>(), 1, compute_->handle());
    if (code != 0) return core_->reducer()->error(code);
    squares = {squared_norm_over_ranks_.const_data_ptr<double>(), 1};
    squared = {{grads.const_data_ptr<float>(), static_cast<size_t>(grads.numel())}};
  }
  AERIE_RETURN_IF_ERROR(
      optimizer_->decide(request.learning_rates, request.momentum, squares, squared));
  update_pending_ = true;
  const kernels::SavedState state = saved_state();
  AERIE_RETURN_IF_ERROR(compute_->status_of(
      compute_->kernels().restore_if_skipped(state, compute_->handle()), "optimizer"));

  if (under_way_->full()) AERIE_RETURN_IF_ERROR(take_oldest());
  Pending pending;
  pending.step = request.step;
  pending.micros = std::move(window_);
  pending.first_runs = std::exchange(window_first_runs_, 0);
  pending.divisor = window_divisor_;
  pending.frames = window_frames_;
  AERIE_RETURN_IF_ERROR(under_way_->push(std::move(pending), results_.const_data_ptr()));
  window_.clear();
  return ok_status();
}

// Waits for the oldest step under way and puts its outcome among the finished.
Status FastEngine::take_oldest() {
  AERIE_ASSIGN_OR_RETURN(const ResultRing<Pending>::Taken taken, under_way_->take());
  const Pending& pending = taken.pending;
  const uint8_t* bytes = taken.results;
  kernels::AdamwControl control;
  std::memcpy(&control, bytes, sizeof(control));
  StepOutcome out;
  out.step = pending.step;
  out.grad_norm = control.norm;
  out.skipped = control.skip != 0;
  out.first_runs = pending.first_runs;
  out.loss_scale =
      optimizer_->loss_scale() != nullptr ? static_cast<double>(control.loss_scale) : 1.0;
  double sum_of_losses = 0.0;
  int64_t counted = 0;
  for (size_t i = 0; i < pending.micros.size(); ++i) {
    const MicroInfo& info = pending.micros[i];
    kernels::MicroResult result{0.0f, 0};
    if (!info.empty)
      std::memcpy(&result, bytes + kMicroResults + i * sizeof(result), sizeof(result));
    if (result.rows > info.room)
      return internal_error(
          str_cat(result.rows, " masked frames where there is room for ", info.room));
    double loss = static_cast<double>(result.loss);
    if (info.divisor > 0)
      loss *= static_cast<double>(info.divisor) / static_cast<double>(std::max(result.rows, 1));
    if (info.no_mask && config_.aerie.empty_mask == config::EmptyMask::kNan)
      loss = std::numeric_limits<double>::quiet_NaN();
    out.micro_losses.push_back(loss);
    out.loss += loss / static_cast<double>(pending.micros.size());
    counted += result.rows;
    if (result.rows > 0) sum_of_losses += loss * static_cast<double>(result.rows);
    nest::add_frames(out, result.rows, info.frames);
    if (result.rows == 0) ++out.without_loss;
  }
  if (pending.divisor > 0 && core_->reducer() != nullptr) {
    float sum = 0.0f;
    std::memcpy(&sum, bytes + kLossSum, sizeof(sum));
    out.loss = static_cast<double>(sum) * static_cast<double>(pending.divisor) /
               static_cast<double>(pending.frames);
  } else if (pending.divisor > 0) {
    out.loss = sum_of_losses / static_cast<double>(std::max<int64_t>(counted, 1));
  }
  finished_.push_back(std::move(out));
  return ok_status();
}

Status FastEngine::collect_all() {
  while (!under_way_->empty()) AERIE_RETURN_IF_ERROR(take_oldest());
  return ok_status();
}

Result<std::vector<StepOutcome>> FastEngine::collect(bool wait) {
  const size_t allowed = wait ? 0 : static_cast<size_t>(max_in_flight());
  while (!under_way_->empty() && (under_way_->size() > allowed || under_way_->ready()))
    AERIE_RETURN_IF_ERROR(take_oldest());
  if (!finished_.empty()) core_->spans().flush();
  return std::exchange(finished_, {});
}

Result<EvalOutcome> FastEngine::evaluate(const data::Batch& any, uint64_t seed, uint64_t position) {
  const data::SpeechBatch& batch = data::speech_batch(any);
  EvalOutcome out;
  try {
    at::NoGradGuard no_grad;
    // With or without samples: ranks may meet in it.
    AERIE_RETURN_IF_ERROR(finish_update());
    if (batch.num_samples() == 0) {
      out.counted = false;
      return out;
    }
    AERIE_RETURN_IF_ERROR(refresh());
    const DeviceSpans::Scope span(core_->spans(), "evaluate");
    const nn::RandomKey key = random_key(seed, position, batch);
    Shape shape = shape_of(batch, 0, batch.num_samples(), key);
    shape.training = false;
    AERIE_ASSIGN_OR_RETURN(Plan * plan, plan_for(shape));
    Status status = intake_->reserve(batch);
    if (status.ok()) status = reserve(*plan);
    if (status.code() == StatusCode::kOutOfMemory) return evaluate_in_parts(batch, key);
    AERIE_RETURN_IF_ERROR(status);
    AERIE_RETURN_IF_ERROR(upload_inputs(*plan, batch, 0, key, 0));
    AERIE_RETURN_IF_ERROR(intake_->load(batch, audio_of(*plan)));
    AERIE_RETURN_IF_ERROR(run_plan(*plan, /*accumulate=*/false, /*last=*/false));
    if (under_way_->full()) AERIE_RETURN_IF_ERROR(take_oldest());
    AERIE_ASSIGN_OR_RETURN(const uint8_t* results, under_way_->read(outputs_.const_data_ptr(), 8));
    AERIE_RETURN_IF_ERROR(intake_->release());
    float loss = 0.0f;
    int32_t rows = 0;
    std::memcpy(&loss, results, 4);
    std::memcpy(&rows, results + 4, 4);
    out.loss = static_cast<double>(loss);
    out.sums = {static_cast<double>(rows)};
    out.counted = rows > 0 || config_.aerie.empty_mask == config::EmptyMask::kNan;
    if (core_->global_loss()) out.weight = static_cast<double>(rows);
    return out;
  } catch (const std::exception& error) {
    return torch_status(error).with_context("evaluation");
  }
}

// Without room for the batch in one piece: the reference path, which cuts it until it fits. Other
// ranks may have the room: nothing here meets them.
Result<EvalOutcome> FastEngine::evaluate_in_parts(const data::SpeechBatch& batch,
                                                  const nn::RandomKey& key) {
  AERIE_RETURN_IF_ERROR(write_own_state());
  if (shards()) show_weights();
  AERIE_ASSIGN_OR_RETURN(const nest::NestBatch tensors, to_nest_batch(batch, key, device_));
  return core_->evaluate(tensors);
}

}  // namespace aerie::train
