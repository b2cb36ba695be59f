#include "aerie/models/nest/step/packed_rows.h"

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

int shared_room(int masked, int rows) {
  const int half = (rows / 2 + 7) / 8 * 8;
  return masked <= half ? half : rows;
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

PackedSize packed_size(const NestStepConfig& config, const std::vector<int32_t>& frames,
                       const RandomState& random) {
  int needed = 0;
  for (const int32_t valid : frames)
    needed += encoder_rows(config, strided(strided(strided(valid))));
  const int rows = shared_rows(needed, static_cast<int>(frames.size()) * (config.frames / 8));
  return {rows, shared_room(masked_rows(config, frames, random), rows)};
}

}  // namespace aerie::kernels
