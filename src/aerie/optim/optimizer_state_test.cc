#include "aerie/optim/optimizer_state.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>

#include "aerie/base/strings.h"
#include "aerie/optim/test_util.h"

namespace aerie::optim {
namespace {

std::vector<ParamSpec> specs() {
  return {{"encoder.w", {3, 2}},
          {"encoder.frozen", {2}, false},
          {"encoder.b", {5}},
          {"decoder.w", {4}}};
}

std::unique_ptr<Optimizer> make(nn::ParameterRegistry& registry, config::OptimizerKind kind,
                                const std::vector<config::ParamGroupConfig>& groups = {}) {
  config::OptimConfig config;
  config.kind = kind;
  config.momentum = 0.9;
  auto out = Optimizer::create(registry, config, groups, {});
  EXPECT_TRUE(out.ok()) << out.status().to_string();
  return std::move(out).value();
}

void train(Optimizer& optimizer, int first, int steps) {
  for (int s = first; s < first + steps; ++s) {
    set_grads(optimizer.registry(), s);
    // One parameter misses every other step.
    const std::vector<uint8_t> has_grad = {1, static_cast<uint8_t>(s % 2), 1};
    optimizer.step(std::vector<double>(optimizer.groups().size(), 0.01), {}, has_grad);
  }
}

TEST(OptimizerStateTest, CopiedStateContinuesBitForBit) {
  for (const auto kind : {config::OptimizerKind::kAdamW, config::OptimizerKind::kAdam,
                          config::OptimizerKind::kSgd, config::OptimizerKind::kNovograd}) {
    SCOPED_TRACE(optimizer_name(kind));
    auto registry = make_registry(specs());
    fill(*registry, 0.1);
    auto optimizer = make(*registry, kind);
    train(*optimizer, 0, 5);

    auto other = make_registry(specs(), {{3, 0, 2}, 8});
    auto resumed = make(*other, kind);
    {
      at::NoGradGuard no_grad;
      for (const int64_t index : registry->parameters())
        other->tensor(index).copy_(registry->tensor(index));
      const auto from = optimizer->state();
      const auto to = resumed->state();
      ASSERT_EQ(from.size(), to.size());
      for (size_t i = 0; i < from.size(); ++i) {
        EXPECT_EQ(from[i].name, to[i].name);
        at::Tensor target = to[i].tensor;
        target.copy_(from[i].tensor);
      }
    }
    const std::string text = step_counts_json(*optimizer, optimizer->step_counts());
    auto counts = parse_step_counts(*resumed, text);
    ASSERT_TRUE(counts.ok()) << counts.status().to_string();
    resumed->set_step_counts(*counts);
    EXPECT_TRUE(at::equal(optimizer->step_counts(), resumed->step_counts()));
    train(*optimizer, 5, 4);
    train(*resumed, 5, 4);
    for (const int64_t index : registry->parameters())
      EXPECT_TRUE(at::equal(registry->tensor(index), other->tensor(index)));
  }
}

TEST(OptimizerStateTest, StepCountsAreReadable) {
  auto registry = make_registry(specs());
  auto optimizer = make(*registry, config::OptimizerKind::kAdamW);
  train(*optimizer, 0, 5);
  EXPECT_EQ(step_counts_json(*optimizer, optimizer->step_counts()),
            R"({"name":"adamw","step":5,"steps":{"encoder.b":2}})");
}

TEST(OptimizerStateTest, DamagedStepCountsAreRefused) {
  auto registry = make_registry(specs());
  auto optimizer = make(*registry, config::OptimizerKind::kAdamW);
  for (const char* text :
       {"", "{", "[]", "{}", R"({"step":-1})", R"({"step":1.5})", R"({"step":1e30})",
        R"({"step":"3"})", R"({"name":"sgd","step":3})", R"({"step":3,"steps":[]})",
        R"({"step":3,"steps":{"no.such":1}})", R"({"step":3,"steps":{"encoder.b":null}})"})
    EXPECT_FALSE(parse_step_counts(*optimizer, text).ok()) << text;
}

// A Lightning checkpoint in memory with the state of an optimizer, as torch numbers it.
class LightningFile {
 public:
  explicit LightningFile(const Optimizer& optimizer, bool with_groups = true) {
    using namespace archive;
    const NodeId root = tree_.add_dict();
    tree_.set(root, "state_dict", tree_.add_dict(true));
    tree_.set(root, "global_step", tree_.add_int(5));
    tree_.set(root, "epoch", tree_.add_int(0));
    const NodeId state = tree_.add_dict();
    const NodeId groups = tree_.add_list();
    std::map<std::string, at::Tensor> tensors;
    for (const NamedState& one : optimizer.state()) tensors[one.name] = one.tensor;
    const nn::ParameterRegistry& registry = optimizer.registry();
    int64_t number = 0;
    for (const OptimizerGroup& group : optimizer.groups()) {
      const NodeId params = tree_.add_list();
      for (const int64_t entry : group.entries) {
        tree_.append(params, tree_.add_int(number));
        const NodeId one = tree_.add_dict();
        const std::string& name = registry.entries()[static_cast<size_t>(entry)].name;
        for (const char* key : {"exp_avg", "exp_avg_sq", "momentum_buffer"}) {
          const auto found = tensors.find(str_cat(key, ".", name));
          if (found != tensors.end()) tree_.set(one, key, add(found->second));
        }
        for (size_t t = 0; t < registry.trainable().size(); ++t)
          if (registry.trainable()[t] == entry && optimizer.kind() != config::OptimizerKind::kSgd)
            tree_.set(one, "step", add(optimizer.step_counts()[static_cast<int64_t>(t)]));
        if (tree_.dict_size(one) > 0) tree_.set(state, tree_.add_int(number), one);
        ++number;
      }
      const NodeId out = tree_.add_dict();
      tree_.set(out, "lr", tree_.add_float(0.01));
      tree_.set(out, "params", params);
      if (with_groups) tree_.append(groups, out);
    }
    const NodeId entry = tree_.add_dict();
    tree_.set(entry, "state", state);
    tree_.set(entry, "param_groups", groups);
    const NodeId list = tree_.add_list();
    tree_.append(list, entry);
    tree_.set(root, "optimizer_states", list);
    // An empty state dict is no state dict.
    const NodeId weights = tree_.find(root, "state_dict");
    tree_.set(weights, "decoder.w", add(at::zeros({4})));
    auto writer = TorchWriter::make(tree_, root, out_);
    EXPECT_TRUE(writer.ok()) << writer.status().to_string();
    std::string bytes;
    EXPECT_TRUE(writer
                    ->write([&](std::string_view piece) {
                      bytes += piece;
                      return ok_status();
                    })
                    .ok());
    auto read = read_lightning_checkpoint(memory_source(bytes, "x.ckpt"));
    EXPECT_TRUE(read.ok()) << read.status().to_string();
    if (read.ok()) checkpoint = std::move(read).value();
  }

  archive::LightningCheckpoint checkpoint;

 private:
  archive::NodeId add(const at::Tensor& tensor) {
    held_.push_back(tensor.detach().contiguous().clone());
    archive::OutTensor out;
    out.name = str_cat("t", held_.size());
    out.shape = held_.back().sizes().vec();
    out.data = held_.back().const_data_ptr();
    out_.push_back(std::move(out));
    return tree_.add_tensor(static_cast<uint32_t>(out_.size() - 1));
  }
  archive::NodeTree tree_;
  std::vector<at::Tensor> held_;
  std::vector<archive::OutTensor> out_;
};

TEST(OptimizerStateTest, LightningStateContinuesBitForBit) {
  config::ParamGroupConfig encoder;
  encoder.module = "encoder";
  encoder.lr = 0.5;
  for (const auto& groups :
       {std::vector<config::ParamGroupConfig>{}, std::vector<config::ParamGroupConfig>{encoder}}) {
    for (const auto kind : {config::OptimizerKind::kAdamW, config::OptimizerKind::kSgd,
                            config::OptimizerKind::kNovograd}) {
      SCOPED_TRACE(str_cat(optimizer_name(kind), " ", groups.size()));
      auto registry = make_registry(specs());
      fill(*registry, 0.1);
      auto optimizer = make(*registry, kind, groups);
      train(*optimizer, 0, 5);
      const LightningFile file(*optimizer);
      auto other = make_registry(specs());
      auto resumed = make(*other, kind, groups);
      const Status status = load_lightning_state(file.checkpoint, *resumed);
      ASSERT_TRUE(status.ok()) << status.to_string();
      const auto from = optimizer->state();
      const auto to = resumed->state();
      for (size_t i = 0; i < from.size(); ++i)
        EXPECT_TRUE(at::equal(from[i].tensor, to[i].tensor)) << from[i].name;
      if (kind != config::OptimizerKind::kSgd) {
        EXPECT_TRUE(at::equal(optimizer->step_counts(), resumed->step_counts()));
      }
      {
        at::NoGradGuard no_grad;
        other->flat_params().copy_(registry->flat_params());
      }
      train(*optimizer, 5, 3);
      train(*resumed, 5, 3);
      EXPECT_TRUE(at::equal(registry->flat_params(), other->flat_params()));
    }
  }
}

TEST(OptimizerStateTest, ForeignLightningStateIsRefusedUnchanged) {
  auto registry = make_registry(specs());
  auto adamw = make(*registry, config::OptimizerKind::kAdamW);
  train(*adamw, 0, 3);
  const LightningFile file(*adamw);
  const at::Tensor before = adamw->buffers()[0].clone();

  // Another optimizer.
  auto sgd = make(*registry, config::OptimizerKind::kSgd);
  EXPECT_FALSE(load_lightning_state(file.checkpoint, *sgd).ok());
  // Other shapes.
  auto wide = make_registry({{"encoder.w", {3, 3}},
                             {"encoder.frozen", {2}, false},
                             {"encoder.b", {5}},
                             {"decoder.w", {4}}});
  auto other = make(*wide, config::OptimizerKind::kAdamW);
  EXPECT_FALSE(load_lightning_state(file.checkpoint, *other).ok());
  EXPECT_EQ(other->step_counts().sum().item<float>(), 0.0f);
  EXPECT_EQ(other->buffers()[0].abs().sum().item<float>(), 0.0f);
  // Another number of parameters, with and without groups in the file.
  auto few = make_registry({{"encoder.w", {3, 2}}, {"encoder.frozen", {2}, false}});
  auto fewer = make(*few, config::OptimizerKind::kAdamW);
  EXPECT_FALSE(load_lightning_state(file.checkpoint, *fewer).ok());
  const LightningFile bare(*adamw, false);
  EXPECT_FALSE(load_lightning_state(bare.checkpoint, *fewer).ok());
  EXPECT_TRUE(load_lightning_state(bare.checkpoint, *adamw).ok());
  EXPECT_TRUE(at::equal(before, adamw->buffers()[0]));
}

}  // namespace
}  // namespace aerie::optim
