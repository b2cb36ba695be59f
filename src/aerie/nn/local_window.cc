#include "aerie/nn/local_window.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>

#include "aerie/nn/ops.h"

namespace aerie::nn {
namespace {

int64_t chunks_of(int64_t frames, int64_t w) {
  return (frames + w - 1) / w;
}

// (B,H,T,C) -> (B,H,n,w,C): queries by chunks, zeros behind the last one.
at::Tensor in_chunks(const at::Tensor& x, int64_t w) {
  const int64_t chunks = chunks_of(x.size(2), w);
  return at::constant_pad_nd(x, {0, 0, 0, chunks * w - x.size(2)})
      .view({x.size(0), x.size(1), chunks, w, x.size(3)});
}

// (B,H,T,D) -> (B,H,n,D,3w): what the queries of each chunk see.
at::Tensor seen_by_chunks(const at::Tensor& x, int64_t w) {
  const int64_t behind = chunks_of(x.size(2), w) * w - x.size(2);
  return at::constant_pad_nd(x, {0, 0, w, behind + w}).unfold(2, 3 * w, w);
}

}  // namespace

at::Tensor window_scores(const DtypePolicy& policy, const at::Tensor& q, const at::Tensor& k,
                         int64_t w) {
  const int64_t frames = q.size(2);
  const at::Tensor all = matmul(policy, in_chunks(q, w), seen_by_chunks(k, w)).contiguous();
  // Column c of row r is key r + c of the chunk: the same memory in rows that are one longer.
  return all
      .as_strided({all.size(0), all.size(1), all.size(2), w, 2 * w + 1},
                  {all.stride(0), all.stride(1), all.stride(2), 3 * w + 1, 1}, all.storage_offset())
      .flatten(2, 3)
      .narrow(2, 0, frames);
}

at::Tensor window_mix(const DtypePolicy& policy, const at::Tensor& weights, const at::Tensor& v,
                      int64_t w) {
  const int64_t frames = v.size(2);
  // Rows of 3w + 1 read as rows of 3w move one column to the right from row to row.
  const at::Tensor longer = at::constant_pad_nd(in_chunks(weights, w), {0, w}).flatten(3);
  const at::Tensor skewed =
      longer.narrow(3, 0, 3 * w * w)
          .reshape({longer.size(0), longer.size(1), longer.size(2), w, 3 * w});
  return matmul(policy, skewed, seen_by_chunks(v, w).transpose(-2, -1))
      .flatten(2, 3)
      .narrow(2, 0, frames);
}

}  // namespace aerie::nn
