// Which operation computes in which dtype: one table, applied explicitly by the wrappers of ops.h,
// the same on CPU and CUDA. It restates torch's CUDA autocast for the operations of this model (the
// CPU autocast of torch has other rules and is not used).
//
//   operation                            32      bf16-mixed   16-mixed
//   linear, convolution, matmul          as is   bf16         fp16 (inside attention: bf16)
//   layer/group norm, (log_)softmax      as is   float32      float32
//   batch/instance norm                  as is   dtype of the input; statistics in float32
//   everything else                      as is   dtype of the inputs, promoted by torch's rules
//
// "as is" makes every module dtype-generic: float64 parameters give a float64 model.
// Parameters stay float32 and are cast at their use.
#pragma once

#include <optional>

#include <c10/core/ScalarType.h>

#include "aerie/config/schema/aerie_config.h"
#include "aerie/config/schema/trainer_config.h"

namespace aerie::nn {

enum class OpClass {
  kGemm,       // linear, convolution, matmul
  kNormalize,  // layer norm, group norm, softmax, log-softmax, vector norms, losses
};

class DtypePolicy {
 public:
  DtypePolicy() = default;  // precision 32
  explicit DtypePolicy(config::Precision precision) : precision_(precision) {}

  // The dtype inputs are cast to; nullopt: left as they are.
  std::optional<at::ScalarType> input_dtype(OpClass op) const;
  // The policy inside the attention block: 16-mixed computes it in bf16 (fp16 overflows there).
  DtypePolicy attention() const;
  bool mixed() const { return precision_ != config::Precision::k32; }
  config::Precision precision() const { return precision_; }

 private:
  config::Precision precision_ = config::Precision::k32;
};

// Process-wide: whether float32 matrix products and convolutions on CUDA may use TF32. torch's
// default (and NeMo's numbers in precision 32) is kConv.
void set_tf32(config::Tf32 mode);

}  // namespace aerie::nn
