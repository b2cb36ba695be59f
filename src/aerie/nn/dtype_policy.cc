#include "aerie/nn/dtype_policy.h"

#include <ATen/Context.h>

namespace aerie::nn {

std::optional<at::ScalarType> DtypePolicy::input_dtype(OpClass op) const {
  switch (precision_) {
    case config::Precision::k32:
      return std::nullopt;
    case config::Precision::kBf16Mixed:
      return op == OpClass::kGemm ? at::kBFloat16 : at::kFloat;
    case config::Precision::k16Mixed:
      return op == OpClass::kGemm ? at::kHalf : at::kFloat;
  }
  return std::nullopt;
}

DtypePolicy DtypePolicy::attention() const {
  return precision_ == config::Precision::k16Mixed ? DtypePolicy(config::Precision::kBf16Mixed)
                                                   : *this;
}

void set_tf32(config::Tf32 mode) {
  at::globalContext().setAllowTF32CuBLAS(mode == config::Tf32::kAll);
  at::globalContext().setAllowTF32CuDNN(mode != config::Tf32::kNone);
}

}  // namespace aerie::nn
