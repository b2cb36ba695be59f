#include "aerie/models/nest/engine/batch_tensors.h"

#include <algorithm>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "aerie/base/strings.h"
#include "aerie/kernels/kernel_table.h"
#include "aerie/models/nest/engine/mix_plan.h"
#include "aerie/nn/device_draws.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::train {
namespace {

// A (B, N) array as a tensor over the batch's own memory.
Result<at::Tensor> rows_of(const data::SpeechBatch& batch, std::string_view name) {
  const data::HostArray* array = batch.find(name);
  if (array == nullptr) return internal_error(str_cat("the batch has no array ", name));
  if (array->dims != 2 ||
      (array->dtype != aerie::Dtype::kF32 && array->dtype != aerie::Dtype::kI16))
    return internal_error(
        str_cat("array ", name, " has ", array->dims, " axes of ", dtype_name(array->dtype)));
  const at::ScalarType type = array->dtype == aerie::Dtype::kF32 ? at::kFloat : at::kShort;
  return at::from_blob(array->data, {array->shape[0], array->shape[1]}, type);
}

at::Tensor as_float(const at::Tensor& rows) {
  return rows.scalar_type() == at::kFloat ? rows : rows.to(at::kFloat).mul_(1.0 / 32768.0);
}

// The first `samples` of every row on the device. Rows go over as they lie in the batch, which is
// page-locked, unless most of them is room that nobody uses.
at::Tensor sent_rows(const at::Tensor& rows, int64_t samples, at::Device device) {
  if (rows.size(1) <= 2 * samples) return rows.to(device).narrow(1, 0, samples).contiguous();
  return rows.narrow(1, 0, samples).contiguous().to(device);
}

at::Tensor lengths_of(std::span<const int64_t> lengths) {
  return at::tensor(at::ArrayRef<int64_t>(lengths.data(), lengths.size()), at::kLong);
}

struct MixedRows {
  at::Tensor audio, noisy;
};

// Clean rows as floats, and the same plus what the batch's plan adds to them, by the kernel of the
// device; the reference does it for the CPU.
Result<MixedRows> mixed_rows(const data::SpeechBatch& batch, at::Device device) {
  AERIE_ASSIGN_OR_RETURN(const at::Tensor stored, rows_of(batch, "audio"));
  const data::HostArray* noise_array = batch.find("noise");
  at::Tensor noise;
  if (noise_array != nullptr && noise_array->size() > 0) {
    AERIE_ASSIGN_OR_RETURN(noise, rows_of(batch, "noise"));
  }
  const auto bytes = [](auto& list) {
    return at::from_blob(list.data(), {static_cast<int64_t>(list.size() * sizeof(list[0]))},
                         at::kByte);
  };
  std::vector<kernels::MixRowsItem> items(static_cast<size_t>(stored.size(0)));
  std::vector<kernels::MixRowsSegment> segments(batch.mix_plan().segments.size());
  write_mix_plan(batch, items.data(), segments.data());

  const auto run = [&](at::Device where, const kernels::KernelTable& table) {
    const at::Tensor clean = stored.to(where), raw = noise.defined() ? noise.to(where) : noise;
    const at::Tensor items_there = nn::sent_to(where, bytes(items));
    const at::Tensor segments_there = nn::sent_to(where, bytes(segments));
    MixedRows out;
    out.audio = at::empty(clean.sizes(), at::TensorOptions(where).dtype(at::kFloat));
    out.noisy = at::empty_like(out.audio);
    kernels::MixRows mix;
    mix.rows = clean.size(0);
    mix.stride = clean.size(1);
    point_at(batch.find("audio"), clean.const_data_ptr(), &mix.clean_f32, &mix.clean_i16);
    if (raw.defined()) point_at(noise_array, raw.const_data_ptr(), &mix.noise_f32, &mix.noise_i16);
    mix.items = static_cast<const kernels::MixRowsItem*>(items_there.const_data_ptr());
    mix.segments = static_cast<const kernels::MixRowsSegment*>(segments_there.const_data_ptr());
    mix.audio = out.audio.mutable_data_ptr<float>();
    mix.noisy = out.noisy.mutable_data_ptr<float>();
    const bool done = nn::queue_draws(where, "a mixed batch",
                                      [&](void* stream) { return table.mix_rows(mix, stream); });
    TORCH_CHECK(done, "a batch of ", mix.rows, " x ", mix.stride, " samples cannot be mixed");
    return out;
  };
  if (const kernels::KernelTable* table = nn::draw_kernels(device)) return run(device, *table);
  // The CPU; or a GPU without the CUDA module, for which rows are mixed before they are sent.
  MixedRows out = run(at::kCPU, kernels::kReferenceKernels);
  out.audio = out.audio.to(device);
  out.noisy = out.noisy.to(device);
  return out;
}

}  // namespace

Result<nest::NestBatch> to_nest_batch(const data::SpeechBatch& batch, const nn::RandomKey& random,
                                      at::Device device) {
  try {
    nest::NestBatch out;
    out.random = random;
    out.padded_samples = batch.padded_length();
    if (batch.num_samples() == 0) {
      out.audio = at::zeros({0, batch.capacity()}, at::TensorOptions(device).dtype(at::kFloat));
      out.noisy = out.audio;
      out.lengths = at::zeros({0}, at::TensorOptions(device).dtype(at::kLong));
      out.noisy_lengths = out.lengths;
      return out;
    }
    out.lengths = nn::sent_to(device, lengths_of(batch.audio_len()));
    out.noisy_lengths = nn::sent_to(device, lengths_of(batch.noisy_audio_len()));
    if (!batch.mixed_on_cpu()) {
      AERIE_ASSIGN_OR_RETURN(const MixedRows rows, mixed_rows(batch, device));
      const auto used = [&](const at::Tensor& all) {
        return device.is_cpu() ? all : all.narrow(1, 0, out.padded_samples).contiguous();
      };
      out.audio = used(rows.audio);
      out.noisy = used(rows.noisy);
      return out;
    }
    // As small as it is: a device widens.
    const auto sent = [&](const at::Tensor& rows) {
      return as_float(device.is_cpu() ? rows : sent_rows(rows, out.padded_samples, device));
    };
    AERIE_ASSIGN_OR_RETURN(const at::Tensor stored, rows_of(batch, "audio"));
    out.audio = sent(stored);
    // Without anything to mix the loader may hand over the clean rows alone.
    out.noisy = out.audio;
    if (batch.find("noisy_audio") != nullptr) {
      AERIE_ASSIGN_OR_RETURN(const at::Tensor noisy, rows_of(batch, "noisy_audio"));
      out.noisy = sent(noisy);
    }
    return out;
  } catch (const std::exception& error) {
    return torch_status(error).with_context("copying a batch to the device");
  }
}

}  // namespace aerie::train
