#include "aerie/models/nest/restore.h"

#include <cstring>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/archive/nemo.h"
#include "aerie/archive/safetensors.h"
#include "aerie/base/hash.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/checkpoint/tensor_io.h"

namespace aerie::ckpt {
namespace {

const std::string kFolder = test_data("/golden/plain");
const std::string kNemo = kFolder + "/init.nemo";
constexpr char kName[] = "encoder.layers.0.feed_forward1.linear1.weight";

// A run's folder with native checkpoints of the golden weights.
class RestoreTest : public ::testing::Test {
 protected:
  void SetUp() override {
    nemo_ = archive::read_nemo(env_, kNemo).value();
    ASSERT_TRUE(env_.create_dirs(run_ + "/checkpoints").ok());
    ASSERT_TRUE(env_.copy_file(kFolder + "/config.yaml", run_ + "/config.yaml").ok());
  }

  std::string add_checkpoint(const std::string& stem, int64_t step) {
    const std::string dir = run_ + "/checkpoints/" + stem;
    EXPECT_TRUE(env_.create_dir(dir).ok());
    const std::string path = dir + "/model.safetensors";
    EXPECT_TRUE(archive::write_safetensors(env_, path, archive::out_tensors(nemo_.weights)).ok());
    const std::string bytes = env_.read_file(path).value();
    const nlohmann::json manifest{
        {"format", "aerie-checkpoint"},
        {"version", 1},
        {"step", step},
        {"files",
         {{"model.safetensors", {{"bytes", bytes.size()}, {"xxh64", hex64(xxhash64(bytes))}}}}}};
    EXPECT_TRUE(env_.write_file(dir + "/manifest.json", manifest.dump()).ok());
    return dir;
  }

  void damage(const std::string& file) {
    std::string bytes = env_.read_file(file).value();
    bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
    ASSERT_TRUE(env_.write_file(file, bytes).ok());
  }

  // Restores, and compares a weight with the archive's.
  void expect_golden(const std::string& path, const std::string& config = "") {
    RestoreOptions options;
    options.config = config;
    const auto restored = restore_nest(env_, path, options);
    ASSERT_TRUE(restored.ok()) << restored.status().to_string();
    const at::Tensor want = read_tensor(nemo_.weights, kName).value();
    EXPECT_TRUE(at::equal(restored->model->parameters()[kName], want));
  }

  std::string error_of(const std::string& path, const std::string& config = "") {
    RestoreOptions options;
    options.config = config;
    const auto restored = restore_nest(env_, path, options);
    if (restored.ok()) return "no error";
    return str_cat(status_code_name(restored.status().code()), ": ", restored.status().to_string());
  }

  Env& env_ = Env::real();
  TempDir temp_;
  std::string run_ = temp_.file("run");
  archive::NemoArchive nemo_;
};

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST_F(RestoreTest, FromANemoArchive) {
  expect_golden(kNemo);
  // With the config replaced, as NeMo's override_config_path does.
  expect_golden(kNemo, kFolder + "/config.yaml");
}

TEST_F(RestoreTest, FromNativeCheckpoints) {
  const std::string dir = add_checkpoint("a--val_loss=5.1-step=10", 10);
  expect_golden(dir);
  expect_golden(dir + "/");
  expect_golden(dir + "/model.safetensors");
  expect_golden(run_);
  expect_golden(run_ + "/checkpoints");
}

TEST_F(RestoreTest, TakesTheNewestThatIsWhole) {
  const std::string old = add_checkpoint("step=5", 5);
  const std::string newest = add_checkpoint("step=20", 20);
  add_checkpoint(".step=30.tmp-new", 30);
  EXPECT_EQ(find_model(env_, run_)->weights, newest + "/model.safetensors");
  damage(newest + "/model.safetensors");
  EXPECT_EQ(find_model(env_, run_)->weights, old + "/model.safetensors");
  EXPECT_HAS(error_of(newest), "data error");
  EXPECT_HAS(error_of(newest), "do not match their checksum");
  damage(old + "/model.safetensors");
  EXPECT_HAS(error_of(run_), "no usable checkpoint");
}

TEST_F(RestoreTest, WeightsAloneNeedAConfig) {
  const std::string path = temp_.file("weights.safetensors");
  ASSERT_TRUE(archive::write_safetensors(env_, path, archive::out_tensors(nemo_.weights)).ok());
  EXPECT_HAS(error_of(path), "add --config");
  expect_golden(path, kFolder + "/config.yaml");
  // A model node standing alone.
  const std::string alone = temp_.file("model_config.yaml");
  ASSERT_TRUE(env_.write_file(alone, nemo_.config_yaml).ok());
  expect_golden(path, alone);
  ASSERT_TRUE(env_.write_file(alone, "trainer: {max_steps: 3}\n").ok());
  EXPECT_HAS(error_of(path, alone), "no `model` node");
}

TEST_F(RestoreTest, ArchivesWithoutAModelInsideSaySo) {
  const std::string path = temp_.file("odd.nemo");
  const auto error_with = [&](const std::string& yaml) {
    EXPECT_TRUE(archive::write_nemo(env_, path, yaml, archive::out_tensors(nemo_.weights)).ok());
    return error_of(path);
  };
  EXPECT_HAS(error_with("a: [1, 2\n"), "data error");
  EXPECT_HAS(error_with("a: [1, 2\n"), "model_config.yaml:2:1");
  EXPECT_HAS(error_with(""), "it has no preprocessor");
  EXPECT_HAS(error_with("[1, 2]\n"), "it has no preprocessor");
  EXPECT_HAS(error_with("preprocessor: {features: 80}\n"), "it has no encoder");
}

TEST_F(RestoreTest, LoadingIsStrict) {
  std::vector<archive::TensorInfo> tensors = nemo_.weights.tensors();
  tensors.pop_back();
  const archive::TensorArchive less = nemo_.weights.with_tensors(tensors).value();
  const std::string path = temp_.file("less.safetensors");
  ASSERT_TRUE(archive::write_safetensors(env_, path, archive::out_tensors(less)).ok());
  EXPECT_HAS(error_of(path, kFolder + "/config.yaml"), nemo_.weights.tensors().back().name);
}

TEST_F(RestoreTest, NamesWhatIsWrongWithAPath) {
  const std::string missing = error_of("nvidia/ssl_en_nest_large_v1.0");
  EXPECT_HAS(missing, "invalid argument");
  EXPECT_HAS(missing, "nvidia/ssl_en_nest_large_v1.0");
  EXPECT_HAS(error_of(run_), "no usable checkpoint");
  EXPECT_HAS(error_of(kNemo, "nowhere.yaml"), "nowhere.yaml");
  const std::string text = temp_.file("x.nemo");
  ASSERT_TRUE(env_.write_file(text, "not an archive").ok());
  EXPECT_HAS(error_of(text), "x.nemo");
  const std::string dir = add_checkpoint("step=1", 1);
  ASSERT_TRUE(env_.remove_file(run_ + "/config.yaml").ok());
  EXPECT_HAS(error_of(dir), "add --config");
}

TEST_F(RestoreTest, TakesAveragedWeightsWithTheModelsBuffers) {
  const std::string dir = add_checkpoint("a--step=3", 3);
  RestoreOptions options;
  options.averaged = true;
  for (const std::string& path : {dir, kNemo})
    EXPECT_NE(restore_nest(env_, path, options).status().to_string().find("no averaged weights"),
              std::string::npos);
  std::vector<archive::OutTensor> averages;
  for (archive::OutTensor& tensor : archive::out_tensors(nemo_.weights)) {
    if (starts_with(tensor.name, "preprocessor.") || ends_with(tensor.name, "running_var") ||
        ends_with(tensor.name, "running_mean") || ends_with(tensor.name, "num_batches_tracked"))
      continue;
    tensor.fill = [](void* out, uint64_t bytes) {
      std::memset(out, 0, bytes);
      return ok_status();
    };
    averages.push_back(std::move(tensor));
  }
  ASSERT_TRUE(archive::write_safetensors(env_, dir + "/ema.safetensors", averages).ok());
  for (const std::string& path : {dir, run_}) {
    const auto restored = restore_nest(env_, path, options);
    ASSERT_TRUE(restored.ok()) << restored.status().to_string();
    const nn::ParameterRegistry& registry = restored->model->parameters();
    EXPECT_EQ(registry[kName].abs().sum().item<float>(), 0.0f);
    EXPECT_GT(registry["preprocessor.featurizer.fb"].abs().sum().item<float>(), 0.0f);
  }
  expect_golden(dir);  // the weights themselves
}

// config.yaml keeps what came from the environment as an expression; the model does not need it.
TEST_F(RestoreTest, RestoresWhereAVariableOfTheRunIsNotSet) {
  std::string config = env_.read_file(run_ + "/config.yaml").value();
  const size_t at = config.find("manifest_filepath: train.json");
  ASSERT_NE(at, std::string::npos);
  config.replace(at, 29, "manifest_filepath: ${oc.env:AERIE_TEST_NOT_SET}/train.json");
  ASSERT_TRUE(env_.write_file(run_ + "/config.yaml", config).ok());
  expect_golden(add_checkpoint("a--step=3", 3));
}

}  // namespace
}  // namespace aerie::ckpt
