#include "aerie/models/bev/net/splat_op.h"

#include <algorithm>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/segment_reduce.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sort.h>
#include <torch/csrc/autograd/custom_function.h>

#include "aerie/base/check.h"
#include "aerie/nn/device_draws.h"

namespace aerie::bev {
namespace {

struct PlanHolder : public torch::CustomClassHolder {
  explicit PlanHolder(std::shared_ptr<const SplatPlan> p) : plan(std::move(p)) {}
  std::shared_ptr<const SplatPlan> plan;
};

template <typename T>
kernels::SplatInputs<T> inputs_of(const SplatPlan& plan, const at::Tensor& logits,
                                  const at::Tensor& context) {
  kernels::SplatInputs<T> in;
  in.shape = plan.shape;
  in.shape.channels = context.size(1);
  in.cell = plan.cell.data();
  if (logits.defined()) in.depth_logits = logits.const_data_ptr<T>();
  in.logits_strides = {plan.shape.depths * plan.shape.pixels, plan.shape.pixels, 1};
  in.context = context.const_data_ptr<T>();
  in.context_strides = {context.size(1) * plan.shape.pixels, plan.shape.pixels, 1};
  return in;
}

// (images,C,h,w) to (images*pixels, C)
at::Tensor rows_of(const at::Tensor& maps) {
  return maps.permute({0, 2, 3, 1}).reshape({-1, maps.size(1)});
}

// (cells,C) to (B,nz*C,nx,ny)
at::Tensor map_of(const kernels::SplatShape& s, const at::Tensor& cells) {
  return cells.view({s.batch, s.nz, s.nx, s.ny, -1})
      .permute({0, 1, 4, 2, 3})
      .reshape({s.batch, -1, s.nx, s.ny});
}

at::Tensor cells_of(const kernels::SplatShape& s, const at::Tensor& map) {
  const int64_t channels = map.size(1) / s.nz;
  return map.reshape({s.batch, s.nz, channels, s.nx, s.ny})
      .permute({0, 1, 3, 4, 2})
      .reshape({-1, channels});
}

// depth is (images*pixels, D) in both ways.
at::Tensor pooled_by_tensors(const SplatPlan& plan, const at::Tensor& depth,
                             const at::Tensor& context) {
  at::Tensor lifted = rows_of(context).index_select(0, plan.pixels);
  lifted.mul_(depth.reshape({-1, 1}).index_select(0, plan.points));
  // The counts need no check, for which the host would wait for the device. What is behind those
  // they count, dropped points, is not looked at.
  return map_of(plan.shape, at::segment_reduce(lifted, "sum", plan.counts, /*indices=*/{},
                                               /*offsets=*/{}, /*axis=*/0, /*unsafe=*/true));
}

std::pair<at::Tensor, at::Tensor> gradients_by_tensors(const SplatPlan& plan,
                                                       const at::Tensor& depth,
                                                       const at::Tensor& context,
                                                       const at::Tensor& d_pooled) {
  const kernels::SplatShape& s = plan.shape;
  const int64_t channels = context.size(1);
  // (pixels of all images, D, C): the gradient of the cell that a point lies in
  at::Tensor g = cells_of(s, d_pooled).index_select(0, plan.cell_of_point);
  g = g.mul_(plan.kept.to(d_pooled.scalar_type()).unsqueeze(-1)).view({-1, s.depths, channels});
  const at::Tensor d_context = at::bmm(depth.unsqueeze(1), g).squeeze(1);
  const at::Tensor d_depth = at::bmm(g, rows_of(context).unsqueeze(-1)).squeeze(-1);
  const at::Tensor mean = (depth * d_depth).sum(-1, /*keepdim=*/true);
  const auto maps = [&](const at::Tensor& rows) {
    return rows.view({s.images, plan.height, plan.width, -1}).permute({0, 3, 1, 2}).contiguous();
  };
  return {maps(depth * (d_depth - mean)), maps(d_context)};
}

class SplatFunction : public torch::autograd::Function<SplatFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* ctx,
                                                const at::Tensor& depth_logits,
                                                const at::Tensor& features,
                                                const c10::intrusive_ptr<PlanHolder>& holder) {
    const SplatPlan& plan = *holder->plan;
    const kernels::SplatShape& s = plan.shape;
    const at::Tensor logits = depth_logits.contiguous(), context = features.contiguous();
    at::Tensor depth, pooled;
    if (plan.points.defined()) {
      depth = at::softmax(rows_of(logits), 1);
      pooled = pooled_by_tensors(plan, depth, context);
    } else {
      depth = at::empty({s.images * s.pixels, s.depths}, logits.options());
      pooled = at::empty({s.batch, s.nz * context.size(1), s.nx, s.ny}, context.options());
      if (logits.scalar_type() == at::kDouble)
        kernels::reference::splat_forward(inputs_of<double>(plan, logits, context), plan.index,
                                          depth.mutable_data_ptr<double>(),
                                          pooled.mutable_data_ptr<double>());
      else
        kernels::reference::splat_forward(inputs_of<float>(plan, logits, context), plan.index,
                                          depth.mutable_data_ptr<float>(),
                                          pooled.mutable_data_ptr<float>());
    }
    ctx->save_for_backward({depth, context});
    ctx->saved_data["plan"] = c10::IValue::make_capsule(holder);
    ctx->mark_non_differentiable({depth});
    return {pooled, depth};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 const torch::autograd::variable_list& grads) {
    const at::NoGradGuard no_grad;
    const auto holder =
        c10::static_intrusive_pointer_cast<PlanHolder>(ctx->saved_data["plan"].toCapsule());
    const SplatPlan& plan = *holder->plan;
    const auto saved = ctx->get_saved_variables();
    const at::Tensor &depth = saved[0], &context = saved[1];
    const at::Tensor d_pooled = grads[0].contiguous();
    if (plan.points.defined()) {
      auto [d_logits, d_context] = gradients_by_tensors(plan, depth, context, d_pooled);
      return {d_logits, d_context, at::Tensor()};
    }
    at::Tensor d_context = at::empty_like(context);
    at::Tensor d_logits = at::empty({plan.shape.images, plan.shape.depths, plan.height, plan.width},
                                    context.options());
    if (context.scalar_type() == at::kDouble)
      kernels::reference::splat_backward(
          inputs_of<double>(plan, {}, context), depth.const_data_ptr<double>(),
          d_pooled.const_data_ptr<double>(), d_logits.mutable_data_ptr<double>(),
          d_context.mutable_data_ptr<double>());
    else
      kernels::reference::splat_backward(
          inputs_of<float>(plan, {}, context), depth.const_data_ptr<float>(),
          d_pooled.const_data_ptr<float>(), d_logits.mutable_data_ptr<float>(),
          d_context.mutable_data_ptr<float>());
    return {d_logits, d_context, at::Tensor()};
  }
};

}  // namespace

std::shared_ptr<const SplatPlan> SplatPlan::make(const kernels::SplatShape& shape, int64_t height,
                                                 int64_t width, std::vector<int32_t> cell) {
  AERIE_CHECK(height * width == shape.pixels && static_cast<int64_t>(cell.size()) == shape.points(),
              "cells of ", cell.size(), " points for ", shape.points());
  auto plan = std::make_shared<SplatPlan>();
  plan->shape = shape;
  plan->height = height;
  plan->width = width;
  plan->cell = std::move(cell);
  plan->index = kernels::splat_index(shape, plan->cell.data());
  return plan;
}

std::shared_ptr<const SplatPlan> SplatPlan::of_tensor(const kernels::SplatShape& shape,
                                                      int64_t height, int64_t width,
                                                      const at::Tensor& cell) {
  AERIE_CHECK(height * width == shape.pixels && cell.numel() == shape.points(), "cells of ",
              cell.numel(), " points for ", shape.points());
  auto plan = std::make_shared<SplatPlan>();
  plan->shape = shape;
  plan->height = height;
  plan->width = width;
  const at::NoGradGuard no_grad;
  const int64_t cells = shape.cells();
  plan->cell_of_point = cell.clamp_min(0);
  const at::Tensor kept = cell >= 0;
  plan->kept = kept.to(at::kFloat);
  // Dropped points go behind all cells.
  const at::Tensor key = cell.masked_fill(kept.logical_not(), cells).to(at::kInt);
  const auto [sorted, order] = at::sort(key, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  const at::Tensor begin = at::searchsorted(sorted, at::arange(cells + 1, sorted.options()));
  plan->counts = begin.narrow(0, 1, cells) - begin.narrow(0, 0, cells);
  plan->points = order;
  plan->pixels = at::floor_divide(plan->points, shape.depths);
  return plan;
}

namespace {

at::Tensor floats_on(at::Device device, const std::vector<float>& values, at::IntArrayRef shape) {
  at::Tensor out = at::empty(shape, at::kFloat);
  std::copy(values.begin(), values.end(), out.data_ptr<float>());
  return nn::sent_to(device, out);
}

}  // namespace

FrustumCells::FrustumCells(at::Device device, const FrustumAxes& axes, const BevGrid& grid,
                           VoxelRounding rounding)
    : u_(floats_on(device, axes.u, {1, 1, static_cast<int64_t>(axes.u.size()), 1})),
      v_(floats_on(device, axes.v, {1, static_cast<int64_t>(axes.v.size()), 1, 1})),
      d_(floats_on(device, axes.d, {1, 1, 1, static_cast<int64_t>(axes.d.size())})),
      // As tensors of the device: on a GPU ATen multiplies by the reciprocal of a number.
      low_(floats_on(device, {grid.low.begin(), grid.low.end()}, {3})),
      size_(floats_on(device, {grid.size.begin(), grid.size.end()}, {3})),
      grid_(grid),
      rounding_(rounding) {}

at::Tensor FrustumCells::of(const at::Tensor& rays, int64_t cameras) const {
  const at::NoGradGuard no_grad;
  const int64_t images = rays.size(0);
  const auto number = [&](size_t k) {
    return rays.select(1, static_cast<int64_t>(k)).view({images, 1, 1, 1});
  };
  at::Tensor inside, index[3];
  for (size_t axis = 0; axis < 3; ++axis) {
    const auto at_axis = static_cast<int64_t>(axis);
    const at::Tensor direction =
        (number(3 * axis) * u_ + number(3 * axis + 1) * v_) + number(3 * axis + 2);
    const at::Tensor t = (d_ * direction + number(9 + axis) - low_.narrow(0, at_axis, 1)) /
                         size_.narrow(0, at_axis, 1);
    const at::Tensor fits = (rounding_ == VoxelRounding::kTrunc ? t > -1.0 : t >= 0.0) &
                            (t < static_cast<double>(static_cast<float>(grid_.n[axis])));
    inside = inside.defined() ? inside & fits : fits;
    index[axis] = t.masked_fill(fits.logical_not(), 0.0).to(at::kLong);  // toward zero
  }
  const at::Tensor sample =
      at::floor_divide(at::arange(images, at::TensorOptions(rays.device()).dtype(at::kLong)),
                       cameras)
          .view({images, 1, 1, 1});
  const at::Tensor cell =
      ((sample * grid_.n[2] + index[2]) * grid_.n[0] + index[0]) * grid_.n[1] + index[1];
  return cell.masked_fill(inside.logical_not(), -1).reshape({-1});
}

at::Tensor rays_on(at::Device device, const std::vector<CameraRays>& rays) {
  std::vector<float> numbers;
  for (const CameraRays& one : rays) {
    numbers.insert(numbers.end(), one.q.begin(), one.q.end());
    numbers.insert(numbers.end(), one.r.begin(), one.r.end());
  }
  return floats_on(device, numbers, {static_cast<int64_t>(rays.size()), 12});
}

Splatted splat(const at::Tensor& depth_logits, const at::Tensor& context,
               std::shared_ptr<const SplatPlan> plan) {
  const kernels::SplatShape s = plan->shape;  // a copy: without gradients the plan may end below
  AERIE_CHECK(depth_logits.size(0) == s.images && depth_logits.size(1) == s.depths &&
                  depth_logits.size(2) == plan->height && depth_logits.size(3) == plan->width &&
                  context.size(0) == s.images && context.size(2) == plan->height &&
                  context.size(3) == plan->width &&
                  context.scalar_type() == depth_logits.scalar_type(),
              "features do not match the plan of the splat");
  const int64_t height = plan->height, width = plan->width;
  const auto out =
      SplatFunction::apply(depth_logits, context, c10::make_intrusive<PlanHolder>(std::move(plan)));
  return {out[0], out[1].view({s.images, height, width, s.depths}).permute({0, 3, 1, 2})};
}

}  // namespace aerie::bev
