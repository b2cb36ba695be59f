#include "aerie/models/bev/weights/load_weights.h"

#include <algorithm>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include "aerie/base/printable.h"
#include "aerie/base/strings.h"
#include "aerie/models/bev/weights/swin_names.h"

namespace aerie::bev {
namespace {

using Values = std::vector<std::pair<int64_t, std::vector<float>>>;  // by entry of the registry

void assign(nn::ParameterRegistry& registry, const Values& values) {
  const at::NoGradGuard no_grad;
  for (const auto& [entry, numbers] : values) {
    const at::Tensor& tensor = registry.tensor(entry);
    at::Tensor source = at::empty(tensor.sizes(), at::kFloat);
    std::copy(numbers.begin(), numbers.end(), source.data_ptr<float>());
    tensor.copy_(source);
  }
}

// Made by the model itself, or kept for nothing: files may hold them, none is needed.
bool is_constant(std::string_view name) {
  for (const std::string_view end : {".dx", ".bx", ".nx", ".frustum", ".relative_position_index",
                                     ".attn_mask", ".num_batches_tracked"})
    if (ends_with(name, end)) return true;
  return false;
}

std::string some_names(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < std::min<size_t>(names.size(), 3); ++i)
    out += str_cat(i > 0 ? ", " : "", names[i]);
  if (names.size() > 3) out += str_cat(" and ", names.size() - 3, " more");
  return out;
}

std::string plain_name(std::string name) {
  while (starts_with(name, "module.")) name.erase(0, 7);
  return name;
}

}  // namespace

Result<LoadReport> load_backbone(nn::ParameterRegistry& registry,
                                 const archive::TensorArchive& archive, const std::string& prefix) {
  AERIE_ASSIGN_OR_RETURN(const SwinMapping mapping, map_swin_names(archive));
  LoadReport report;
  report.kind = str_cat("backbone (", dialect_name(mapping.dialect), " names)");
  report.unused = mapping.unused;
  Values values;
  std::vector<bool> given(static_cast<size_t>(registry.size()), false);
  for (const SwinTensor& tensor : mapping.tensors) {
    const int64_t entry = registry.find(prefix + tensor.name);
    if (entry < 0) {
      report.unused.push_back(tensor.source->name);
      if (starts_with(tensor.name, "stages.")) report.beyond.push_back(tensor.source->name);
      continue;
    }
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(entry)];
    AERIE_ASSIGN_OR_RETURN(std::vector<float> numbers,
                           read_swin_tensor(archive, tensor, info.shape));
    values.emplace_back(entry, std::move(numbers));
    given[static_cast<size_t>(entry)] = true;
  }
  std::vector<std::string> needed;
  for (int64_t i = 0; i < registry.size(); ++i) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(i)];
    if (info.is_buffer || given[static_cast<size_t>(i)] || !starts_with(info.name, prefix))
      continue;
    report.missing.push_back(info.name);
    // "norm1.weight": behind a stage.
    if (!starts_with(info.name, prefix + "norm")) needed.push_back(info.name);
  }
  if (!needed.empty())
    return data_error(str_cat("lacks ", some_names(needed)))
        .with_context(archive.name())
        .with_hint("is it a Swin of another size?");
  assign(registry, values);
  report.loaded = static_cast<int64_t>(values.size());
  return report;
}

Result<LoadReport> load_weights(nn::ParameterRegistry& registry,
                                const archive::TensorArchive& archive) {
  constexpr std::string_view kBackbone = "encoders.camera.backbone.";
  bool whole = false;
  for (const archive::TensorInfo& info : archive.tensors()) {
    const std::string name = plain_name(info.name);
    whole = whole || (!starts_with(name, kBackbone) && registry.find(name) >= 0);
  }
  if (!whole) return load_backbone(registry, archive, std::string(kBackbone));

  LoadReport report;
  report.kind = "whole model";
  Values values;
  std::vector<bool> given(static_cast<size_t>(registry.size()), false);
  for (const archive::TensorInfo& info : archive.tensors()) {
    const std::string name = plain_name(info.name);
    const int64_t entry = registry.find(name);
    if (entry < 0) {
      if (!is_constant(name)) report.unused.push_back(info.name);
      continue;
    }
    const nn::ParamInfo& ours = registry.entries()[static_cast<size_t>(entry)];
    if (ours.dtype != at::kFloat) continue;  // counters
    if (given[static_cast<size_t>(entry)])
      return data_error(str_cat("two of its tensors are ", name)).with_context(archive.name());
    SwinTensor tensor;
    tensor.name = name;
    tensor.source = &info;
    tensor.table = ends_with(name, ".relative_position_bias_table");
    AERIE_ASSIGN_OR_RETURN(std::vector<float> numbers,
                           read_swin_tensor(archive, tensor, ours.shape));
    values.emplace_back(entry, std::move(numbers));
    given[static_cast<size_t>(entry)] = true;
  }
  for (int64_t i = 0; i < registry.size(); ++i) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(i)];
    if (!given[static_cast<size_t>(i)] && !is_constant(info.name))
      report.missing.push_back(info.name);
  }
  assign(registry, values);
  report.loaded = static_cast<int64_t>(values.size());
  return report;
}

}  // namespace aerie::bev
