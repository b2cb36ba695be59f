// A batch of recordings. Arrays (B rows, N = capacity() samples a row, rows zero beyond their
// length):
//   "audio"            (B, N) float32 or int16   clean
//   "audio_len"        (B)    int64
//   "noisy_audio"      (B, N) float32            clean + noise; only when mixing was done here
//   "noisy_audio_len"  (B)    int64
//   "noise"            (B, N) float32            what was added (want_noise); or, with mixing left
//                      (K, N) as "audio"         to the consumer, the K rows of raw noise that
//                                                mix_plan() refers to
//   "noise_len"        (B)    int64
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aerie/base/check.h"
#include "aerie/data/batch.h"
#include "aerie/data/speech/augment.h"

namespace aerie::data {

class SpeechBatch final : public Batch {
 public:
  int64_t capacity() const { return audio_.capacity; }  // samples per row, one of a small set
  // Longest row: the length NeMo would pad to.
  int64_t padded_length() const { return audio_.padded_length; }
  int sample_rate() const { return audio_.sample_rate; }
  std::span<const int64_t> audio_len() const { return audio_.audio_len; }
  std::span<const int64_t> noisy_audio_len() const { return audio_.noisy_len; }
  std::span<const int64_t> noise_len() const { return audio_.noise_len; }
  // What was or is to be mixed: rows refer to "audio" and "noise". Gains are final.
  const MixPlan& mix_plan() const { return audio_.plan; }
  bool mixed_on_cpu() const { return audio_.mixed; }

  // Seconds of the recordings, without what is repeated to fill up short ones.
  double amount() const override;
  BatchFill fill() const override;  // samples of the rows

  // For whoever makes the batch. The vectors keep their memory from batch to batch.
  struct Audio {
    bool mixed = true;
    int sample_rate = 0;
    int64_t capacity = 0;
    int64_t padded_length = 0;
    int64_t source_samples = 0;  // of all rows, before short ones were filled up
    std::vector<int64_t> audio_len, noisy_len, noise_len;
    MixPlan plan;
  };
  Audio& mutable_audio() { return audio_; }
  const Audio& audio() const { return audio_; }

 protected:
  void hash_more(XxHash64& hash) const override;

 private:
  Audio audio_;
};

// The batch of a loader or list that holds speech, as the batch it is.
inline const SpeechBatch& speech_batch(const Batch& batch) {
  const auto* out = dynamic_cast<const SpeechBatch*>(&batch);
  AERIE_CHECK(out != nullptr, "not a batch of speech");
  return *out;
}
inline const SpeechBatch* speech_batch(const Batch* batch) {
  return batch != nullptr ? &speech_batch(*batch) : nullptr;
}

}  // namespace aerie::data
