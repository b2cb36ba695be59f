#include "aerie/models/nest/masking.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "aerie/base/check.h"

namespace aerie::nest {
namespace {

constexpr uint32_t kStartEpoch = 0;
constexpr uint32_t kSlotEpoch = 1;
constexpr uint32_t kOffsetEpoch = 2;
constexpr int64_t kShortBlock = 8;

std::vector<MaskSpan> overlapping(PhiloxKey key, uint64_t position, double prob, int64_t block,
                                  int64_t num_starts) {
  const uint64_t threshold = nn::drop_threshold(prob);
  std::vector<MaskSpan> spans;
  for (int64_t t = 0; t < num_starts; ++t) {
    if (philox_u32(key, kStartEpoch, position, static_cast<uint64_t>(t)) < threshold)
      spans.push_back({t, t + block});
  }
  return spans;
}

std::vector<MaskSpan> separate(PhiloxKey key, uint64_t position, double prob, int64_t block,
                               MaskRule rule, int64_t length) {
  // In float32, as torch computes it.
  int64_t patches = static_cast<int64_t>(
      std::ceil(static_cast<float>(length) * static_cast<float>(prob) / static_cast<float>(block)));
  int64_t size = block;
  if ((patches + 1) * block > length) size = std::max<int64_t>(1, length / (patches + 1));
  const int64_t slots = std::max<int64_t>(0, length / size - 1);
  patches = std::min(patches, slots);
  if (patches <= 0) return {};

  std::vector<std::pair<uint32_t, int64_t>> order;
  order.reserve(static_cast<size_t>(slots));
  for (int64_t s = 0; s < slots; ++s)
    order.emplace_back(philox_u32(key, kSlotEpoch, position, static_cast<uint64_t>(s)), s);
  std::partial_sort(order.begin(), order.begin() + patches, order.end());

  // R0 draws the offset for the full block even when blocks were shrunk.
  const uint64_t range = static_cast<uint64_t>(rule == MaskRule::kR0 ? block : size);
  const int64_t offset = static_cast<int64_t>(
      (static_cast<uint64_t>(philox_u32(key, kOffsetEpoch, position, 0)) * range) >> 32);
  std::vector<MaskSpan> spans;
  for (int64_t p = 0; p < patches; ++p) {
    const int64_t begin = order[static_cast<size_t>(p)].second * size + offset;
    spans.push_back({begin, begin + size});
  }
  std::sort(spans.begin(), spans.end(),
            [](const MaskSpan& a, const MaskSpan& b) { return a.begin < b.begin; });
  return spans;
}

}  // namespace

std::vector<MaskSpan> draw_mask_spans(const config::MaskingConfig& config, int64_t block,
                                      MaskRule rule, const nn::RandomKey& key, uint64_t row,
                                      int64_t length) {
  if (length <= 0 || block <= 0) return {};
  if (rule == MaskRule::kR0 &&
      static_cast<double>(block) >= static_cast<double>(length) * config.max_mask_ratio) {
    return {{0, config.allow_overlap ? std::min(kShortBlock, length) : kShortBlock}};
  }
  const PhiloxKey philox = philox_key(key.seed, Purpose::kMask);
  const uint64_t position = key.position(row);
  if (!config.allow_overlap)
    return separate(philox, position, config.mask_prob, block, rule, length);
  const int64_t starts = length - block + (rule == MaskRule::kR1 ? 1 : 0);
  return overlapping(philox, position, config.mask_prob, block, starts);
}

at::Tensor mask_from_spans(const MaskSpans& spans, int64_t frames) {
  at::Tensor mask = at::zeros({static_cast<int64_t>(spans.size()), frames}, at::kBool);
  bool* values = mask.data_ptr<bool>();
  for (size_t b = 0; b < spans.size(); ++b) {
    for (const MaskSpan& span : spans[b]) {
      bool* row = values + static_cast<int64_t>(b) * frames;
      std::fill(row + std::min(span.begin, frames), row + std::min(span.end, frames), true);
    }
  }
  return mask;
}

BlockMasking::BlockMasking(const nn::Scope& scope, const config::MaskingConfig& config,
                           int64_t feat_in, int64_t block_size, MaskRule rule)
    : config_(config), block_size_(block_size), rule_(rule) {
  // A constant mask value is never trained, whatever `freeze` says.
  const bool frozen = config.freeze || config.mask_value.has_value();
  const nn::Init init =
      config.mask_value ? nn::Init::constant(*config.mask_value) : nn::Init::normal(0.1);
  embedding_ = (frozen ? scope.frozen() : scope).param("mask_embedding", {feat_in}, init);
}

MaskSpans BlockMasking::draw(const nn::RandomKey& key, const at::Tensor& lengths) const {
  const at::Tensor host = lengths.to(at::kCPU, at::kLong).contiguous();
  MaskSpans spans;
  for (int64_t b = 0; b < host.size(0); ++b) {
    spans.push_back(draw_mask_spans(config_, block_size_, rule_, key, static_cast<uint64_t>(b),
                                    host.const_data_ptr<int64_t>()[b]));
  }
  return spans;
}

at::Tensor BlockMasking::apply(const at::Tensor& features, const at::Tensor& mask) const {
  const at::Tensor column = embedding_.tensor().to(features.scalar_type()).view({1, -1, 1});
  return at::where(mask.to(features.device()).unsqueeze(1), column, features);
}

}  // namespace aerie::nest
