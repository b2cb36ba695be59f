#include "aerie/models/bev/net/bev_parts.h"

#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/relu.h>

#include "aerie/base/strings.h"

namespace aerie::bev {
namespace {

std::span<const float> values_of(const at::Tensor& t) {
  return {t.const_data_ptr<float>(), static_cast<size_t>(t.numel())};
}

at::Tensor at_least_float(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? x : x.to(at::kFloat);
}

// Centres of the cells of `out`, in cells of `in` divided into `count`.
std::vector<double> places(const Bound& in, int64_t count, const Bound& out, const char* key) {
  const int64_t cells = num_cells(out, key).value();
  std::vector<double> at(static_cast<size_t>(cells));
  for (int64_t i = 0; i < cells; ++i) {
    const double metres = out.low + (static_cast<double>(i) + 0.5) * out.step;
    at[static_cast<size_t>(i)] =
        (metres - in.low) / (in.high - in.low) * static_cast<double>(count) - 0.5;
  }
  return at;
}

CameraMatrices matrices_of(const ViewMatrices& matrices) {
  CameraMatrices out;
  out.batch = matrices.camera_to_lidar.size(0);
  out.cameras = matrices.camera_to_lidar.size(1);
  out.camera_to_lidar = values_of(matrices.camera_to_lidar);
  out.intrinsics = values_of(matrices.intrinsics);
  out.image_augmentation = values_of(matrices.image_augmentation);
  out.bev_augmentation = values_of(matrices.bev_augmentation);
  return out;
}

Result<FrustumAxes> axes_of(const BevConfig& config, int64_t height, int64_t width) {
  return frustum_axes(config.image_height, config.image_width, height, width, config.dbound);
}

class BevEncode final : public BevHead {
 public:
  BevEncode(const nn::Scope& scope, const BevConfig& config) {
    const int64_t in = config.context_channels * config.grid().n[2], w = config.encode_width;
    // The last norm of every residual block starts at 0, as Lift-Splat-Shoot has it.
    conv1_ = Conv2d(scope.child("conv1"), in, w, 7, 2);
    norm1_ = BatchNorm2d(scope.child("bn1"), w);
    layer1_.emplace(scope.child("layer1"), w, w, 1, 0.0);
    layer2_.emplace(scope.child("layer2"), w, 2 * w, 2, 0.0);
    layer3_.emplace(scope.child("layer3"), 2 * w, 4 * w, 2, 0.0);
    up1_.add(scope.child("up1.conv"), 5 * w, 4 * w, 3)
        .add(scope.child("up1.conv"), 4 * w, 4 * w, 3);
    up2_.add(scope.child("up2"), 4 * w, 2 * w, 3, 1, /*first=*/1);
    classifier_ = Conv2d(scope.child("up2.4"), 2 * w, config.num_classes(), 1, 1, true);
  }

  at::Tensor forward(const nn::ForwardContext& ctx, const at::Tensor& x) const override {
    const at::Tensor fine =
        layer1_->forward(ctx, at::relu(norm1_.forward(ctx, conv1_.forward(ctx.policy, x))));
    const at::Tensor coarse = layer3_->forward(ctx, layer2_->forward(ctx, fine));
    // The skip first, the upsampled map second.
    const at::Tensor joined =
        at::cat({fine, resize_.forward(coarse, 4 * coarse.size(2), 4 * coarse.size(3))}, 1);
    const at::Tensor up = up1_.forward(ctx, joined);
    ctx.report("bev_layer1", fine);
    ctx.report("bev_layer3", coarse);
    ctx.report("bev_up1", up);
    const at::Tensor last = up2_.forward(ctx, resize_.forward(up, 2 * up.size(2), 2 * up.size(3)));
    return classifier_.forward(ctx.policy, last);
  }

 private:
  Conv2d conv1_;
  BatchNorm2d norm1_;
  std::optional<ResidualLayer> layer1_, layer2_, layer3_;
  ConvSequence up1_, up2_;
  Conv2d classifier_;
  BilinearResize resize_{/*align_corners=*/true};
};

class FpnHead final : public BevHead {
 public:
  FpnHead(const nn::Scope& root, const BevConfig& config) : config_(config) {
    int64_t in = config.context_channels * config.grid().n[2];
    const nn::Scope backbone = root.child("decoder.backbone"), neck = root.child("decoder.neck");
    for (size_t s = 0; s < config.decoder.size(); ++s) {
      const ResidualStage& stage = config.decoder[s];
      stages_.emplace_back(backbone.child(std::to_string(s)), in, stage.width, stage.stride);
      in = stage.width;
    }
    const int64_t w = config.decoder_channels;
    fuse_.add(neck.child("fuse"), config.decoder.back().width + config.decoder.front().width, w, 1)
        .add(neck.child("fuse"), w, w, 3);
    upsample_.add(neck.child("upsample"), w, w, 3, 1, /*first=*/1);
    const nn::Scope head = root.child("heads.map.classifier");
    classifier_.add(head, w, w, 3).add(head, w, w, 3);
    last_ = Conv2d(head.child("6"), w, config.num_classes(), 1, 1, true);
  }

  at::Tensor forward(const nn::ForwardContext& ctx, const at::Tensor& input) const override {
    ctx.report("tail", input);
    at::Tensor x = input, first;
    for (size_t s = 0; s < stages_.size(); ++s) {
      x = stages_[s].forward(ctx, x);
      if (s == 0) first = x;
      ctx.report(str_cat("decoder", s), x);
    }
    // The upsampled map first, the skip second.
    x = fuse_.forward(ctx, at::cat({resize_.forward(x, first.size(2), first.size(3)), first}, 1));
    x = upsample_.forward(ctx, resize_.forward(x, 2 * x.size(2), 2 * x.size(3)));
    ctx.report("decoder_neck", x);
    x = to_map(at_least_float(x));
    ctx.report("resampled", x);
    return last_.forward(ctx.policy, classifier_.forward(ctx, x));
  }

 private:
  // From the grid's range to the map's.
  at::Tensor to_map(const at::Tensor& x) const {
    if (in_[0] != x.size(2) || in_[1] != x.size(3)) {
      in_[0] = x.size(2);
      in_[1] = x.size(3);
      to_map_ = grid_to_map(config_.xbound, in_[0], config_.output_x, config_.ybound, in_[1],
                            config_.output_y);
    }
    return to_map_.forward(x);
  }

  BevConfig config_;
  std::vector<ResidualLayer> stages_;
  ConvSequence fuse_, upsample_, classifier_;
  Conv2d last_;
  BilinearResize resize_{/*align_corners=*/true};
  mutable int64_t in_[2] = {0, 0};
  mutable Resampler to_map_;
};

}  // namespace

Resampler grid_to_map(const Bound& x, int64_t cells_x, const Bound& output_x, const Bound& y,
                      int64_t cells_y, const Bound& output_y) {
  const std::vector<double> rows = places(x, cells_x, output_x, "output_x");
  const std::vector<double> columns = places(y, cells_y, output_y, "output_y");
  return Resampler(cells_x, static_cast<int64_t>(rows.size()), sampled_axis(cells_x, rows), cells_y,
                   static_cast<int64_t>(columns.size()), sampled_axis(cells_y, columns));
}

Neck::Neck(const nn::Scope& scope, const BevConfig& config) {
  const int64_t last = config.swin.num_stages() - 1 - config.first_stage;
  for (int64_t i = 0; i < last; ++i) {
    const int64_t own = config.swin.width(config.first_stage + i);
    const int64_t below =
        i == last - 1 ? config.swin.width(config.first_stage + last) : config.neck_channels;
    const nn::Scope at = scope.child(str_cat("lateral_convs.", i));
    laterals_.emplace_back(at.child("conv"), at.child("bn"), own + below, config.neck_channels, 1);
  }
  for (int64_t i = 0; i < last; ++i) {
    const nn::Scope at = scope.child(str_cat("fpn_convs.", i));
    fusions_.emplace_back(at.child("conv"), at.child("bn"), config.neck_channels,
                          config.neck_channels, 3);
  }
  for (const ConvBnRelu& layer : laterals_) layer.conv().init_fan_out();
  for (const ConvBnRelu& layer : fusions_) layer.conv().init_fan_out();
}

at::Tensor Neck::forward(const nn::ForwardContext& ctx, const std::vector<at::Tensor>& maps) const {
  at::Tensor x = maps.back();
  for (size_t i = maps.size() - 1; i-- > 0;) {
    const at::Tensor up = resize_.forward(x, maps[i].size(2), maps[i].size(3));
    x = fusions_[i].forward(ctx, laterals_[i].forward(ctx, at::cat({maps[i], up}, 1)));
    ctx.report(str_cat("neck", i), x);
  }
  return x;
}

ViewTransform::ViewTransform(const nn::Scope& scope, const BevConfig& config)
    : config_(&config), depths_(config.num_depth_bins()) {
  depthnet_ = Conv2d(scope.child("depthnet"), config.neck_channels,
                     depths_ + config.context_channels, 1, 1, true);
  if (config.downsample == 1) return;
  const int64_t channels = config.context_channels * config.grid().n[2];
  for (const int64_t stride : {1, 2, 1})
    tail_.add(scope.child("downsample"), channels, channels, 3, stride);
}

Result<std::shared_ptr<const SplatPlan>> ViewTransform::plan(const ViewMatrices& matrices,
                                                             int64_t height, int64_t width,
                                                             at::Device device) const {
  if (uses_tensors(device)) {
    AERIE_ASSIGN_OR_RETURN(const at::Tensor on_device, rays(matrices, device));
    return plan_of(on_device, matrices.camera_to_lidar.size(1), height, width);
  }
  AERIE_ASSIGN_OR_RETURN(const FrustumAxes axes, axes_of(*config_, height, width));
  const CameraMatrices given = matrices_of(matrices);
  const kernels::SplatShape shape = shape_of(given.batch, given.cameras, height, width);
  std::vector<int32_t> cells(static_cast<size_t>(given.batch * given.cameras * axes.points()));
  AERIE_RETURN_IF_ERROR(frustum_cells(given, axes, config_->grid(), config_->rounding, cells));
  return SplatPlan::make(shape, height, width, std::move(cells));
}

Result<at::Tensor> ViewTransform::rays(const ViewMatrices& matrices, at::Device device) {
  AERIE_ASSIGN_OR_RETURN(const std::vector<CameraRays> all, batch_rays(matrices_of(matrices)));
  return rays_on(device, all);
}

Result<std::shared_ptr<const SplatPlan>> ViewTransform::plan_of(const at::Tensor& rays,
                                                                int64_t cameras, int64_t height,
                                                                int64_t width) const {
  const std::array<int64_t, 2> sizes = {height, width};
  if (!cells_ || cells_of_ != sizes || cells_on_ != rays.device()) {
    AERIE_ASSIGN_OR_RETURN(const FrustumAxes axes, axes_of(*config_, height, width));
    cells_.emplace(rays.device(), axes, config_->grid(), config_->rounding);
    cells_of_ = sizes;
    cells_on_ = rays.device();
  }
  return SplatPlan::of_tensor(shape_of(rays.size(0) / cameras, cameras, height, width), height,
                              width, cells_->of(rays, cameras));
}

kernels::SplatShape ViewTransform::shape_of(int64_t batch, int64_t cameras, int64_t height,
                                            int64_t width) const {
  const BevGrid grid = config_->grid();
  kernels::SplatShape shape;
  shape.batch = batch;
  shape.images = batch * cameras;
  shape.pixels = height * width;
  shape.depths = depths_;
  shape.nx = grid.n[0];
  shape.ny = grid.n[1];
  shape.nz = grid.n[2];
  return shape;
}

at::Tensor ViewTransform::forward(const nn::ForwardContext& ctx, const at::Tensor& features,
                                  std::shared_ptr<const SplatPlan> plan) const {
  const bool wide = config_->depth_float32;
  const at::Tensor y = depthnet_.forward(wide ? nn::DtypePolicy() : ctx.policy,
                                         wide ? at_least_float(features) : features);
  const at::Tensor logits = at_least_float(y.narrow(1, 0, depths_));
  const at::Tensor context = at_least_float(y.narrow(1, depths_, config_->context_channels));
  ctx.report("depth_logits", logits);
  ctx.report("context", context);
  const Splatted out = splat(logits, context, std::move(plan));
  ctx.report("depth", out.depth);
  ctx.report("pooled", out.pooled);
  return tail_.forward(ctx, out.pooled);
}

std::unique_ptr<BevHead> make_bev_head(const nn::Scope& root, const BevConfig& config) {
  if (config.network == BevNetwork::kEncode)
    return std::make_unique<BevEncode>(root.child("bevencode"), config);
  return std::make_unique<FpnHead>(root, config);
}

}  // namespace aerie::bev
