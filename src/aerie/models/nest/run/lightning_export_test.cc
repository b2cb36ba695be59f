// Native checkpoints as Lightning files: what stands in them, and that a run goes on from one.
#include "aerie/models/nest/run/lightning_export.h"

#include <gtest/gtest.h>

#include "aerie/archive/lightning_checkpoint.h"
#include "aerie/archive/omegaconf.h"
#include "aerie/archive/safetensors.h"
#include "aerie/config/yaml.h"
#include "aerie/models/nest/run/run_test_util.h"

namespace aerie::train {
namespace {

using archive::LightningCheckpoint;
using archive::NodeId;

// The native checkpoint of a step.
std::string checkpoint_of(const TinyRun& tiny, int64_t step) {
  for (const std::string& name : tiny.checkpoint_names()) {
    const auto text = Env::real().read_file(tiny.checkpoints() + "/" + name + "/manifest.json");
    if (text.ok() && text->find(str_cat("\"step\": ", step, ",")) != std::string::npos)
      return tiny.checkpoints() + "/" + name;
  }
  ADD_FAILURE() << "no checkpoint of step " << step;
  return "";
}

struct Exported {
  ConvertedCheckpoint done;
  LightningCheckpoint file;

  // A number by its path in the file, dicts only.
  int64_t at(const std::vector<std::string>& path) const {
    NodeId node = file.file.root;
    for (const std::string& key : path)
      if (node != archive::kNoNode) node = file.file.tree.find(node, key);
    const auto value = node == archive::kNoNode ? std::nullopt : file.file.tree.as_int(node);
    EXPECT_TRUE(value.has_value()) << path.back();
    return value.value_or(-1);
  }
};

Exported export_checkpoint(const std::string& dir, const std::string& path, bool averaged = false) {
  Exported out;
  const auto done = convert_native_checkpoint(Env::real(), dir, path, "", averaged);
  EXPECT_TRUE(done.ok()) << done.status().to_string();
  if (!done.ok()) return out;
  out.done = *done;
  auto read = archive::read_lightning_checkpoint(Env::real(), path);
  EXPECT_TRUE(read.ok()) << read.status().to_string();
  if (read.ok()) out.file = std::move(read).value();
  return out;
}

archive::TensorArchive tensors(const std::string& dir, const char* file) {
  return archive::read_safetensors(Env::real(), str_cat(dir, "/", file, ".safetensors")).value();
}

void expect_same(const archive::TensorArchive& a, const archive::TensorInfo& in_a,
                 const archive::TensorArchive& b, const std::string& name) {
  const archive::TensorInfo* in_b = b.find(name);
  ASSERT_NE(in_b, nullptr) << name;
  EXPECT_EQ(a.read(in_a).value(), b.read(*in_b).value()) << name;
}

// 24 clips in batches of 4: 6 batches an epoch.
const std::vector<std::string> kKeys{"trainer.max_steps=12",
                                     "++exp_manager.checkpoint_callback_params.save_top_k=-1",
                                     "trainer.val_check_interval=2", "++model.encoder.dropout=0.1"};

TEST(LightningExportTest, CarriesTheWholeTrainingState) {
  const TinyRun tiny;
  const auto run = tiny.train(kKeys);
  ASSERT_TRUE(run.ok()) << run.status().to_string();
  // In the second epoch.
  const std::string dir = checkpoint_of(tiny, 8);
  const Exported out = export_checkpoint(dir, tiny.file("out.ckpt"));
  const LightningCheckpoint& file = out.file;
  EXPECT_EQ(file.global_step, 8);
  EXPECT_EQ(file.epoch, 1);
  EXPECT_EQ(file.lightning_version, "2.4.0");
  EXPECT_EQ(out.at({"loops", "fit_loop", "epoch_progress", "current", "ready"}), 2);
  EXPECT_EQ(out.at({"loops", "fit_loop", "epoch_progress", "current", "completed"}), 1);
  EXPECT_EQ(out.at({"loops", "fit_loop", "epoch_loop.batch_progress", "current", "completed"}), 2);
  EXPECT_EQ(out.at({"loops", "fit_loop", "epoch_loop.batch_progress", "total", "ready"}), 8);
  EXPECT_EQ(out.at({"loops", "fit_loop", "epoch_loop.automatic_optimization.optim_progress",
                    "optimizer", "step", "total", "completed"}),
            8);

  const archive::TensorArchive model = tensors(dir, "model"), moments = tensors(dir, "optimizer");
  ASSERT_EQ(file.weights.tensors().size(), model.tensors().size());
  for (const archive::TensorInfo& info : file.weights.tensors())
    expect_same(file.weights, info, model, info.name);
  ASSERT_EQ(file.optimizers.size(), 1u);
  const archive::OptimizerState& optimizer = file.optimizers[0];
  ASSERT_EQ(optimizer.groups.size(), 1u);
  // Parameters are numbered without the buffers, frozen ones included.
  std::vector<std::string> names;
  for (const archive::TensorInfo& info : model.tensors()) {
    const bool buffer = starts_with(info.name, "preprocessor.") ||
                        info.name.find(".running_") != std::string::npos ||
                        ends_with(info.name, ".num_batches_tracked");
    if (!buffer) names.push_back(info.name);
  }
  ASSERT_EQ(optimizer.groups[0].params.size(), names.size());
  EXPECT_LT(optimizer.params.size(), names.size());
  for (const archive::ParamState& param : optimizer.params) {
    EXPECT_EQ(param.step, 8.0);
    ASSERT_EQ(param.tensors.size(), 2u);
    for (const archive::TensorInfo& info : param.tensors)
      expect_same(file.file.tensors, info, moments,
                  str_cat(info.name, ".", names[static_cast<size_t>(param.param)]));
  }
  EXPECT_EQ(optimizer.params.size() * 2, moments.tensors().size());
  // The rate of the next step, which the schedule has set already.
  const std::vector<double> rates = tiny.values(metrics::RecordKind::kTrain, "learning_rate");
  EXPECT_EQ(optimizer.groups[0].number("lr"), rates[8]);
  ASSERT_EQ(file.schedulers.size(), 1u);
  EXPECT_EQ(file.schedulers[0].last_epoch, 8);
  EXPECT_EQ(file.schedulers[0].step_count, 9);
  EXPECT_EQ(file.schedulers[0].last_lrs, std::vector<double>{rates[8]});
  EXPECT_NE(file.callbacks, archive::kNoNode);

  // The configuration of the model, as NeMo's own class.
  const NodeId cfg = file.file.tree.find(file.hyper_parameters, "cfg");
  ASSERT_TRUE(file.file.tree.is(cfg, archive::NodeKind::kObject));
  EXPECT_EQ(file.file.tree.object_class(cfg), "omegaconf.dictconfig.DictConfig");
  const auto node = archive::model_config_of(file);
  ASSERT_TRUE(node.ok()) << node.status().to_string();
  EXPECT_EQ(*node->find("encoder.d_model"), config::Value(16));
  EXPECT_TRUE(ends_with(node->find("target")->as_string(), "EncDecDenoiseMaskedTokenPredModel"));
}

TEST(LightningExportTest, TheEndOfAnEpochIsTheBeginningOfTheNext) {
  const TinyRun tiny;
  ASSERT_TRUE(tiny.train(kKeys).ok());
  const Exported out = export_checkpoint(checkpoint_of(tiny, 6), tiny.file("out.ckpt"));
  EXPECT_EQ(out.file.epoch, 1);
  EXPECT_EQ(out.at({"loops", "fit_loop", "epoch_progress", "current", "processed"}), 1);
  EXPECT_EQ(out.at({"loops", "fit_loop", "epoch_loop.batch_progress", "current", "ready"}), 0);
  EXPECT_EQ(out.at({"loops", "fit_loop", "epoch_loop.batch_progress", "total", "ready"}), 6);
}

// There and back: the same losses to the bit, from the beginning of an epoch on.
TEST(LightningExportTest, ARunGoesOnFromIt) {
  for (const char* optim :
       {"{name: adamw, lr: 1e-3, sched: {name: CosineAnnealing, warmup_steps: 3}}",
        "{name: sgd, lr: 1e-2, momentum: 0.9, sched: {name: StepLR, step_size: 4}}",
        "{name: novograd, lr: 1e-2, amsgrad: true, sched: {name: WarmupPolicy, warmup_steps: 3}}",
        "{name: adam, lr: 1e-3}"}) {
    std::vector<std::string> keys = kKeys;
    keys.insert(keys.end(), {"~model.optim", str_cat("+model.optim=", optim)});
    const TinyRun whole;
    const auto first = whole.train(keys);
    ASSERT_TRUE(first.ok()) << first.status().to_string();
    const std::string path = whole.file("half.ckpt");
    export_checkpoint(checkpoint_of(whole, 6), path);

    const std::vector<double> before = whole.values(metrics::RecordKind::kTrain, "train_loss");
    keys.insert(keys.end(),
                {"exp_manager.exp_dir=" + whole.file("other"), "exp_manager.resume_if_exists=false",
                 "++exp_manager.version=one", "++exp_manager.resume_from_checkpoint=" + path});
    const auto second = whole.train(keys);
    ASSERT_TRUE(second.ok()) << optim << second.status().to_string();
    const auto records =
        metrics::read_metrics(Env::real(), second->run_dir + "/metrics.jsonl").value().records;
    std::vector<double> after;
    double loss = 0.0;
    for (const metrics::Record& record : records)
      if (record.kind() == metrics::RecordKind::kTrain && record.number("train_loss", &loss))
        after.push_back(loss);
    ASSERT_EQ(after.size(), 6u) << optim;
    EXPECT_EQ(after, std::vector<double>(before.begin() + 6, before.end())) << optim;
  }
}

TEST(LightningExportTest, ARunGoesOnWithItsAverages) {
  const TinyRun tiny;
  std::vector<std::string> keys = kKeys;
  keys.insert(keys.end(), {"++exp_manager.ema.enable=true", "++exp_manager.ema.decay=0.5"});
  ASSERT_TRUE(tiny.train(keys).ok());
  const std::string half = checkpoint_of(tiny, 6), path = tiny.file("half.ckpt");
  export_checkpoint(half, path);
  export_checkpoint(half, averaged_path(path), true);
  const archive::TensorArchive expected = tensors(checkpoint_of(tiny, 12), "ema");
  keys.insert(keys.end(),
              {"exp_manager.exp_dir=" + tiny.file("other"), "exp_manager.resume_if_exists=false",
               "++exp_manager.version=one", "++exp_manager.resume_from_checkpoint=" + path});
  const auto second = tiny.train(keys);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  const archive::TensorArchive averages = tensors(second->last_checkpoint, "ema");
  for (const archive::TensorInfo& info : expected.tensors())
    expect_same(expected, info, averages, info.name);
}

TEST(LightningExportTest, WritesAveragesAsNemoDoes) {
  const TinyRun tiny;
  std::vector<std::string> keys = kKeys;
  keys.insert(keys.end(), {"++exp_manager.ema.enable=true", "++exp_manager.ema.decay=0.5"});
  ASSERT_TRUE(tiny.train(keys).ok());
  const std::string dir = checkpoint_of(tiny, 4);
  EXPECT_TRUE(export_checkpoint(dir, tiny.file("x.ckpt")).done.has_averages);
  EXPECT_EQ(averaged_path(tiny.file("x.ckpt")), tiny.file("x-EMA.ckpt"));
  const Exported out = export_checkpoint(dir, tiny.file("x-EMA.ckpt"), true);
  const archive::TensorArchive averages = tensors(dir, "ema"), model = tensors(dir, "model");
  size_t averaged = 0;
  for (const archive::TensorInfo& info : out.file.weights.tensors()) {
    const bool is_average = averages.find(info.name) != nullptr;
    averaged += is_average ? 1 : 0;
    expect_same(out.file.weights, info, is_average ? averages : model, info.name);
  }
  EXPECT_EQ(averaged, averages.tensors().size());
  EXPECT_LT(averaged, model.tensors().size());  // the buffers
  const archive::NodeTree& tree = out.file.file.tree;
  const NodeId states = tree.find(out.file.file.root, "optimizer_states");
  ASSERT_NE(states, archive::kNoNode);
  const NodeId state = tree.items(states)[0];
  EXPECT_EQ(tree.as_int(tree.find(state, "current_step")), 4);
  EXPECT_EQ(tree.as_number(tree.find(state, "decay")), 0.5);
  EXPECT_EQ(tree.items(tree.find(state, "ema")).size(), averages.tensors().size());
  EXPECT_NE(tree.find(tree.find(state, "opt"), "param_groups"), archive::kNoNode);
  // NeMo opens this one with weights_only=True.
  const NodeId cfg = tree.find(out.file.hyper_parameters, "cfg");
  EXPECT_TRUE(tree.is(cfg, archive::NodeKind::kDict));
  EXPECT_TRUE(archive::model_config_of(out.file).ok());
}

// NeMo looks for one `*-last.ckpt`, unless a folder's name ends in `last`.
TEST(LightningExportTest, ARunKeepsThemWhereNemoLooks) {
  const TinyRun tiny;
  std::vector<std::string> keys{"aerie.lightning_checkpoints=true", "trainer.val_check_interval=2",
                                "++exp_manager.ema.enable=true"};
  const auto check = [&](int64_t step) {
    size_t last = 0, best = 0;
    for (const std::string& name : tiny.checkpoint_names()) {
      if (ends_with(name, "-last.ckpt")) {
        ++last;
        const auto file =
            archive::read_lightning_checkpoint(Env::real(), tiny.checkpoints() + "/" + name);
        ASSERT_TRUE(file.ok()) << file.status().to_string();
        EXPECT_EQ(file->global_step, step);
        EXPECT_TRUE(Env::real().exists(averaged_path(tiny.checkpoints() + "/" + name)));
      } else if (ends_with(name, ".ckpt") && !ends_with(name, "-EMA.ckpt")) {
        ++best;
        EXPECT_TRUE(tiny.checkpoint_names().contains(name.substr(0, name.size() - 5))) << name;
      }
      EXPECT_FALSE(ends_with(name, "last")) << name;
    }
    EXPECT_EQ(last, 1u);
    EXPECT_EQ(best, 1u);
  };
  const auto first = tiny.train(keys);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  check(6);
  keys.push_back("trainer.max_steps=8");
  const auto second = tiny.train(keys);
  ASSERT_TRUE(second.ok()) << second.status().to_string();
  EXPECT_EQ(second->step, 8);
  EXPECT_EQ(tiny.steps(metrics::RecordKind::kTrain).size(), 8u);  // went on from the native one
  check(8);
}

TEST(LightningExportTest, SaysWhatIsMissing) {
  const TinyRun tiny;
  ASSERT_TRUE(tiny.train({"trainer.max_steps=3"}).ok());
  const std::string dir = checkpoint_of(tiny, 3);
  const auto averaged =
      convert_native_checkpoint(Env::real(), dir, tiny.file("x.ckpt"), "", /*averaged=*/true);
  ASSERT_FALSE(averaged.ok());
  EXPECT_NE(averaged.status().to_string().find("no averaged weights"), std::string::npos);
  EXPECT_FALSE(Env::real().exists(tiny.file("x.ckpt")));
  ASSERT_TRUE(Env::real().remove_file(tiny.run_dir() + "/config.yaml").ok());
  const auto without = convert_native_checkpoint(Env::real(), dir, tiny.file("x.ckpt"), "", false);
  ASSERT_FALSE(without.ok());
  EXPECT_NE(without.status().to_string().find("--config"), std::string::npos)
      << without.status().to_string();
}

}  // namespace
}  // namespace aerie::train
