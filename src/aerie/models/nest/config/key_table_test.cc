#include "aerie/config/schema/key_table.h"

#include <cmath>
#include <fstream>
#include <set>
#include <sstream>

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/base/testing/paths.h"
#include "aerie/config/schema/targets.h"
#include "aerie/config/schema/type_spec.h"
#include "aerie/models/nest/config/nest_schema.h"

namespace aerie::config {
namespace {

TEST(KeyTableTest, RowsAreWellFormedAndUnique) {
  std::set<std::string_view> seen;
  for (const KeySpec* key : nest_schema().all_keys()) {
    SCOPED_TRACE(std::string(key->path));
    EXPECT_TRUE(seen.insert(key->path).second) << "listed twice";
    EXPECT_FALSE(key->help.empty());
    const TypeSpec type = TypeSpec::parse(key->type);
    if (!key->range.empty()) RangeSpec::parse(key->range);
    EXPECT_TRUE(key->choices.empty() || type.has(TypeSpec::Kind::kStr));
    for (const std::string& name : choice_names(key->refused))
      EXPECT_TRUE(is_choice(name, key->choices)) << name;
    const bool needs_reason = key->status == KeyStatus::kLater ||
                              key->status == KeyStatus::kRefused || !key->refused.empty();
    EXPECT_TRUE(!needs_reason || !key->note.empty()) << "a reason is needed";
    if (key->default_value.empty() || key->default_value == kRequired) continue;
    const Value value = default_of(*key);
    EXPECT_TRUE(type.accepts(value)) << value.brief();
    if (value.is_number() && !key->range.empty()) {
      EXPECT_TRUE(RangeSpec::parse(key->range).contains(value.as_float()));
    }
    if (value.is_string() && !ends_with(key->path, "_target_")) {
      EXPECT_TRUE(is_choice(value.as_string(), key->choices));
      EXPECT_TRUE(key->refused.empty() || !is_choice(value.as_string(), key->refused));
    }
  }
  EXPECT_GT(seen.size(), 450u);
}

TEST(KeyTableTest, FindsKeysThroughSharedNodes) {
  for (const char* path :
       {"model.train_ds.batch_size", "model.validation_ds.batch_size", "model.test_ds.batch_size",
        "model.validation_ds.ds_item.3.batch_size"}) {
    ASSERT_NE(nest_schema().find_key(path), nullptr) << path;
    EXPECT_EQ(nest_schema().find_key(path)->path, "model.<ds>.batch_size");
  }
  EXPECT_EQ(nest_schema().find_key("model.optim.args.params.betas")->path, "model.optim.betas");
  EXPECT_EQ(nest_schema().find_key("model.optim.sched.args.params.warmup_steps")->path,
            "model.optim.sched.warmup_steps");
  EXPECT_EQ(nest_schema().find_key("model.encoder.d_modle"), nullptr);
  EXPECT_EQ(nest_schema().find_key("nothing"), nullptr);
}

TEST(KeyTableTest, AerieNodeHasEveryDefault) {
  const Value& defaults = nest_schema().aerie_defaults();
  EXPECT_EQ(defaults.find("aerie.seed")->as_int(), 1234);
  EXPECT_EQ(defaults.find("aerie.on_nan")->as_string(), "skip");
  EXPECT_TRUE(defaults.find("aerie.compat")->is_null());
  for (const KeySpec* key : nest_schema().all_keys())
    if (starts_with(key->path, "aerie.")) {
      EXPECT_NE(defaults.find(key->path), nullptr) << key->path;
    }
}

// `n_layers: Layers.` told nobody anything.
TEST(KeyTableTest, HelpSaysMoreThanTheName) {
  for (const KeySpec* key : nest_schema().all_keys()) {
    if (key->status != KeyStatus::kWorks) continue;
    size_t words = 0;
    for (const std::string& word : split(key->help, ' ')) words += word.size() > 1 ? 1 : 0;
    EXPECT_GE(words, 4u) << key->path << ": " << key->help;
  }
}

TEST(KeyTableTest, DocumentationIsInStep) {
  std::ifstream file(config_dir("/../docs/config.md"));
  ASSERT_TRUE(file.good());
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), nest_schema().markdown())
      << "run: aerie config keys --markdown > docs/config.md";
  for (const KeySpec* key : nest_schema().all_keys())
    EXPECT_NE(text.str().find(str_cat("`", std::string(key->path), "`")), std::string::npos)
        << key->path;
}

TEST(TypeSpecTest, AcceptsWhatItSays) {
  EXPECT_TRUE(TypeSpec::parse("int").accepts(Value(3)));
  EXPECT_TRUE(TypeSpec::parse("int").accepts(Value(1e5)));
  EXPECT_FALSE(TypeSpec::parse("int").accepts(Value(0.5)));
  EXPECT_FALSE(TypeSpec::parse("int").accepts(Value(true)));
  EXPECT_FALSE(TypeSpec::parse("int").accepts(Value("3")));
  EXPECT_TRUE(TypeSpec::parse("float").accepts(Value(3)));
  EXPECT_FALSE(TypeSpec::parse("float").accepts(Value("inf")));
  EXPECT_FALSE(TypeSpec::parse("bool").accepts(Value(1)));
  EXPECT_FALSE(TypeSpec::parse("bool").accepts(Value()));
  EXPECT_TRUE(TypeSpec::parse("bool|null").accepts(Value()));
  EXPECT_TRUE(TypeSpec::parse("str").accepts(Value(2024)));
  EXPECT_FALSE(TypeSpec::parse("str").accepts(Value(true)));
  EXPECT_TRUE(TypeSpec::parse("list[list[int]]").accepts(Value(List{Value(List{Value(1)})})));
  EXPECT_FALSE(TypeSpec::parse("list[int]").accepts(Value(List{Value("a")})));
  EXPECT_FALSE(TypeSpec::parse("list[int]").accepts(Value(Map())));
  EXPECT_EQ(TypeSpec::parse("int|list[list[str]]|null").describe(),
            "a whole number, a list of lists of strings or null");
}

TEST(TypeSpecTest, RangesHaveOpenAndClosedEnds) {
  EXPECT_TRUE(RangeSpec::parse("[0,1]").contains(1));
  EXPECT_FALSE(RangeSpec::parse("[0,1)").contains(1));
  EXPECT_FALSE(RangeSpec::parse("(0,1]").contains(0));
  EXPECT_FALSE(RangeSpec::parse(">0").contains(0));
  EXPECT_TRUE(RangeSpec::parse(">=-1").contains(-1));
  EXPECT_FALSE(RangeSpec::parse("[0,1]").contains(std::nan("")));
}

TEST(TargetsTest, EverySpellingOfAppendixCIsKnown) {
  const std::pair<const char*, const char*> kSpellings[] = {
      {"model.preprocessor", "nemo.collections.asr.modules.AudioToMelSpectrogramPreprocessor"},
      {"model.spec_augment", "nemo.collections.asr.modules.SpectrogramAugmentation"},
      {"model.masking", "nemo.collections.asr.modules.RandomBlockMasking"},
      {"model.masking", "nemo.collections.asr.modules.ssl_modules.RandomBlockMasking"},
      {"model.masking", "nemo.collections.asr.modules.ssl_modules.masking.RandomBlockMasking"},
      {"model.quantizer", "nemo.collections.asr.modules.RandomProjectionVectorQuantizer"},
      {"model.quantizer",
       "nemo.collections.asr.modules.ssl_modules.RandomProjectionVectorQuantizer"},
      {"model.encoder", "nemo.collections.asr.modules.ConformerEncoder"},
      {"model.encoder", "nemo.collections.asr.modules.conformer_encoder.ConformerEncoder"},
      {"model.decoder", "nemo.collections.asr.modules.MultiSoftmaxDecoder"},
      {"model.decoder", "nemo.collections.asr.modules.ssl_modules.MultiSoftmaxDecoder"},
      {"model.loss", "nemo.collections.asr.losses.MultiMLMLoss"},
      {"model.loss", "nemo.collections.asr.losses.ssl_losses.mlm.MultiMLMLoss"},
      {"model.<ds>.batch_augmentor",
       "nemo.collections.asr.modules.ssl_modules.SpeakerNoiseAugmentation"},
      {"model.<ds>.batch_augmentor",
       "nemo.collections.asr.modules.ssl_modules.MultiSpeakerNoiseAugmentation"},
      {"trainer.strategy", "lightning.pytorch.strategies.DDPStrategy"},
      {"trainer.strategy", "pytorch_lightning.strategies.DDPStrategy"},
      {"model.optim", "torch.optim.AdamW"},
  };
  const std::vector<TargetClass>& classes = nest_schema().parts().targets;
  for (const auto& [node, spelling] : kSpellings)
    EXPECT_FALSE(find_target(classes, node, spelling).empty()) << spelling;
  EXPECT_TRUE(find_target(classes, "model.encoder", "os.system").empty());
  EXPECT_TRUE(
      find_target(classes, "model.encoder", "nemo.collections.asr.losses.MultiMLMLoss").empty());
}

}  // namespace
}  // namespace aerie::config
