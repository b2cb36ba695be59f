// Sinusoidal position tables (docs/numerics.md 4.2) and what happens between subsampling and layer
// 0: scaling by sqrt(d), positions added (abs_pos), dropout.
#pragma once

#include "aerie/nn/conformer_config.h"
#include "aerie/nn/ops.h"

namespace aerie::nn {

// Rows for positions first, first-1, ... (step -1) or first, first+1, ... (step +1): (1,rows,d),
// computed in float32 as torch does, then cast to `options`.
at::Tensor sinusoid_table(int64_t first, int64_t step, int64_t rows, int64_t d_model,
                          const at::TensorOptions& options);

struct PositionalOutput {
  at::Tensor x;          // (B,T',d)
  at::Tensor positions;  // rel_pos: (1,2T'-1,d); local: (1,left+right+1,d); abs_pos: (1,T',d)
};

class PositionalEncoding {
 public:
  explicit PositionalEncoding(const config::EncoderConfig& config) : config_(config) {}
  // table_dtype is the dtype of the parameters.
  PositionalOutput forward(const ForwardContext& ctx, const at::Tensor& x,
                           at::ScalarType table_dtype) const;

 private:
  config::EncoderConfig config_;
};

}  // namespace aerie::nn
