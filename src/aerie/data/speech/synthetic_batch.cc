#include "aerie/data/speech/synthetic_batch.h"

#include <algorithm>

#include "aerie/base/philox.h"
#include "aerie/base/strings.h"

namespace aerie::data {

namespace {
constexpr int64_t kRowMultiple = 64;  // as the loader's rows
constexpr float kAudioLevel = 0.1f;
constexpr float kNoiseLevel = 0.02f;
}  // namespace

Result<SyntheticBatch> SyntheticBatch::make(const SyntheticBatchOptions& options) {
  if (options.rows < 1 || options.samples < 1 || options.rows > (int64_t{1} << 20) ||
      options.samples > (int64_t{1} << 36) / options.rows)
    return invalid_argument(str_cat("a batch of ", options.rows, " rows of ", options.samples,
                                    " samples cannot be made"));
  SyntheticBatch out;
  SpeechBatch& batch = out.batch_;
  SpeechBatch::Audio& audio_of = batch.mutable_audio();
  const size_t rows = static_cast<size_t>(options.rows);
  const int64_t room = options.samples + std::clamp<int64_t>(options.padding, 0, options.samples);
  const int64_t stride = (room + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
  const size_t count = rows * static_cast<size_t>(stride);
  HostAllocator& allocator =
      options.allocator != nullptr ? *options.allocator : HostAllocator::pageable();
  out.rows_ = std::make_unique<HostBlock>();
  if (!out.rows_->reserve(allocator, 2 * count * sizeof(float)))
    return out_of_memory(str_cat("a batch of ", options.rows, " rows of ", options.samples,
                                 " samples does not fit into memory"));
  float* const clean_rows = static_cast<float*>(out.rows_->data());
  std::fill(clean_rows, clean_rows + 2 * count, 0.0f);
  out.rows_->settle();
  const double shortest = std::clamp(options.shortest, 0.0, 1.0);
  batch.mutable_samples().resize(rows);
  batch.mutable_sample_ids().resize(rows);
  audio_of.noise_len.assign(rows, 0);
  for (size_t b = 0; b < rows; ++b) {
    const double share =
        rows == 1 ? 1.0
                  : 1.0 - (1.0 - shortest) * static_cast<double>(b) / static_cast<double>(rows - 1);
    const int64_t length = std::max<int64_t>(
        1, static_cast<int64_t>(static_cast<double>(options.samples) * share + 1e-6));
    audio_of.audio_len.push_back(length);
    audio_of.source_samples += length;
    batch.mutable_samples()[b] = {static_cast<uint32_t>(b), b};
    batch.mutable_sample_ids()[b] = static_cast<uint32_t>(b);
    RandomStream random(options.seed, Purpose::kSynth, 0, b);
    float* audio = clean_rows + b * static_cast<size_t>(stride);
    float* noisy = audio + count;
    for (int64_t i = 0; i < length; ++i) {
      audio[i] = kAudioLevel * random.normal();
      noisy[i] = audio[i] + kNoiseLevel * random.normal();
    }
  }
  audio_of.noisy_len = audio_of.audio_len;
  audio_of.sample_rate = options.sample_rate;
  audio_of.capacity = stride;
  audio_of.padded_length = options.samples;
  const auto matrix = [&](std::string_view name, float* data) {
    batch.mutable_arrays().push_back({name, Dtype::kF32, {options.rows, stride, 0, 0}, 2, data});
  };
  const auto lengths = [&](std::string_view name, std::vector<int64_t>& values) {
    batch.mutable_arrays().push_back(
        {name, Dtype::kI64, {options.rows, 0, 0, 0}, 1, values.data()});
  };
  matrix("audio", clean_rows);
  lengths("audio_len", audio_of.audio_len);
  matrix("noisy_audio", clean_rows + count);
  lengths("noisy_audio_len", audio_of.noisy_len);
  lengths("noise_len", audio_of.noise_len);
  return out;
}

}  // namespace aerie::data
