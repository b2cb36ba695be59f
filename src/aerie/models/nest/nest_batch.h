// One micro-batch on its way through the model.
#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "aerie/nn/random_fill.h"

namespace aerie::nest {

// Tensors live on the model's device. Samples beyond an item's length are zero.
struct NestBatch {
  at::Tensor audio;          // (B,capacity) float32 clean audio: makes the targets
  at::Tensor noisy;          // (B,capacity) float32: goes into the encoder
  at::Tensor lengths;        // (B) int64 samples of audio
  at::Tensor noisy_lengths;  // (B) int64 samples of noisy; may differ from lengths (quirk Q2)
  // The length NeMo would have padded to: the longest item. The reference path computes on exactly
  // so many samples, however much capacity the bucket has.
  int64_t padded_samples = 0;
  nn::RandomKey random;  // seed, number of the micro-batch, number of the first item

  int64_t capacity() const { return audio.size(1); }
  int64_t size() const { return audio.size(0); }
};

}  // namespace aerie::nest
