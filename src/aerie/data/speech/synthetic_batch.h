// A batch of made-up audio: noise of speech's loudness, lengths spread evenly from the full length
// down to a share of it. For measuring a step without data, and for trying the largest batch a run
// can meet. Not synchronised; the batch refers to memory of its owner.
#pragma once

#include <cstdint>
#include <memory>

#include "aerie/base/status.h"
#include "aerie/data/speech/speech_batch.h"

namespace aerie::data {

struct SyntheticBatchOptions {
  int64_t rows = 16;
  int64_t samples = 0;    // length of the longest row
  double shortest = 0.8;  // length of the shortest, as a share of it; the first row is the longest
  int64_t padding = 0;    // samples of room behind the longest row
  int sample_rate = 16000;
  uint64_t seed = 0;                   // another seed, other audio
  HostAllocator* allocator = nullptr;  // null: pageable memory
};

class SyntheticBatch {
 public:
  // Refuses what cannot be allocated.
  static Result<SyntheticBatch> make(const SyntheticBatchOptions& options);
  SyntheticBatch(SyntheticBatch&&) = default;
  SyntheticBatch& operator=(SyntheticBatch&&) = default;

  const SpeechBatch& batch() const { return batch_; }

 private:
  SyntheticBatch() = default;
  SpeechBatch batch_;
  std::unique_ptr<HostBlock> rows_;  // clean, then noisy
};

}  // namespace aerie::data
