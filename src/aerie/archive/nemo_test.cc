#include "aerie/archive/nemo.h"

#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/archive/any_archive.h"
#include "aerie/archive/averages.h"
#include "aerie/archive/lightning_checkpoint.h"
#include "aerie/archive/nemo_config.h"
#include "aerie/archive/omegaconf.h"
#include "aerie/archive/test_support.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/config/yaml.h"

namespace aerie::archive {
namespace {

using testing::gzip;
using testing::small_nemo;
using testing::small_torch_file;
using testing::tar_end;
using testing::tar_member;

std::span<const uint8_t> bytes_of(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

std::string slurp(const std::string& path) {
  return Env::real().read_file(path).value();
}

template <typename T>
double total_of(const TensorArchive& archive, const TensorInfo& info) {
  const std::vector<T> values = archive.read_as<T>(info).value();
  double total = 0;
  for (const T value : values) total += static_cast<double>(value);
  return total;
}

double sum(const TensorArchive& archive, const TensorInfo& info) {
  if (info.dtype == Dtype::kF32) return total_of<float>(archive, info);
  if (info.dtype == Dtype::kF64) return total_of<double>(archive, info);
  return total_of<int64_t>(archive, info);
}

TEST(NemoTest, ReadsWhatNemoWrites) {
  for (const char* folder : {"plain", "ragged"}) {
    const std::string path = str_cat(test_data("/golden/"), folder, "/init.nemo");
    auto nemo = read_nemo(Env::real(), path);
    ASSERT_TRUE(nemo.ok()) << nemo.status().to_string();
    EXPECT_EQ(nemo->config_yaml.substr(0, 12), "sample_rate:");
    const std::vector<TensorInfo>& tensors = nemo->weights.tensors();
    EXPECT_EQ(tensors.front().name, "preprocessor.featurizer.window");
    EXPECT_EQ(tensors[2].name, "encoder.pre_encode.out.weight");
    EXPECT_EQ(nemo->weights.find("quantizer.codebooks")->dtype, Dtype::kF64);
    const TensorInfo* counter =
        nemo->weights.find("encoder.layers.0.conv.batch_norm.num_batches_tracked");
    ASSERT_NE(counter, nullptr);
    EXPECT_EQ(counter->dtype, Dtype::kI64);
    EXPECT_TRUE(counter->shape.empty());
    for (const TensorInfo& info : tensors) EXPECT_TRUE(nemo->weights.read(info).ok()) << info.name;
  }
}

TEST(NemoTest, WritesWhatItReads) {
  const TempDir dir;
  const std::string from = test_data("/golden/ragged/init.nemo");
  const std::string to = dir.file("copy.nemo");
  auto source = read_nemo(Env::real(), from);
  ASSERT_TRUE(source.ok());
  uint64_t last = 0, total = 0;
  ASSERT_TRUE(write_nemo(Env::real(), to, source->config_yaml, out_tensors(source->weights),
                         [&](uint64_t done, uint64_t all) {
                           EXPECT_GT(done, last);
                           last = done;
                           total = all;
                         })
                  .ok());
  EXPECT_LE(last, total);
  auto copy = read_nemo(Env::real(), to);
  ASSERT_TRUE(copy.ok()) << copy.status().to_string();
  EXPECT_EQ(copy->config_yaml, source->config_yaml);
  ASSERT_EQ(copy->weights.tensors().size(), source->weights.tensors().size());
  for (size_t i = 0; i < copy->weights.tensors().size(); ++i) {
    const TensorInfo& a = source->weights.tensors()[i];
    const TensorInfo& b = copy->weights.tensors()[i];
    EXPECT_EQ(a.name, b.name);
    EXPECT_EQ(a.dtype, b.dtype);
    EXPECT_EQ(a.shape, b.shape);
    EXPECT_EQ(source->weights.read(a).value(), copy->weights.read(b).value());
  }
  // The same input gives the same bytes.
  const std::string again = dir.file("again.nemo");
  ASSERT_TRUE(write_nemo(Env::real(), again, copy->config_yaml, out_tensors(copy->weights)).ok());
  EXPECT_EQ(slurp(to), slurp(again));
}

TEST(NemoTest, ReadsCompressedArchivesAndAnyMemberOrder) {
  const std::string config = tar_member("model_config.yaml", "a: 1\n");
  const std::string weights = tar_member("model_weights.ckpt", small_torch_file());
  const std::string other = tar_member("./tokenizer/vocab.txt", "x");
  for (const std::string& tar : {small_nemo(), weights + other + config + tar_end()}) {
    for (const std::string& file : {tar, gzip(tar)}) {
      auto nemo = read_nemo(bytes_of(file), "x.nemo");
      ASSERT_TRUE(nemo.ok()) << nemo.status().to_string();
      EXPECT_EQ(nemo->compressed, file != tar);
      const auto& tensor = nemo->weights.tensors()[0];
      EXPECT_EQ(nemo->weights.read_as<float>(tensor).value(),
                (std::vector<float>{0, 1, 2, 3, 4, 5}));
    }
  }
  // A compressed archive whose weights span several of the pieces it is unpacked into.
  const std::string golden = gzip(slurp(test_data("/golden/ragged/init.nemo")));
  auto packed = read_nemo(bytes_of(golden), "x.nemo");
  auto plain = read_nemo(Env::real(), test_data("/golden/ragged/init.nemo"));
  ASSERT_TRUE(packed.ok()) << packed.status().to_string();
  for (const TensorInfo& info : plain->weights.tensors())
    EXPECT_EQ(plain->weights.read(info).value(),
              packed->weights.read(*packed->weights.find(info.name)).value());
}

TEST(NemoTest, SaysWhatIsMissing) {
  const auto why = [](const std::string& file) {
    return read_nemo(bytes_of(file), "x.nemo").status().to_string();
  };
  EXPECT_EQ(why(tar_member("a", "b") + tar_end()),
            "x.nemo: not a NeMo archive: model_config.yaml is missing");
  EXPECT_EQ(why(tar_member("model_config.yaml", "a: 1\n") + tar_end()),
            "x.nemo: not a NeMo archive: model_weights.ckpt is missing");
  EXPECT_NE(why(tar_member("model_config.yaml", "") +
                tar_member("mp_rank_00/model_weights.ckpt", "x") + tar_end())
                .find("merge them with NeMo first"),
            std::string::npos);
  EXPECT_NE(why(tar_member("model_config.yaml", "\xff") +
                tar_member("model_weights.ckpt", small_torch_file()) + tar_end())
                .find("is not UTF-8"),
            std::string::npos);
}

TEST(LightningTest, ReadsACheckpointOfARealRun) {
  auto checkpoint = read_lightning_checkpoint(Env::real(), test_data("/archive/lightning.ckpt"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  const auto facts = nlohmann::json::parse(slurp(test_data("/archive/lightning.json")));
  EXPECT_EQ(checkpoint->global_step, facts["global_step"].get<int64_t>());
  EXPECT_EQ(checkpoint->epoch, facts["epoch"].get<int64_t>());
  EXPECT_EQ(checkpoint->lightning_version, facts["version"].get<std::string>());
  ASSERT_EQ(checkpoint->weights.tensors().size(), facts["tensors"].size());
  for (const TensorInfo& info : checkpoint->weights.tensors()) {
    const auto& fact = facts["tensors"].at(info.name);
    EXPECT_EQ(dtype_name(info.dtype), fact["dtype"].get<std::string>());
    EXPECT_EQ(info.shape, fact["shape"].get<std::vector<int64_t>>());
    EXPECT_NEAR(sum(checkpoint->weights, info), fact["sum"].get<double>(), 1e-9) << info.name;
  }

  ASSERT_EQ(checkpoint->optimizers.size(), 1u);
  const OptimizerState& optimizer = checkpoint->optimizers[0];
  ASSERT_EQ(optimizer.params.size(), facts["moments"].size());
  for (const ParamState& state : optimizer.params) {
    const auto& fact = facts["moments"].at(std::to_string(state.param));
    EXPECT_EQ(state.step, fact["step"].get<double>());
    const TensorInfo* first = checkpoint->moment(optimizer, state.param, "exp_avg");
    const TensorInfo* second = checkpoint->moment(optimizer, state.param, "exp_avg_sq");
    ASSERT_NE(first, nullptr);
    ASSERT_NE(second, nullptr);
    EXPECT_NEAR(sum(checkpoint->file.tensors, *first), fact["exp_avg_sum"].get<double>(), 1e-12);
    EXPECT_NEAR(sum(checkpoint->file.tensors, *second), fact["exp_avg_sq_sum"].get<double>(),
                1e-12);
  }
  ASSERT_EQ(optimizer.groups.size(), 1u);
  const auto& group = facts["group"];
  EXPECT_EQ(optimizer.groups[0].params, group["params"].get<std::vector<int64_t>>());
  EXPECT_EQ(optimizer.groups[0].betas, group["betas"].get<std::vector<double>>());
  EXPECT_EQ(optimizer.groups[0].number("lr"), group["lr"].get<double>());
  EXPECT_EQ(optimizer.groups[0].number("weight_decay"), group["weight_decay"].get<double>());
  EXPECT_EQ(optimizer.groups[0].number("amsgrad"), 0.0);

  ASSERT_EQ(checkpoint->schedulers.size(), 1u);
  EXPECT_EQ(checkpoint->schedulers[0].last_epoch, facts["schedule"]["last_epoch"].get<int64_t>());
  EXPECT_EQ(checkpoint->schedulers[0].step_count, facts["schedule"]["_step_count"].get<int64_t>());
  EXPECT_EQ(checkpoint->schedulers[0].base_lrs,
            facts["schedule"]["base_lrs"].get<std::vector<double>>());
  EXPECT_FALSE(checkpoint->scaler.has_value());
  const NodeTree& tree = checkpoint->file.tree;
  const NodeId fit = tree.find(checkpoint->loops, "fit_loop");
  const NodeId progress = tree.find(fit, "epoch_loop.batch_progress");
  EXPECT_EQ(tree.as_int(tree.find(tree.find(progress, "total"), "completed")), 3);
}

TEST(LightningTest, DecodesTheConfigurationInside) {
  auto checkpoint = read_lightning_checkpoint(Env::real(), test_data("/archive/lightning.ckpt"));
  ASSERT_TRUE(checkpoint.ok());
  auto config = model_config_of(*checkpoint);
  ASSERT_TRUE(config.ok()) << config.status().to_string();
  EXPECT_EQ(config->find("encoder.d_model")->as_int(), 16);
  EXPECT_EQ(config->find("optim.betas.1")->as_float(), 0.98);
  EXPECT_TRUE(config->find("encoder.conv_context_size")->is_null());
  EXPECT_EQ(config->find("target")->as_string(),
            "nemo.collections.asr.models.ssl_models.EncDecDenoiseMaskedTokenPredModel");
  EXPECT_EQ(config->as_map().keys().back(), "nemo_version");
}

// NeMo's models take nothing but a DictConfig.
TEST(LightningTest, WritesAConfigurationThatReadsBack) {
  const config::Value map =
      config::parse_yaml("a: 1\nb: [1.5, null, true]\nc:\n  d: \?\?\?\n  7: x\n", "t").value();
  NodeTree tree;
  const NodeId root = tree.add_dict();
  ASSERT_TRUE(tree.set(root, "cfg", add_dict_config(tree, map)));
  const auto writer = TorchWriter::make(tree, root, {});
  ASSERT_TRUE(writer.ok()) << writer.status().to_string();
  std::string bytes;
  ASSERT_TRUE(writer
                  ->write([&](std::string_view part) {
                    bytes += part;
                    return ok_status();
                  })
                  .ok());
  const auto file = read_torch_file(memory_source(bytes, "x.ckpt"));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  const NodeId cfg = file->tree.find(file->root, "cfg");
  EXPECT_EQ(file->tree.object_class(cfg), "omegaconf.dictconfig.DictConfig");
  const auto decoded = decode_omegaconf(file->tree, cfg);
  ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
  EXPECT_EQ(*decoded, map);
  // Nothing else of foreign classes can be written.
  NodeTree other;
  const NodeId args = other.add_container(NodeKind::kTuple);
  const NodeId object = other.add_object(other.add_global("os", "system"), args);
  EXPECT_EQ(TorchWriter::make(other, object, {}).status().code(), StatusCode::kUnsupported);
}

TEST(AveragesTest, StandInTheParametersPlaceBesideTheBuffers) {
  const float one = 1.0f, two = 2.0f;
  const auto tensor = [](std::string name, const float* value) {
    return OutTensor{std::move(name), Dtype::kF32, {1}, value, {}};
  };
  const std::vector<OutTensor> model{
      tensor("preprocessor.featurizer.window", &one),
      tensor("preprocessor.featurizer.fb", &one),
      tensor("encoder.pre_encode.pre_encode.conv.0.weight", &one),
      tensor("encoder.pre_encode.masking.mask_embedding", &one),
      tensor("encoder.layers.0.conv.batch_norm.weight", &one),
      tensor("encoder.layers.0.conv.batch_norm.running_mean", &one),
      tensor("encoder.layers.0.conv.batch_norm.running_var", &one),
      tensor("encoder.layers.0.conv.batch_norm.num_batches_tracked", &one),
      tensor("mask_processor.mask_embedding", &one),
      tensor("pre_encoder.pre_encode.conv.0.weight", &one)};
  std::vector<OutTensor> averages{tensor("encoder.pre_encode.pre_encode.conv.0.weight", &two),
                                  tensor("encoder.pre_encode.masking.mask_embedding", &two),
                                  tensor("encoder.layers.0.conv.batch_norm.weight", &two)};
  const auto merged = with_averages(model, averages);
  ASSERT_TRUE(merged.ok()) << merged.status().to_string();
  std::string twos;
  for (size_t i = 0; i < merged->size(); ++i) {
    EXPECT_EQ((*merged)[i].name, model[i].name);
    twos += *static_cast<const float*>((*merged)[i].data) == 2.0f ? "2" : "1";
  }
  EXPECT_EQ(twos, "1122211122");  // further names of one tensor follow it
  EXPECT_TRUE(missing_buffers(*merged, true).empty());
  EXPECT_EQ(
      missing_buffers(averages, true),
      (std::vector<std::string>{"preprocessor.featurizer.window", "preprocessor.featurizer.fb",
                                "encoder.layers.0.conv.batch_norm.running_mean",
                                "encoder.layers.0.conv.batch_norm.running_var",
                                "encoder.layers.0.conv.batch_norm.num_batches_tracked"}));
  EXPECT_EQ(missing_buffers(averages, false).size(), 2u);  // layer_norm has the same names
  averages.pop_back();
  EXPECT_NE(with_averages(model, averages).status().to_string().find("batch_norm.weight"),
            std::string::npos);
  averages.push_back(tensor("encoder.other", &two));
  EXPECT_FALSE(with_averages(model, averages).ok());
}

TEST(LightningTest, ReadsTheGradientScaler) {
  testing::Pickle pickle;
  pickle.raw("}(").str("state_dict").raw("}").str("MixedPrecision").raw("}(");
  pickle.str("scale").raw(std::string("G\x40\xf0\0\0\0\0\0\0", 9));
  pickle.str("growth_interval").num(1000).str("_growth_tracker").num(17).raw("uu");
  auto checkpoint =
      read_lightning_checkpoint(memory_source(testing::torch_zip(pickle.stop()), "x"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().to_string();
  ASSERT_TRUE(checkpoint->scaler.has_value());
  EXPECT_EQ(checkpoint->scaler->scale, 65536.0);
  EXPECT_EQ(checkpoint->scaler->growth_interval, 1000);
  EXPECT_EQ(checkpoint->scaler->growth_tracker, 17);
}

TEST(LightningTest, RefusesBrokenOptimizerStates) {
  const auto why = [](const std::string& states) {
    testing::Pickle pickle;
    pickle.raw("}(").str("state_dict").raw("}").str("optimizer_states").raw(states).op('u');
    return read_lightning_checkpoint(memory_source(testing::torch_zip(pickle.stop()), "x"))
        .status()
        .to_string();
  };
  EXPECT_EQ(why("]"), "ok");
  EXPECT_NE(why("]}a").find("lacks its state"), std::string::npos);
  testing::Pickle list;
  list.raw("]}(").str("state").raw("}K\1Ns").str("param_groups").raw("]ua");
  EXPECT_NE(why(list.text().substr(2)).find("does not map numbers to dicts"), std::string::npos);
}

TEST(NemoConfigTest, ResolvesTheModelAndNamesItsClass) {
  const auto yaml = [](const char* text) -> std::string {
    const auto value = config::parse_yaml(text, "x.yaml");
    if (!value.ok()) return value.status().to_string();
    const auto out = nemo_config_yaml(*value);
    return out.ok() ? *out : out.status().to_string();
  };
  EXPECT_EQ(yaml("name: x\nmodel:\n  d: 8\n  train_ds:\n    manifest_filepath: ???\n"
                 "  encoder: {d_model: '${model.d}'}\n"),
            "d: 8\ntrain_ds:\n  manifest_filepath: ???\nencoder:\n  d_model: 8\n"
            "target: nemo.collections.asr.models.ssl_models.EncDecDenoiseMaskedTokenPredModel\n"
            "nemo_version: 2.6.2\n");
  EXPECT_EQ(yaml("encoder: {}\ntarget: my.Model\nnemo_version: 1.0.0\n"),
            "encoder: {}\ntarget: my.Model\nnemo_version: 1.0.0\n");
  EXPECT_NE(yaml("a: 1\n").find("no model with an encoder"), std::string::npos);
  EXPECT_NE(yaml("- 1\n").find("not a mapping"), std::string::npos);
}

TEST(NemoConfigTest, ReproducesTheTextNemoWrote) {
  const auto nemo = read_nemo(Env::real(), test_data("/golden/ragged/init.nemo"));
  ASSERT_TRUE(nemo.ok());
  auto run = config::load_yaml(test_data("/golden/ragged/config.yaml"));
  ASSERT_TRUE(run.ok());
  EXPECT_EQ(nemo_config_yaml(*run).value(), nemo->config_yaml);
}

TEST(AnyArchiveTest, SelectsAsInitFromNemoModelDoes) {
  const auto weights = open_weights(Env::real(), test_data("/golden/plain/init.nemo"));
  ASSERT_TRUE(weights.ok());
  const auto count = [&](std::vector<std::string> include, std::vector<std::string> exclude) {
    return select_tensors(*weights, include, exclude)->tensors().size();
  };
  EXPECT_EQ(count({}, {}), 99u);
  EXPECT_EQ(count({"encoder"}, {}), 92u);
  EXPECT_EQ(count({"encoder"}, {"layers.1", "pre_encode"}), 40u);
  EXPECT_EQ(count({"quantizer", "decoder"}, {}), 4u);
  EXPECT_EQ(count({}, {"."}), 0u);
}

TEST(AnyArchiveTest, TellsFormatsByTheirContent) {
  const TempDir dir;
  const auto kind = [&](const std::string& bytes) -> std::string {
    const std::string path = dir.file("file.bin");
    EXPECT_TRUE(Env::real().write_file(path, bytes).ok());
    auto archive = open_any(Env::real(), path);
    return archive.ok() ? file_kind_name(archive->kind) : archive.status().message();
  };
  EXPECT_EQ(kind(small_nemo()), "NeMo archive");
  EXPECT_EQ(kind(gzip(small_nemo())), "NeMo archive");
  EXPECT_EQ(kind(small_torch_file()), "torch file");
  EXPECT_EQ(kind(slurp(test_data("/archive/lightning.ckpt"))), "Lightning checkpoint");
  EXPECT_EQ(kind(slurp(test_data("/golden/plain/features_init.npz"))), "npz arrays");
  EXPECT_EQ(kind(slurp(test_data("/fixtures/loss_h2.safetensors"))), "safetensors");
  EXPECT_EQ(kind("hello"), "is neither a NeMo archive, a torch file, safetensors, .npy nor .npz");
  EXPECT_EQ(kind(""), "the file is empty");
}

}  // namespace
}  // namespace aerie::archive
