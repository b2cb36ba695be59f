// Configs that NeMo itself wrote, and values every NEST user types.
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/base/testing/paths.h"
#include "aerie/config/dialects/hydra/compose.h"
#include "aerie/config/dialects/hydra/override.h"
#include "aerie/config/resolver.h"
#include "aerie/config/yaml.h"

namespace aerie::config {
namespace {

std::string read(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

class GoldenConfigTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::string folder() const { return str_cat(test_data("/golden/"), GetParam()); }
};

TEST_P(GoldenConfigTest, IsWrittenAsItWasRead) {
  const std::string text = read(folder() + "/config.yaml");
  ASSERT_FALSE(text.empty());
  const auto tree = parse_yaml(text, "config.yaml");
  ASSERT_TRUE(tree.ok()) << tree.status().to_string();
  EXPECT_EQ(emit_yaml(tree.value()).value(), text);
}

TEST_P(GoldenConfigTest, ResolvesWithTypes) {
  ComposeRequest request;
  request.config_path = folder();
  request.config_name = "config";
  request.overrides = {"trainer.max_steps=10", "model.encoder.d_model=128"};
  const auto composed = compose(request);
  ASSERT_TRUE(composed.ok()) << composed.status().to_string();
  const auto all = resolve_all(composed->config);
  ASSERT_TRUE(all.ok()) << all.status().to_string();
  EXPECT_TRUE(*all->find("model.train_ds.sample_rate") == Value(16000));
  EXPECT_TRUE(*all->find("model.decoder.feat_in") == Value(128));
  EXPECT_TRUE(*all->find("model.loss.combine_time_steps") == Value(8));
  EXPECT_TRUE(all->find("model.optim.sched.min_lr")->is_float());
  EXPECT_TRUE(*all->find("model.quantizer.squeeze_single") == Value(false));
  EXPECT_TRUE(*all->find("model.train_ds.noise_manifest") == Value());
  EXPECT_TRUE(*all->find("trainer.max_steps") == Value(10));
  EXPECT_EQ(emit_yaml(all.value()).value().find("${"), std::string::npos);
  // The resolved model node, as an archive stores it, keeps order and types.
  const std::string model = emit_yaml(*all->find("model")).value();
  const auto again = parse_yaml(model, "model_config.yaml");
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again.value() == *all->find("model"));
}

INSTANTIATE_TEST_SUITE_P(NeMo, GoldenConfigTest, ::testing::Values("plain", "ragged"));

TEST(NestValuesTest, PrecisionStringsKeepTheirKind) {
  const std::pair<const char*, Value> rows[] = {
      {"32", 32},
      {"16", 16},
      {"64", 64},
      {"bf16", "bf16"},
      {"'32'", "32"},
      {"32-true", "32-true"},
      {"64-true", "64-true"},
      {"16-true", "16-true"},
      {"bf16-true", "bf16-true"},
      {"16-mixed", "16-mixed"},
      {"bf16-mixed", "bf16-mixed"},
      {"transformer-engine", "transformer-engine"},
      {"transformer-engine-float16", "transformer-engine-float16"},
  };
  for (const auto& [text, expected] : rows) {
    const auto override = parse_override(str_cat("trainer.precision=", text));
    ASSERT_TRUE(override.ok()) << override.status().to_string();
    EXPECT_TRUE(*override->value == expected) << text;
    const auto tree = parse_yaml(str_cat("precision: ", text), "t.yaml");
    EXPECT_TRUE(*tree->find("precision") == expected) << text;
  }
}

TEST(NestValuesTest, MissingStaysUntilItIsRead) {
  const auto tree = parse_yaml(
      "model:\n  train_ds: {manifest_filepath: \"\?\?\?\"}\n  copy: ${model.train_ds.batch}\n"
      "  train_ds2: {batch: 2}\n",
      "t.yaml");
  ASSERT_TRUE(tree.ok());
  EXPECT_NE(resolve_at(tree.value(), "model.train_ds.manifest_filepath")
                .status()
                .to_string()
                .find("Missing mandatory value: model.train_ds.manifest_filepath"),
            std::string::npos);
  EXPECT_TRUE(
      resolve_at(tree.value(), "model.train_ds").value().find("manifest_filepath")->is_missing());
}

TEST(NestValuesTest, ManifestListsAndShardPatterns) {
  const std::pair<const char*, const char*> rows[] = {
      {"a=[[x__OP_0..511_CL_.tar],[y.tar]]", "[['x__OP_0..511_CL_.tar'], ['y.tar']]"},
      {"a='x_{0..511}.tar'", "'x_{0..511}.tar'"},
      {"a=[a.json,'b,c.json']", "['a.json', 'b,c.json']"},
      {"a=/data/train.json", "'/data/train.json'"},
      {"a=[-1,-1]", "[-1, -1]"},
      {"a=[0.9,0.98]", "[0.9, 0.98]"},
  };
  for (const auto& [text, expected] : rows) {
    EXPECT_EQ(python_repr(*parse_override(text).value().value), expected);
  }
}

}  // namespace
}  // namespace aerie::config
