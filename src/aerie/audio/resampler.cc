#include "aerie/audio/resampler.h"

#include <algorithm>
#include <cmath>

#include <soxr.h>

namespace aerie::audio {

struct Resampler::Handle {
  soxr_t soxr = nullptr;
  int in_rate = 0;
  int out_rate = 0;
  ~Handle() {
    if (soxr != nullptr) soxr_delete(soxr);
  }
};

Resampler::Resampler() : handle_(std::make_unique<Handle>()) {}
Resampler::~Resampler() = default;

int64_t resampled_length(int64_t frames, int in_rate, int out_rate) {
  const double ratio = static_cast<double>(out_rate) / in_rate;
  return static_cast<int64_t>(std::ceil(static_cast<double>(frames) * ratio));
}

Status Resampler::process_channel(const float* in, int64_t frames, float* out, int64_t out_frames) {
  Handle& handle = *handle_;
  size_t produced = 0;
  size_t consumed = 0;
  int64_t done = 0;
  soxr_error_t error = soxr_process(handle.soxr, in, static_cast<size_t>(frames), &consumed, out,
                                    static_cast<size_t>(out_frames), &produced);
  done += static_cast<int64_t>(produced);
  while (error == nullptr && done < out_frames) {
    error = soxr_process(handle.soxr, nullptr, 0, nullptr, out + done,
                         static_cast<size_t>(out_frames - done), &produced);
    if (produced == 0) break;
    done += static_cast<int64_t>(produced);
  }
  if (error != nullptr) return internal_error(str_cat("libsoxr: ", error));
  std::fill(out + done, out + out_frames, 0.0f);
  return ok_status();
}

Status Resampler::process(const float* in, int64_t frames, int channels, int in_rate, int out_rate,
                          GrowBuffer<float>* out) {
  const int64_t out_frames = resampled_length(frames, in_rate, out_rate);
  AERIE_RETURN_IF_ERROR(out->resize(out_frames * channels));
  if (out_frames == 0) return ok_status();
  Handle& handle = *handle_;
  for (int c = 0; c < channels; ++c) {
    if (handle.soxr != nullptr && handle.in_rate == in_rate && handle.out_rate == out_rate) {
      if (soxr_clear(handle.soxr) != nullptr) {
        soxr_delete(handle.soxr);
        handle.soxr = nullptr;
      }
    } else if (handle.soxr != nullptr) {
      soxr_delete(handle.soxr);
      handle.soxr = nullptr;
    }
    if (handle.soxr == nullptr) {
      soxr_error_t error = nullptr;
      const soxr_io_spec_t io = soxr_io_spec(SOXR_FLOAT32_I, SOXR_FLOAT32_I);
      const soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
      handle.soxr = soxr_create(in_rate, out_rate, 1, &error, &io, &quality, nullptr);
      if (handle.soxr == nullptr || error != nullptr)
        return unsupported(str_cat("libsoxr cannot convert ", in_rate, " Hz to ", out_rate,
                                   " Hz: ", error != nullptr ? error : "no handle"));
      handle.in_rate = in_rate;
      handle.out_rate = out_rate;
    }
    if (channels == 1) {
      AERIE_RETURN_IF_ERROR(process_channel(in, frames, out->data(), out_frames));
      continue;
    }
    AERIE_RETURN_IF_ERROR(in_scratch_.resize(frames));
    AERIE_RETURN_IF_ERROR(out_scratch_.resize(out_frames));
    for (int64_t i = 0; i < frames; ++i) in_scratch_.data()[i] = in[i * channels + c];
    AERIE_RETURN_IF_ERROR(
        process_channel(in_scratch_.data(), frames, out_scratch_.data(), out_frames));
    for (int64_t i = 0; i < out_frames; ++i) out->data()[i * channels + c] = out_scratch_.data()[i];
  }
  return ok_status();
}

}  // namespace aerie::audio
