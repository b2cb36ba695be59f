// Random block masking (docs/numerics.md 3.1): which frames are hidden, and what stands there.
//
// Two rules. kR1 (default, NeMo from 2026): overlap mode starts a block at every t with
// t + block <= length independently with probability mask_prob; short clips get what fits.
// kR0 (compat nemo-2.6): the last start is excluded, so that the last valid frame is never hidden,
// and clips with block >= max_mask_ratio * length hide their first 8 frames.
//
// Draws come from purpose kMask, position = RandomKey::position(row):
//   overlap      epoch 0, index t: block starts at t when the draw is below round(p * 2^32)
//   no overlap   epoch 1, index slot: the slots with the smallest draws are taken;
//                epoch 2, index 0: offset = floor(draw * block / 2^32)
#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/models/nest/config/model_config.h"
#include "aerie/nn/param_registry.h"
#include "aerie/nn/random_fill.h"

namespace aerie::nest {

enum class MaskRule { kR1, kR0 };

struct MaskSpan {
  int64_t begin = 0;
  int64_t end = 0;  // exclusive
  bool operator==(const MaskSpan&) const = default;
};
using MaskSpans = std::vector<std::vector<MaskSpan>>;  // per item

// What there is to draw for one item of `length` frames.
struct MaskPlan {
  enum class Kind { kNothing, kShort, kStarts, kSlots };
  Kind kind = Kind::kNothing;
  int64_t block = 0;         // frames per span, possibly shrunk (kSlots)
  int64_t num_starts = 0;    // kStarts: each of 0..num_starts-1 starts a span with mask_prob
  int64_t num_slots = 0;     // kSlots: so many places ...
  int64_t num_patches = 0;   // ... of which so many are hidden
  int64_t offset_range = 0;  // kSlots: the offset is drawn from [0, offset_range)
};
MaskPlan plan_mask(const config::MaskingConfig& config, int64_t block_size, MaskRule rule,
                   int64_t length);

// The outcome of the draws, and the spans it gives.
struct MaskDraw {
  std::vector<int64_t> starts;  // kStarts
  std::vector<int64_t> slots;   // kSlots
  int64_t offset = 0;           // kSlots
};
MaskDraw draw_mask(const MaskPlan& plan, double mask_prob, const nn::RandomKey& key, uint64_t row);
std::vector<MaskSpan> mask_spans(const MaskPlan& plan, const MaskDraw& draw, int64_t length);

// (B,T) bool, true inside the spans; spans are cut at T.
at::Tensor mask_from_spans(const MaskSpans& spans, int64_t frames);

class BlockMasking {
 public:
  // Registers mask_embedding below scope ("mask_processor"). block_size in frames of the features
  // it will see.
  BlockMasking(const nn::Scope& scope, const config::MaskingConfig& config, int64_t feat_in,
               int64_t block_size, MaskRule rule);

  // lengths (B) int64 on any device; the draw happens on the host.
  MaskSpans draw(const nn::RandomKey& key, const at::Tensor& lengths) const;
  // The mask (B,T) of the same draw, made where lengths are, without anybody waiting for the device
  // if the CUDA module is there.
  at::Tensor drawn_mask(const nn::RandomKey& key, const at::Tensor& lengths, int64_t frames) const;
  // features (B,D,T) with hidden frames replaced by the embedding, in the features' dtype.
  at::Tensor apply(const at::Tensor& features, const at::Tensor& mask) const;

  nn::ParamRef embedding() const { return embedding_; }
  int64_t block_size() const { return block_size_; }

 private:
  config::MaskingConfig config_;
  int64_t block_size_;
  MaskRule rule_;
  nn::ParamRef embedding_;
};

}  // namespace aerie::nest
