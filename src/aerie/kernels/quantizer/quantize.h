// Tokens of stacked feature frames (random-projection quantizer): project, normalise per book,
// nearest code. `combine` neighbouring frames of (B,T,bins) features are one vector, contiguous in
// memory.
//
// Codes have unit length, so that the nearest is the one with the largest product. They are
// compared in float32; every code that comes within 1e-5 of the best is compared again in float64
// by its distance, first index first, which is the reference model's rule. (A product of unit
// vectors of up to 64 values is off by less than 4e-6 in float32, so the nearest is among them.)
#pragma once

#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct Quantize {
  int capacity = 0;                     // tokens to make
  const int32_t* rows = nullptr;        // which vector each one is of; -1: none (token 0); null: i
  int inputs = 0;                       // combine * bins
  int books = 1, classes = 0, dim = 0;  // dim: a multiple of 4, at most 64
  const float* features = nullptr;      // (vectors, inputs)
  const float* projection = nullptr;    // (books*dim, inputs)
  const double* codebooks = nullptr;    // (books, classes, dim)
  const float* codebooks_float = nullptr;  // the same, rounded
  // (books): tokens of silence, whose projection is zero and as far from every code but for
  // rounding; the model knows which one it takes. Null: the smallest rounded distance.
  const int32_t* silent_tokens = nullptr;
  int32_t* tokens = nullptr;  // (capacity, books)
  float* scratch = nullptr;   // quantize_scratch(...) floats
};

// Codes whose largest product is kept as one number.
constexpr int kQuantizeTile = 128;
constexpr size_t quantize_scratch(int capacity, int books, int classes, int dim) {
  return static_cast<size_t>(capacity) * static_cast<size_t>(books) *
         static_cast<size_t>(dim + (classes + kQuantizeTile - 1) / kQuantizeTile);
}

AERIE_DECLARE_KERNEL(quantize, Quantize)

}  // namespace aerie::kernels
