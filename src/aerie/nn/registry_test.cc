#include <cmath>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>

#include "aerie/base/check.h"
#include "aerie/nn/init.h"
#include "aerie/nn/param_registry.h"

namespace aerie::nn {
namespace {

struct Small {
  Small() {
    const Scope root(registry);
    a = root.child("encoder").param("a", {3, 5}, Init::uniform(0.5));
    b = root.child("encoder").buffer("count", {}, Init::constant(7), at::kLong);
    c = root.child("quantizer")
            .frozen()
            .param("books", {2, 4}, Init::unit_normal_rows(), at::kDouble);
    d = root.child("decoder").param("w", {7}, Init::normal(0.1));
    root.child("copy").alias("a", a);
  }
  ParameterRegistry registry;
  ParamRef a, b, c, d;
};

TEST(RegistryTest, KeepsPublicOrderGroupsAndKinds) {
  Small s;
  std::vector<std::string> names;
  for (const ParamInfo& info : s.registry.entries()) names.push_back(info.name);
  EXPECT_EQ(names, (std::vector<std::string>{"encoder.a", "encoder.count", "quantizer.books",
                                             "decoder.w", "copy.a"}));
  EXPECT_EQ(s.registry.entries()[3].group, "decoder");
  EXPECT_EQ(s.registry.num_trainable_elements(), 15 + 7);
  EXPECT_EQ(s.registry.num_frozen_elements(), 8);
  s.registry.materialize(at::kCPU);
  EXPECT_EQ(s.registry.trainable(), (std::vector<int64_t>{0, 3}));
  EXPECT_EQ(s.registry.parameters(), (std::vector<int64_t>{0, 2, 3}));
  EXPECT_EQ(s.registry["quantizer.books"].scalar_type(), at::kDouble);
  EXPECT_EQ(s.registry["encoder.count"].scalar_type(), at::kLong);
}

TEST(RegistryTest, TensorsAndGradientsAreViewsOfTheFlatBuffers) {
  Small s;
  FlatLayout layout;
  layout.order = {3, 0};  // memory order is free
  s.registry.materialize(at::kCPU, at::kFloat, layout);
  {
    at::NoGradGuard no_grad;
    s.d.tensor().fill_(2.0);
    s.a.tensor().fill_(3.0);
  }
  EXPECT_EQ(s.registry.flat_params()[0].item<double>(), 2.0);
  EXPECT_EQ(s.registry.flat_params()[64].item<double>(), 3.0);
  EXPECT_EQ(s.registry["copy.a"].data_ptr(), s.a.tensor().data_ptr());

  (s.a.tensor().square().sum() + s.d.tensor().sum()).backward();
  (s.d.tensor().sum()).backward();  // accumulates in place
  EXPECT_EQ(s.registry.flat_grads()[0].item<double>(), 2.0);
  EXPECT_EQ(s.registry.flat_grads()[64].item<double>(), 6.0);
  EXPECT_EQ(s.a.tensor().grad().data_ptr(), s.registry.grad(0).data_ptr());
  s.registry.zero_grad();
  EXPECT_EQ(s.a.tensor().grad().abs().sum().item<double>(), 0.0);
}

TEST(RegistryTest, MaterializingAgainKeepsValuesAndChangesDtype) {
  Small s;
  s.registry.materialize(at::kCPU);
  initialize(s.registry, 5);
  const at::Tensor before = s.registry["decoder.w"].detach().clone();
  s.registry.materialize(at::kCPU, at::kDouble);
  EXPECT_EQ(s.d.tensor().scalar_type(), at::kDouble);
  EXPECT_TRUE(at::equal(s.d.tensor().detach().to(at::kFloat), before));
  EXPECT_EQ(s.registry["encoder.count"].item<int64_t>(), 7);
}

TEST(RegistryTest, ProgrammerMistakesAreCaught) {
  Small s;
  EXPECT_THROW(Scope(s.registry).param("encoder.a", {1}, Init::constant(0)), InternalError);
  EXPECT_THROW(s.a.tensor(), InternalError);
  s.registry.materialize(at::kCPU);
  EXPECT_THROW(Scope(s.registry).param("late", {1}, Init::constant(0)), InternalError);
  EXPECT_THROW(s.registry["nothing"], InternalError);
}

TEST(InitTest, DistributionsAreAsAskedFor) {
  ParameterRegistry registry;
  const Scope root(registry);
  root.param("u", {200, 500}, Init::uniform(0.25));
  root.param("n", {200, 500}, Init::normal(0.1));
  root.frozen().param("rows", {3, 100, 16}, Init::unit_normal_rows(), at::kDouble);
  root.buffer("v", {3}, Init::computed([] { return std::vector<float>{1.0f, 2.0f, 3.0f}; }));
  registry.materialize(at::kCPU);
  initialize(registry, 1);
  const at::Tensor u = registry["u"].detach().to(at::kDouble);
  EXPECT_LT(u.abs().max().item<double>(), 0.25);
  EXPECT_NEAR(u.mean().item<double>(), 0.0, 2e-3);
  EXPECT_NEAR(u.std().item<double>(), 0.25 / std::sqrt(3.0), 1e-3);
  const at::Tensor n = registry["n"].detach().to(at::kDouble);
  EXPECT_NEAR(n.mean().item<double>(), 0.0, 1.5e-3);
  EXPECT_NEAR(n.std().item<double>(), 0.1, 1e-3);
  EXPECT_NEAR((n.abs() < 0.1).to(at::kDouble).mean().item<double>(), 0.6827, 5e-3);
  const at::Tensor norms = registry["rows"].norm(2, {-1});
  EXPECT_LT((norms - 1.0).abs().max().item<double>(), 1e-14);
  EXPECT_EQ(registry["v"].sum().item<double>(), 6.0);
}

TEST(InitTest, AValueDependsOnSeedNameAndPositionAlone) {
  ParameterRegistry one, two;
  Scope(one).param("x", {4, 4}, Init::normal(1.0));
  Scope(two).param("before", {9}, Init::normal(1.0));
  Scope(two).param("x", {4, 4}, Init::normal(1.0));
  one.materialize(at::kCPU);
  two.materialize(at::kCPU);
  initialize(one, 3);
  initialize(two, 3);
  EXPECT_TRUE(at::equal(one["x"], two["x"]));
  initialize(two, 4);
  EXPECT_FALSE(at::equal(one["x"], two["x"]));
}

}  // namespace
}  // namespace aerie::nn
