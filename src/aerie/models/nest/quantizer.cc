#include "aerie/models/nest/quantizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmin.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/min.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "aerie/base/check.h"
#include "aerie/nn/ops.h"

namespace aerie::nest {
namespace {

// Rows whose two best codes are nearer to each other than this are decided by the plain distance.
constexpr double kTieGap = 1e-9;
constexpr int64_t kRowsAtOnce = 256;         // whose differences with all codes are in memory
constexpr int64_t kGpuRowsAtOnce = 1 << 12;  // whose distances are

// Nearest code of every row by the plain distance: exact, and with room for every difference.
at::Tensor nearest_exactly(const at::Tensor& rows, const at::Tensor& codes) {
  return at::argmin(
      at::linalg_vector_norm(rows.unsqueeze(-1) - codes.t().unsqueeze(0), 2, at::IntArrayRef{-2}),
      -1);
}

// Nearest code of every row, in float64. y (N,c), codes (K,c) -> (N).
at::Tensor nearest(const at::Tensor& y, const at::Tensor& codes) {
  if (codes.size(0) == 1 || y.size(0) == 0)
    return at::zeros({y.size(0)}, y.options().dtype(at::kLong));
  std::vector<at::Tensor> tokens, gaps;
  const at::Tensor code_energy = codes.square().sum(1);  // (K)
  const int64_t at_once = y.is_cuda() ? kGpuRowsAtOnce : kRowsAtOnce;
  for (int64_t begin = 0; begin < y.size(0); begin += at_once) {
    const at::Tensor rows = y.narrow(0, begin, std::min(at_once, y.size(0) - begin));
    // |y-C|^2 without |y|^2, which is the same for every code.
    at::Tensor distance = code_energy - 2.0 * at::matmul(rows, codes.t());
    const auto [best, index] = at::min(distance, 1, /*keepdim=*/true);
    tokens.push_back(index.squeeze(1));
    distance.scatter_(1, index, std::numeric_limits<double>::infinity());
    gaps.push_back(distance.amin(1) - best.squeeze(1));
  }
  at::Tensor token = at::cat(tokens);
  // How many are close is for the device to say: the one time in a step that it is waited for.
  const at::Tensor close = at::nonzero(at::cat(gaps) < kTieGap).flatten();
  for (int64_t begin = 0; begin < close.numel(); begin += kRowsAtOnce) {
    // Silence (all-zero rows) always ends here: the code with the smallest rounded norm wins.
    const at::Tensor some = close.narrow(0, begin, std::min(kRowsAtOnce, close.numel() - begin));
    token.index_copy_(0, some, nearest_exactly(y.index_select(0, some), codes));
  }
  return token;
}

}  // namespace

Quantizer::Quantizer(const nn::Scope& scope, const config::QuantizerConfig& config)
    : config_(config) {
  const int64_t in = config.feat_in * config.combine_time_steps;
  const int64_t out = config.num_books * config.code_dim;
  const nn::Scope frozen = scope.frozen();
  codebooks_ = frozen.param("codebooks", {config.num_books, config.num_classes, config.code_dim},
                            nn::Init::unit_normal_rows(), at::kDouble);
  proj_ = frozen.child("proj").param(
      "weight", {out, in}, nn::Init::normal(std::sqrt(2.0 / static_cast<double>(in + out))));
}

at::Tensor Quantizer::forward(const nn::DtypePolicy& policy, const at::Tensor& features) const {
  at::NoGradGuard no_grad;
  const int64_t batch = features.size(0);
  const int64_t combine = config_.combine_time_steps;
  AERIE_CHECK(features.size(2) % combine == 0, "quantizer got ", features.size(2),
              " frames, not a multiple of ", combine);
  const int64_t frames = features.size(2) / combine;
  // Index inside a stacked vector = frame within the group * D + bin.
  const at::Tensor stacked = features.transpose(1, 2).reshape({batch, frames, -1});
  at::Tensor y = nn::linear(policy, stacked, proj_.tensor(), {});
  if (policy.mixed()) y = y.to(at::kFloat);
  y = y.view({batch * frames, config_.num_books, config_.code_dim});
  y = y / at::linalg_vector_norm(y, 2, at::IntArrayRef{-1}, true).clamp_min(1e-12);
  y = y.to(at::kDouble);

  std::vector<at::Tensor> books;
  for (int64_t h = 0; h < config_.num_books; ++h)
    books.push_back(nearest(y.select(1, h), codebooks_.tensor().select(0, h)));
  return at::stack(books, -1).view({batch, frames, config_.num_books});
}

at::Tensor Quantizer::silent_tokens() const {
  at::NoGradGuard no_grad;
  std::vector<at::Tensor> books;
  for (int64_t h = 0; h < config_.num_books; ++h) {
    const at::Tensor codes = codebooks_.tensor().select(0, h);
    books.push_back(nearest_exactly(at::zeros({1, codes.size(1)}, codes.options()), codes));
  }
  return at::cat(books);
}

}  // namespace aerie::nest
