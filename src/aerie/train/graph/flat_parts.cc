#include "aerie/train/graph/flat_parts.h"

#include <algorithm>

#include "aerie/kernels/adamw/adamw.h"

namespace aerie::train {

void append_range(std::vector<FlatRange>& ranges, const FlatRange& next) {
  if (!ranges.empty() && ranges.back().begin + ranges.back().count == next.begin) {
    ranges.back().count += next.count;
  } else {
    ranges.push_back(next);
  }
}

std::vector<FlatRange> FlatParts::ranges(int part) const {
  std::vector<FlatRange> out;
  const auto p = static_cast<size_t>(part);
  for (int32_t i = begins[p]; i < begins[p + 1]; ++i) {
    const int64_t begin = int64_t{chunks[static_cast<size_t>(i)]} * kernels::kAdamwChunk;
    const int64_t size = std::min<int64_t>(kernels::kAdamwChunk, count - begin);
    append_range(out, {begin, size});
  }
  return out;
}

FlatParts make_flat_parts(const nn::ParameterRegistry& registry, int parts,
                          const std::function<int(const nn::ParamInfo& info)>& part_of) {
  FlatParts out;
  out.count = registry.flat_params().numel();
  std::vector<int> of_chunk(
      static_cast<size_t>((out.count + kernels::kAdamwChunk - 1) / kernels::kAdamwChunk),
      parts - 1);
  for (const int64_t index : registry.trainable()) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(index)];
    const int part = part_of(info);
    out.of_trainable.push_back(part);
    if (info.numel == 0) continue;
    const int64_t last = (info.flat_offset + info.numel - 1) / kernels::kAdamwChunk;
    for (int64_t c = info.flat_offset / kernels::kAdamwChunk; c <= last; ++c)
      of_chunk[static_cast<size_t>(c)] = std::min(of_chunk[static_cast<size_t>(c)], part);
  }
  for (int part = 0; part < parts; ++part) {
    out.begins.push_back(static_cast<int32_t>(out.chunks.size()));
    for (size_t c = 0; c < of_chunk.size(); ++c)
      if (of_chunk[c] == part) out.chunks.push_back(static_cast<int32_t>(c));
  }
  out.begins.push_back(static_cast<int32_t>(out.chunks.size()));
  return out;
}

}  // namespace aerie::train
