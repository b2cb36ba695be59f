// Draws made where tensors are against those of the host: the same bits, forward and backward.
#include "aerie/nn/device_draws.h"

#include <functional>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/sin.h>
#include <gtest/gtest.h>

#include "aerie/device/gpu.h"
#include "aerie/kernels/testing/backend.h"
#include "aerie/nn/init.h"
#include "aerie/nn/ops.h"
#include "aerie/nn/param_registry.h"

namespace aerie::nn {
namespace {

RandomKey key_of_step() {
  RandomKey key;
  key.seed = 31;
  key.micro_step = 123456789;
  key.first_item = 5;
  key.item_stride = 3;
  return key;
}

at::Tensor values(at::IntArrayRef sizes, at::ScalarType type) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return at::sin(at::arange(count, at::kFloat).square() * 0.37).view(sizes).to(type);
}

// x, its dropout and the gradient of x, for a loss that weighs every value differently.
struct Passed {
  at::Tensor y, grad;
};
Passed pass(const at::Tensor& x, const std::function<at::Tensor(const at::Tensor&)>& dropout) {
  at::Tensor leaf = x.detach().clone().set_requires_grad(true);
  const at::Tensor y = dropout(leaf);
  (y * values(y.sizes(), y.scalar_type()).to(y.device())).sum().backward();
  return {y.detach(), leaf.grad()};
}

void check_dropout(at::Device device, const kernels::DropoutDraws& draws, at::IntArrayRef sizes,
                   const char* what) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::Tensor x = values(sizes, type).to(device);
    const Passed want = pass(
        x, [&](const at::Tensor& in) { return apply_dropout(in, dropout_factors(draws, sizes)); });
    const Passed got = pass(x, [&](const at::Tensor& in) { return drawn_dropout(in, draws); });
    EXPECT_EQ(got.y.scalar_type(), type);
    EXPECT_EQ(got.y.device(), x.device());
    EXPECT_TRUE(at::equal(got.y, want.y)) << what << " in " << toString(type);
    EXPECT_TRUE(at::equal(got.grad, want.grad)) << what << ", gradient in " << toString(type);
  }
}

void check_all(at::Device device) {
  const RandomKey key = key_of_step();
  check_dropout(device, dropout_of_btc(key, 17, 0.1, 3, 5, 24), {3, 5, 24}, "activations");
  check_dropout(device, dropout_of_btc(key, 17, 0.5, 2, 3, 7), {2, 3, 7}, "odd activations");
  check_dropout(device, dropout_of_btc(key, 17, 1.0, 2, 3, 8), {2, 3, 8}, "nothing kept");
  check_dropout(device, dropout_of_attention(key, 18, 0.2, 2, 3, 9, 12), {2, 3, 9, 12}, "weights");
  check_dropout(device, dropout_of_attention(key, 18, 0.2, 2, 2, 7, 11), {2, 2, 7, 11}, "odd");
  check_dropout(device, dropout_of_positions(key, 1, 0.3, 4, 9, 12), {1, 9, 12}, "positions");

  // Seen through a transposition, as the output of a convolution is.
  const kernels::DropoutDraws draws = dropout_of_btc(key, 3, 0.4, 2, 6, 8);
  const at::Tensor turned = values({2, 8, 6}, at::kFloat).to(device).transpose(1, 2);
  EXPECT_TRUE(at::equal(drawn_dropout(turned, draws),
                        apply_dropout(turned, dropout_factors(draws, {2, 6, 8}))));

  EXPECT_TRUE(at::equal(dither_normals_on(device, key, 1, 3, 1021).to(at::kCPU),
                        dither_normals(key, 1, 3, 1021)));
}

// Initial weights of a model with one tensor of each kind.
at::Tensor initial_weights(at::Device device) {
  ParameterRegistry registry;
  const Scope root(registry);
  root.param("wide", {300, 257}, Init::uniform(0.0625));
  root.param("normal", {33}, Init::normal(0.1));
  root.param("bias", {5}, Init::uniform(0.5));
  registry.materialize(device);
  initialize(registry, 42);
  return registry.flat_params().to(at::kCPU).clone();
}

TEST(DeviceDrawsTest, InitialWeightsAreTheHosts) {
  const at::Tensor host = initial_weights(at::kCPU);
  const auto backend = kernels::testing::emulated_backend();
  const DrawOnCpuWith kernels(backend->kernels());
  EXPECT_TRUE(at::equal(initial_weights(at::kCPU), host));
  EXPECT_GT(host.abs().max().item<float>(), 0.06f);
}

TEST(DeviceDrawsTest, WithoutKernelsTheHostDraws) {
  EXPECT_EQ(draw_kernels(at::kCPU), nullptr);
  check_all(at::kCPU);
}

TEST(DeviceDrawsTest, KernelsDrawWhatTheHostDraws) {
  const auto backend = kernels::testing::emulated_backend();
  const DrawOnCpuWith kernels(backend->kernels());
  ASSERT_EQ(draw_kernels(at::kCPU), &backend->kernels());
  check_all(at::kCPU);
}

// A shape that kernels refuse, and a device that fails.
int refused(const kernels::DropoutDraws&, void*) {
  return kernels::kUnsupported;
}
int refused_normals(const kernels::NormalDraws&, void*) {
  return kernels::kUnsupported;
}
int broken(const kernels::DropoutDraws&, void*) {
  return 700;
}

TEST(DeviceDrawsTest, WhatKernelsRefuseTheHostDraws) {
  kernels::KernelTable table = kernels::kReferenceKernels;
  table.dropout_draws = refused;
  table.normal_draws = refused_normals;
  const DrawOnCpuWith kernels(table);
  check_all(at::kCPU);
}

TEST(DeviceDrawsTest, ErrorsOfTheDeviceAreNotPassedOver) {
  kernels::KernelTable table = kernels::kReferenceKernels;
  table.dropout_draws = broken;
  const DrawOnCpuWith kernels(table);
  EXPECT_ANY_THROW(
      drawn_dropout(values({1, 2, 8}, at::kFloat), dropout_of_btc(key_of_step(), 1, 0.5, 1, 2, 8)));
}

TEST(DeviceDrawsGpuTest, TheDeviceDrawsWhatTheHostDraws) {
  if (device::driver().gpus.empty() || !device::load_torch_cuda().ok()) GTEST_SKIP() << "no GPU";
  const at::Device gpu(at::kCUDA, 0);
  ASSERT_NE(draw_kernels(gpu), nullptr) << device::gpu_module().status().to_string();
  check_all(gpu);
  EXPECT_TRUE(at::equal(initial_weights(gpu), initial_weights(at::kCPU)));
  // As long as training's.
  const RandomKey key = key_of_step();
  check_dropout(gpu, dropout_of_btc(key, 33, 0.1, 16, 188, 2048), {16, 188, 2048}, "large");
  check_dropout(gpu, dropout_of_attention(key, 34, 0.1, 16, 8, 188, 188), {16, 8, 188, 188},
                "large weights");
  EXPECT_TRUE(at::equal(dither_normals_on(gpu, key, 0, 16, 240000).to(at::kCPU),
                        dither_normals(key, 0, 16, 240000)));
}

}  // namespace
}  // namespace aerie::nn
