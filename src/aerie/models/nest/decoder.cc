#include "aerie/models/nest/decoder.h"

#include <cmath>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/where.h>

#include "aerie/base/check.h"

namespace aerie::nest {
namespace {

// Weight only; the bias keeps the convolution's default.
nn::Init weight_init(config::DecoderInit mode, int64_t fan_in, int64_t fan_out) {
  const double in = static_cast<double>(fan_in);
  const double both = static_cast<double>(fan_in + fan_out);
  switch (mode) {
    case config::DecoderInit::kXavierUniform:
      return nn::Init::uniform(std::sqrt(6.0 / both));
    case config::DecoderInit::kXavierNormal:
      return nn::Init::normal(std::sqrt(2.0 / both));
    case config::DecoderInit::kKaimingUniform:  // for ReLU, as NeMo asks for
      return nn::Init::uniform(std::sqrt(6.0 / in));
    case config::DecoderInit::kKaimingNormal:
      return nn::Init::normal(std::sqrt(2.0 / in));
    case config::DecoderInit::kDefault:
      return nn::Init::uniform(1.0 / std::sqrt(in));
  }
  return nn::Init::constant(0.0);
}

}  // namespace

Decoder::Decoder(const nn::Scope& scope, const config::DecoderConfig& config) : config_(config) {
  const int64_t out = config.num_classes * config.num_decoders;
  conv_ = nn::Conv1d(scope.child("decoder_layers.0"), config.feat_in, out, 1, 1, config.use_bias);
  scope.registry().set_init(conv_.weight, weight_init(config.init_mode, config.feat_in, out));
}

at::Tensor Decoder::forward(const nn::DtypePolicy& policy, const at::Tensor& encoded) const {
  const at::Tensor logits = conv_.forward(policy, encoded).transpose(1, 2);
  return nn::log_softmax(
      policy,
      logits.reshape({logits.size(0), logits.size(1), config_.num_classes, config_.num_decoders}),
      2);
}

at::Tensor Decoder::forward_rows(const nn::DtypePolicy& policy, const at::Tensor& rows) const {
  const at::Tensor logits = conv_.forward(policy, rows.t().unsqueeze(0)).squeeze(0).t();
  return nn::log_softmax(
      policy, logits.reshape({rows.size(0), config_.num_classes, config_.num_decoders}), 1);
}

at::Tensor loss_frames(const at::Tensor& mask, int64_t combine, double threshold) {
  AERIE_CHECK(mask.size(1) % combine == 0, "mask of ", mask.size(1),
              " frames is not a multiple of ", combine);
  const at::Tensor share =
      mask.to(at::kFloat).reshape({mask.size(0), mask.size(1) / combine, combine}).mean(-1);
  return share > threshold;
}

MaskedLoss masked_token_loss(const at::Tensor& log_probs, const at::Tensor& tokens,
                             const at::Tensor& selected) {
  const int64_t frames = log_probs.size(1);
  AERIE_CHECK(selected.size(1) == frames, "loss mask has ", selected.size(1), " frames for ",
              frames, " encoder frames");
  at::Tensor targets = tokens;
  if (targets.size(1) != frames)
    targets = at::constant_pad_nd(targets, {0, 0, 0, frames - targets.size(1)});
  const at::Tensor picked = log_probs.gather(2, targets.unsqueeze(2)).squeeze(2);  // (B,T',H)
  const at::Tensor per_frame = -picked.sum(-1);
  MaskedLoss out;
  out.sum = at::where(selected, per_frame, 0.0).sum() / log_probs.size(3);
  out.count = selected.sum();
  return out;
}

at::Tensor mean_loss(const MaskedLoss& loss, bool nan_when_empty) {
  return loss.sum / (nan_when_empty ? loss.count : loss.count.clamp_min(1));
}

}  // namespace aerie::nest
