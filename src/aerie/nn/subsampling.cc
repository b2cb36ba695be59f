#include "aerie/nn/subsampling.h"

#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/div.h>

#include "aerie/base/check.h"

namespace aerie::nn {
namespace {

int64_t log2_exact(int64_t factor) {
  int64_t stages = 0;
  while ((int64_t{1} << (stages + 1)) <= factor) ++stages;
  return stages;
}

// (B,1,T,1): 1 for frames of x (B,C,T,F) below the length, 0 for those beyond.
at::Tensor valid_frames(const at::Tensor& lengths, const at::Tensor& x) {
  return padding_mask(lengths, x.size(2))
      .logical_not()
      .to(x.scalar_type())
      .unsqueeze(1)
      .unsqueeze(-1);
}

}  // namespace

SubsamplingModule::SubsamplingModule(const Scope& scope, const config::EncoderConfig& config)
    : factor_(config.subsampling_factor) {
  using config::Subsampling;
  const int64_t channels = config.conv_channels();
  const int64_t first_entry = scope.registry().size();
  if (factor_ <= 1) {
    kind_ = Kind::kLinear;
    out_ = Linear(scope, config.feat_in, config.d_model, true);
  } else if (config.subsampling == Subsampling::kStacking ||
             config.subsampling == Subsampling::kStackingNorm) {
    kind_ = Kind::kStacking;
    out_ = Linear(scope.child("proj_out"), factor_ * config.feat_in, config.d_model, true);
    has_norm_ = config.subsampling == Subsampling::kStackingNorm;
    if (has_norm_) norm_ = LayerNorm(scope.child("pre_norm"), config.feat_in);
  } else {
    const int64_t stages = log2_exact(factor_);
    int64_t width = config.feat_in;
    for (int64_t s = 0; s < stages; ++s) width = strided_length(width);
    out_ = Linear(scope.child("out"), channels * width, config.d_model, true);
    // Numbers in the names are positions in NeMo's layer list, where ReLU counts as a layer.
    const Scope convs = scope.child("conv");
    int64_t position = 0;
    auto add = [&](int64_t in, int64_t out, int64_t kernel, int64_t stride, int64_t groups,
                   bool relu) {
      const int64_t padding = (kernel - 1) / 2;
      steps_.push_back(
          {Conv2d(convs.child(std::to_string(position)), in, out, kernel, stride, padding, groups),
           relu});
      position += relu ? 2 : 1;
    };
    add(1, channels, 3, 2, 1, true);
    for (int64_t s = 1; s < stages; ++s) {
      if (config.subsampling == Subsampling::kDwStriding) {
        add(channels, channels, 3, 2, channels, false);
        add(channels, channels, 1, 1, 1, true);
      } else {
        add(channels, channels, 3, 2, 1, true);
      }
    }
  }
  const size_t prefix = scope.full("").size();
  const auto& entries = scope.registry().entries();
  for (int64_t i = first_entry; i < scope.registry().size(); ++i) {
    parameters_.emplace_back(entries[static_cast<size_t>(i)].name.substr(prefix),
                             scope.registry().ref(i));
  }
}

SubsamplingModule::Output SubsamplingModule::forward(const ForwardContext& ctx, const at::Tensor& x,
                                                     const at::Tensor& lengths) const {
  switch (kind_) {
    case Kind::kConv:
      return forward_conv(ctx, x, lengths);
    case Kind::kStacking:
      return forward_stacking(ctx, x, lengths);
    case Kind::kLinear:
      return {out_.forward(ctx.policy, x), lengths};
  }
  return {};
}

SubsamplingModule::Output SubsamplingModule::forward_conv(const ForwardContext& ctx,
                                                          const at::Tensor& x,
                                                          const at::Tensor& lengths) const {
  at::Tensor h = x.unsqueeze(1);  // (B,1,T,D): height is time, width is mel
  at::Tensor current = lengths;
  // These are the largest tensors of the model: they are masked and rectified in place (neither a
  // convolution nor the product with a constant needs its result again), and not masked twice.
  h = h * valid_frames(current, h);
  for (const Step& step : steps_) {
    h = step.conv.forward(ctx.policy, h);
    if (step.conv.stride > 1) {
      current = at::div(current - 1, 2, "floor") + 1;  // 0 stays 0: floor(-1/2) + 1
    }
    h.mul_(valid_frames(current, h));
    if (step.relu_after) h.relu_();
  }
  h = h.transpose(1, 2).flatten(2);  // (B,T',C*D'), index = channel*D' + mel
  return {out_.forward(ctx.policy, h), current};
}

SubsamplingModule::Output SubsamplingModule::forward_stacking(const ForwardContext& ctx,
                                                              const at::Tensor& x,
                                                              const at::Tensor& lengths) const {
  const int64_t frames = x.size(1);
  const int64_t pad = (factor_ - frames % factor_) % factor_;
  at::Tensor h = at::constant_pad_nd(x, {0, 0, 0, pad});
  if (has_norm_) h = norm_.forward(ctx.policy, h);
  h = h.reshape({x.size(0), (frames + pad) / factor_, factor_ * x.size(2)});
  // NeMo adds the padding of the batch to every length, so lengths round down unless padded.
  return {out_.forward(ctx.policy, h), at::div(lengths + pad, factor_, "floor")};
}

}  // namespace aerie::nn
