// Which frames are hidden and which enter the loss, drawn on the device with the same counters and
// rules as the model's own masking (overlapping starts or slots, rules of NeMo 2.6 or later).
#pragma once

#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct BlockMask {
  int batch = 0, frames = 0;         // frames of the masked features, padded
  const int32_t* lengths = nullptr;  // (B), in these frames
  const RandomState* state = nullptr;
  double probability = 0.01;
  int block = 40;
  bool allow_overlap = true;
  bool rules_of_2_6 = false;  // last start excluded; short clips hide their first 8 frames
  double max_mask_ratio = 0.8;
  int combine = 8;              // frames per token
  float loss_threshold = 0.8f;  // a token counts when more than this share of its frames is hidden

  uint8_t* mask = nullptr;      // (B,T): 1 hidden
  uint8_t* selected = nullptr;  // (B,T/combine): 1 in the loss
};

// The list of selected tokens, in order: rows[0..*count), -1 behind, and where they are in
// activations of the given layout; slots[row] is the place in the list of a row of that layout, or
// -1.
struct SelectRows {
  int batch = 0, frames = 0;  // tokens, B and T/combine
  RowLayout layout;
  int capacity = 0;
  const uint8_t* selected = nullptr;  // (B,T/combine)
  int32_t* rows = nullptr;            // (capacity): item * frames + token
  int32_t* packed_rows = nullptr;     // (capacity): in the layout; -1 also where it has no row
  int32_t* slots = nullptr;           // (rows of the layout)
  int32_t* count = nullptr;           // also what exceeds the capacity is counted
};

// out[i] = x[rows[i]], zero where rows[i] < 0. With rows = slots of SelectRows it undoes the
// choice.
struct GatherRows {
  Dtype dtype = Dtype::kF32;
  int count = 0, channels = 0;
  const int32_t* rows = nullptr;
  const void* x = nullptr;
  void* out = nullptr;
};

AERIE_DECLARE_KERNEL(block_mask, BlockMask)
AERIE_DECLARE_KERNEL(select_rows, SelectRows)
AERIE_DECLARE_KERNEL(gather_rows, GatherRows)

}  // namespace aerie::kernels
