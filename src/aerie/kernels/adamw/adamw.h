// One optimizer step over flat float32 buffers: norm of the gradients, the decision to skip, loss
// scale, bias corrections (device side), then a single pass that unscales, clips, updates with
// AdamW or Adam (torch's arithmetic), writes the compute (16-bit) weights and the EMA.
//
// adamw_decide() and adamw_update() are its halves: the second needs memory's bandwidth and little
// else, so that it may overlap, part by part, work of another kind.
//
// A step whose gradients or loss are not finite changes nothing but the loss scale. Everything that
// changes from step to step is read from and written to device memory. The norm's summation order
// is fixed, so that results repeat bitwise.
#pragma once

#include "aerie/kernels/types.h"

namespace aerie::kernels {

// Neighbours in the flat buffers that share their settings. Sorted, not overlapping; begin and end
// are multiples of 8. Elements outside all segments are not touched.
struct AdamwSegment {
  int64_t begin = 0;
  int64_t end = 0;
  int32_t rate = 0;       // index into learning_rates
  bool decoupled = true;  // AdamW; false: Adam, whose decay is part of the gradient
  double beta1 = 0.9, beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.0;
};

// What the deciding kernel leaves for the update of one segment.
struct AdamwFactors {
  float decay;        // 1 - lr * weight_decay, or weight_decay for Adam
  float step_size;    // lr / (1 - beta1^t)
  float inv_sqrt_c2;  // 1 / sqrt(1 - beta2^t)
};

struct AdamwControl {
  double norm;       // L2 of the unscaled gradients, before clipping
  float factor;      // unscale and clip in one
  float loss_scale;  // the one this step used
  float ema_weight;  // 1 - decay, or 0
  uint32_t skip;
};

// Neighbouring gradients: begin and count are multiples of 8.
struct AdamwRange {
  static constexpr int32_t kMost = 8192;
  int64_t begin = 0;
  int32_t count = 0;  // at most kMost
};

struct AdamwStep {
  float* params = nullptr;
  const float* grads = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  void* compute_weights = nullptr;  // 16-bit, same offsets; null: none
  Dtype compute_dtype = Dtype::kBF16;
  float* ema = nullptr;  // null: none
  int64_t count = 0;     // elements of the buffers; multiple of 8

  const AdamwSegment* segments = nullptr;  // device
  int32_t num_segments = 0;
  float* steps = nullptr;                  // per segment: updates done so far
  const double* learning_rates = nullptr;  // device
  AdamwFactors* factors = nullptr;         // per segment, scratch
  double* partial = nullptr;               // kAdamwParts, scratch
  // Where sum-of-squares partials of some gradients are there already (grouped_wgrad.h): these,
  // and the ranges of all others; null: none are.
  const double* square_partials = nullptr;
  int64_t num_square_partials = 0;
  const AdamwRange* ranges = nullptr;  // device
  int32_t num_ranges = 0;
  AdamwControl* control = nullptr;  // result

  const float* loss = nullptr;  // not finite: the step is skipped; null: not looked at
  double clip = 0.0;            // <= 0: off
  bool clip_by_value = false;
  // Loss scaling (torch's GradScaler); null: off.
  float* loss_scale = nullptr;
  int32_t* growth_tracker = nullptr;
  bool dynamic_scale = true;
  float growth = 2.0f, backoff = 0.5f;
  int32_t growth_interval = 2000;
  // EMA after every n-th step taken.
  double ema_decay = 0.999;
  int64_t ema_every = 1;
  int64_t* ema_count = nullptr;

  bool operator==(const AdamwStep&) const = default;
};

constexpr int kAdamwParts = 1024;

// The update behind adamw_decide(), or a part of it.
struct AdamwUpdate {
  AdamwStep step;
  const int32_t* chunks = nullptr;   // device: numbers of chunks, kAdamwChunk neighbours each
  int32_t num_chunks = -1;           // of them; -1: all elements
  int32_t share = 1;                 // a list of chunks keeps one SM in `share` busy
  const uint32_t* wanted = nullptr;  // device; zero: nothing is done; null: as if it were not
};

constexpr int kAdamwChunk = 4096;

AERIE_DECLARE_KERNEL(adamw_decide, AdamwStep)
AERIE_DECLARE_KERNEL(adamw_update, AdamwUpdate)

}  // namespace aerie::kernels
