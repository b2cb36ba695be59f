#include "aerie/models/bev/net/splat_op.h"

#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/segment_reduce.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include "aerie/base/check.h"

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
  const at::Tensor rows = rows_of(context);
  at::Tensor cells = at::zeros({plan.shape.cells(), rows.size(1)}, rows.options());
  if (plan.points.numel() > 0) {
    const at::Tensor lifted =
        rows.index_select(0, plan.pixels) * depth.reshape({-1, 1}).index_select(0, plan.points);
    cells.index_copy_(0, plan.filled, at::segment_reduce(lifted, "sum", plan.counts));
  }
  return map_of(plan.shape, cells);
}

std::pair<at::Tensor, at::Tensor> gradients_by_tensors(const SplatPlan& plan,
                                                       const at::Tensor& depth,
                                                       const at::Tensor& context,
                                                       const at::Tensor& d_pooled) {
  const kernels::SplatShape& s = plan.shape;
  const int64_t channels = context.size(1);
  // (pixels of all images, D, C): the gradient of the cell that a point lies in
  const at::Tensor g = (cells_of(s, d_pooled).index_select(0, plan.cell_of_point) *
                        plan.kept.to(d_pooled.scalar_type()).unsqueeze(-1))
                           .view({-1, s.depths, channels});
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
                                                 int64_t width, std::vector<int32_t> cell,
                                                 bool as_tensors, at::Device device) {
  AERIE_CHECK(height * width == shape.pixels && static_cast<int64_t>(cell.size()) == shape.points(),
              "cells of ", cell.size(), " points for ", shape.points());
  auto plan = std::make_shared<SplatPlan>();
  plan->shape = shape;
  plan->height = height;
  plan->width = width;
  plan->cell = std::move(cell);
  plan->index = kernels::splat_index(shape, plan->cell.data());
  if (!as_tensors) return plan;
  const int64_t count = shape.points();
  at::Tensor cells = at::empty({count}, at::kLong), kept = at::empty({count}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    const int32_t c = plan->cell[static_cast<size_t>(i)];
    cells.data_ptr<int64_t>()[i] = c < 0 ? 0 : c;
    kept.data_ptr<float>()[i] = c < 0 ? 0.0f : 1.0f;
  }
  const auto in_cells = static_cast<int64_t>(plan->index.points.size());
  at::Tensor points = at::empty({in_cells}, at::kLong), pixels = at::empty({in_cells}, at::kLong);
  for (int64_t i = 0; i < in_cells; ++i) {
    const int64_t point = plan->index.points[static_cast<size_t>(i)];
    points.data_ptr<int64_t>()[i] = point;
    pixels.data_ptr<int64_t>()[i] = point / shape.depths;
  }
  std::vector<int64_t> filled, counts;
  for (int64_t c = 0; c < shape.cells(); ++c) {
    const int64_t here =
        plan->index.begin[static_cast<size_t>(c) + 1] - plan->index.begin[static_cast<size_t>(c)];
    if (here == 0) continue;
    filled.push_back(c);
    counts.push_back(here);
  }
  const auto tensor_of = [](const std::vector<int64_t>& values) {
    at::Tensor out = at::empty({static_cast<int64_t>(values.size())}, at::kLong);
    std::copy(values.begin(), values.end(), out.data_ptr<int64_t>());
    return out;
  };
  plan->cell_of_point = cells.to(device);
  plan->kept = kept.to(device);
  plan->points = points.to(device);
  plan->pixels = pixels.to(device);
  plan->counts = tensor_of(counts).to(device);
  plan->filled = tensor_of(filled).to(device);
  return plan;
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
