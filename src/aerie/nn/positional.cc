#include "aerie/nn/positional.h"

#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/stack.h>

namespace aerie::nn {

at::Tensor sinusoid_table(int64_t first, int64_t step, int64_t rows, int64_t d_model,
                          const at::TensorOptions& options) {
  const auto f32 = at::TensorOptions().dtype(at::kFloat).device(options.device());
  const at::Tensor positions =
      at::arange(first, first + step * rows, step, f32).unsqueeze(1);  // (rows,1)
  const at::Tensor frequencies =
      at::exp(at::arange(0, d_model, 2, f32) * -(std::log(10000.0) / static_cast<double>(d_model)));
  const at::Tensor angles = positions * frequencies;
  at::Tensor table = at::stack({at::sin(angles), at::cos(angles)}, -1).flatten(1);
  return table.narrow(1, 0, d_model).unsqueeze(0).to(options.dtype());
}

PositionalOutput PositionalEncoding::forward(const ForwardContext& ctx, const at::Tensor& x,
                                             at::ScalarType table_dtype) const {
  using config::SelfAttentionModel;
  const int64_t frames = x.size(1);
  const int64_t width = config_.d_model;
  const auto options = at::TensorOptions().dtype(table_dtype).device(x.device());
  PositionalOutput out;
  out.x = config_.xscaling ? x * std::sqrt(static_cast<double>(width)) : x;
  ctx.report("scaled", out.x);

  if (config_.self_attention_model == SelfAttentionModel::kAbsPos) {
    // NeMo gives this table no dropout of its own.
    out.positions = sinusoid_table(0, 1, frames, width, options);
    out.x =
        dropout(ctx, out.x + out.positions, config_.dropout_pre_encoder, DropoutSite::kPreEncoder);
    return out;
  }

  const bool local = config_.self_attention_model == SelfAttentionModel::kRelPosLocalAttn;
  const int64_t left = local ? config_.att_context_size[0][0] : frames - 1;
  const int64_t right = local ? config_.att_context_size[0][1] : frames - 1;
  const int64_t rows = left + right + 1;
  out.positions = sinusoid_table(left, -1, rows, width, options);
  ctx.report("pos_emb", out.positions);
  out.positions = dropout_with(ctx, out.positions, config_.dropout_emb, [&] {
    return dropout_of_positions(ctx.random, DropoutSite::kPositions, config_.dropout_emb, left,
                                rows, width);
  });
  // NeMo's local attention uses `dropout` here, the global one `dropout_pre_encoder`.
  out.x = dropout(ctx, out.x, local ? config_.dropout : config_.dropout_pre_encoder,
                  DropoutSite::kPreEncoder);
  return out;
}

}  // namespace aerie::nn
