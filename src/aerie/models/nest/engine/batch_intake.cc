#include "aerie/models/nest/engine/batch_intake.h"

#include <cstring>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "aerie/base/strings.h"
#include "aerie/kernels/kernel_table.h"
#include "aerie/models/nest/engine/mix_plan.h"

namespace aerie::train {
namespace {

constexpr size_t kAlign = 256;
size_t aligned(size_t bytes) {
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

// Where the parts of a batch lie in a slot.
struct Layout {
  const data::HostArray* clean = nullptr;
  const data::HostArray* noisy = nullptr;  // null: made on the device, or the clean rows
  const data::HostArray* noise = nullptr;
  bool mix = false;  // segments are added on the device
  size_t second = 0, items = 0, segments = 0, bytes = 0;
};

Result<Layout> layout_of(const data::SpeechBatch& batch) {
  Layout out;
  out.clean = batch.find("audio");
  if (out.clean == nullptr || out.clean->dims != 2 ||
      (out.clean->dtype != aerie::Dtype::kF32 && out.clean->dtype != aerie::Dtype::kI16))
    return internal_error("the batch has no rows of audio");
  out.mix = !batch.mixed_on_cpu();
  if (out.mix) {
    out.noise = batch.find("noise");
  } else {
    out.noisy = batch.find("noisy_audio");
  }
  out.second = aligned(out.clean->bytes());
  const data::HostArray* second = out.mix ? out.noise : out.noisy;
  out.items = out.second + (second != nullptr ? aligned(second->bytes()) : 0);
  const size_t rows = static_cast<size_t>(batch.num_samples());
  out.segments = out.items + aligned(rows * sizeof(kernels::MixRowsItem));
  const size_t segments = out.mix ? batch.mix_plan().segments.size() : 0;
  out.bytes = out.segments + aligned(segments * sizeof(kernels::MixRowsSegment));
  return out;
}

}  // namespace

at::Tensor host_memory(int64_t bytes, at::Device device) {
  return at::empty({bytes}, at::TensorOptions().dtype(at::kByte).pinned_memory(device.is_cuda()));
}

Result<std::unique_ptr<BatchIntake>> BatchIntake::create(device::Stream& compute,
                                                         device::Stream& copy,
                                                         std::unique_ptr<device::Arena> slot,
                                                         at::Device device) {
  std::unique_ptr<BatchIntake> out(new BatchIntake(compute, copy, std::move(slot), device));
  AERIE_ASSIGN_OR_RETURN(out->copied_, copy.make_event());
  AERIE_ASSIGN_OR_RETURN(out->consumed_, compute.make_event());
  return out;
}

BatchIntake::~BatchIntake() {
  (void)copy_.synchronize();
  (void)compute_.synchronize();
}

Status BatchIntake::reserve(const data::SpeechBatch& batch) {
  AERIE_ASSIGN_OR_RETURN(const Layout layout, layout_of(batch));
  const auto plan_bytes = static_cast<int64_t>(layout.bytes - layout.items);
  AERIE_RETURN_IF_ERROR(slot_->grow(layout.bytes));
  if (!host_plan_.defined() || host_plan_.numel() < plan_bytes) {
    AERIE_RETURN_IF_ERROR(copy_.synchronize());
    host_plan_ = host_memory(plan_bytes * 2, device_);
  }
  return ok_status();
}

Status BatchIntake::load(const data::SpeechBatch& batch, float* out) {
  AERIE_ASSIGN_OR_RETURN(const Layout layout, layout_of(batch));
  const int64_t rows = layout.clean->shape[0], stride = layout.clean->shape[1];
  const size_t count = static_cast<size_t>(rows * stride);
  auto* base = static_cast<uint8_t*>(slot_->data());

  AERIE_RETURN_IF_ERROR(copy_.wait_for(*consumed_));
  AERIE_RETURN_IF_ERROR(copy_.copy(base, layout.clean->data, layout.clean->bytes()));
  const data::HostArray* second = layout.mix ? layout.noise : layout.noisy;
  if (second != nullptr)
    AERIE_RETURN_IF_ERROR(copy_.copy(base + layout.second, second->data, second->bytes()));
  // Float rows that were mixed already are moved; anything else goes through the kernel.
  const auto is_float = [](const data::HostArray* array) {
    return array != nullptr && array->dtype == aerie::Dtype::kF32;
  };
  const bool move = !layout.mix && is_float(layout.clean) && is_float(layout.noisy);
  if (!move) {
    AERIE_RETURN_IF_ERROR(copied_->wait());  // the last use of host_plan_
    uint8_t* plan = host_plan_.mutable_data_ptr<uint8_t>();
    write_mix_plan(
        batch, reinterpret_cast<kernels::MixRowsItem*>(plan),
        reinterpret_cast<kernels::MixRowsSegment*>(plan + (layout.segments - layout.items)));
    AERIE_RETURN_IF_ERROR(
        copy_.copy(base + layout.items, host_plan_.const_data_ptr(), layout.bytes - layout.items));
  }
  AERIE_RETURN_IF_ERROR(copied_->record());
  AERIE_RETURN_IF_ERROR(compute_.wait_for(*copied_));

  if (move) {
    AERIE_RETURN_IF_ERROR(compute_.copy(out, base, count * sizeof(float)));
    AERIE_RETURN_IF_ERROR(compute_.copy(out + count, base + layout.second, count * sizeof(float)));
  } else {
    kernels::MixRows mix;
    mix.rows = rows;
    mix.stride = stride;
    point_at(layout.clean, base, &mix.clean_f32, &mix.clean_i16);
    if (layout.mix) point_at(layout.noise, base + layout.second, &mix.noise_f32, &mix.noise_i16);
    mix.items = reinterpret_cast<const kernels::MixRowsItem*>(base + layout.items);
    mix.segments = reinterpret_cast<const kernels::MixRowsSegment*>(base + layout.segments);
    mix.audio = out;
    mix.noisy = out + count;
    int code = compute_.kernels().mix_rows(mix, compute_.handle());
    if (code == kernels::kOk && layout.noisy != nullptr) {
      // Noisy rows of their own.
      mix.clean_f32 = nullptr;
      mix.clean_i16 = nullptr;
      point_at(layout.noisy, base + layout.second, &mix.clean_f32, &mix.clean_i16);
      mix.audio = nullptr;
      code = compute_.kernels().mix_rows(mix, compute_.handle());
    }
    AERIE_RETURN_IF_ERROR(compute_.status_of(code, "mixing a batch"));
  }
  return consumed_->record();
}

Status BatchIntake::release() {
  return copied_->wait();
}

}  // namespace aerie::train
