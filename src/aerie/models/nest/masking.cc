#include "aerie/models/nest/masking.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "aerie/nn/device_draws.h"

namespace aerie::nest {
namespace {

constexpr uint32_t kStartEpoch = 0;
constexpr uint32_t kSlotEpoch = 1;
constexpr uint32_t kOffsetEpoch = 2;
constexpr int64_t kShortBlock = 8;

}  // namespace

MaskPlan plan_mask(const config::MaskingConfig& config, int64_t block_size, MaskRule rule,
                   int64_t length) {
  MaskPlan plan;
  plan.block = block_size;
  if (rule == MaskRule::kR0 &&
      static_cast<double>(block_size) >= static_cast<double>(length) * config.max_mask_ratio) {
    plan.kind = MaskPlan::Kind::kShort;
    plan.block = config.allow_overlap ? std::min(kShortBlock, length) : kShortBlock;
    return plan;
  }
  if (length <= 0) return plan;
  if (config.allow_overlap) {
    plan.kind = MaskPlan::Kind::kStarts;
    plan.num_starts = std::max<int64_t>(0, length - block_size + (rule == MaskRule::kR1 ? 1 : 0));
    return plan;
  }
  if (block_size <= 0) return plan;
  plan.kind = MaskPlan::Kind::kSlots;
  // In float32, as torch computes it.
  plan.num_patches = static_cast<int64_t>(
      std::ceil(static_cast<float>(length) * static_cast<float>(config.mask_prob) /
                static_cast<float>(block_size)));
  if ((plan.num_patches + 1) * block_size > length)
    plan.block = std::max<int64_t>(1, length / (plan.num_patches + 1));
  plan.num_slots = std::max<int64_t>(0, length / plan.block - 1);
  plan.num_patches = std::min(plan.num_patches, plan.num_slots);
  // R0 draws the offset for the full block even when blocks were shrunk, so that they may run past
  // the end of the clip.
  plan.offset_range = rule == MaskRule::kR0 ? block_size : plan.block;
  return plan;
}

MaskDraw draw_mask(const MaskPlan& plan, double mask_prob, const nn::RandomKey& key, uint64_t row) {
  const PhiloxKey philox = philox_key(key.seed, Purpose::kMask);
  const uint64_t position = key.position(row);
  MaskDraw draw;
  if (plan.kind == MaskPlan::Kind::kStarts) {
    const uint64_t threshold = static_cast<uint64_t>(std::llround(mask_prob * 4294967296.0));
    for (int64_t t = 0; t < plan.num_starts; ++t)
      if (philox_u32(philox, kStartEpoch, position, static_cast<uint64_t>(t)) < threshold)
        draw.starts.push_back(t);
  }
  if (plan.kind == MaskPlan::Kind::kSlots && plan.num_patches > 0) {
    std::vector<std::pair<uint32_t, int64_t>> order;
    order.reserve(static_cast<size_t>(plan.num_slots));
    for (int64_t s = 0; s < plan.num_slots; ++s)
      order.emplace_back(philox_u32(philox, kSlotEpoch, position, static_cast<uint64_t>(s)), s);
    std::partial_sort(order.begin(), order.begin() + plan.num_patches, order.end());
    for (int64_t i = 0; i < plan.num_patches; ++i)
      draw.slots.push_back(order[static_cast<size_t>(i)].second);
    const uint64_t u = philox_u32(philox, kOffsetEpoch, position, 0);
    draw.offset = static_cast<int64_t>((u * static_cast<uint64_t>(plan.offset_range)) >> 32);
  }
  return draw;
}

std::vector<MaskSpan> mask_spans(const MaskPlan& plan, const MaskDraw& draw, int64_t length) {
  std::vector<MaskSpan> spans;
  if (plan.kind == MaskPlan::Kind::kShort) spans.push_back({0, plan.block});
  for (int64_t start : draw.starts) spans.push_back({start, std::min(start + plan.block, length)});
  for (int64_t slot : draw.slots) {
    const int64_t begin = slot * plan.block + draw.offset;
    spans.push_back({begin, begin + plan.block});
  }
  std::sort(spans.begin(), spans.end(),
            [](const MaskSpan& a, const MaskSpan& b) { return a.begin < b.begin; });
  return spans;
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
    const int64_t length = host.const_data_ptr<int64_t>()[b];
    const MaskPlan plan = plan_mask(config_, block_size_, rule_, length);
    spans.push_back(mask_spans(
        plan, draw_mask(plan, config_.mask_prob, key, static_cast<uint64_t>(b)), length));
  }
  return spans;
}

at::Tensor BlockMasking::drawn_mask(const nn::RandomKey& key, const at::Tensor& lengths,
                                    int64_t frames) const {
  const at::Device device = lengths.device();
  const int64_t rows = lengths.size(0);
  if (const kernels::KernelTable* table = nn::draw_kernels(device)) {
    kernels::RandomState state{};
    state.mask_key = philox_key(key.seed, Purpose::kMask);
    state.micro_step = key.micro_step;
    state.first_item = key.first_item;
    state.item_stride = key.item_stride;
    at::Tensor bytes = at::empty({static_cast<int64_t>(sizeof state)}, at::kByte);
    std::memcpy(bytes.mutable_data_ptr(), &state, sizeof state);
    bytes = nn::sent_to(device, bytes);
    const at::Tensor short_lengths = lengths.to(at::kInt).contiguous();
    const auto options = at::TensorOptions(device).dtype(at::kBool);
    at::Tensor mask = at::empty({rows, frames}, options);
    at::Tensor selected = at::empty({rows, frames}, options);  // not wanted, but written
    kernels::BlockMask args;
    args.batch = static_cast<int>(rows);
    args.frames = static_cast<int>(frames);
    args.lengths = short_lengths.const_data_ptr<int32_t>();
    args.state = static_cast<const kernels::RandomState*>(bytes.const_data_ptr());
    args.probability = config_.mask_prob;
    args.block = static_cast<int>(block_size_);
    args.allow_overlap = config_.allow_overlap;
    args.rules_of_2_6 = rule_ == MaskRule::kR0;
    args.max_mask_ratio = config_.max_mask_ratio;
    args.combine = 1;
    args.mask = static_cast<uint8_t*>(mask.mutable_data_ptr());
    args.selected = static_cast<uint8_t*>(selected.mutable_data_ptr());
    if (nn::queue_draws(device, "the mask",
                        [&](void* stream) { return table->block_mask(args, stream); }))
      return mask;
  }
  return mask_from_spans(draw(key, lengths), frames).to(device);
}

at::Tensor BlockMasking::apply(const at::Tensor& features, const at::Tensor& mask) const {
  const at::Tensor column = embedding_.tensor().to(features.scalar_type()).view({1, -1, 1});
  return at::where(mask.to(features.device()).unsqueeze(1), column, features);
}

}  // namespace aerie::nest
