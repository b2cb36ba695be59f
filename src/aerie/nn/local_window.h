// Products of local attention by chunks of queries: those of w frames see 3w keys, which makes
// three large matrix products of what would be one small one a query. Every query i sees columns
// c = 0..2w, key i - w + c; keys outside the signal count as zeros.
#pragma once

#include <ATen/core/Tensor.h>

#include "aerie/nn/dtype_policy.h"

namespace aerie::nn {

// q, k (B,H,T,D) -> (B,H,T,2w+1): out[i][c] = q[i] . k[i-w+c].
at::Tensor window_scores(const DtypePolicy& policy, const at::Tensor& q, const at::Tensor& k,
                         int64_t w);
// weights (B,H,T,2w+1), v (B,H,T,D) -> (B,H,T,D): out[i] = sum over c of weights[i][c] v[i-w+c].
at::Tensor window_mix(const DtypePolicy& policy, const at::Tensor& weights, const at::Tensor& v,
                      int64_t w);

}  // namespace aerie::nn
