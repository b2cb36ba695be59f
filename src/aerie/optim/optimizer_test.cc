// Optimizers against what torch and NeMo did with the same gradients, and the properties that the
// flat layout must not disturb.
#include "aerie/optim/optimizer.h"

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <nlohmann/json.hpp>

#include "aerie/optim/test_util.h"

namespace aerie::optim {
namespace {

using nlohmann::json;

config::OptimizerKind kind_of(const std::string& name) {
  if (name == "adamw") return config::OptimizerKind::kAdamW;
  if (name == "adam") return config::OptimizerKind::kAdam;
  if (name == "sgd") return config::OptimizerKind::kSgd;
  EXPECT_EQ(name, "novograd");
  return config::OptimizerKind::kNovograd;
}

void apply(GroupSettings& s, const json& kwargs) {
  s.lr = kwargs.value("lr", s.lr);
  if (kwargs.contains("betas")) s.betas = {kwargs["betas"][0], kwargs["betas"][1]};
  s.eps = kwargs.value("eps", s.eps);
  s.weight_decay = kwargs.value("weight_decay", s.weight_decay);
  s.amsgrad = kwargs.value("amsgrad", s.amsgrad);
  s.momentum = kwargs.value("momentum", s.momentum);
  s.dampening = kwargs.value("dampening", s.dampening);
  s.nesterov = kwargs.value("nesterov", s.nesterov);
  s.grad_averaging = kwargs.value("grad_averaging", s.grad_averaging);
  s.luc = kwargs.value("luc", s.luc);
  s.luc_trust = kwargs.value("luc_trust", s.luc_trust);
}

// Constructor defaults of torch and NeMo.
GroupSettings defaults_of(config::OptimizerKind kind) {
  GroupSettings s;
  if (kind == config::OptimizerKind::kAdamW) s.weight_decay = 0.01;
  if (kind == config::OptimizerKind::kNovograd) s.betas = {0.95, 0.98};
  return s;
}

// `mask`: with a decision to skip that says no.
void run_fixture(const nn::FlatLayout& layout, at::Device device = at::kCPU, bool mask = false) {
  // A GPU contracts multiplications and additions: small squared moments differ in the sixth digit.
  const double bound = device.is_cuda() ? 3e-5 : 1e-6;
  const archive::TensorArchive file = open_fixture("optimizers.safetensors");
  const json cases = json::parse(file.text_metadata().at("cases"));
  ASSERT_EQ(cases.size(), 18u);
  const std::vector<ParamSpec> specs = {
      {"a", {5, 4}}, {"b", {7}}, {"scalar", {}}, {"c", {2, 3, 3}}, {"frozen", {3}, false}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const json& one = cases[i];
    SCOPED_TRACE(one["name"].get<std::string>());
    auto registry = make_registry(specs, layout, device);
    {
      at::NoGradGuard no_grad;
      for (const ParamSpec& spec : specs)
        (*registry)[spec.name].copy_(read(file, "in.param." + spec.name));
    }
    const config::OptimizerKind kind = kind_of(one["optimizer"]);
    GroupSettings settings = defaults_of(kind);
    const std::vector<double> lrs = one["lrs"];
    settings.lr = lrs[0];
    apply(settings, one["kwargs"]);
    std::vector<OptimizerGroup> groups;
    if (one["groups"].is_null()) {
      groups.push_back({"", registry->parameters(), settings});
    } else {
      for (const json& group : one["groups"]) {
        OptimizerGroup out{"", {}, settings};
        apply(out.settings, group);
        for (const std::string name : group["params"]) out.entries.push_back(registry->find(name));
        groups.push_back(std::move(out));
      }
    }
    Optimizer optimizer(*registry, kind, groups, {});
    for (size_t s = 0; s < lrs.size(); ++s) {
      std::vector<uint8_t> has_grad;
      registry->zero_grad();
      for (const int64_t index : registry->trainable()) {
        const std::string& name = registry->entries()[static_cast<size_t>(index)].name;
        const at::Tensor grad = read(file, "in.grad" + std::to_string(s) + "." + name);
        has_grad.push_back(grad.defined() ? 1 : 0);
        if (grad.defined()) registry->grad(index).copy_(grad);
      }
      std::vector<double> rates = optimizer.base_rates();
      for (double& rate : rates) rate *= lrs[s] / lrs[0];
      const auto options = registry->flat_grads().options();
      optimizer.always_mask(mask);
      if (one.contains("momentums")) optimizer.set_momentum(one["momentums"][s].get<double>());
      optimizer.step(rates, mask ? at::zeros({}, options) : at::Tensor(), has_grad);
      for (const ParamSpec& spec : specs) {
        const at::Tensor want = read(
            file, "case" + std::to_string(i) + ".out.step" + std::to_string(s) + "." + spec.name);
        EXPECT_LT(relative_error((*registry)[spec.name], want), bound)
            << "step " << s << " " << spec.name;
      }
    }
    const std::string prefix = "case" + std::to_string(i) + ".out.state.";
    size_t compared = 0;
    for (const NamedState& state : optimizer.state()) {
      const at::Tensor want = read(file, prefix + state.name);
      ASSERT_TRUE(want.defined()) << state.name;
      EXPECT_EQ(state.tensor.sizes(), want.sizes()) << state.name;
      EXPECT_LT(relative_error(state.tensor, want), bound) << state.name;
      ++compared;
    }
    size_t stored = 0;
    for (const archive::TensorInfo& info : file.tensors())
      if (info.name.rfind(prefix, 0) == 0 && info.name.find(".step.") == std::string::npos)
        ++stored;
    EXPECT_EQ(compared, stored);
    if (kind != config::OptimizerKind::kSgd) {
      for (size_t t = 0; t < registry->trainable().size(); ++t) {
        const std::string& name =
            registry->entries()[static_cast<size_t>(registry->trainable()[t])].name;
        EXPECT_EQ(optimizer.step_counts()[static_cast<int64_t>(t)].item<float>(),
                  static_cast<float>(read(file, prefix + "step." + name).item<double>()))
            << name;
      }
    }
  }
}

TEST(OptimizerTest, EqualsTorchAndNemo) {
  run_fixture({});
}

TEST(OptimizerTest, EqualsTorchAndNemoInAnotherMemoryOrder) {
  run_fixture({{3, 1, 0, 2}, 16});
  run_fixture({{2, 0, 3, 1}, 1});
}

TEST(OptimizerTest, EqualsTorchAndNemoWithMaskedUpdates) {
  run_fixture({}, at::kCPU, /*mask=*/true);
}

GroupSettings settings_for(config::OptimizerKind kind) {
  GroupSettings s = defaults_of(kind);
  s.weight_decay = 0.1;
  s.momentum = 0.9;
  s.dampening = 0.2;
  s.amsgrad = kind != config::OptimizerKind::kSgd;
  return s;
}

const config::OptimizerKind kKinds[] = {config::OptimizerKind::kAdamW, config::OptimizerKind::kAdam,
                                        config::OptimizerKind::kSgd,
                                        config::OptimizerKind::kNovograd};

void check_skipped_step(at::Device device, bool mask = false) {
  for (const config::OptimizerKind kind : kKinds) {
    SCOPED_TRACE(optimizer_name(kind));
    auto registry = make_registry({{"e.a", {6, 5}}, {"e.b", {9}}, {"d.c", {4}}}, {}, device);
    fill(*registry, 0.3);
    Optimizer optimizer(*registry, kind, {{"", registry->parameters(), settings_for(kind)}}, {});
    optimizer.always_mask(mask);
    const at::Tensor inf = at::ones({}, at::TensorOptions(device).dtype(at::kFloat));
    const at::Tensor fine = at::zeros_like(inf);
    const std::vector<double> rates = {0.01};
    for (int s = 0; s < 4; ++s) {
      set_grads(*registry, s);
      // The very first step is skipped as well: there is no state yet.
      const std::vector<at::Tensor> buffers = optimizer.buffers();
      std::vector<at::Tensor> before = {registry->flat_params().clone(),
                                        optimizer.step_counts().clone()};
      for (const at::Tensor& buffer : buffers) before.push_back(buffer.clone());
      registry->grad(0).fill_(std::numeric_limits<float>::infinity());
      optimizer.step(rates, inf);
      EXPECT_TRUE(at::equal(before[0], registry->flat_params()));
      EXPECT_TRUE(at::equal(before[1], optimizer.step_counts()));
      for (size_t b = 0; b < buffers.size(); ++b) EXPECT_TRUE(at::equal(before[b + 2], buffers[b]));
      set_grads(*registry, s);
      optimizer.step(rates, fine);
      EXPECT_FALSE(at::equal(before[0], registry->flat_params()));
      EXPECT_EQ(optimizer.step_counts()[0].item<float>(), static_cast<float>(s + 1));
    }
  }
}

void check_runs_with_skips(at::Device device, bool mask = false) {
  for (const config::OptimizerKind kind : kKinds) {
    SCOPED_TRACE(optimizer_name(kind));
    at::Tensor results[2];
    for (int skips = 0; skips < 2; ++skips) {
      auto registry = make_registry({{"a", {6, 5}}, {"b", {9}}}, {}, device);
      fill(*registry, 0.3);
      Optimizer optimizer(*registry, kind, {{"", registry->parameters(), settings_for(kind)}}, {});
      optimizer.always_mask(mask);
      for (int s = 0; s < 3; ++s) {
        if (skips == 1) {
          registry->flat_grads().fill_(std::numeric_limits<float>::quiet_NaN());
          optimizer.step(std::vector<double>{0.5}, at::ones({}, registry->flat_grads().options()));
          registry->zero_grad();
        }
        set_grads(*registry, s);
        optimizer.step(std::vector<double>{0.01}, at::zeros({}, registry->flat_grads().options()));
      }
      results[skips] = registry->flat_params().clone();
    }
    EXPECT_TRUE(at::equal(results[0], results[1]));
  }
}

TEST(OptimizerTest, SkippedStepChangesNothing) {
  check_skipped_step(at::kCPU);
  check_skipped_step(at::kCPU, /*mask=*/true);
}

TEST(OptimizerTest, RunsWithSkippedStepsEqualRunsWithout) {
  check_runs_with_skips(at::kCPU);
  check_runs_with_skips(at::kCPU, /*mask=*/true);
}

// On a GPU the decision to skip is a number on the device that masks the update.
TEST(OptimizerGpuTest, EqualsTorchAndNemo) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  run_fixture({}, at::kCUDA);
  run_fixture({}, at::kCUDA, /*mask=*/true);
  run_fixture({{3, 1, 0, 2}, 16}, at::kCUDA);
}

TEST(OptimizerGpuTest, SkippedStepChangesNothing) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  check_skipped_step(at::kCUDA);
}

TEST(OptimizerGpuTest, RunsWithSkippedStepsEqualRunsWithout) {
  if (!has_gpu()) GTEST_SKIP() << "no GPU";
  check_runs_with_skips(at::kCUDA);
}

TEST(OptimizerTest, MaximizeClimbs) {
  for (const config::OptimizerKind kind :
       {config::OptimizerKind::kAdamW, config::OptimizerKind::kAdam, config::OptimizerKind::kSgd}) {
    SCOPED_TRACE(optimizer_name(kind));
    at::Tensor results[2];
    for (int turn = 0; turn < 2; ++turn) {
      auto registry = make_registry({{"a", {6, 5}}});
      fill(*registry, 0.3);
      GroupSettings s = settings_for(kind);
      s.maximize = turn == 1;
      Optimizer optimizer(*registry, kind, {{"", registry->parameters(), s}}, {});
      for (int step = 0; step < 3; ++step) {
        set_grads(*registry, step, turn == 1 ? -1.0 : 1.0);
        optimizer.step(std::vector<double>{0.01});
      }
      results[turn] = registry->flat_params().clone();
    }
    EXPECT_TRUE(at::equal(results[0], results[1]));
  }
}

std::vector<ParamSpec> model_specs() {
  return {{"encoder.pre.weight", {4, 3}},
          {"encoder.pre.bias", {4}},
          {"encoder.norm.weight", {4}},
          {"encoder.norm.running", {4}, false, true},
          {"quantizer.proj", {2, 2}, false},
          {"decoder.weight", {5, 4}},
          {"decoder.bias", {5}}};
}

std::vector<std::string> names_of(const nn::ParameterRegistry& registry,
                                  const std::vector<int64_t>& entries) {
  std::vector<std::string> out;
  for (const int64_t index : entries)
    out.push_back(registry.entries()[static_cast<size_t>(index)].name);
  return out;
}

TEST(OptimizerTest, RemainingParametersFormTheFirstGroup) {
  auto registry = make_registry(model_specs());
  config::OptimConfig config;
  config.kind = config::OptimizerKind::kAdamW;
  config.lr = 0.5;
  config.weight_decay = 0.1;
  config::ParamGroupConfig encoder;
  encoder.module = "encoder";
  encoder.lr = 0.25;
  auto groups = make_groups(*registry, config, {encoder});
  ASSERT_TRUE(groups.ok()) << groups.status().to_string();
  ASSERT_EQ(groups->size(), 2u);
  // Frozen parameters have a place among the remaining ones; buffers have none.
  EXPECT_EQ(names_of(*registry, (*groups)[0].entries),
            (std::vector<std::string>{"quantizer.proj", "decoder.weight", "decoder.bias"}));
  EXPECT_EQ(
      names_of(*registry, (*groups)[1].entries),
      (std::vector<std::string>{"encoder.pre.weight", "encoder.pre.bias", "encoder.norm.weight"}));
  EXPECT_EQ((*groups)[0].settings.lr, 0.5);
  EXPECT_EQ((*groups)[1].settings.lr, 0.25);
  EXPECT_EQ((*groups)[1].settings.weight_decay, 0.1);

  // Nothing remains: no empty first group.
  config::ParamGroupConfig quantizer, decoder;
  quantizer.module = "quantizer";
  decoder.module = "decoder";
  groups = make_groups(*registry, config, {decoder, encoder, quantizer});
  ASSERT_TRUE(groups.ok());
  ASSERT_EQ(groups->size(), 3u);
  EXPECT_EQ((*groups)[0].name, "decoder");

  // Without a config there is one group with everything.
  groups = make_groups(*registry, config, {});
  ASSERT_TRUE(groups.ok());
  ASSERT_EQ(groups->size(), 1u);
  EXPECT_EQ((*groups)[0].entries, registry->parameters());
}

TEST(OptimizerTest, UnknownModuleIsNamed) {
  auto registry = make_registry(model_specs());
  config::ParamGroupConfig group;
  group.module = "enc";
  const auto groups = make_groups(*registry, {}, {group});
  ASSERT_FALSE(groups.ok());
  EXPECT_EQ(groups.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(groups.status().to_string().find("enc"), std::string::npos);
  EXPECT_NE(groups.status().hint().find("encoder, quantizer, decoder"), std::string::npos)
      << groups.status().hint();
  config::ParamGroupConfig twice;
  twice.module = "encoder";
  EXPECT_FALSE(make_groups(*registry, {}, {twice, twice}).ok());
}

TEST(OptimizerTest, NoWeightDecayNamesAreExempt) {
  auto registry = make_registry(model_specs());
  fill(*registry, 1.0);
  config::OptimConfig config;
  config.kind = config::OptimizerKind::kAdamW;
  config.weight_decay = 0.1;
  auto optimizer = Optimizer::create(*registry, config, {}, {"bias", "norm"});
  ASSERT_TRUE(optimizer.ok());
  EXPECT_EQ((*optimizer)->groups().size(), 1u);
  const at::Tensor before = registry->flat_params().clone();
  registry->zero_grad();
  (*optimizer)->step(std::vector<double>{0.5});
  for (const int64_t index : registry->trainable()) {
    const std::string& name = registry->entries()[static_cast<size_t>(index)].name;
    const bool exempt =
        name.find("bias") != std::string::npos || name.find("norm") != std::string::npos;
    const at::Tensor old = registry->flat_view(before, index);
    EXPECT_TRUE(at::allclose(registry->tensor(index), old * (exempt ? 1.0 : 0.95), 1e-6, 0.0))
        << name;
  }
}

TEST(OptimizerTest, DecayReachesBiasesAndNorms) {
  auto registry = make_registry(model_specs());
  fill(*registry, 1.0);
  config::OptimConfig config;
  config.kind = config::OptimizerKind::kAdamW;
  config.weight_decay = 0.1;
  auto optimizer = Optimizer::create(*registry, config, {}, {});
  ASSERT_TRUE(optimizer.ok());
  const at::Tensor before = registry->flat_params().clone();
  const at::Tensor frozen = (*registry)["quantizer.proj"].clone();
  registry->zero_grad();
  (*optimizer)->step(std::vector<double>{0.5});
  EXPECT_TRUE(at::allclose(registry->flat_params(), before * 0.95, 1e-6, 0.0));
  EXPECT_TRUE(at::equal((*registry)["quantizer.proj"], frozen));
}

}  // namespace
}  // namespace aerie::optim
