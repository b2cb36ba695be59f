#include "aerie/models/nest/step/nest_choices.h"

#include <algorithm>

#include "aerie/kernels/masking/block_mask.h"

namespace aerie::kernels {

int encoder_rows(const NestStepConfig& config, int valid) {
  // Blocks without overlap may begin so late that they end behind the item (block_mask.h).
  const int hidden =
      config.masking.allow_overlap ? 0 : config.masking.block / config.masking.combine + 2;
  const int rows = valid + std::max(config.conv_left, hidden);
  return std::clamp(rows, 1, config.frames / 8);
}

int shared_rows(int needed, int padded) {
  const int step = (padded / 48 / 16 + 1) * 16;
  return std::min(padded, (needed + step - 1) / step * step);
}

int step_rows(const NestStepConfig& config) {
  return config.rows > 0 ? config.rows : config.batch * (config.frames / 8);
}

bool cheap_to_recompute(const NestStepConfig& config) {
  constexpr size_t kNear = size_t{16} << 20;
  return static_cast<size_t>(step_rows(config)) * static_cast<size_t>(config.feed_forward) *
             dtype_size(config.dtype) <=
         kNear;
}

bool weights_pay(const NestStepConfig& config) {
  if (!config.training || config.dtype == Dtype::kF32) return false;
  AttentionBackward b;
  b.forward.dtype = config.dtype;
  b.forward.batch = config.batch;
  b.forward.frames = config.frames / 8;
  b.forward.heads = config.heads;
  b.forward.dim = config.width / config.heads;
  // Both ways together, H200: 16 x 188 frames of 8 heads with 64 values 52.6 to 38.1 us (64 x 188:
  // 169 to 140), where backward stays on chip with them; with 128 values 84 to 75 (64 x 188: 295 to
  // 260), 2 x 188 with 64 values 26.4 to 24.0. Squares that leave the cache gain little for their
  // memory otherwise (68 x 375 frames, 160 MB for a layer: 521 to 512 us).
  constexpr size_t kNear = size_t{48} << 20;
  const size_t square = attention_square(config.batch, config.heads, b.forward.frames);
  return attention_resident(b) || square * dtype_size(config.dtype) <= kNear;
}

int shared_room(int masked, int rows) {
  const int half = (rows / 2 + 7) / 8 * 8;
  return masked <= half ? half : rows;
}

bool gradients_beside(int rows) {
  // NEST-L, H200: 2 x 15 s (352 rows) 4.64 to 4.37 ms, 8 x 15 s (1,408) 5.54 to 5.28 without the
  // update. More rows gain as well, but memory of their own becomes too much.
  constexpr int kMostRows = 1536;
  return rows <= kMostRows;
}

bool sums_trail(const NestStepConfig& config) {
  // Forward and backward as one graph, H200: 16 x 15 s 7,361 to 7,169 us, 64 x 15 s 0.4 to 2 %
  // less, for a tensor of the feed-forward modules' inner width. Not tried in float32.
  return config.dtype != Dtype::kF32;
}

std::vector<int> item_rows(const NestStepConfig& config, const std::vector<int>& valid) {
  std::vector<int> rows;
  int left = config.rows;
  for (const int frames : valid) left -= rows.emplace_back(encoder_rows(config, frames));
  for (int& count : rows) {
    const int more = std::clamp(config.frames / 8 - count, 0, std::max(left, 0));
    count += more;
    left -= more;
  }
  return rows;
}

int masked_rows(const NestStepConfig& config, const std::vector<int32_t>& frames,
                const RandomState& random) {
  BlockMask mask = config.masking;
  mask.batch = static_cast<int>(frames.size());
  mask.frames = config.frames;
  mask.lengths = frames.data();
  mask.state = &random;
  const size_t tokens = frames.size() * static_cast<size_t>(mask.frames / mask.combine);
  std::vector<uint8_t> hidden(tokens * static_cast<size_t>(mask.combine)), selected(tokens);
  mask.mask = hidden.data();
  mask.selected = selected.data();
  if (reference::block_mask(mask, nullptr) != kOk) return static_cast<int>(tokens);
  return static_cast<int>(std::count(selected.begin(), selected.end(), uint8_t{1}));
}

}  // namespace aerie::kernels
