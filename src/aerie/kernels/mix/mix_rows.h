// Mixes the rows of a batch from a plan (data/augment.h): the consumer's half of mixing on the GPU.
// Outputs first, then the inputs, then the CUDA stream.
//
//   audio[b][k] = clean[b][k]
//   noisy[b][k] = clean[b][k] + the sum over the segments of item b that cover k of
//                 gain[b] * source[row][(source_begin + k - dest_begin) mod source_period]
//
// Rows are floats or 16-bit integers that stand for value / 32768. Products and sums are rounded
// one by one in both implementations: they agree bitwise.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace aerie::kernels {

struct RowSegment {
  int64_t dest_begin = 0;
  int64_t length = 0;
  int64_t source_begin = 0;
  int64_t source_period = 1;  // below 2^31
  int32_t row = 0;            // of the clean rows or of the noise
  int32_t is_speech = 0;      // 1: the clean rows
};

struct RowItem {
  int32_t first_segment = 0;
  int32_t num_segments = 0;
  float gain = 1.0f;
};

// Of each pair of pointers one is null. Host or device pointers, all alike.
struct MixRowsArgs {
  int64_t rows = 0;
  int64_t stride = 0;  // samples per row, also of the noise
  const float* clean_f32 = nullptr;
  const int16_t* clean_i16 = nullptr;
  const float* noise_f32 = nullptr;
  const int16_t* noise_i16 = nullptr;
  const RowItem* items = nullptr;        // [rows]
  const RowSegment* segments = nullptr;  // inside the rows: the caller's plan says so
};

// `audio` may be null. The outputs must not overlap the inputs.
void mix_rows_ref(float* audio, float* noisy, const MixRowsArgs& args);

// Device pointers; the work is queued on `stream`. Returns a cudaError_t.
int mix_rows_cuda(float* audio, float* noisy, const MixRowsArgs& args, CUstream_st* stream);

}  // namespace aerie::kernels
