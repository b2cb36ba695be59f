// Puts weights of a file into a model: a whole model under BEVFusion's names, or a backbone under
// any of the names of swin_names.h.
#pragma once

#include <string>
#include <vector>

#include "aerie/archive/tensor_archive.h"
#include "aerie/base/status.h"
#include "aerie/nn/param_registry.h"

namespace aerie::bev {

struct LoadReport {
  std::string kind;                  // "whole model", "backbone (torchvision names)"
  int64_t loaded = 0;                // tensors
  std::vector<std::string> missing;  // the model's, left as they were
  std::vector<std::string> unused;   // the file's
  std::vector<std::string> beyond;   // of those, what stages and blocks hold that the model lacks
};

// Nothing is changed where something is wrong: a tensor of another shape, or a backbone that is
// incomplete (the norms behind its stages may be missing: only mmdet has them).
Result<LoadReport> load_weights(nn::ParameterRegistry& registry,
                                const archive::TensorArchive& archive);

// The backbone alone, whatever else the file holds. `prefix`: of the backbone in the registry.
Result<LoadReport> load_backbone(nn::ParameterRegistry& registry,
                                 const archive::TensorArchive& archive,
                                 const std::string& prefix = "encoders.camera.backbone.");

}  // namespace aerie::bev
