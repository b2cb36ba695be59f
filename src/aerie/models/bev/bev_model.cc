#include "aerie/models/bev/bev_model.h"

#include <stdexcept>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/binary_cross_entropy_with_logits.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/stack.h>

#include "aerie/base/strings.h"
#include "aerie/models/bev/metrics/map_iou.h"
#include "aerie/nn/cpu_runtime.h"
#include "aerie/nn/device_draws.h"
#include "aerie/nn/init.h"
#include "aerie/nn/torch_error.h"

namespace aerie::bev {
namespace {

// Of ImageNet, red first.
constexpr float kMean[3] = {0.485f, 0.456f, 0.406f};
constexpr float kDeviation[3] = {0.229f, 0.224f, 0.225f};

Status from_exception(const std::exception& error) {
  std::string text = nn::torch_message(error);
  if (nn::is_out_of_memory(error))
    return out_of_memory(std::move(text))
        .with_hint("use a smaller batch, fewer workers, fp16 or gradient accumulation");
  if (dynamic_cast<const std::length_error*>(&error) != nullptr)
    return invalid_argument(std::move(text)).with_hint("check the sizes of the model");
  return internal_error(std::move(text));
}

// `kept`: as an earlier call made it.
const at::Tensor& channel_values(const float (&values)[3], const at::Tensor& like,
                                 at::Tensor& kept) {
  if (kept.defined() && kept.device() == like.device() && kept.scalar_type() == like.scalar_type())
    return kept;
  at::Tensor made = at::empty({3, 1, 1}, at::kFloat);
  std::copy(values, values + 3, made.data_ptr<float>());
  kept = nn::sent_to(like.device(), made.to(like.scalar_type()));
  return kept;
}

std::string sizes_text(const at::Tensor& t) {
  std::string out = "[";
  for (int64_t i = 0; i < t.dim(); ++i) out += str_cat(i > 0 ? ", " : "", t.size(i));
  return out + "]";
}

Status check_matrix(const char* name, const at::Tensor& t, std::vector<int64_t> sizes) {
  if (t.defined() && t.device().is_cpu() && t.scalar_type() == at::kFloat && t.is_contiguous() &&
      t.sizes() == at::IntArrayRef(sizes))
    return ok_status();
  return invalid_argument(str_cat("the batch's ", name, " are ",
                                  t.defined() ? sizes_text(t) : "missing",
                                  ": float32 4x4 matrices on the CPU are needed, one a camera"));
}

const char* loss_name(MapLoss loss) {
  return loss == MapLoss::kFocal ? "focal" : "xent";
}

}  // namespace

std::vector<std::string> map_loss_names(const BevConfig& config) {
  std::vector<std::string> out;
  if (config.loss == MapLoss::kVehicle) return out;
  for (const std::string& name : config.classes)
    out.push_back(str_cat("loss/map/", name, "/", loss_name(config.loss)));
  return out;
}

MapLosses map_losses(const BevConfig& config, const at::Tensor& logits, const at::Tensor& truth) {
  const at::Tensor z = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  const at::Tensor y = truth.to(z.scalar_type());
  MapLosses out;
  if (config.loss == MapLoss::kVehicle) {
    const at::Tensor weight = at::full({1}, config.positive_weight, z.options());
    out.total = at::binary_cross_entropy_with_logits(z, y, {}, weight, at::Reduction::Mean);
    out.parts = {{"loss", out.total.detach()}};
    return out;
  }
  at::Tensor cells = at::binary_cross_entropy_with_logits(z, y, {}, {}, at::Reduction::None);
  if (config.loss == MapLoss::kFocal) {
    const at::Tensor p = at::sigmoid(z);
    cells = cells * (1 - (p * y + (1 - p) * (1 - y))).square();
  }
  at::Tensor per_class = cells.mean(at::IntArrayRef{0, 2, 3});
  if (!config.class_weights.empty()) {
    std::vector<at::Tensor> weights;  // made where they are needed, without a copy
    for (const double weight : config.class_weights)
      weights.push_back(at::full({1}, weight, z.options()));
    per_class = per_class * at::cat(weights);
  }
  out.total = per_class.sum();
  const at::Tensor values = per_class.detach();
  const std::vector<std::string> names = map_loss_names(config);
  for (int64_t k = 0; k < config.num_classes(); ++k)
    out.parts.emplace_back(names[static_cast<size_t>(k)], values[k]);
  out.parts.emplace_back("loss", out.total.detach());
  return out;
}

at::Tensor map_counts(const at::Tensor& probability, const at::Tensor& truth) {
  const at::NoGradGuard no_grad;
  const int64_t classes = probability.size(1);
  at::Tensor thresholds = at::empty({static_cast<int64_t>(kMapThresholds.size())}, at::kFloat);
  std::copy(kMapThresholds.begin(), kMapThresholds.end(), thresholds.data_ptr<float>());
  const auto rows = [&](const at::Tensor& t) {
    return t.transpose(0, 1).reshape({classes, -1, 1});
  };
  // Both in float32: a wider threshold would not equal itself.
  const at::Tensor predicted =
      rows(probability.to(at::kFloat)) >= nn::sent_to(probability.device(), thresholds);
  const at::Tensor positive = rows(truth.to(at::kBool));
  return at::stack({(predicted & positive).sum(1), (predicted & ~positive).sum(1),
                    (~predicted & positive).sum(1)});
}

at::Tensor sign_counts(const at::Tensor& logits, const at::Tensor& truth) {
  const at::NoGradGuard no_grad;
  const at::Tensor predicted = logits > 0;
  const at::Tensor positive = truth.to(at::kBool);
  return at::stack({(predicted & positive).sum({0, 2, 3}), (predicted | positive).sum({0, 2, 3})});
}

std::vector<std::string> undecayed_parameters() {
  return {"relative_position_bias_table", "absolute_pos_embed"};
}

void BevModel::build() {
  registry_ = std::make_unique<nn::ParameterRegistry>();
  const nn::Scope root(*registry_);
  const nn::Scope camera = root.child("encoders.camera");
  backbone_.emplace(camera.child("backbone"), config_.swin, config_.first_stage);
  neck_.emplace(camera.child("neck"), config_);
  view_.emplace(camera.child("vtransform"), config_);
  head_ = make_bev_head(root, config_);
}

Result<std::unique_ptr<BevModel>> BevModel::create(const BevConfig& config, uint64_t seed,
                                                   at::Device device,
                                                   const Precheck& before_allocation) {
  AERIE_RETURN_IF_ERROR(validate(config));
  nn::prepare_cpu_runtime();
  try {
    std::unique_ptr<BevModel> model(new BevModel(config));
    model->build();
    if (before_allocation) AERIE_RETURN_IF_ERROR(before_allocation(*model->registry_));
    model->registry_->materialize(device);
    nn::initialize(*model->registry_, seed);
    return model;
  } catch (const std::exception& error) {
    return from_exception(error);
  }
}

Status BevModel::check(const BevBatch& batch) const {
  const at::Tensor& images = batch.images;
  if (!images.defined() || images.dim() != 5 || images.size(0) < 1 || images.size(2) != 3 ||
      images.size(3) != config_.image_height || images.size(4) != config_.image_width)
    return invalid_argument(str_cat("the batch's pictures are ",
                                    images.defined() ? sizes_text(images) : "missing",
                                    ": [samples, cameras, 3, ", config_.image_height, ", ",
                                    config_.image_width, "] is needed"));
  const int64_t samples = images.size(0), cameras = images.size(1);
  if (cameras < 1) return invalid_argument("the batch has no camera");
  if (batch.rays.defined()) return ok_status();  // made of matrices that were looked at
  const ViewMatrices& m = batch.matrices;
  AERIE_RETURN_IF_ERROR(check_matrix("camera2lidar", m.camera_to_lidar, {samples, cameras, 4, 4}));
  AERIE_RETURN_IF_ERROR(check_matrix("intrinsics", m.intrinsics, {samples, cameras, 4, 4}));
  AERIE_RETURN_IF_ERROR(
      check_matrix("image augmentations", m.image_augmentation, {samples, cameras, 4, 4}));
  return check_matrix("BEV augmentations", m.bev_augmentation, {samples, 4, 4});
}

Result<std::shared_ptr<const SplatPlan>> BevModel::plan(const BevBatch& batch) const {
  AERIE_RETURN_IF_ERROR(check(batch));
  try {
    if (batch.rays.defined())
      return view_->plan_of(batch.rays, batch.images.size(1), config_.feature_height(),
                            config_.feature_width());
    return view_->plan(batch.matrices, config_.feature_height(), config_.feature_width(),
                       registry_->device());
  } catch (const std::exception& error) {
    return from_exception(error);
  }
}

Result<bool> BevModel::derive(BevBatch& batch) const {
  if (!view_->uses_tensors(registry_->device())) return false;
  AERIE_RETURN_IF_ERROR(check(batch));
  try {
    AERIE_ASSIGN_OR_RETURN(batch.rays, ViewTransform::rays(batch.matrices, registry_->device()));
    const int64_t cameras = batch.images.size(1);
    nn::RandomKey random = batch.random;
    random.rows_per_item = static_cast<uint64_t>(cameras);
    batch.path_factors = backbone_->path_factors(random, batch.images.size(0) * cameras,
                                                 registry_->device(), registry_->dtype());
    return true;
  } catch (const std::exception& error) {
    return from_exception(error);
  }
}

Result<at::Tensor> BevModel::forward(const BevBatch& batch, const ForwardOptions& options) const {
  AERIE_ASSIGN_OR_RETURN(auto plan, this->plan(batch));
  try {
    const int64_t cameras = batch.images.size(1);
    nn::ForwardContext ctx;
    ctx.training = options.training;
    ctx.recompute_layers = options.recompute;
    ctx.policy = options.policy;
    ctx.random = batch.random;
    ctx.random.rows_per_item = static_cast<uint64_t>(cameras);  // draws are for pictures
    ctx.injected = options.injected;
    ctx.path_factors = batch.path_factors;
    ctx.exchange = options.exchange;
    ctx.tap = options.tap;
    at::Tensor x = batch.images;
    if (x.scalar_type() == at::kByte) {
      x = x.to(registry_->dtype() == at::kDouble ? at::kDouble : at::kFloat);
      x = (x / 255.0 - channel_values(kMean, x, mean_)) / channel_values(kDeviation, x, deviation_);
    }
    const std::vector<at::Tensor> maps = backbone_->forward(ctx, x.flatten(0, 1));
    // Behind the backbone only BatchNorm cares.
    ctx.training = options.training && !config_.norm_eval;
    x = neck_->forward(ctx, maps);
    x = view_->forward(ctx, x, std::move(plan));
    x = head_->forward(ctx, x);
    ctx.report("logits", x);
    return x;
  } catch (const std::exception& error) {
    return from_exception(error);
  }
}

}  // namespace aerie::bev
