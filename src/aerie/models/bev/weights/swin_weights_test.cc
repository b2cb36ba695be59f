#include <algorithm>
#include <cmath>
#include <map>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include "aerie/archive/any_archive.h"
#include "aerie/archive/safetensors.h"
#include "aerie/archive/tensor_writer.h"
#include "aerie/base/env.h"
#include "aerie/base/testing/paths.h"
#include "aerie/checkpoint/tensor_io.h"
#include "aerie/models/bev/bev_model.h"
#include "aerie/models/bev/weights/load_weights.h"
#include "aerie/models/bev/weights/swin_names.h"

namespace aerie::bev {
namespace {

// The model of tests/golden/gen/make_swin_dialects.py.
SwinConfig small_swin() {
  SwinConfig c;
  c.embed_dims = 4;
  c.depths = {1, 1, 2, 1};
  c.num_heads = {1, 1, 2, 2};
  c.mlp_ratio = 2;
  c.drop_path_rate = 0.0;
  c.zero_shift_single_window = true;  // torchvision's rule
  return c;
}

// A backbone alone.
struct Backbone {
  nn::ParameterRegistry registry;
  Swin swin;
  explicit Backbone(const SwinConfig& config = small_swin())
      : swin(nn::Scope(registry, "encoders.camera.backbone"), config, 1) {
    registry.materialize(at::kCPU);
    const at::NoGradGuard no_grad;
    for (const char* norm : {"norm1", "norm2", "norm3"})
      registry[std::string("encoders.camera.backbone.") + norm + ".weight"].fill_(1.0);
  }
  Result<LoadReport> load(const std::string& file) {
    auto archive = archive::open_weights(Env::real(), test_data("/bev/" + file));
    if (!archive.ok()) return archive.status();
    return load_backbone(registry, *archive);
  }
};

at::Tensor read(const archive::TensorArchive& archive, const std::string& name) {
  const archive::TensorInfo& info = *archive.find(name);
  const std::vector<float> values = archive.read_as<float>(info).value();
  at::Tensor out = at::empty(info.shape, at::kFloat);
  std::copy(values.begin(), values.end(), out.data_ptr<float>());
  return out;
}

const std::map<std::string, SwinDialect> kFiles = {
    {"swin_torchvision.pth", SwinDialect::kTorchvision},
    {"swin_official_legacy.pth", SwinDialect::kOfficial},
    {"swin_mmdet_legacy.pth", SwinDialect::kMmdet},
    {"swin_timm.safetensors", SwinDialect::kTimm}};

TEST(SwinWeightsTest, AllNamesGiveTheSameTensorsAndTorchvisionsOutputs) {
  const auto outputs =
      archive::read_safetensors(Env::real(), test_data("/bev/swin_outputs.safetensors")).value();
  at::Tensor first;
  for (const auto& [file, dialect] : kFiles) {
    Backbone backbone;
    const auto report = backbone.load(file);
    ASSERT_TRUE(report.ok()) << file << ": " << report.status().to_string();
    EXPECT_EQ(report->kind, std::string("backbone (") + dialect_name(dialect) + " names)");
    EXPECT_EQ(report->missing.size(), 6u) << file;  // norm1..3
    const at::Tensor params = backbone.registry.flat_params().clone();
    if (!first.defined()) first = params;
    EXPECT_TRUE(params.equal(first)) << file;

    const at::NoGradGuard no_grad;
    const std::vector<at::Tensor> maps =
        backbone.swin.forward(nn::ForwardContext(), read(outputs, "image"));
    ASSERT_EQ(maps.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      const at::Tensor want = read(outputs, "l" + std::string(1, static_cast<char>('0' + i)));
      ASSERT_EQ(maps[i].sizes(), want.sizes());
      EXPECT_LT((maps[i] - want).abs().max().item<double>(), 1e-5) << file << " l" << i;
    }
  }
}

TEST(SwinWeightsTest, MergedChannelsComeToLieSideBySide) {
  const auto fixture =
      archive::read_safetensors(Env::real(), test_data("/bev/matrices.safetensors")).value();
  const auto official = fixture.read_as<float>(*fixture.find("merge_official")).value();
  const auto mmdet = fixture.read_as<float>(*fixture.find("merge_mmdet")).value();
  EXPECT_EQ(merged_to_mmdet(official, fixture.find("merge_official")->shape[1]), mmdet);
}

// torch.nn.functional.interpolate(arange(9).view(1,1,3,3)**2, size=(5,5), mode="bicubic").
TEST(SwinWeightsTest, TablesAreResizedAsTorchDoes) {
  std::vector<float> table(9);
  for (size_t i = 0; i < 9; ++i) table[i] = static_cast<float>(i * i);
  const std::vector<float> out = resized_table(table, 3, 1, 5);
  const float want[25] = {-0.904704f, -0.874015f, -0.439999f, 1.074017f,  2.216706f,
                          1.269992f,  2.319147f,  4.444011f,  7.648876f,  9.810030f,
                          8.328001f,  11.068004f, 16.000000f, 22.012001f, 25.864002f,
                          25.106020f, 29.536871f, 37.276001f, 46.095142f, 51.637993f,
                          37.288712f, 42.738029f, 52.168011f, 62.677998f, 69.239319f};
  ASSERT_EQ(out.size(), 25u);
  for (size_t i = 0; i < 25; ++i) EXPECT_NEAR(out[i], want[i], 1e-4) << i;

  // A model with another window takes the tables of this one.
  SwinConfig other = small_swin();
  other.window_size = 4;
  Backbone backbone(other);
  ASSERT_TRUE(backbone.load("swin_timm.safetensors").ok());
  const at::Tensor resized =
      backbone.registry
          ["encoders.camera.backbone.stages.0.blocks.0.attn.w_msa.relative_position_bias_table"];
  EXPECT_EQ(resized.size(0), 49);
  EXPECT_GT(resized.abs().max().item<double>(), 0.1);
}

TEST(SwinWeightsTest, ABackboneOfAnotherSizeIsRefusedAndChangesNothing) {
  SwinConfig wider = small_swin();
  wider.embed_dims = 8;
  Backbone backbone(wider);
  const at::Tensor before = backbone.registry.flat_params().clone();
  const auto refused = backbone.load("swin_timm.safetensors");
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("shape"), std::string::npos);
  EXPECT_TRUE(backbone.registry.flat_params().equal(before));

  SwinConfig deeper = small_swin();
  deeper.depths = {1, 2, 2, 1};
  const auto incomplete = Backbone(deeper).load("swin_torchvision.pth");
  ASSERT_FALSE(incomplete.ok());
  EXPECT_NE(incomplete.status().to_string().find("stages.1.blocks.1"), std::string::npos);

  // A deeper one fits where its first blocks do; what is left over is named.
  SwinConfig shallower = small_swin();
  ASSERT_GT(shallower.depths[2], 1);
  shallower.depths[2] = 1;
  const auto larger = Backbone(shallower).load("swin_torchvision.pth");
  ASSERT_TRUE(larger.ok()) << larger.status().to_string();
  ASSERT_FALSE(larger->beyond.empty());
  EXPECT_NE(larger->beyond.front().find("features.5.1."), std::string::npos) << larger->beyond[0];
  const auto same = Backbone().load("swin_torchvision.pth");
  ASSERT_TRUE(same.ok());
  EXPECT_TRUE(same->beyond.empty());
  EXPECT_FALSE(Backbone().load("metrics.safetensors").ok());
  EXPECT_FALSE(Backbone().load("no_such_file.pth").ok());
}

// A whole model under BEVFusion's names: out, and in again.
TEST(SwinWeightsTest, AWholeModelComesBack) {
  BevConfig config;
  config.swin = small_swin();
  config.image_height = config.image_width = 64;
  config.neck_channels = 4;
  config.context_channels = 2;
  config.encode_width = 2;
  config.xbound = config.ybound = {-4, 4, 0.5};
  const auto from = BevModel::create(config, 1).value();
  std::vector<archive::OutTensor> tensors;
  const nn::ParameterRegistry& registry = from->parameters();
  for (int64_t i = 0; i < registry.size(); ++i)
    tensors.push_back(ckpt::out_tensor("module." + registry.entries()[static_cast<size_t>(i)].name,
                                       registry.tensor(i))
                          .value());
  tensors.push_back(
      ckpt::out_tensor("module.encoders.camera.vtransform.dx", at::empty({3}, at::kFloat).zero_())
          .value());
  std::string bytes;
  ASSERT_TRUE(archive::write_safetensors(
                  [&](std::string_view piece) {
                    bytes += piece;
                    return ok_status();
                  },
                  tensors)
                  .ok());
  const auto archive =
      archive::read_safetensors(archive::memory_source(bytes, "bf.safetensors")).value();
  const auto to = BevModel::create(config, 2).value();
  EXPECT_FALSE(to->parameters().flat_params().equal(registry.flat_params()));
  const auto report = load_weights(to->parameters(), archive);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->kind, "whole model");
  EXPECT_TRUE(report->missing.empty());
  EXPECT_TRUE(report->unused.empty());
  EXPECT_TRUE(to->parameters().flat_params().equal(registry.flat_params()));
}

}  // namespace
}  // namespace aerie::bev
