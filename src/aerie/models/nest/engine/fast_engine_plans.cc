// Shapes of micro-batches: what each runs, its memory and inputs, and its graphs.
#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/DeviceAccelerator.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "aerie/base/log.h"
#include "aerie/base/strings.h"
#include "aerie/models/nest/engine/fast_engine.h"
#include "aerie/models/nest/step/packed_rows.h"
#include "aerie/models/nest/step_setup.h"
#include "aerie/nn/positional.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::train {
namespace {

// Offsets in the inputs of a micro-batch.
constexpr size_t kRandom = 0, kCounted = 64, kLossRows = 68, kUpdate = 72, kLengths = 128;
static_assert(sizeof(kernels::RandomState) <= kCounted);
// Behind the lengths: where items begin, and what each row is.
size_t begin_offset(int64_t batch) {
  return kLengths + static_cast<size_t>(batch) * 6 * sizeof(int32_t);
}
size_t positions_offset(int64_t batch) {
  return (begin_offset(batch) + static_cast<size_t>(batch + 1) * sizeof(int32_t) + 7) / 8 * 8;
}
size_t input_bytes(int64_t batch, int64_t rows) {
  return positions_offset(batch) + static_cast<size_t>(rows) * sizeof(kernels::RowPosition);
}

kernels::RandomState random_state(const nn::RandomKey& key) {
  return {philox_key(key.seed, Purpose::kDropout),
          philox_key(key.seed, Purpose::kMask),
          philox_key(key.seed, Purpose::kDither),
          key.micro_step,
          key.first_item,
          key.item_stride};
}

}  // namespace

at::ScalarType torch_type(kernels::Dtype dtype) {
  return dtype == kernels::Dtype::kF32    ? at::kFloat
         : dtype == kernels::Dtype::kBF16 ? at::kBFloat16
                                          : at::kHalf;
}

FastEngine::Shape FastEngine::shape_of(const data::SpeechBatch& batch, int64_t first, int64_t count,
                                       const nn::RandomKey& key) const {
  const nest::NestModel& model = core_->model();
  kernels::NestStepConfig c = nest::step_config(model, config_.aerie);
  c.frames = static_cast<int>(nest::step_frames(model, batch.capacity()));
  Shape shape;
  shape.batch = count;
  shape.samples = batch.capacity();
  std::vector<int32_t> frames;
  for (const int64_t samples :
       batch.noisy_audio_len().subspan(static_cast<size_t>(first), static_cast<size_t>(count)))
    frames.push_back(nest::step_lengths(model, samples).frames);
  const kernels::PackedSize packed = kernels::packed_size(c, frames, random_state(key.from(first)));
  shape.rows = packed.rows;
  shape.chosen = packed.chosen;
  return shape;
}

Result<FastEngine::Plan*> FastEngine::plan_for(const Shape& shape) {
  return plans_->find(shape, [&] { return make_plan(shape); });
}

Result<std::unique_ptr<FastEngine::Plan>> FastEngine::make_plan(const Shape& shape) {
  const nest::NestModel& model = core_->model();
  const nn::ParameterRegistry& registry = model.parameters();
  auto plan = std::make_unique<Plan>();
  plan->shape = shape;
  kernels::NestStepConfig& c = plan->config;
  c = nest::step_config(model, config_.aerie);
  c.dtype = dtype_;
  c.training = shape.training;
  c.batch = static_cast<int>(shape.batch);
  c.samples = static_cast<int>(shape.samples);
  c.frames = static_cast<int>(nest::step_frames(model, shape.samples));
  c.rows = static_cast<int>(shape.rows);
  c.chosen = static_cast<int>(shape.chosen);
  // Behind a global loss comes a mean over the ranks.
  const GradientReducer* reducer = core_->reducer();
  c.loss_weight = shape.global ? static_cast<float>(reducer != nullptr ? reducer->world() : 1)
                               : 1.0f / static_cast<float>(shape.accumulate);
  c.tune = config_.trainer.benchmark && config_.trainer.deterministic == config::Deterministic::kNo;
  if (shape.part || shape.global) c.nan_when_empty = false;
  kernels::PlanLimits limits;
  limits.recompute = config_.aerie.activation_checkpointing || recompute_;
  limits.part = shape.part;
  limits.parameters = registry.flat_params().numel();
  c.plan = kernels::make_step_plan(c, device_model_, limits);
  c.exchange = static_cast<bool>(core_->exchange());

  plan->params = nest::step_params(model, [&](const std::string& name) {
    kernels::NestParam out;
    const int64_t index = registry.find(name);
    if (index < 0) return out;
    const int64_t offset = registry.entries()[static_cast<size_t>(index)].flat_offset;
    const at::Tensor& value = registry.tensor(index);
    out.value = value.const_data_ptr<float>();
    out.compute = out.value;
    if (offset < 0) return out;
    if (dtype_ != kernels::Dtype::kF32)
      out.compute = static_cast<const uint16_t*>(compute_weights_.const_data_ptr()) + offset;
    out.grad = registry.flat_grads().mutable_data_ptr<float>() + offset;
    return out;
  });
  plan->params.positions = positions_of(c.frames / 8, c.width);
  plan->params.codebooks_float = codebooks_.const_data_ptr<float>();
  plan->params.twiddles = twiddles_.const_data_ptr<float>();
  plan->params.bands = bands_.const_data_ptr<int32_t>();
  plan->params.silent_tokens = silent_tokens_.const_data_ptr<int32_t>();
  for (size_t i = 0; i < plan->params.layers.size(); ++i) {
    const auto layer = static_cast<int64_t>(i);
    float* values = statistics_.mutable_data_ptr<float>() + layer * 2 * c.width;
    plan->params.layers[i].running_mean = values;
    plan->params.layers[i].running_var = values + c.width;
    plan->params.layers[i].num_batches = counters_.mutable_data_ptr<int64_t>() + layer;
  }
  const auto has_room = [&] {
    return has_room_for(kernels::NestStep(compute_->kernels(), c, plan->params));
  };
  while (!has_room() && kernels::give_up_memory(c.plan)) {
  }
  for (size_t accumulate = 0; accumulate < 2; ++accumulate) {
    c.accumulate = accumulate == 1;
    plan->step[accumulate] =
        std::make_unique<kernels::NestStep>(compute_->kernels(), c, plan->params);
  }
  return plan;
}

const void* FastEngine::positions_of(int64_t frames, int64_t width) {
  const auto options = at::TensorOptions(device_).dtype(torch_type(dtype_));
  const int64_t row_bytes = width * static_cast<int64_t>(at::elementSize(torch_type(dtype_)));
  // Kernels may count on the alignment of a table of its own.
  constexpr int64_t kAlign = 256;
  for (auto longer = positions_.lower_bound(frames); longer != positions_.end(); ++longer) {
    const int64_t skipped = (longer->first - frames) * row_bytes;
    if (skipped % kAlign == 0)
      return static_cast<const uint8_t*>(longer->second.const_data_ptr()) + skipped;
  }
  // Half as long again, so that all tables together stay small where lengths keep growing.
  int64_t rows = frames;
  if (!positions_.empty() && row_bytes % kAlign == 0)
    rows = std::max(rows, positions_.rbegin()->first * 3 / 2);
  const at::Tensor table =
      nn::sinusoid_table(rows - 1, -1, 2 * rows - 1, width, options).contiguous();
  positions_[rows] = table;
  return static_cast<const uint8_t*>(table.const_data_ptr()) + (rows - frames) * row_bytes;
}

// Whether the device has the memory a step wants, with a margin for what others allocate.
bool FastEngine::has_room_for(const kernels::NestStep& step) const {
  if (!device_.is_cuda()) return true;
  const auto [free, total] =
      at::accelerator::getMemoryInfo(std::max<c10::DeviceIndex>(device_.index(), 0));
  return step.memory_bytes() + total / 32 <= free + memory_->size();
}

Status FastEngine::reserve(const Plan& plan) {
  const Shape& shape = plan.shape;
  AERIE_RETURN_IF_ERROR(memory_->grow(plan.step[0]->memory_bytes())
                            .with_context(str_cat("memory for ", shape.batch, " clips of ",
                                                  shape.samples, " samples")));
  AERIE_RETURN_IF_ERROR(inputs_->grow(input_bytes(shape.batch, shape.rows)));
  return square_partials_->grow(std::max<size_t>(1, plan.step[0]->max_square_partials()) *
                                sizeof(double));
}

Status FastEngine::prepare(const Shape& shape) {
  AERIE_ASSIGN_OR_RETURN(Plan * plan, plan_for(shape));
  const Status status = reserve(*plan);
  if (status.code() != StatusCode::kOutOfMemory || plan->config.plan.recompute || recompute_)
    return status;
  log_warn("train", "the device has no room for the activations of ", shape.batch,
           " clips: they are recomputed in the backward pass from now on (", status.message(), ")");
  recompute_ = true;
  (void)compute_->synchronize();
  plans_->clear();
  AERIE_ASSIGN_OR_RETURN(plan, plan_for(shape));
  return reserve(*plan);
}

float* FastEngine::audio_of(const Plan& plan) const {
  return reinterpret_cast<float*>(static_cast<uint8_t*>(memory_->data()) +
                                  plan.step[0]->audio_offset());
}

kernels::NestStepInputs FastEngine::inputs_of(const Plan& plan) const {
  const Shape& shape = plan.shape;
  const auto* base = static_cast<const uint8_t*>(inputs_->data());
  const auto* lengths = reinterpret_cast<const int32_t*>(base + kLengths);
  kernels::NestStepInputs in;
  in.audio = audio_of(plan);
  in.samples = lengths;
  in.frames = lengths + 2 * shape.batch;
  in.frames_quarter = lengths + 4 * shape.batch;
  in.frames_encoder = lengths + 5 * shape.batch;
  in.layout.cu_seqlens = reinterpret_cast<const int32_t*>(base + begin_offset(shape.batch));
  in.layout.positions =
      reinterpret_cast<const kernels::RowPosition*>(base + positions_offset(shape.batch));
  in.frames_counted = reinterpret_cast<const int32_t*>(base + kCounted);
  in.random = reinterpret_cast<const kernels::RandomState*>(base + kRandom);
  in.loss_scale = optimizer_->loss_scale();
  if (shape.part || shape.global) in.loss_rows = reinterpret_cast<const int32_t*>(base + kLossRows);
  return in;
}

Status FastEngine::upload_inputs(const Plan& plan, const data::SpeechBatch& batch,
                                 int64_t first_item, const nn::RandomKey& key, int64_t loss_rows) {
  const Shape& shape = plan.shape;
  std::vector<unsigned char> bytes(input_bytes(shape.batch, shape.rows));
  const kernels::RandomState random = random_state(key.from(first_item));
  std::memcpy(bytes.data() + kRandom, &random, sizeof(random));
  const auto put = [&](size_t at, int64_t value) {
    const auto narrow = static_cast<int32_t>(value);
    std::memcpy(bytes.data() + at, &narrow, sizeof(narrow));
  };
  const nest::NestModel& model = core_->model();
  const int64_t padded = batch.num_samples() > 0 ? batch.padded_length() : shape.samples;
  put(kCounted, nest::step_frames_counted(model, padded));
  put(kLossRows, loss_rows);
  put(kUpdate, update_pending_ ? 1 : 0);
  const size_t items = static_cast<size_t>(shape.batch);
  std::vector<int> valid(items);  // encoder frames
  for (size_t signal = 0; signal < 2; ++signal)
    for (size_t b = 0; b < items; ++b) {
      const size_t row = static_cast<size_t>(first_item) + b;
      const int64_t samples = batch.num_samples() == 0 ? shape.samples
                              : signal == 0            ? batch.audio_len()[row]
                                                       : batch.noisy_audio_len()[row];
      const nest::StepLengths lengths = nest::step_lengths(model, samples);
      const size_t at = kLengths + (signal * items + b) * 4;
      put(at, samples);
      put(at + 2 * items * 4, lengths.frames);
      if (signal == 1) {
        put(kLengths + (4 * items + b) * 4, lengths.frames_quarter);
        put(kLengths + (5 * items + b) * 4, lengths.frames_encoder);
        valid[b] = static_cast<int>(lengths.frames_encoder);
      }
    }
  const std::vector<int> rows = kernels::item_rows(plan.config, valid);
  int64_t begin = 0;
  size_t row = positions_offset(shape.batch);
  for (size_t b = 0; b < items; ++b) {
    put(begin_offset(shape.batch) + b * 4, begin);
    begin += rows[b];
    for (int t = 0; t < rows[b]; ++t, row += sizeof(kernels::RowPosition)) {
      put(row, static_cast<int64_t>(b));
      put(row + sizeof(int32_t), t);
    }
  }
  put(begin_offset(shape.batch) + items * 4, begin);
  return uploads_->upload(inputs_->data(), bytes.data(), bytes.size());
}

// Launches a part's update overlapping the pass through the model, which waits for it.
int FastEngine::update_before(int part, const uint32_t* wanted) {
  device::Event& done = *part_updated_[static_cast<size_t>(part)];
  const int code =
      optimizer_->update_part(part, wanted, device_model_.update_sm_share, update_->handle());
  if (code != kernels::kOk) return code;
  return kernels::waits_for(*compute_, done);
}

Status FastEngine::run_plan(Plan& plan, bool accumulate, bool last) {
  const size_t which = accumulate ? 1 : 0;
  GradientReducer* const reducer = core_->reducer();
  const bool reduces = reducer != nullptr && last && reducer->recordable();
  // The first pass of a step finds the last step's update undone, or is told that it is not.
  const bool first = plan.config.plan.overlap_update && !accumulate && !shards();
  if (!first) AERIE_RETURN_IF_ERROR(finish_update());
  const auto work = [this, &plan, which, first, reducer, reduces](void* stream) {
    auto* outputs = outputs_.mutable_data_ptr<uint8_t>();
    kernels::NestStepInputs inputs = inputs_of(plan);
    inputs.side = side_->as_side();
    if (first) {
      const auto* wanted =
          reinterpret_cast<const uint32_t*>(static_cast<const uint8_t*>(inputs_->data()) + kUpdate);
      inputs.before_part = [this, wanted](int part) { return update_before(part, wanted); };
      const int code = kernels::waits_for(*update_, *update_begin_);
      if (code != kernels::kOk) return code;
    }
    if (reduces)
      inputs.after_part = [this, reducer](int part, void* on) {
        return reduce_code_ = reducer->begin(part, on);
      };
    inputs.exchange = core_->exchange();
    inputs.before_backward = [this] { return device_phase_->mark(dist::Phase::kBackward); };
    int code = plan.shape.training ? device_phase_->mark(dist::Phase::kForward) : kernels::kOk;
    if (code != kernels::kOk) return code;
    code = plan.step[which]->run(
        memory_->data(), inputs,
        {reinterpret_cast<float*>(outputs), reinterpret_cast<int32_t*>(outputs + sizeof(float)),
         sums_squares() ? static_cast<double*>(square_partials_->data()) : nullptr},
        stream);
    if (code != kernels::kOk || !reduces) return code;
    code = device_phase_->mark(dist::Phase::kAllReduce);
    return code == kernels::kOk ? reduce_code_ = reducer->finish(stream) : code;
  };
  const size_t way = which + (reduces ? 2 : 0);
  if (plan.shape.training && plans_->is_early(plan, way)) ++window_first_runs_;
  const bool record = !core_->exchange() || !plan.shape.training || core_->exchange_is_recordable();
  reduce_code_ = 0;
  const Status status = plans_->run(plan, way, work, record);
  // Only the reducer knows what its code means.
  if (!status.ok()) return reduce_code_ != 0 ? reducer->error(reduce_code_) : status;
  if (reduces) window_reduced_ = true;
  if (first) update_pending_ = false;
  return ok_status();
}

int64_t FastEngine::num_graphs() const {
  return plans_->num_graphs();
}

}  // namespace aerie::train
