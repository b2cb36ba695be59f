#include "aerie/data/speech/speech_batch.h"

#include "aerie/base/hash.h"

namespace aerie::data {

double SpeechBatch::amount() const {
  return audio_.sample_rate > 0 ? static_cast<double>(audio_.source_samples) / audio_.sample_rate
                                : 0.0;
}

BatchFill SpeechBatch::fill() const {
  BatchFill out;
  out.all = audio_.capacity * num_samples();
  for (const int64_t length : audio_.audio_len) out.valid += length;
  return out;
}

void SpeechBatch::hash_more(XxHash64& hash) const {
  hash.update(&audio_.capacity, sizeof(audio_.capacity));
  for (const MixItem& item : audio_.plan.items) hash.update(&item.gain, sizeof(item.gain));
}

}  // namespace aerie::data
