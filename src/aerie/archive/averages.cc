#include "aerie/archive/averages.h"

#include <unordered_map>
#include <unordered_set>

#include "aerie/archive/text.h"
#include "aerie/base/strings.h"

namespace aerie::archive {
namespace {

constexpr std::string_view kNorm = ".batch_norm.", kFeaturizer = "preprocessor.featurizer.";

bool is_buffer(std::string_view name) {
  if (starts_with(name, kFeaturizer)) return true;
  for (const char* leaf : {".running_mean", ".running_var", ".num_batches_tracked"})
    if (ends_with(name, leaf)) return true;
  return false;
}

// mask_position post_conv: the subsampling and the mask have further names in the state dict.
std::string first_name(const std::string& name) {
  if (starts_with(name, "pre_encoder."))
    return str_cat("encoder.pre_encode.", name.substr(std::string_view("pre_encoder.").size()));
  if (name == "mask_processor.mask_embedding") return "encoder.pre_encode.masking.mask_embedding";
  return name;
}

}  // namespace

Result<std::vector<OutTensor>> with_averages(std::vector<OutTensor> model,
                                             const std::vector<OutTensor>& averages) {
  std::unordered_map<std::string, const OutTensor*> by_name;
  for (const OutTensor& average : averages) by_name.emplace(average.name, &average);
  std::unordered_set<const OutTensor*> used;
  for (OutTensor& tensor : model) {
    auto found = by_name.find(tensor.name);
    if (found == by_name.end()) found = by_name.find(first_name(tensor.name));
    if (found == by_name.end()) {
      if (is_buffer(tensor.name)) continue;
      return data_error(str_cat("the averages lack ", quoted(tensor.name)));
    }
    const OutTensor& average = *found->second;
    if (average.shape != tensor.shape)
      return data_error(str_cat("the average of ", quoted(tensor.name), " is ",
                                shape_text(average.shape), ", the parameter ",
                                shape_text(tensor.shape)));
    used.insert(&average);
    std::string name = std::move(tensor.name);
    tensor = average;
    tensor.name = std::move(name);
  }
  for (const OutTensor& average : averages)
    if (used.count(&average) == 0)
      return data_error(str_cat("the model has no ", quoted(average.name),
                                ", of which there is an "
                                "average"));
  return model;
}

std::vector<std::string> missing_buffers(const std::vector<OutTensor>& tensors, bool batch_norm) {
  std::unordered_set<std::string> names;
  bool encoder = false;
  for (const OutTensor& tensor : tensors) {
    names.insert(tensor.name);
    encoder = encoder || starts_with(tensor.name, "encoder.");
  }
  std::vector<std::string> out;
  const auto need = [&](std::string name) {
    if (names.count(name) == 0) out.push_back(std::move(name));
  };
  if (encoder)
    for (const char* leaf : {"window", "fb"}) need(str_cat(kFeaturizer, leaf));
  for (const OutTensor& tensor : tensors) {
    const std::string suffix = str_cat(kNorm, "weight");
    if (!batch_norm || !ends_with(tensor.name, suffix)) continue;
    const std::string norm = tensor.name.substr(0, tensor.name.size() - suffix.size());
    for (const char* leaf : {"running_mean", "running_var", "num_batches_tracked"})
      need(str_cat(norm, kNorm, leaf));
  }
  return out;
}

}  // namespace aerie::archive
