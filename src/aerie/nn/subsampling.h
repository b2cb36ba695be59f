// Subsampling before the encoder (docs/numerics.md 4.1): (B,T,D) to (B,T',d) and new lengths.
//
//   dw_striding    conv 3x3/2, then pairs of depthwise 3x3/2 and pointwise, ReLU after each
//   striding       conv 3x3/2 + ReLU, repeated
//   stacking       `factor` frames side by side, one linear layer; stacking_norm: LayerNorm first
//   none           factor 1: one linear layer
//
// The convolutions run masked: before every layer and at the end frames beyond the current length
// are zeroed, so results do not depend on how far the batch is padded.
#pragma once

#include <utility>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/nn/conformer_config.h"
#include "aerie/nn/ops.h"

namespace aerie::nn {

class SubsamplingModule {
 public:
  // scope is "encoder.pre_encode". The config has passed check_encoder_config().
  SubsamplingModule(const Scope& scope, const config::EncoderConfig& config);

  struct Output {
    at::Tensor x;        // (B,T',d)
    at::Tensor lengths;  // (B) int64
  };
  Output forward(const ForwardContext& ctx, const at::Tensor& x, const at::Tensor& lengths) const;

  // Every parameter declared, by name below the scope, for aliases under a second prefix.
  const std::vector<std::pair<std::string, ParamRef>>& parameters() const { return parameters_; }

 private:
  enum class Kind { kConv, kStacking, kLinear };
  struct Step {
    Conv2d conv;
    bool relu_after = false;
  };
  Output forward_conv(const ForwardContext& ctx, const at::Tensor& x,
                      const at::Tensor& lengths) const;
  Output forward_stacking(const ForwardContext& ctx, const at::Tensor& x,
                          const at::Tensor& lengths) const;

  Kind kind_ = Kind::kConv;
  int64_t factor_ = 1;
  Linear out_;
  LayerNorm norm_;
  bool has_norm_ = false;
  std::vector<Step> steps_;
  std::vector<std::pair<std::string, ParamRef>> parameters_;
};

// Frames after one 3x3, stride 2, padding 1 layer.
inline int64_t strided_length(int64_t length) {
  // floor((length + 2 - 3) / 2) + 1, with floor towards minus infinity for length 0.
  return length <= 0 ? 0 : (length - 1) / 2 + 1;
}

}  // namespace aerie::nn
