// The layers that all parts of the model after the backbone are made of: convolution, BatchNorm,
// residual blocks, and resampling along both axes of a map. Maps are (N,C,H,W).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/nn/forward_context.h"
#include "aerie/nn/param_registry.h"

namespace aerie::bev {

// Square kernel, zero padding of kernel/2.
class Conv2d {
 public:
  Conv2d() = default;
  Conv2d(const nn::Scope& scope, int64_t in, int64_t out, int64_t kernel, int64_t stride = 1,
         bool use_bias = false);
  // Kaiming normal over the fan-out instead of torch's default.
  void init_fan_out() const;
  at::Tensor forward(const nn::DtypePolicy& policy, const at::Tensor& x) const;

 private:
  nn::ParameterRegistry* registry_ = nullptr;
  nn::ParamRef weight_, bias_;
  int64_t kernel_ = 1, stride_ = 1, out_ = 0;
};

// eps 1e-5, momentum 0.1. Statistics in float32 at least; keeps the dtype of x.
class BatchNorm2d {
 public:
  BatchNorm2d() = default;
  BatchNorm2d(const nn::Scope& scope, int64_t channels, double initial_weight = 1.0);
  at::Tensor forward(const nn::ForwardContext& ctx, const at::Tensor& x) const;

 private:
  nn::ParamRef weight_, bias_, running_mean_, running_var_, batches_;
};

// Convolution without bias, BatchNorm, ReLU.
class ConvBnRelu {
 public:
  ConvBnRelu(const nn::Scope& conv, const nn::Scope& norm, int64_t in, int64_t out, int64_t kernel,
             int64_t stride = 1)
      : conv_(conv, in, out, kernel, stride), norm_(norm, out) {}
  const Conv2d& conv() const { return conv_; }
  at::Tensor forward(const nn::ForwardContext& ctx, const at::Tensor& x) const;

 private:
  Conv2d conv_;
  BatchNorm2d norm_;
};

// Several in a row, named as torch's Sequential of conv, norm and activation names them: first,
// first + 1, first + 3, ...
class ConvSequence {
 public:
  ConvSequence() = default;
  ConvSequence& add(const nn::Scope& scope, int64_t in, int64_t out, int64_t kernel,
                    int64_t stride = 1, int64_t first = -1);
  at::Tensor forward(const nn::ForwardContext& ctx, at::Tensor x) const;

 private:
  std::vector<ConvBnRelu> layers_;
  int64_t next_ = 0;
};

// relu(bn2(conv2(relu(bn1(conv1 x)))) + skip x); the skip is a 1x1 convolution with norm where
// shapes differ.
class BasicBlock {
 public:
  BasicBlock(const nn::Scope& scope, int64_t in, int64_t out, int64_t stride,
             double last_norm_weight);
  at::Tensor forward(const nn::ForwardContext& ctx, const at::Tensor& x) const;

 private:
  Conv2d conv1_, conv2_, skip_;
  BatchNorm2d norm1_, norm2_, skip_norm_;
  bool has_skip_ = false;
};

// Two blocks, the first of them strided.
class ResidualLayer {
 public:
  ResidualLayer(const nn::Scope& scope, int64_t in, int64_t out, int64_t stride,
                double last_norm_weight = 1.0)
      : first_(scope.child("0"), in, out, stride, last_norm_weight),
        second_(scope.child("1"), out, out, 1, last_norm_weight) {}
  at::Tensor forward(const nn::ForwardContext& ctx, const at::Tensor& x) const {
    return second_.forward(ctx, first_.forward(ctx, x));
  }

 private:
  BasicBlock first_, second_;
};

// Linear interpolation along an axis as a matrix [out][in], row-major: sources of every output.
std::vector<double> bilinear_axis(int64_t in, int64_t out, bool align_corners);
// The same for outputs at given places of the input, in cells (0 is the centre of the first);
// what lies outside counts as 0.
std::vector<double> sampled_axis(int64_t in, const std::vector<double>& places);

// Interpolation over both axes as two matrix products: its gradient is two products as well, which
// add up in a fixed order on every device (ATen's kernels for bilinear upsampling and grid sampling
// use atomics on a GPU). Computes in float32 at least, keeps the dtype of x.
class Resampler {
 public:
  Resampler() = default;
  Resampler(int64_t in_h, int64_t out_h, std::vector<double> rows, int64_t in_w, int64_t out_w,
            std::vector<double> columns);
  static Resampler bilinear(int64_t in_h, int64_t in_w, int64_t out_h, int64_t out_w,
                            bool align_corners);
  at::Tensor forward(const at::Tensor& x) const;

 private:
  at::Tensor rows_, columns_;  // float64, on the CPU: [out,in] each
  // As the last call needed them.
  mutable at::Tensor cast_rows_, cast_columns_;
};

// One resampler for every pair of sizes that came along. One forward at a time.
class BilinearResize {
 public:
  explicit BilinearResize(bool align_corners) : align_corners_(align_corners) {}
  at::Tensor forward(const at::Tensor& x, int64_t height, int64_t width) const;

 private:
  bool align_corners_;
  mutable std::vector<std::pair<std::vector<int64_t>, Resampler>> made_;
};

}  // namespace aerie::bev
