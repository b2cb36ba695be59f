// States of a few parameters out and in again, without a model around them.
#include "aerie/train/graph/flat_state.h"

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/scalar_tensor.h>
#include <gtest/gtest.h>

namespace aerie::train {
namespace {

struct Owner {
  Owner() {
    for (const auto& [name, trainable] :
         {std::pair<std::string, bool>{"a", true}, {"b", true}, {"frozen", false}}) {
      nn::ParamInfo info;
      info.name = name;
      info.shape = {7};
      info.trainable = trainable;
      registry.add(std::move(info));
    }
    registry.materialize(at::kCPU);
    config::OptimConfig config;
    config.kind = config::OptimizerKind::kAdamW;
    auto made = optim::Optimizer::create(registry, config, {}, {});
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    optimizer = std::move(made).value();
    ema = std::make_unique<optim::Ema>(registry, 0.9, 1, false);
  }

  FlatState state() { return {registry, *optimizer, &scaler, ema.get()}; }

  void step(double phase) {
    at::NoGradGuard no_grad;
    for (const int64_t index : registry.trainable())
      registry.grad(index).copy_(
          (at::arange(7, at::kDouble) * 1.7 + phase + static_cast<double>(index)).sin());
    ema->begin();
    const at::Tensor found = at::scalar_tensor(0.0, at::kFloat);
    optimizer->step(std::vector<double>{1e-2}, found, std::vector<uint8_t>(2, 1));
    ema->update(found);
    registry["frozen"].add_(phase);
  }

  std::map<std::string, at::Tensor> values() {
    std::map<std::string, at::Tensor> out;
    for (const char* name : {"a", "b", "frozen"}) out[name] = registry[name].detach().clone();
    for (const optim::NamedState& one : optimizer->state()) out[one.name] = one.tensor.clone();
    out["steps"] = optimizer->step_counts().clone();
    out["ema"] = ema->flat().clone();
    out["ema count"] = ema->count().clone();
    out["scale"] = scaler.scale().clone();
    return out;
  }

  nn::ParameterRegistry registry;
  std::unique_ptr<optim::Optimizer> optimizer;
  optim::GradScaler scaler{optim::GradScaler::Settings{}, at::kCPU};
  std::unique_ptr<optim::Ema> ema;
};

bool same(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  for (const auto& [name, tensor] : a)
    if (!tensor.equal(b.at(name))) return false;
  return a.size() == b.size();
}

// A snapshot in memory.
class Source final : public StateSource {
 public:
  explicit Source(StateSnapshot& snapshot) {
    EXPECT_TRUE(snapshot.wait().ok());
    scalars = snapshot.scalars_json();
    for (const SnapshotTensor& one : snapshot.tensors())
      files[one.file][one.name] = {static_cast<const char*>(one.data), one.bytes};
  }
  std::vector<std::string> names(const std::string& file) const override {
    std::vector<std::string> out;
    const auto found = files.find(file);
    if (found == files.end()) return out;
    for (const auto& [name, bytes] : found->second) out.push_back(name);
    return out;
  }
  Status read(const std::string& file, const std::string& name, Dtype, const std::vector<int64_t>&,
              void* out) const override {
    const auto found = files.find(file);
    if (found == files.end() || found->second.count(name) == 0) return data_error("no " + name);
    const std::string& bytes = found->second.at(name);
    std::memcpy(out, bytes.data(), bytes.size());
    return ok_status();
  }
  const std::string& scalars_json() const override { return scalars; }

  std::map<std::string, std::map<std::string, std::string>> files;
  std::string scalars;
};

TEST(FlatStateTest, ComesBackAsItWas) {
  Owner from, to;
  for (int i = 0; i < 3; ++i) from.step(0.3 * i);
  from.scaler.restore(1024.0, 5);
  auto snapshot = take_snapshot(from.state(), std::make_shared<SnapshotMemory>(),
                                {{"mood", "good"}, {"weather", "fair"}});
  ASSERT_TRUE(snapshot.ok()) << snapshot.status().to_string();
  const auto want = from.values();
  Source source(**snapshot);
  from.step(0.9);  // it is a copy
  to.step(0.7);
  auto read = read_state(to.state(), source);
  ASSERT_TRUE(read.ok()) << read.status().to_string();
  EXPECT_FALSE(same(to.values(), want));  // nothing is written yet
  EXPECT_EQ(read->text("mood"), "good");
  EXPECT_EQ(read->text("weather"), "fair");
  EXPECT_EQ(read->text("wind"), std::nullopt);
  ASSERT_TRUE(read->write(to.state()).ok());
  EXPECT_TRUE(same(to.values(), want));
}

TEST(FlatStateTest, DamageIsFoundBeforeAnythingChanges) {
  Owner from, to;
  from.step(0.1);
  auto snapshot = take_snapshot(from.state(), std::make_shared<SnapshotMemory>(), {});
  ASSERT_TRUE(snapshot.ok());
  to.step(0.7);
  const auto before = to.values();
  for (const std::function<void(Source&)>& damage : std::vector<std::function<void(Source&)>>{
           [](Source& s) { s.scalars = "{"; }, [](Source& s) { s.scalars = "{}"; },
           [](Source& s) { s.files["model"].erase("b"); },
           [](Source& s) { s.files["model"]["c"] = ""; },
           [](Source& s) { s.files["optimizer"].erase("exp_avg.b"); },
           [](Source& s) { s.files.erase("optimizer"); },
           [](Source& s) { s.files["ema"].erase("a"); }}) {
    Source source(**snapshot);
    damage(source);
    const auto read = read_state(to.state(), source);
    EXPECT_FALSE(read.ok());
    EXPECT_EQ(read.status().code(), StatusCode::kDataError);
    EXPECT_TRUE(same(to.values(), before));
  }
}

}  // namespace
}  // namespace aerie::train
