// The parts between backbone and map: neck, view transform, the two networks on the grid.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/base/status.h"
#include "aerie/models/bev/config/bev_config.h"
#include "aerie/models/bev/net/layers.h"
#include "aerie/models/bev/net/splat_op.h"

namespace aerie::bev {

// GeneralizedLSSFPN: from the coarsest map to the finest, each step joins the upsampled map to the
// one of its stage. Only the finest result exists. Reports neck<i>.
class Neck {
 public:
  Neck(const nn::Scope& scope, const BevConfig& config);
  at::Tensor forward(const nn::ForwardContext& ctx, const std::vector<at::Tensor>& maps) const;

 private:
  std::vector<ConvBnRelu> laterals_, fusions_;
  BilinearResize resize_{/*align_corners=*/false};
};

// Matrices of a batch, float32 on the CPU: (B,N,4,4) and, the last, (B,4,4).
struct ViewMatrices {
  at::Tensor camera_to_lidar, intrinsics, image_augmentation, bev_augmentation;
};

// Depth distributions and context from features, splatted; then the convolutions that halve the
// grid, where configured. Reports depth_logits, context, depth, pooled.
class ViewTransform {
 public:
  ViewTransform(const nn::Scope& scope, const BevConfig& config);
  // Which cell every point of the batch lies in.
  Result<std::shared_ptr<const SplatPlan>> plan(const ViewMatrices& matrices, int64_t height,
                                                int64_t width, at::Device device) const;
  // The same in two steps, of which the second is tensor operations on the rays' device alone.
  static Result<at::Tensor> rays(const ViewMatrices& matrices, at::Device device);
  Result<std::shared_ptr<const SplatPlan>> plan_of(const at::Tensor& rays, int64_t cameras,
                                                   int64_t height, int64_t width) const;
  bool uses_tensors(at::Device device) const { return tensor_splat_ || !device.is_cpu(); }
  at::Tensor forward(const nn::ForwardContext& ctx, const at::Tensor& features,
                     std::shared_ptr<const SplatPlan> plan) const;
  // Tensor operations on the CPU too, as a GPU runs them.
  void use_tensor_splat(bool on) { tensor_splat_ = on; }

 private:
  kernels::SplatShape shape_of(int64_t batch, int64_t cameras, int64_t height, int64_t width) const;

  const BevConfig* config_;
  int64_t depths_;
  Conv2d depthnet_;
  ConvSequence tail_;
  bool tensor_splat_ = false;
  // As the last call needed them.
  mutable std::optional<FrustumCells> cells_;
  mutable std::array<int64_t, 2> cells_of_{};  // height and width of features
  mutable at::Device cells_on_ = at::kCPU;
};

// Bilinear sampling of a grid over x and y, of whatever number of cells, at the centres of the
// map's cells. Beyond the outermost centres of the grid its values fade to 0 within a cell.
Resampler grid_to_map(const Bound& x, int64_t cells_x, const Bound& output_x, const Bound& y,
                      int64_t cells_y, const Bound& output_y);

// What makes a map of the pooled features: (B,C,x,y) to logits (B,classes,x',y').
class BevHead {
 public:
  virtual ~BevHead() = default;
  virtual at::Tensor forward(const nn::ForwardContext& ctx, const at::Tensor& x) const = 0;
};

// BevEncode (kEncode, names bevencode.*) or residual stages, LSSFPN and segmentation head (kFpn,
// names decoder.* and heads.map.*).
std::unique_ptr<BevHead> make_bev_head(const nn::Scope& root, const BevConfig& config);

}  // namespace aerie::bev
