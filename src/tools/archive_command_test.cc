// aerie inspect and aerie convert, run as a user runs them.
#include <cstring>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/archive/any_archive.h"
#include "aerie/archive/nemo.h"
#include "aerie/archive/safetensors.h"
#include "aerie/base/hash.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "command_test.h"

namespace aerie::tools {
namespace {

const std::string kNemo = test_data("/golden/ragged/init.nemo");
const std::string kCkpt = test_data("/archive/lightning.ckpt");

nlohmann::json inspect_json(const std::string& file) {
  const Outcome outcome = run(run_inspect, {file, "--json"});
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  return nlohmann::json::parse(outcome.out);
}

TEST(InspectTest, ShowsANemoArchive) {
  const Outcome outcome = run(run_inspect, {kNemo});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  for (const char* part :
       {"NeMo archive, 920.0 KiB", "model_config.yaml 2.9 KiB", "(135 float32, 1 float64, 3 int64)",
        "\n  sample_rate: 16000\n", "\n    pre_encode  12 tensors, ",
        "num_batches_tracked          int64    []                    8 bytes  "})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
}

TEST(InspectTest, ShowsALightningCheckpoint) {
  const Outcome outcome = run(run_inspect, {kCkpt, "--no-checksums"});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  for (const char* part :
       {"Lightning checkpoint", "global_step 3, epoch 1, Lightning 2.4.0",
        "optimizer 0: state of 51 parameters, 51 x exp_avg, 51 x exp_avg_sq",
        "group 0: 54 parameters, lr 1e-05",
        "hyper_parameters: object of omegaconf.dictconfig.DictConfig", "\n  encoder:\n"})
    EXPECT_NE(outcome.out.find(part), std::string::npos) << part << "\n" << outcome.out;
  const nlohmann::json json = inspect_json(kCkpt);
  EXPECT_EQ(json["checkpoint"]["global_step"], 3);
  EXPECT_EQ(json["checkpoint"]["optimizers"][0]["groups"][0]["values"]["weight_decay"], 0.001);
}

TEST(InspectTest, GivesEqualChecksumsForEqualWeights) {
  const TempDir dir;
  const nlohmann::json before = inspect_json(kNemo);
  EXPECT_EQ(before["num_tensors"], 139);
  for (const char* name : {"a.safetensors", "b.nemo", "c.ckpt", "d.pt"}) {
    const std::string out = dir.file(name);
    const Outcome outcome = run(run_convert, {kNemo, out});
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.to_string();
    const nlohmann::json after = inspect_json(out);
    EXPECT_EQ(after["checksum"], before["checksum"]) << name;
    EXPECT_EQ(after["tensors"], before["tensors"]) << name;
  }
}

TEST(InspectTest, RefusesWhatItDoesNotKnow) {
  EXPECT_EQ(run(run_inspect, {}).status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(run_inspect, {"--nonsense"}).status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(run(run_inspect, {test_data("/golden/README.md")}).status.code(),
            StatusCode::kDataError);
  EXPECT_NE(run(run_inspect, {"--help"}).out.find("example:"), std::string::npos);
}

TEST(InspectTest, AFileThatIsNotThereIsAMistakeOnTheCommandLine) {
  const TempDir dir;
  const std::string none = dir.file("none.nemo");
  for (const Outcome& outcome :
       {run(run_inspect, {none}), run(run_convert, {none, dir.file("out.nemo")})}) {
    EXPECT_EQ(outcome.exit_code(), 2);
    EXPECT_NE(outcome.status.to_string().find(str_cat("there is no '", none, "'")),
              std::string::npos);
  }
}

TEST(ConvertTest, CarriesTheConfigurationAlong) {
  const TempDir dir;
  const std::string through = dir.file("w.safetensors"), back = dir.file("back.nemo");
  ASSERT_TRUE(run(run_convert, {kNemo, through}).status.ok());
  ASSERT_TRUE(run(run_convert, {through, back}).status.ok());
  auto before = archive::read_nemo(Env::real(), kNemo);
  auto after = archive::read_nemo(Env::real(), back);
  ASSERT_TRUE(after.ok()) << after.status().to_string();
  EXPECT_EQ(after->config_yaml, before->config_yaml);

  // A checkpoint brings its own, out of its hyper-parameters.
  const std::string from_ckpt = dir.file("from_ckpt.nemo");
  const Outcome outcome = run(run_convert, {kCkpt, from_ckpt});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  EXPECT_NE(outcome.out.find("59 tensors"), std::string::npos);
  after = archive::read_nemo(Env::real(), from_ckpt);
  ASSERT_TRUE(after.ok());
  EXPECT_NE(after->config_yaml.find("d_model: 16\n"), std::string::npos);
}

TEST(ConvertTest, TakesAConfigurationForBareWeights) {
  const TempDir dir;
  const std::string bare = dir.file("w.pt"), out = dir.file("out.nemo");
  ASSERT_TRUE(run(run_convert, {kNemo, bare}).status.ok());
  const Outcome without = run(run_convert, {bare, out});
  EXPECT_EQ(without.status.code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(without.status.hint(), "name one with --config");
  EXPECT_FALSE(Env::real().exists(out));
  const Outcome with =
      run(run_convert, {bare, out, "--config", test_data("/golden/ragged/config.yaml")});
  ASSERT_TRUE(with.status.ok()) << with.status.to_string();
  EXPECT_EQ(archive::read_nemo(Env::real(), out)->config_yaml,
            archive::read_nemo(Env::real(), kNemo)->config_yaml);
}

TEST(ConvertTest, TakesTheFolderOfANativeCheckpoint) {
  const TempDir dir;
  const std::string stem = dir.file("checkpoints/NEST--step=3-last");
  ASSERT_TRUE(Env::real().create_dirs(stem).ok());
  EXPECT_EQ(run(run_inspect, {stem}).status.code(), StatusCode::kDataError);
  ASSERT_TRUE(run(run_convert, {kNemo, dir.file("bare.pt")}).status.ok());
  ASSERT_TRUE(run(run_convert, {dir.file("bare.pt"), stem + "/model.safetensors"}).status.ok());
  EXPECT_NE(run(run_inspect, {stem}).out.find("aerie checkpoint"), std::string::npos);
  const std::string out = dir.file("out.nemo");
  EXPECT_EQ(run(run_convert, {stem, out}).status.code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(
      Env::real().copy_file(test_data("/golden/ragged/config.yaml"), dir.file("config.yaml")).ok());
  const Outcome outcome = run(run_convert, {stem, out});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  EXPECT_EQ(archive::read_nemo(Env::real(), out)->config_yaml,
            archive::read_nemo(Env::real(), kNemo)->config_yaml);
}

// A native checkpoint as `aerie train` leaves it; `damaged`: its weights are not what was written.
void make_checkpoint(const std::string& folder, int64_t step, bool damaged = false) {
  Env& env = Env::real();
  ASSERT_TRUE(env.create_dirs(folder).ok());
  const std::string weights = join_path(folder, "model.safetensors");
  ASSERT_TRUE(run(run_convert, {kNemo, weights}).status.ok());
  const std::string bytes = env.read_file(weights).value();
  const nlohmann::json manifest{
      {"format", "aerie-checkpoint"},
      {"version", 1},
      {"step", step},
      {"files",
       {{"model.safetensors",
         {{"bytes", bytes.size()}, {"xxh64", hex64(xxhash64(bytes) + (damaged ? 1 : 0))}}}}}};
  ASSERT_TRUE(env.write_file(join_path(folder, "manifest.json"), manifest.dump()).ok());
}

TEST(ConvertTest, TheFolderOfARunMeansItsNewestWholeCheckpoint) {
  const TempDir dir;
  make_checkpoint(dir.file("run/checkpoints/a-step=10"), 10);
  make_checkpoint(dir.file("run/checkpoints/b-step=20-last"), 20);
  make_checkpoint(dir.file("run/checkpoints/c-step=30"), 30, /*damaged=*/true);
  make_checkpoint(dir.file("run/checkpoints/d-step=40-unhealthy"), 40);
  for (const char* folder : {"run", "run/checkpoints"}) {
    const Outcome shown = run(run_inspect, {dir.file(folder), "--no-checksums"});
    ASSERT_TRUE(shown.status.ok()) << shown.status.to_string();
    EXPECT_NE(shown.out.find("b-step=20-last: aerie checkpoint"), std::string::npos) << shown.out;
  }
  const Outcome written = run(run_convert, {dir.file("run"), dir.file("out.safetensors")});
  EXPECT_TRUE(written.status.ok()) << written.status.to_string();
  ASSERT_TRUE(Env::real().create_dirs(dir.file("empty")).ok());
  EXPECT_EQ(run(run_inspect, {dir.file("empty")}).status.code(), StatusCode::kDataError);
}

// The averages cover the parameters alone.
TEST(ConvertTest, CompletesAveragedWeightsWithTheBuffers) {
  const TempDir dir;
  Env& env = Env::real();
  const std::string stem = dir.file("checkpoints/NEST--step=3-last");
  ASSERT_TRUE(env.create_dirs(stem).ok());
  const auto whole = archive::read_nemo(env, kNemo);
  ASSERT_TRUE(whole.ok());
  std::vector<archive::OutTensor> model = archive::out_tensors(whole->weights), averages;
  for (const archive::OutTensor& tensor : model) {
    const bool buffer = starts_with(tensor.name, "preprocessor.") ||
                        tensor.name.find("running_") != std::string::npos ||
                        tensor.name.find("num_batches_tracked") != std::string::npos;
    if (buffer) continue;
    averages.push_back(tensor);
    averages.back().fill = [](void* out, uint64_t bytes) {
      std::memset(out, 0, bytes);
      return ok_status();
    };
  }
  ASSERT_LT(averages.size(), model.size());
  ASSERT_TRUE(archive::write_safetensors(env, stem + "/model.safetensors", model).ok());
  const std::string config = test_data("/golden/ragged/config.yaml");
  ASSERT_TRUE(env.copy_file(config, dir.file("config.yaml")).ok());

  const std::string out = dir.file("out.nemo");
  EXPECT_NE(run(run_convert, {stem, out, "--ema"}).status.to_string().find("no averaged weights"),
            std::string::npos);
  EXPECT_EQ(run(run_convert, {kNemo, out, "--ema"}).status.code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(archive::write_safetensors(env, stem + "/ema.safetensors", averages).ok());
  // Away from its checkpoint NeMo could not restore it.
  ASSERT_TRUE(env.copy_file(stem + "/ema.safetensors", dir.file("alone.safetensors")).ok());
  const Outcome alone = run(run_convert, {dir.file("alone.safetensors"), out, "--config", config});
  EXPECT_EQ(alone.status.code(), StatusCode::kDataError);
  EXPECT_NE(alone.status.to_string().find("preprocessor.featurizer.window"), std::string::npos)
      << alone.status.to_string();
  EXPECT_FALSE(env.exists(out));

  ASSERT_TRUE(env.write_file(stem + "/manifest.json", "{}").ok());
  for (const std::vector<std::string>& args :
       {std::vector<std::string>{stem, out, "--ema"}, {stem + "/ema.safetensors", out}}) {
    const Outcome outcome = run(run_convert, args);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.to_string();
    const auto written = archive::read_nemo(env, out);
    ASSERT_TRUE(written.ok());
    ASSERT_EQ(written->weights.tensors().size(), model.size());
    size_t zeros = 0;
    for (size_t i = 0; i < model.size(); ++i) {
      const archive::TensorInfo& info = written->weights.tensors()[i];
      EXPECT_EQ(info.name, model[i].name);
      const std::string bytes = written->weights.read(info).value();
      if (bytes == std::string(bytes.size(), '\0')) ++zeros;
      if (info.name == "preprocessor.featurizer.fb") {
        EXPECT_EQ(bytes, whole->weights.read(*whole->weights.find(info.name)).value());
      }
    }
    EXPECT_GE(zeros, averages.size());
    ASSERT_TRUE(env.remove_file(out).ok());
  }
}

TEST(ConvertTest, RewritesACheckpointWithoutForeignObjects) {
  const TempDir dir;
  const std::string out = dir.file("plain.ckpt");
  const Outcome outcome = run(run_convert, {kCkpt, out});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status.to_string();
  EXPECT_EQ(outcome.err,
            "note: left out hyper_parameters: an object of omegaconf.dictconfig.DictConfig\n"
            "note: left out hparams_type: the name omegaconf.dictconfig.DictConfig\n");
  auto before = archive::read_lightning_checkpoint(Env::real(), kCkpt);
  auto after = archive::read_lightning_checkpoint(Env::real(), out);
  ASSERT_TRUE(after.ok()) << after.status().to_string();
  EXPECT_EQ(after->global_step, 3);
  EXPECT_EQ(after->schedulers[0].last_epoch, before->schedulers[0].last_epoch);
  const archive::OptimizerState& a = before->optimizers[0];
  const archive::OptimizerState& b = after->optimizers[0];
  ASSERT_EQ(a.params.size(), b.params.size());
  EXPECT_EQ(a.groups[0].numbers, b.groups[0].numbers);
  for (size_t i = 0; i < a.params.size(); ++i) {
    EXPECT_EQ(a.params[i].step, b.params[i].step);
    ASSERT_EQ(a.params[i].tensors.size(), b.params[i].tensors.size());
    for (size_t t = 0; t < a.params[i].tensors.size(); ++t)
      EXPECT_EQ(before->file.tensors.read(a.params[i].tensors[t]).value(),
                after->file.tensors.read(b.params[i].tensors[t]).value());
  }
}

// The configuration inside matters only where it goes on.
TEST(ConvertTest, ABrokenConfigurationStopsOnlyWhatNeedsIt) {
  const TempDir dir;
  auto source = archive::read_nemo(Env::real(), kNemo);
  ASSERT_TRUE(source.ok());
  const std::string broken = dir.file("broken.nemo");
  ASSERT_TRUE(
      archive::write_nemo(Env::real(), broken, "a: [1, 2\n", archive::out_tensors(source->weights))
          .ok());
  const Outcome refused = run(run_convert, {broken, dir.file("out.nemo")});
  EXPECT_EQ(refused.status.code(), StatusCode::kDataError);
  EXPECT_NE(refused.status.to_string().find("model_config.yaml:"), std::string::npos);
  EXPECT_FALSE(Env::real().exists(dir.file("out.nemo")));
  for (const char* name : {"out.safetensors", "out.ckpt", "out.pt"})
    EXPECT_TRUE(run(run_convert, {broken, dir.file(name)}).status.ok()) << name;
  EXPECT_TRUE(run(run_convert, {broken, dir.file("out.nemo"), "--config",
                                test_data("/golden/ragged/config.yaml")})
                  .status.ok());
}

TEST(ConvertTest, ACheckpointOfAnotherModelKeepsItsWeights) {
  const TempDir dir;
  archive::NodeTree tree;
  auto source = archive::read_nemo(Env::real(), kNemo);
  std::vector<archive::OutTensor> tensors = archive::out_tensors(source->weights);
  const archive::NodeId root = tree.add_dict();
  tree.set(root, "pytorch-lightning_version", tree.add_string("2.4.0"));
  tree.set(root, "global_step", tree.add_int(3));
  tree.set(root, "epoch", tree.add_int(0));
  tree.set(root, "state_dict", archive::add_state_dict(tree, tensors));
  const archive::NodeId hyper = tree.add_dict();
  tree.set(hyper, "hidden", tree.add_int(8));
  tree.set(root, "hyper_parameters", hyper);
  auto writer = archive::TorchWriter::make(tree, root, std::move(tensors), "x");
  ASSERT_TRUE(writer.ok()) << writer.status().to_string();
  const std::string in = dir.file("other.ckpt");
  ASSERT_TRUE(archive::write_atomically(Env::real(), in, [&](const archive::Sink& sink) {
                return writer->write(sink, {});
              }).ok());
  for (const char* name : {"out.safetensors", "out.ckpt", "out.pt"}) {
    const Outcome outcome = run(run_convert, {in, dir.file(name)});
    EXPECT_TRUE(outcome.status.ok()) << name << ": " << outcome.status.to_string();
  }
  EXPECT_FALSE(run(run_convert, {in, dir.file("out.nemo")}).status.ok());
}

TEST(ConvertTest, LeavesNothingBehindWhenItFails) {
  const TempDir dir;
  EXPECT_EQ(run(run_convert, {kNemo, dir.file("x.bin")}).status.code(),
            StatusCode::kInvalidArgument);
  EXPECT_EQ(run(run_convert, {kNemo}).status.code(), StatusCode::kInvalidArgument);
  // Damage in the middle of the weights shows only while they are copied.
  std::string bytes = Env::real().read_file(kNemo).value();
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  ASSERT_TRUE(Env::real().write_file(dir.file("bad.nemo"), bytes).ok());
  const Outcome outcome = run(run_convert, {dir.file("bad.nemo"), dir.file("out.safetensors")});
  EXPECT_EQ(outcome.status.code(), StatusCode::kDataError);
  EXPECT_NE(outcome.status.to_string().find("CRC-32"), std::string::npos);
  EXPECT_EQ(Env::real().list_dir(dir.path()).value().size(), 1u);
}

}  // namespace
}  // namespace aerie::tools
