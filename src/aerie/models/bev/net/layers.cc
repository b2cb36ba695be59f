#include "aerie/models/bev/net/layers.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/conv2d.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>

#include "aerie/base/check.h"
#include "aerie/nn/exchanged_norm.h"
#include "aerie/nn/init.h"

namespace aerie::bev {
namespace {

constexpr double kEps = 1e-5;
constexpr double kMomentum = 0.1;

bool is_narrow(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 || x.scalar_type() == at::kHalf;
}

at::Tensor matrix(int64_t rows, int64_t columns, const std::vector<double>& values) {
  AERIE_CHECK(static_cast<int64_t>(values.size()) == rows * columns, "a matrix of ", rows, " x ",
              columns, " from ", values.size(), " values");
  at::Tensor out = at::empty({rows, columns}, at::kDouble);
  std::copy(values.begin(), values.end(), out.data_ptr<double>());
  return out;
}

}  // namespace

Conv2d::Conv2d(const nn::Scope& scope, int64_t in, int64_t out, int64_t kernel, int64_t stride,
               bool use_bias)
    : registry_(&scope.registry()), kernel_(kernel), stride_(stride), out_(out) {
  const int64_t fan_in = in * kernel * kernel;
  weight_ = scope.param("weight", {out, in, kernel, kernel}, nn::default_uniform(fan_in));
  if (use_bias) bias_ = scope.param("bias", {out}, nn::default_uniform(fan_in));
}

void Conv2d::init_fan_out() const {
  const double fan_out = static_cast<double>(out_ * kernel_ * kernel_);
  registry_->set_init(weight_, nn::Init::normal(std::sqrt(2.0 / fan_out)));
}

at::Tensor Conv2d::forward(const nn::DtypePolicy& policy, const at::Tensor& x) const {
  const auto dtype = policy.input_dtype(nn::OpClass::kGemm);
  const auto cast = [&](const at::Tensor& t) { return dtype && t.defined() ? t.to(*dtype) : t; };
  const std::array<int64_t, 2> strides = {stride_, stride_};
  const std::array<int64_t, 2> pads = {kernel_ / 2, kernel_ / 2};
  const std::array<int64_t, 2> ones = {1, 1};
  return at::conv2d(cast(x), cast(weight_.tensor()), cast(bias_.tensor_or_none()),
                    at::IntArrayRef(strides), at::IntArrayRef(pads), at::IntArrayRef(ones), 1);
}

BatchNorm2d::BatchNorm2d(const nn::Scope& scope, int64_t channels, double initial_weight)
    : weight_(scope.param("weight", {channels}, nn::Init::constant(initial_weight))),
      bias_(scope.param("bias", {channels}, nn::Init::constant(0.0))),
      running_mean_(scope.buffer("running_mean", {channels}, nn::Init::constant(0.0))),
      running_var_(scope.buffer("running_var", {channels}, nn::Init::constant(1.0))),
      batches_(scope.buffer("num_batches_tracked", {}, nn::Init::constant(0.0), at::kLong)) {}

at::Tensor BatchNorm2d::forward(const nn::ForwardContext& ctx, const at::Tensor& x) const {
  const bool update = ctx.training && !ctx.again;
  if (update) {
    at::NoGradGuard no_grad;
    batches_.tensor().add_(1);
  }
  const at::Tensor wide = is_narrow(x) && !x.is_cuda() ? x.to(at::kFloat) : x;
  if (ctx.training && ctx.exchange != nullptr) {
    nn::ExchangedNorm norm;
    norm.exchange = ctx.exchange;
    norm.layer = static_cast<int>(weight_.index());
    norm.eps = kEps;
    norm.momentum = kMomentum;
    if (update) {
      norm.running_mean = running_mean_.tensor();
      norm.running_var = running_var_.tensor();
    }
    const at::Tensor rows = (is_narrow(x) ? x.to(at::kFloat) : x).flatten(2);
    return nn::exchanged_batch_norm(norm, rows, {}, weight_.tensor(), bias_.tensor())
        .view(x.sizes())
        .to(x.scalar_type());
  }
  const bool running = !ctx.training || update;
  return at::batch_norm(wide, weight_.tensor(), bias_.tensor(),
                        running ? running_mean_.tensor() : at::Tensor(),
                        running ? running_var_.tensor() : at::Tensor(), ctx.training, kMomentum,
                        kEps, false)
      .to(x.scalar_type());
}

at::Tensor ConvBnRelu::forward(const nn::ForwardContext& ctx, const at::Tensor& x) const {
  return at::relu(norm_.forward(ctx, conv_.forward(ctx.policy, x)));
}

ConvSequence& ConvSequence::add(const nn::Scope& scope, int64_t in, int64_t out, int64_t kernel,
                                int64_t stride, int64_t first) {
  if (first >= 0) next_ = first;
  layers_.emplace_back(scope.child(std::to_string(next_)), scope.child(std::to_string(next_ + 1)),
                       in, out, kernel, stride);
  next_ += 3;
  return *this;
}

at::Tensor ConvSequence::forward(const nn::ForwardContext& ctx, at::Tensor x) const {
  for (const ConvBnRelu& layer : layers_) x = layer.forward(ctx, x);
  return x;
}

BasicBlock::BasicBlock(const nn::Scope& scope, int64_t in, int64_t out, int64_t stride,
                       double last_norm_weight)
    : has_skip_(stride != 1 || in != out) {
  conv1_ = Conv2d(scope.child("conv1"), in, out, 3, stride);
  norm1_ = BatchNorm2d(scope.child("bn1"), out);
  conv2_ = Conv2d(scope.child("conv2"), out, out, 3);
  norm2_ = BatchNorm2d(scope.child("bn2"), out, last_norm_weight);
  if (!has_skip_) return;
  skip_ = Conv2d(scope.child("downsample.0"), in, out, 1, stride);
  skip_norm_ = BatchNorm2d(scope.child("downsample.1"), out);
}

at::Tensor BasicBlock::forward(const nn::ForwardContext& ctx, const at::Tensor& x) const {
  at::Tensor y = at::relu(norm1_.forward(ctx, conv1_.forward(ctx.policy, x)));
  y = norm2_.forward(ctx, conv2_.forward(ctx.policy, y));
  return at::relu(y + (has_skip_ ? skip_norm_.forward(ctx, skip_.forward(ctx.policy, x)) : x));
}

std::vector<double> bilinear_axis(int64_t in, int64_t out, bool align_corners) {
  std::vector<double> weights(static_cast<size_t>(in * out), 0.0);
  const double scale =
      align_corners ? (out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0.0)
                    : static_cast<double>(in) / static_cast<double>(out);
  for (int64_t o = 0; o < out; ++o) {
    const double place = align_corners
                             ? static_cast<double>(o) * scale
                             : std::max(0.0, (static_cast<double>(o) + 0.5) * scale - 0.5);
    const int64_t first = std::min(static_cast<int64_t>(place), in - 1);
    const int64_t second = std::min(first + 1, in - 1);
    const double share = std::min(place - static_cast<double>(first), 1.0);
    weights[static_cast<size_t>(o * in + first)] += 1.0 - share;
    weights[static_cast<size_t>(o * in + second)] += share;
  }
  return weights;
}

std::vector<double> sampled_axis(int64_t in, const std::vector<double>& places) {
  std::vector<double> weights(static_cast<size_t>(in) * places.size(), 0.0);
  for (size_t o = 0; o < places.size(); ++o) {
    const double first = std::floor(places[o]);
    const double share = places[o] - first;
    for (int side = 0; side < 2; ++side) {
      const double at = first + side;
      if (at >= 0.0 && at < static_cast<double>(in))
        weights[o * static_cast<size_t>(in) + static_cast<size_t>(at)] +=
            side == 0 ? 1.0 - share : share;
    }
  }
  return weights;
}

Resampler::Resampler(int64_t in_h, int64_t out_h, std::vector<double> rows, int64_t in_w,
                     int64_t out_w, std::vector<double> columns)
    : rows_(matrix(out_h, in_h, rows)), columns_(matrix(out_w, in_w, columns)) {}

Resampler Resampler::bilinear(int64_t in_h, int64_t in_w, int64_t out_h, int64_t out_w,
                              bool align_corners) {
  return Resampler(in_h, out_h, bilinear_axis(in_h, out_h, align_corners), in_w, out_w,
                   bilinear_axis(in_w, out_w, align_corners));
}

at::Tensor Resampler::forward(const at::Tensor& x) const {
  const at::Tensor wide = is_narrow(x) ? x.to(at::kFloat) : x;
  if (!cast_rows_.defined() || cast_rows_.scalar_type() != wide.scalar_type() ||
      cast_rows_.device() != wide.device()) {
    cast_rows_ = rows_.to(wide.options());
    cast_columns_ = columns_.t().to(wide.options());
  }
  return at::matmul(cast_rows_, at::matmul(wide, cast_columns_)).to(x.scalar_type());
}

at::Tensor BilinearResize::forward(const at::Tensor& x, int64_t height, int64_t width) const {
  const std::vector<int64_t> sizes = {x.size(2), x.size(3), height, width};
  for (const auto& [known, resampler] : made_)
    if (known == sizes) return resampler.forward(x);
  made_.emplace_back(sizes, Resampler::bilinear(sizes[0], sizes[1], height, width, align_corners_));
  return made_.back().second.forward(x);
}

}  // namespace aerie::bev
