// Mixes the rows of a batch from a plan (data/speech/augment.h): the consumer's half of mixing on
// the GPU.
//
//   audio[b][k] = clean[b][k]
//   noisy[b][k] = clean[b][k] + the sum over the segments of item b that cover k of
//                 gain[b] * source[row][(source_begin + k - dest_begin) mod source_period]
//
// Rows are floats or 16-bit integers that stand for value / 32768. Products and sums are rounded
// one by one: all back ends agree bitwise, and with the loader's own mixing to 1e-6.
#pragma once

#include <cstdint>

#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct MixRowsSegment {
  int64_t dest_begin = 0;
  int64_t length = 0;
  int64_t source_begin = 0;
  int64_t source_period = 1;
  int32_t row = 0;        // of the clean rows or of the noise
  int32_t is_speech = 0;  // 1: the clean rows
};

struct MixRowsItem {
  int32_t first_segment = 0;
  int32_t num_segments = 0;
  float gain = 1.0f;
};

struct MixRows {
  int64_t rows = 0;
  int64_t stride = 0;  // samples per row, also of the noise
  // Of each pair one is null.
  const float* clean_f32 = nullptr;
  const int16_t* clean_i16 = nullptr;
  const float* noise_f32 = nullptr;
  const int16_t* noise_i16 = nullptr;
  const MixRowsItem* items = nullptr;        // [rows]
  const MixRowsSegment* segments = nullptr;  // inside the rows: the caller's plan says so
  float* audio = nullptr;                    // may be null
  float* noisy = nullptr;
};

AERIE_DECLARE_KERNEL(mix_rows, MixRows)

}  // namespace aerie::kernels
