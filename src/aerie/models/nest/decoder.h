// MultiSoftmaxDecoder and MultiMLMLoss (docs/numerics.md 3.3, 3.4).
#pragma once

#include <ATen/core/Tensor.h>

#include "aerie/models/nest/config/model_config.h"
#include "aerie/nn/ops.h"

namespace aerie::nest {

// One 1x1 convolution to all classes of all books. Channel = class * H + book.
class Decoder {
 public:
  Decoder(const nn::Scope& scope, const config::DecoderConfig& config);
  // encoded (B,d,T) -> log-probabilities (B,T,K,H).
  at::Tensor forward(const nn::DtypePolicy& policy, const at::Tensor& encoded) const;
  // The same for chosen frames only: rows (N,d) -> (N,K,H).
  at::Tensor forward_rows(const nn::DtypePolicy& policy, const at::Tensor& rows) const;

 private:
  config::DecoderConfig config_;
  nn::Conv1d conv_;
};

// The loss as a sum over selected frames and their number, so that both can be added up over ranks.
// loss = sum / count. sum is already divided by the number of books.
struct MaskedLoss {
  at::Tensor sum;    // 0-dim, differentiable
  at::Tensor count;  // 0-dim int64
};

// Frames of the encoder that count: mean of mask over `combine` feature frames > threshold.
// mask (B,T), bool or shares of hidden bins -> (B,T/combine) bool.
at::Tensor loss_frames(const at::Tensor& mask, int64_t combine, double threshold);

// log_probs (B,T',K,H), tokens (B,T'',H) padded with zeros or cut to T', selected (B,T').
MaskedLoss masked_token_loss(const at::Tensor& log_probs, const at::Tensor& tokens,
                             const at::Tensor& selected);

// What an empty selection means for sum / count: a zero loss (and zero gradients), or NaN as NeMo.
at::Tensor mean_loss(const MaskedLoss& loss, bool nan_when_empty);

}  // namespace aerie::nest
