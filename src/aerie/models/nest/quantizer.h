// Random-projection vector quantizer (docs/numerics.md 3.2): clean features to target tokens.
#pragma once

#include <ATen/core/Tensor.h>

#include "aerie/base/status.h"
#include "aerie/models/nest/config/model_config.h"
#include "aerie/nn/dtype_policy.h"
#include "aerie/nn/param_registry.h"

namespace aerie::nest {

class Quantizer {
 public:
  // Registers codebooks (H,K,c) float64 and proj.weight (H*c, feat_in*combine) below scope
  // ("quantizer"). Nothing of it is ever trained: tokens carry no gradient.
  Quantizer(const nn::Scope& scope, const config::QuantizerConfig& config);

  // features (B,D,T), T a multiple of combine_time_steps -> tokens (B,T/combine,H) int64.
  // policy decides the projection's dtype: precision 32 keeps it in float32 (the default for
  // tokens), a mixed policy reproduces what NeMo's tokens are under autocast.
  // l2 and cosine give the same token, since codes have unit length. Of equally near codes the
  // first is taken.
  at::Tensor forward(const nn::DtypePolicy& policy, const at::Tensor& features) const;

  // What forward() gives for frames of zeros, (H); without a matrix product, whose library would
  // keep tens of megabytes of the device for itself.
  at::Tensor silent_tokens() const;

  int64_t combine_time_steps() const { return config_.combine_time_steps; }

 private:
  config::QuantizerConfig config_;
  nn::ParamRef codebooks_;
  nn::ParamRef proj_;
};

}  // namespace aerie::nest
