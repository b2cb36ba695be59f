#include "aerie/config/schema/config_text.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/strings.h"
#include "aerie/config/yaml.h"
#include "aerie/models/nest/config/test_util.h"

namespace aerie::config {
namespace {

TEST(ConfigTextTest, AnnotatedYamlReadsBackEqual) {
  Checked checked =
      check_stock({{"name", "a # b: [c]\nd"},
                   {"exp_manager.exp_dir", "/a folder/with: odd # name"},
                   {"model.train_ds.manifest_filepath",
                    Value(List{Value("a.json"), Value(List{Value("b.json")})})},
                   {"exp_manager.files_to_copy", Value(List())},
                   {"exp_manager.summary_writer_kwargs", Value(Map())},
                   {"exp_manager.version", std::string(300, 'x') + " " + std::string(300, 'y')}});
  const auto text = annotated_yaml(checked.resolved);
  ASSERT_TRUE(text.ok()) << text.status().to_string();
  const auto again = parse_yaml(*text, "again");
  ASSERT_TRUE(again.ok()) << again.status().to_string() << *text;
  EXPECT_TRUE(*again == checked.resolved);
}

// What a .nemo archive stores: the resolved model node, keys in order, types kept.
TEST(ConfigTextTest, ModelNodeSurvivesARoundTrip) {
  const Checked checked = check_stock({});
  const Value* model = checked.resolved.find("model");
  ASSERT_NE(model, nullptr);
  const auto text = emit_yaml(*model);
  ASSERT_TRUE(text.ok());
  EXPECT_EQ(text->find("${"), std::string::npos);
  const auto again = parse_yaml(*text, "model_config.yaml");
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_TRUE(*again == *model);
  EXPECT_EQ(again->as_map().keys(), model->as_map().keys());
  EXPECT_TRUE(again->find("optim.weight_decay")->is_float());
  EXPECT_TRUE(again->find("train_ds.manifest_filepath")->is_missing());
}

TEST(ConfigTextTest, OriginsStandBesideValues) {
  const Checked checked = check_stock({{"trainer.max_steps", 10}});
  const std::string text = *annotated_yaml(checked.resolved);
  EXPECT_NE(text.find("# command line: trainer.max_steps=10"), std::string::npos);
  EXPECT_NE(text.find("nest_fast-conformer.yaml:"), std::string::npos);
  EXPECT_NE(text.find("  seed: 1234"), std::string::npos);
  EXPECT_NE(text.find("# default"), std::string::npos);
}

TEST(ConfigTextTest, JsonCarriesValuesAndOrigins) {
  const Checked checked = check_stock(
      {{"model.train_ds.max_duration", Value(std::numeric_limits<double>::infinity())}});
  const auto json = nlohmann::json::parse(config_json(checked.resolved));
  EXPECT_EQ(json["config"]["model"]["encoder"]["d_model"], 512);
  EXPECT_EQ(json["config"]["model"]["train_ds"]["max_duration"], "inf");
  EXPECT_EQ(json["config"]["model"]["train_ds"]["manifest_filepath"], "???");
  EXPECT_EQ(json["origins"]["aerie.seed"], "default");
}

TEST(ConfigTextTest, DifferencesNameLeaves) {
  const auto before = parse_yaml("a: {b: 1, c: [1, 2]}\nd: x\n", "a.yaml");
  const auto after = parse_yaml("a: {b: 1, c: [1, 3], e: {f: 1}}\nd: {x: 1}\n", "b.yaml");
  const auto found = config_differences(*before, *after);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].key, "a.c");
  EXPECT_EQ(found[1].key, "a.e.f");
  EXPECT_EQ(found[1].before, nullptr);
  EXPECT_EQ(found[2].key, "d");
  EXPECT_TRUE(config_differences(*before, *before).empty());
}

TEST(ConfigTextTest, MarksKeysWithoutEffect) {
  const Checked checked = check_stock({});
  const std::map<std::string, IdleKey> idle{{"trainer.sync_batchnorm", {"one device", false}},
                                            {"model.train_ds.shuffle_n", {"no tars", false}}};
  const std::string text = *annotated_yaml(checked.resolved, idle);
  size_t marks = 0;
  for (const std::string& line : split(text, '\n')) {
    if (line.find("no effect: ") == std::string::npos) continue;
    ++marks;
    EXPECT_TRUE(line.find("sync_batchnorm: true") != std::string::npos ||
                line.find("shuffle_n: ") != std::string::npos)
        << line;
  }
  EXPECT_EQ(marks, 2u);
  // It is still the same configuration.
  EXPECT_EQ(parse_yaml(text, "shown").value(),
            parse_yaml(*annotated_yaml(checked.resolved), "shown").value());
  const auto json = nlohmann::json::parse(config_json(checked.resolved, idle));
  EXPECT_EQ(json["no_effect"]["trainer.sync_batchnorm"], "one device");
}

}  // namespace
}  // namespace aerie::config
