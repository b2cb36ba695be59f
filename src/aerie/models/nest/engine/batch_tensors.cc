#include "aerie/models/nest/engine/batch_tensors.h"

#include <algorithm>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "aerie/base/strings.h"
#include "aerie/data/speech/augment.h"
#include "aerie/nn/device_draws.h"
#include "aerie/train/graph/torch_status.h"

namespace aerie::train {
namespace {

// A (B, N) array as a tensor over the batch's own memory.
Result<at::Tensor> rows_of(const data::SpeechBatch& batch, std::string_view name) {
  const data::HostArray* array = batch.find(name);
  if (array == nullptr) return internal_error(str_cat("the batch has no array ", name));
  if (array->dims != 2 ||
      (array->dtype != data::DType::kFloat32 && array->dtype != data::DType::kInt16))
    return internal_error(
        str_cat("array ", name, " has ", array->dims, " axes of ", data::dtype_name(array->dtype)));
  const at::ScalarType type = array->dtype == data::DType::kFloat32 ? at::kFloat : at::kShort;
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

data::MixRow row_of(const at::Tensor& rows, int64_t b) {
  data::MixRow out;
  if (!rows.defined()) return out;
  if (rows.scalar_type() == at::kFloat) {
    out.f32 = rows.const_data_ptr<float>() + b * rows.size(1);
  } else {
    out.i16 = rows.const_data_ptr<int16_t>() + b * rows.size(1);
  }
  return out;
}

// Clean rows plus what the batch's plan adds to them. `stored`: the rows as the batch has them.
Result<at::Tensor> mix(const data::SpeechBatch& batch, const at::Tensor& stored,
                       const at::Tensor& audio) {
  const int64_t rows = stored.size(0);
  at::Tensor noise;
  if (batch.find("noise") != nullptr) {
    AERIE_ASSIGN_OR_RETURN(noise, rows_of(batch, "noise"));
  }
  std::vector<data::MixInput> inputs(static_cast<size_t>(rows));
  std::vector<data::MixRow> audio_rows, noise_rows;
  for (int64_t b = 0; b < rows; ++b) {
    const size_t i = static_cast<size_t>(b);
    inputs[i].audio_len = batch.audio_len()[i];
    inputs[i].noise_len = batch.noise_len()[i];
    audio_rows.push_back(row_of(stored, b));
  }
  // As many as were planned: those of dropped clips stay, and clips without noise have none.
  const int64_t noise_count = noise.defined() ? noise.size(0) : 0;
  for (int64_t k = 0; k < noise_count; ++k) noise_rows.push_back(row_of(noise, k));
  const data::MixRows mix_rows{inputs, audio_rows, noise_rows, {}};
  at::Tensor noisy = audio.clone();
  for (int64_t b = 0; b < rows; ++b)
    data::add_segments(mix_rows, batch.mix_plan(), static_cast<size_t>(b),
                       noisy.data_ptr<float>() + b * noisy.size(1));
  return noisy;
}

}  // namespace

at::Tensor mix_on_device(const data::SpeechBatch& batch, const at::Tensor& audio,
                         const at::Tensor& noise) {
  // Sources that repeat more often than this are laid out once instead of piece by piece.
  constexpr int64_t kMaxPieces = 8;
  at::Tensor noisy = audio.clone();
  const data::MixPlan& plan = batch.mix_plan();
  for (size_t b = 0; b < plan.items.size(); ++b) {
    const data::MixItem& item = plan.items[b];
    const at::Tensor row = noisy.select(0, static_cast<int64_t>(b));
    for (int32_t s = 0; s < item.num_segments; ++s) {
      const data::MixSegment& segment = plan.segments[static_cast<size_t>(item.first_segment + s)];
      at::Tensor source =
          (segment.source == data::MixSource::kSpeech ? audio : noise).select(0, segment.row);
      int64_t period = segment.source_period;
      if (segment.length > kMaxPieces * period) {
        const int64_t times = (segment.length + 2 * period - 1) / period;
        source = source.narrow(0, 0, period).repeat({times});
        period *= times;
      }
      for (int64_t done = 0; done < segment.length;) {
        const int64_t from = (segment.source_begin + done) % period;
        const int64_t count = std::min(segment.length - done, period - from);
        row.narrow(0, segment.dest_begin + done, count)
            .add_(source.narrow(0, from, count), item.gain);
        done += count;
      }
    }
  }
  return noisy;
}

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
    AERIE_ASSIGN_OR_RETURN(const at::Tensor stored, rows_of(batch, "audio"));
    out.lengths = nn::sent_to(device, lengths_of(batch.audio_len()));
    out.noisy_lengths = nn::sent_to(device, lengths_of(batch.noisy_audio_len()));
    // As small as it is: a device widens and mixes.
    const auto sent = [&](const at::Tensor& rows) {
      return as_float(device.is_cpu() ? rows : sent_rows(rows, out.padded_samples, device));
    };
    out.audio = sent(stored);
    if (batch.mixed_on_cpu()) {
      // Without anything to mix the loader may hand over the clean rows alone.
      out.noisy = out.audio;
      if (batch.find("noisy_audio") != nullptr) {
        AERIE_ASSIGN_OR_RETURN(const at::Tensor noisy, rows_of(batch, "noisy_audio"));
        out.noisy = sent(noisy);
      }
    } else if (device.is_cpu()) {
      AERIE_ASSIGN_OR_RETURN(out.noisy, mix(batch, stored, out.audio));
    } else {
      at::Tensor noise;
      if (batch.find("noise") != nullptr) {
        AERIE_ASSIGN_OR_RETURN(noise, rows_of(batch, "noise"));
        noise = as_float(noise.to(device));
      }
      out.noisy = mix_on_device(batch, out.audio, noise);
    }
    return out;
  } catch (const std::exception& error) {
    return torch_status(error).with_context("copying a batch to the device");
  }
}

}  // namespace aerie::train
