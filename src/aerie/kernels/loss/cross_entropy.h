// Softmax cross-entropy over rows of logits, forward and backward in one pass: the logits are
// replaced by their gradient and log-probabilities never exist in memory.
//
//   loss = 1/(H n) * sum over rows i < n and books h of -log softmax(logits[i, :, h])[tokens[i, h]]
//
// Channel of a logit = class * books + book. Rows at and beyond *num_rows get gradient zero.
#pragma once

#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct CrossEntropy {
  Dtype dtype = Dtype::kF32;
  int capacity = 0, classes = 0, books = 1;
  void* logits = nullptr;             // (capacity, classes*books), in: logits, out: gradient
  const float* bias = nullptr;        // (classes*books), added to the logits; null: none
  const int32_t* tokens = nullptr;    // (capacity, books)
  const int32_t* num_rows = nullptr;  // device scalar
  const int32_t* divisor = nullptr;   // device scalar: n where this is part of a batch; null: rows
  const float* loss_scale = nullptr;  // device scalar; null: 1
  float weight = 1.0f;                // of this micro-batch in the step
  bool backward = true;               // false: logits are left alone
  bool rest_is_zero = false;          // rows at and beyond *num_rows are zero already
  bool nan_when_empty = false;        // loss of no rows; otherwise 0
  float* row_loss = nullptr;          // scratch: capacity*books
  float* loss = nullptr;              // device scalar, unweighted and unscaled
};

AERIE_DECLARE_KERNEL(cross_entropy, CrossEntropy)

}  // namespace aerie::kernels
