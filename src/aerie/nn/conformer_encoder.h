// NeMo's ConformerEncoder (docs/numerics.md 4): subsampling, positions, layers, a projection.
#pragma once

#include <memory>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/nn/conformer_config.h"
#include "aerie/nn/conformer_layer.h"
#include "aerie/nn/positional.h"
#include "aerie/nn/subsampling.h"

namespace aerie::nn {

// What the schema cannot see: combinations of encoder keys that do not make a model.
Status check_encoder_config(const config::EncoderConfig& config);

// Probability of dropping layer i (0-based) in training.
double layer_drop_prob(const config::EncoderConfig& config, int64_t layer_idx);

struct EncoderOutput {
  at::Tensor encoded;              // (B,d_out,T')
  at::Tensor lengths;              // (B) int64
  std::vector<at::Tensor> layers;  // outputs of every layer (B,d_out,T'), if asked for
};

class ConformerEncoder {
 public:
  struct Options {
    // Name of the subsampling below the encoder's scope: "pre_encode", or "pre_encode.pre_encode"
    // where a masking wrapper sits in between (post_conv).
    std::string pre_encode_name = "pre_encode";
    bool freeze_pre_encode = false;
    // Called between subsampling and layers while the encoder registers its parameters.
    std::function<void()> after_pre_encode;
  };
  // Registers all parameters below scope ("encoder"). The config has passed check_encoder_config().
  ConformerEncoder(const Scope& scope, const config::EncoderConfig& config, const Options& options);
  ConformerEncoder(const Scope& scope, const config::EncoderConfig& config)
      : ConformerEncoder(scope, config, Options()) {}

  // features (B,D,T), lengths (B) in frames.
  EncoderOutput forward(const ForwardContext& ctx, const at::Tensor& features,
                        const at::Tensor& lengths, bool keep_layers = false) const;
  SubsamplingModule::Output subsample(const ForwardContext& ctx, const at::Tensor& features,
                                      const at::Tensor& lengths) const;
  // From subsampled features (B,T',d) on.
  EncoderOutput forward_subsampled(const ForwardContext& ctx, const at::Tensor& x,
                                   const at::Tensor& lengths, bool keep_layers = false) const;

  const SubsamplingModule& pre_encode() const { return *pre_encode_; }
  int64_t feat_out() const;

 private:
  at::Tensor run_layer(const ForwardContext& ctx, int64_t i, const at::Tensor& x,
                       const at::Tensor& positions, const AttentionMasks& masks) const;
  at::Tensor project_out(const ForwardContext& ctx, const at::Tensor& x) const;

  config::EncoderConfig config_;
  std::unique_ptr<SubsamplingModule> pre_encode_;
  PositionalEncoding positional_;
  std::vector<ConformerLayer> layers_;
  Linear out_proj_;
  bool has_out_proj_ = false;
  const ParameterRegistry* registry_;
};

}  // namespace aerie::nn
