// The splat (kernels/splat/splat.h) as one differentiable operation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/kernels/splat/splat.h"

namespace aerie::bev {

// Where the points of a batch go: geometry alone, made before features are there.
struct SplatPlan {
  kernels::SplatShape shape;      // but for channels
  int64_t height = 0, width = 0;  // of the feature maps
  std::vector<int32_t> cell;      // [images][pixels][depths]
  kernels::SplatIndex index;
  // For tensors that are not on the CPU; on their device.
  at::Tensor cell_of_point;  // int64 [points], -1 replaced by 0
  at::Tensor kept;           // float32 [points], 1 where the point is kept
  at::Tensor points;         // int64: kept ones by cell
  at::Tensor pixels;         // int64: theirs
  at::Tensor counts;         // int64: of cells that are not empty
  at::Tensor filled;         // int64: these cells

  // `as_tensors`: with the tensors, on this device.
  static std::shared_ptr<const SplatPlan> make(const kernels::SplatShape& shape, int64_t height,
                                               int64_t width, std::vector<int32_t> cell,
                                               bool as_tensors, at::Device device);
};

struct Splatted {
  at::Tensor pooled;  // (B, nz*C, nx, ny)
  at::Tensor depth;   // (images, D, h, w): the distributions; no gradient flows through it
};

// depth_logits (images,D,h,w), context (images,C,h,w): float32 or float64, the same. A plan with
// tensors runs as tensor operations on their device, one without by the reference on the CPU; both
// add up in a fixed order, forward and backward.
Splatted splat(const at::Tensor& depth_logits, const at::Tensor& context,
               std::shared_ptr<const SplatPlan> plan);

}  // namespace aerie::bev
