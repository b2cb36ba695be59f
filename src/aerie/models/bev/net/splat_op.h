// The splat (kernels/splat/splat.h) as one differentiable operation.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/kernels/splat/splat.h"
#include "aerie/models/bev/view/frustum.h"

namespace aerie::bev {

// Where the points of a batch go: geometry alone, made before features are there.
struct SplatPlan {
  kernels::SplatShape shape;      // but for channels
  int64_t height = 0, width = 0;  // of the feature maps
  // For the reference on the CPU.
  std::vector<int32_t> cell;  // [images][pixels][depths]
  kernels::SplatIndex index;
  // For tensor operations, on a device; undefined: for the reference.
  at::Tensor cell_of_point;  // int64 [points], -1 replaced by 0
  at::Tensor kept;           // float32 [points], 1 where the point is kept
  at::Tensor points;         // int64: by cell, in their order, dropped ones last
  at::Tensor pixels;         // int64: theirs
  at::Tensor counts;         // int64 [cells]: points of each

  static std::shared_ptr<const SplatPlan> make(const kernels::SplatShape& shape, int64_t height,
                                               int64_t width, std::vector<int32_t> cell);
  // From cells (int64 [points], -1: dropped) that lie on a device.
  static std::shared_ptr<const SplatPlan> of_tensor(const kernels::SplatShape& shape,
                                                    int64_t height, int64_t width,
                                                    const at::Tensor& cell);
};

// frustum_cells() as tensor operations on a device, int64 [points]: the same bits, since every
// operation rounds by itself there too. Nobody waits for the device, and nothing but the rays comes
// from the host.
class FrustumCells {
 public:
  FrustumCells(at::Device device, const FrustumAxes& axes, const BevGrid& grid,
               VoxelRounding rounding);
  // Of rays_on(), sample by sample.
  at::Tensor of(const at::Tensor& rays, int64_t cameras) const;

 private:
  at::Tensor u_, v_, d_, low_, size_;
  BevGrid grid_;
  VoxelRounding rounding_;
};
// Q and r of cameras, float32 [cameras, 12].
at::Tensor rays_on(at::Device device, const std::vector<CameraRays>& rays);

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
