// Weights between archives and a model's registry, under NeMo's names.
#pragma once

#include <string>
#include <vector>

#include "aerie/archive/tensor_archive.h"
#include "aerie/archive/tensor_writer.h"
#include "aerie/base/status.h"
#include "aerie/nn/param_registry.h"

namespace aerie::ckpt {

struct LoadOptions {
  // Every name of the model must be in the file and the other way round.
  bool strict = true;
  // Only names that contain one of these are read (empty: all), and none of those.
  std::vector<std::string> include;
  std::vector<std::string> exclude;
};

struct LoadReport {
  std::vector<std::string> loaded;
  std::vector<std::string> missing;     // in the model, not read
  std::vector<std::string> unexpected;  // in the file, not in the model
  std::vector<std::string> excluded;    // in both, left out by include/exclude

  // "loaded 610 of 613 tensors; missing: ...; unexpected: ..." with long lists cut.
  std::string summary() const;
};

// Copies values into the registry's tensors, converting dtypes. Nothing is changed unless all
// shapes agree; a shape that differs is an error even when not strict, as in NeMo. The error lists
// every missing, unexpected and mismatched name.
Result<LoadReport> load_state_dict(const archive::TensorArchive& archive,
                                   nn::ParameterRegistry& registry, const LoadOptions& options);

// What load_state_dict() would say, without reading or changing anything: for a model whose sizes
// come from the same file as the weights, before its tensors are allocated. Not strict: tensors
// that the file lacks may not take more memory than the file itself, plus 16 MiB.
Status check_state_dict(const archive::TensorArchive& archive,
                        const nn::ParameterRegistry& registry, const LoadOptions& options);

// Every entry, aliases included, in public order: what NeMo's state_dict() holds.
Result<std::vector<archive::OutTensor>> state_dict_tensors(const nn::ParameterRegistry& registry);

}  // namespace aerie::ckpt
