// Weights in and out of models: names, strictness, include/exclude, whole archives.
#include "aerie/models/nest/nemo_model.h"

#include <fstream>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linspace.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "aerie/archive/nemo.h"
#include "aerie/archive/safetensors.h"
#include "aerie/base/system.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/checkpoint/state_dict.h"
#include "aerie/checkpoint/tensor_io.h"
#include "aerie/config/yaml.h"
#include "aerie/models/nest/restore.h"

namespace aerie::ckpt {
namespace {

const std::string kPlain = test_data("/golden/plain/init.nemo");

RestoredModel restore(const std::string& path) {
  auto out = restore_nest(Env::real(), path, {});
  EXPECT_TRUE(out.ok()) << out.status().to_string();
  return std::move(out).value();
}

class CkptTest : public ::testing::Test {
 protected:
  // An archive of a model, as a run writes them.
  void save(const std::string& name, const config::Value& node,
            const nn::ParameterRegistry& registry) const {
    const auto text = config::emit_yaml(node);
    const auto tensors = state_dict_tensors(registry);
    ASSERT_TRUE(text.ok() && tensors.ok());
    const Status saved = archive::write_nemo(Env::real(), path(name), *text, *tensors);
    ASSERT_TRUE(saved.ok()) << saved.to_string();
  }
  std::string path(const std::string& name) const { return dir_.path() + "/" + name; }
  // All tensors of a registry, some of them changed, as a safetensors file.
  archive::TensorArchive write(std::vector<archive::OutTensor> tensors) {
    const std::string file = path("weights.safetensors");
    const Status written = archive::write_safetensors(Env::real(), file, tensors);
    EXPECT_TRUE(written.ok()) << written.to_string();
    auto read = archive::read_safetensors(Env::real(), file);
    EXPECT_TRUE(read.ok());
    return std::move(read).value();
  }
  TempDir dir_;
};

TEST_F(CkptTest, SavedModelsRestoreEqual) {
  const RestoredModel first = restore(kPlain);
  save("a.nemo", first.model_node, first.model->parameters());
  const RestoredModel second = restore(path("a.nemo"));
  const nn::ParameterRegistry& a = first.model->parameters();
  const nn::ParameterRegistry& b = second.model->parameters();
  ASSERT_EQ(a.size(), b.size());
  for (int64_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a.tensor(i), b.tensor(i))) << a.entries()[static_cast<size_t>(i)].name;
    EXPECT_EQ(a.tensor(i).scalar_type(), b.tensor(i).scalar_type());
  }
  EXPECT_EQ(second.model->parameters()["quantizer.codebooks"].scalar_type(), at::kDouble);
}

TEST_F(CkptTest, PostConvKeepsItsBlockSizeThroughSaveAndRestore) {
  RestoredModel first = restore(kPlain);
  config::Value node = first.model_node;
  ASSERT_TRUE(node.set("mask_position", config::Value("post_conv")).ok());
  auto config = model_config_of(node);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  auto model = nest::NestModel::create(*config, {});
  ASSERT_TRUE(model.ok()) << model.status().to_string();
  EXPECT_EQ((*model)->masking().block_size(), 5);
  save("p.nemo", node, (*model)->parameters());
  const RestoredModel second = restore(path("p.nemo"));
  EXPECT_EQ(second.model->masking().block_size(), 5);
  save("q.nemo", second.model_node, second.model->parameters());
  EXPECT_EQ(restore(path("q.nemo")).model->masking().block_size(), 5);
  // Duplicated names hold the same values.
  const nn::ParameterRegistry& p = second.model->parameters();
  EXPECT_TRUE(at::equal(p["pre_encoder.pre_encode.out.weight"],
                        p["encoder.pre_encode.pre_encode.out.weight"]));
}

TEST_F(CkptTest, StrictLoadingListsEveryDifference) {
  const RestoredModel source = restore(kPlain);
  RestoredModel target = restore(kPlain);
  auto tensors = state_dict_tensors(source.model->parameters());
  ASSERT_TRUE(tensors.ok());
  // One missing, one unexpected, one of another shape.
  tensors->erase(tensors->begin() + 5);
  const std::string missing = source.model->parameters().entries()[5].name;
  tensors->push_back(*out_tensor("decoder.extra", at::ones({2})));
  for (auto& tensor : *tensors) {
    if (tensor.name == "decoder.decoder_layers.0.bias")
      tensor = *out_tensor(tensor.name, at::ones({3}));
  }
  const archive::TensorArchive file = write(*tensors);
  const at::Tensor before = target.model->parameters().flat_params().clone();
  auto result = load_state_dict(file, target.model->parameters(), {});
  ASSERT_FALSE(result.ok());
  const std::string text = result.status().to_string();
  EXPECT_NE(text.find(missing), std::string::npos) << text;
  EXPECT_NE(text.find("decoder.extra"), std::string::npos) << text;
  EXPECT_NE(text.find("size mismatch for decoder.decoder_layers.0.bias"), std::string::npos)
      << text;
  EXPECT_NE(text.find("[3]"), std::string::npos) << text;
  EXPECT_TRUE(at::equal(before, target.model->parameters().flat_params())) << "changed on error";
  // A wrong shape is an error even when not strict, as in NeMo.
  LoadOptions loose;
  loose.strict = false;
  EXPECT_FALSE(load_state_dict(file, target.model->parameters(), loose).ok());
}

TEST_F(CkptTest, NonStrictLoadsWhatFits) {
  const RestoredModel source = restore(kPlain);
  RestoredModel target = restore(kPlain);
  auto tensors = state_dict_tensors(source.model->parameters());
  ASSERT_TRUE(tensors.ok());
  tensors->erase(tensors->begin() + 5);
  tensors->push_back(*out_tensor("other.weight", at::ones({2})));
  LoadOptions loose;
  loose.strict = false;
  auto report = load_state_dict(write(*tensors), target.model->parameters(), loose);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->missing.size(), 1u);
  EXPECT_EQ(report->unexpected, (std::vector<std::string>{"other.weight"}));
  EXPECT_EQ(report->loaded.size(), source.model->parameters().entries().size() - 1);
  EXPECT_NE(report->summary().find("other.weight"), std::string::npos);
}

TEST_F(CkptTest, DtypesAreConverted) {
  RestoredModel target = restore(kPlain);
  const std::string name = "decoder.decoder_layers.0.bias";
  const at::Tensor value = at::linspace(-1, 1, 128, at::kDouble);
  LoadOptions loose;
  loose.strict = false;
  ASSERT_TRUE(load_state_dict(write({*out_tensor(name, value.to(at::kBFloat16))}),
                              target.model->parameters(), loose)
                  .ok());
  EXPECT_TRUE(
      at::equal(target.model->parameters()[name].detach(), value.to(at::kBFloat16).to(at::kFloat)));
}

TEST_F(CkptTest, InitFromTakesWhatIncludeAndExcludeSay) {
  const RestoredModel source = restore(kPlain);
  auto config = model_config_of(source.model_node);
  ASSERT_TRUE(config.ok());
  config::NestAerieConfig aerie;
  aerie.seed = 99;
  auto fresh = nest::NestModel::create(*config, aerie);
  ASSERT_TRUE(fresh.ok());
  nn::ParameterRegistry& p = (*fresh)->parameters();
  const at::Tensor decoder = p["decoder.decoder_layers.0.weight"].detach().clone();
  const at::Tensor norm = p["encoder.layers.1.norm_out.weight"].detach().clone();

  config::InitFromConfig init;
  init.kind = config::InitFromConfig::Kind::kNemoModel;
  init.sources.push_back({"ssl", kPlain, {"encoder"}, {"layers.1."}});
  auto reports = initialize_from(Env::real(), init, p);
  ASSERT_TRUE(reports.ok()) << reports.status().to_string();
  ASSERT_EQ(reports->size(), 1u);
  EXPECT_TRUE(
      at::equal(p["encoder.layers.0.feed_forward1.linear1.weight"],
                source.model->parameters()["encoder.layers.0.feed_forward1.linear1.weight"]));
  EXPECT_TRUE(at::equal(p["decoder.decoder_layers.0.weight"], decoder));
  EXPECT_TRUE(at::equal(p["encoder.layers.1.norm_out.weight"], norm));
  for (const std::string& name : (*reports)[0].loaded) {
    EXPECT_NE(name.find("encoder"), std::string::npos);
    EXPECT_EQ(name.find("layers.1."), std::string::npos);
  }

  init.sources[0].include = {"no_such_part"};
  auto nothing = initialize_from(Env::real(), init, p);
  ASSERT_FALSE(nothing.ok());
  EXPECT_NE(nothing.status().to_string().find("init_from_nemo_model.ssl"), std::string::npos);
  init.sources[0].path = path("absent.nemo");
  EXPECT_FALSE(initialize_from(Env::real(), init, p).ok());
}

// Growth of the process while `work` runs, at its highest, in MiB.
template <typename Work>
int64_t peak_growth_mib(Work&& work) {
  std::ofstream("/proc/self/clear_refs") << "5";  // the high-water mark starts again
  const uint64_t before = process_memory(Env::real()).rss_bytes;
  work();
  return static_cast<int64_t>((process_memory(Env::real()).peak_rss_bytes - before) >> 20);
}

TEST_F(CkptTest, AConfigCannotMakeUsAllocateMoreThanTheFileHolds) {
  const RestoredModel source = restore(kPlain);
  auto tensors = state_dict_tensors(source.model->parameters());
  ASSERT_TRUE(tensors.ok());
  using Change = std::vector<std::pair<const char*, int64_t>>;
  const Change changes[] = {
      {{"encoder.d_model", 1 << 13}, {"decoder.feat_in", 1 << 13}},
      {{"encoder.d_model", 1 << 20}, {"decoder.feat_in", 1 << 20}},
      {{"encoder.d_model", 1'000'000'000}, {"decoder.feat_in", 1'000'000'000}},
      {{"encoder.n_layers", 1000}},
      {{"encoder.n_layers", 1'000'000'000}},
      {{"encoder.conv_kernel_size", 100'000'001}},
      {{"encoder.conv_kernel_size", 999'999}},
      {{"encoder.ff_expansion_factor", 1000}},
      {{"encoder.feat_out", 1 << 20}, {"decoder.feat_in", 1 << 20}},
      {{"encoder.subsampling_conv_channels", 1 << 16}},
      {{"decoder.num_classes", 1 << 24}, {"quantizer.num_classes", 1 << 24}},
      {{"decoder.num_classes", 1'000'000'000}, {"quantizer.num_classes", 1'000'000'000}},
      {{"quantizer.num_books", 1024}, {"decoder.num_decoders", 1024}, {"loss.num_decoders", 1024}},
      {{"quantizer.code_dim", 1 << 16}},
      {{"quantizer.combine_time_steps", 4096}},
      {{"masking.block_size", 1'000'000'000}},
      {{"preprocessor.n_fft", 1 << 20}},
      {{"preprocessor.n_fft", 1'000'000'000}},
      {{"preprocessor.sample_rate", 1'000'000'000}},
      {{"preprocessor.pad_to", 1'000'000'000}},
      {{"preprocessor.features", 1 << 16},
       {"encoder.feat_in", 1 << 16},
       {"masking.feat_in", 1 << 16},
       {"quantizer.feat_in", 1 << 16}},
      {{"preprocessor.features", 1 << 16},
       {"preprocessor.n_fft", 1 << 20},
       {"encoder.feat_in", 1 << 16},
       {"masking.feat_in", 1 << 16},
       {"quantizer.feat_in", 1 << 16}},
  };
  for (const Change& change : changes) {
    config::Value node = source.model_node;
    std::string what;
    for (const auto& [key, value] : change) {
      ASSERT_TRUE(node.set(key, config::Value(value)).ok());
      what += std::string(key) + "=" + std::to_string(value) + " ";
    }
    SCOPED_TRACE(what);
    auto text = config::emit_yaml(node);
    ASSERT_TRUE(text.ok());
    ASSERT_TRUE(archive::write_nemo(Env::real(), path("huge.nemo"), *text, *tensors).ok());
    const int64_t growth = peak_growth_mib(
        [&] { EXPECT_FALSE(restore_nest(Env::real(), path("huge.nemo"), {}).ok()); });
    EXPECT_LT(growth, 64);
  }
}

TEST_F(CkptTest, OtherModelsAreRefusedByName) {
  RestoredModel source = restore(kPlain);
  auto tensors = state_dict_tensors(source.model->parameters());
  ASSERT_TRUE(tensors.ok());
  config::Value node = source.model_node;
  node.as_map().set("target", "nemo.collections.asr.models.EncDecCTCModel");
  auto text = config::emit_yaml(node);
  ASSERT_TRUE(text.ok());
  ASSERT_TRUE(archive::write_nemo(Env::real(), path("ctc.nemo"), *text, *tensors).ok());
  auto restored = restore_nest(Env::real(), path("ctc.nemo"), {});
  ASSERT_FALSE(restored.ok());
  EXPECT_NE(restored.status().to_string().find("EncDecCTCModel"), std::string::npos);
}

}  // namespace
}  // namespace aerie::ckpt
