#include "aerie/checkpoint/state_dict.h"

#include <algorithm>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include "aerie/base/strings.h"
#include "aerie/checkpoint/tensor_io.h"

namespace aerie::ckpt {
namespace {

constexpr size_t kNamesShown = 20;

bool contains_any(const std::string& name, const std::vector<std::string>& parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const std::string& part) { return name.find(part) != std::string::npos; });
}

std::string quoted(const std::vector<std::string>& names) {
  std::string out;
  for (size_t i = 0; i < names.size() && i < kNamesShown; ++i)
    out += str_cat(i == 0 ? "" : ", ", "\"", names[i], "\"");
  if (names.size() > kNamesShown) out += str_cat(" and ", names.size() - kNamesShown, " more");
  return out;
}

struct Plan {
  LoadReport report;
  std::vector<std::pair<const archive::TensorInfo*, int64_t>> items;
};

Result<Plan> make_plan(const archive::TensorArchive& archive, const nn::ParameterRegistry& registry,
                       const LoadOptions& options) {
  Plan out;
  LoadReport& report = out.report;
  std::vector<std::string> mismatched;
  for (const archive::TensorInfo& info : archive.tensors()) {
    const int64_t index = registry.find(info.name);
    if (index < 0) {
      report.unexpected.push_back(info.name);
      continue;
    }
    if ((!options.include.empty() && !contains_any(info.name, options.include)) ||
        contains_any(info.name, options.exclude)) {
      report.excluded.push_back(info.name);
      continue;
    }
    const std::vector<int64_t>& want = registry.entries()[static_cast<size_t>(index)].shape;
    if (info.shape != want) {
      mismatched.push_back(str_cat("size mismatch for ", info.name, ": the file has ",
                                   archive::shape_text(info.shape), ", the model has ",
                                   archive::shape_text(want)));
      continue;
    }
    out.items.emplace_back(&info, index);
  }
  std::vector<bool> read(static_cast<size_t>(registry.size()), false);
  for (const auto& [info, index] : out.items) read[static_cast<size_t>(index)] = true;
  for (int64_t i = 0; i < registry.size(); ++i)
    if (!read[static_cast<size_t>(i)])
      report.missing.push_back(registry.entries()[static_cast<size_t>(i)].name);

  const bool filtered = !options.include.empty() || !options.exclude.empty();
  const bool incomplete =
      options.strict && !filtered && (!report.missing.empty() || !report.unexpected.empty());
  if (!mismatched.empty() || incomplete) {
    std::string text = "the weights do not fit the model";
    if (incomplete && !report.missing.empty())
      text += str_cat("\n  missing in the file: ", quoted(report.missing));
    if (incomplete && !report.unexpected.empty())
      text += str_cat("\n  not in the model: ", quoted(report.unexpected));
    for (size_t i = 0; i < mismatched.size() && i < kNamesShown; ++i)
      text += str_cat("\n  ", mismatched[i]);
    if (mismatched.size() > kNamesShown)
      text += str_cat("\n  and ", mismatched.size() - kNamesShown, " more sizes");
    return data_error(std::move(text))
        .with_context(archive.name())
        .with_hint("the model section must be the one the weights were trained with");
  }
  return out;
}

}  // namespace

std::string LoadReport::summary() const {
  std::string out = str_cat("loaded ", loaded.size(), " tensors");
  if (!excluded.empty()) out += str_cat("; left out ", excluded.size());
  if (!missing.empty()) out += str_cat("; not in the file: ", quoted(missing));
  if (!unexpected.empty()) out += str_cat("; not in the model: ", quoted(unexpected));
  return out;
}

Result<LoadReport> load_state_dict(const archive::TensorArchive& archive,
                                   nn::ParameterRegistry& registry, const LoadOptions& options) {
  AERIE_ASSIGN_OR_RETURN(Plan plan, make_plan(archive, registry, options));
  // Read everything before changing anything.
  std::vector<at::Tensor> values;
  for (const auto& [info, index] : plan.items) {
    AERIE_ASSIGN_OR_RETURN(at::Tensor value, read_tensor(archive, *info));
    values.push_back(std::move(value));
  }
  try {
    at::NoGradGuard no_grad;
    for (size_t i = 0; i < plan.items.size(); ++i) {
      registry.tensor(plan.items[i].second).copy_(values[i]);
      plan.report.loaded.push_back(plan.items[i].first->name);
    }
  } catch (const std::exception& error) {
    return internal_error(error.what()).with_context(archive.name());
  }
  return std::move(plan.report);
}

Status check_state_dict(const archive::TensorArchive& archive,
                        const nn::ParameterRegistry& registry, const LoadOptions& options) {
  AERIE_ASSIGN_OR_RETURN(const Plan plan, make_plan(archive, registry, options));
  uint64_t missing_bytes = 0;
  for (const std::string& name : plan.report.missing) {
    const nn::ParamInfo& info = registry.entries()[static_cast<size_t>(registry.find(name))];
    if (info.alias_of < 0)
      missing_bytes += static_cast<uint64_t>(info.numel) * c10::elementSize(info.dtype);
  }
  if (missing_bytes > archive.total_bytes() + (uint64_t{16} << 20)) {
    return data_error(str_cat("the model has ", missing_bytes >> 20,
                              " MiB of tensors that the file does not hold"))
        .with_context(archive.name());
  }
  return ok_status();
}

Result<std::vector<archive::OutTensor>> state_dict_tensors(const nn::ParameterRegistry& registry) {
  std::vector<archive::OutTensor> out;
  for (int64_t i = 0; i < registry.size(); ++i) {
    AERIE_ASSIGN_OR_RETURN(
        archive::OutTensor tensor,
        out_tensor(registry.entries()[static_cast<size_t>(i)].name, registry.tensor(i)));
    out.push_back(std::move(tensor));
  }
  return out;
}

}  // namespace aerie::ckpt
