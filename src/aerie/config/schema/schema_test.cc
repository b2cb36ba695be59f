// A second family: engine keys and a dozen of its own, and nothing of any other.
#include "aerie/config/schema/schema.h"

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/config/merge.h"
#include "aerie/config/schema/build_loop_config.h"
#include "aerie/config/schema/checks.h"
#include "aerie/config/schema/effect.h"
#include "aerie/config/schema/field_keys.h"
#include "aerie/config/schema/validate.h"
#include "aerie/config/yaml.h"

namespace aerie::config {
namespace {

constexpr KeyStatus kWorks = KeyStatus::kWorks;

constexpr KeySpec kPicture[] = {
    {"model.classes", "int", kRequired, "[2,1000]", "", kWorks, "Kinds of pictures to tell apart."},
    {"model.width", "int", "32", "[1,4096]", "", kWorks, "Width of a hidden layer in numbers."},
    {"model.layers", "int", "2", ">=1", "", kWorks, "Hidden layers between picture and classes."},
    {"model.activation", "str", "relu", "", "relu|tanh|erf", kWorks,
     "What bends the sums of a layer.", "it is slow", "erf"},
    {"model.dropout", "float", "0.1", "[0,1)", "", kWorks, "Share of numbers that are left out."},
    {"model._target_", "str", "pictures.Perceptron", "", "", kWorks, "Class of the whole model."},
};
constexpr KeySpec kFolders[] = {
    {"model.<split>.folder", "str|null", "null", "", "", kWorks, "Folder with the pictures."},
    {"model.<split>.batch_size", "int", "8", ">=1", "", kWorks, "Pictures of one batch."},
    {"model.<split>.flip", "bool", "false", "", "", kWorks, "Mirror half of the pictures."},
    {"model.<split>.flip_prob", "float", "0.5", "[0,1]", "", kWorks, "Share that is mirrored."},
    {"model.<split>.color", "bool", "true", "", "", KeyStatus::kNoEffect, "Pictures are grey."},
};
constexpr KeySpec kOwn[] = {
    {"aerie.on_bad_picture", "str", "skip", "", "skip|fail", kWorks,
     "What to do with a picture that cannot be read."},
};

void check_width(CheckContext& context) {
  if (context.integer("model.width").value_or(0) % 2 != 0)
    context.error("model.width", "must be even");
}

SchemaParts picture_parts() {
  SchemaParts parts = engine_schema();
  parts.insert_after("aerie.on_oom", kOwn);
  parts.insert_group("model.optim",
                     {"model parts", "", {std::begin(kPicture), std::end(kPicture)}});
  parts.insert_group("",
                     {"model.train, model.valid", "", {std::begin(kFolders), std::end(kFolders)}});
  parts.placeholders.push_back({"<split>", {"train", "valid"}});
  parts.targets.push_back({"model", "Perceptron", {"pictures"}});
  parts.checks.push_back(check_width);
  parts.idle_rules.push_back({"model.<split>.flip_prob",
                              [](const Situation& s) { return s.off(s.node + "flip"); },
                              "flip is false"});
  parts.model_parts = "body|head";
  return parts;
}

const Schema& pictures() {
  static const Schema kSchema(picture_parts());
  return kSchema;
}

Value tree(const std::string& yaml) {
  auto value = parse_yaml(yaml, "pictures.yaml");
  EXPECT_TRUE(value.ok()) << value.status().to_string();
  Value out = value.ok() ? std::move(value).value() : Value(Map());
  fill_defaults(out, pictures().aerie_defaults());
  return out;
}

std::string errors(const std::string& yaml) {
  std::string out;
  for (const Finding& finding : validate(pictures(), tree(yaml), {}).errors())
    out += finding.to_string() + "\n";
  return out;
}

TEST(SchemaTest, AnotherFamilyHasItsOwnKeysAndTheEngines) {
  EXPECT_EQ(errors("model: {classes: 10, train: {folder: a, batch_size: 4}, valid: {flip: true}}\n"
                   "trainer: {max_steps: 10}\nexp_manager: {name: x}\n"),
            "");
  EXPECT_NE(pictures().find_key("model.valid.batch_size"), nullptr);
  EXPECT_NE(pictures().find_key("model.optim.args.params.betas"), nullptr);
  for (const char* other : {"model.encoder.d_model", "model.train_ds.batch_size",
                            "aerie.tokens_precision", "aerie.on_bad_audio"})
    EXPECT_EQ(pictures().find_key(other), nullptr) << other;
}

TEST(SchemaTest, ErrorsNameTheNearestKeyOfTheFamily) {
  EXPECT_EQ(
      errors("model: {classes: 10, widht: 4}\n"),
      "pictures.yaml:1:22: model.widht: unknown key in 'model' (did you mean 'model.width'?)\n");
  EXPECT_EQ(errors("model: {classes: 10, flip: true}\n"),
            "pictures.yaml:1:22: model.flip: unknown key in 'model' (did you mean "
            "'model.train.flip'?)\n");
  EXPECT_EQ(errors("model: {classes: 10, encoder: {d_model: 4}}\n"),
            "pictures.yaml:1:22: model.encoder: unknown key in 'model' (`aerie config keys` lists "
            "the known ones; --allow-unknown goes on)\n");
}

TEST(SchemaTest, TypesRangesChoicesAndRulesAreTheFamilys) {
  EXPECT_EQ(errors("model: {classes: many}\n"),
            "pictures.yaml:1:18: model.classes: expected a whole number, got 'many' (string)\n");
  EXPECT_NE(errors("model: {classes: 1}\n").find("is out of range"), std::string::npos);
  EXPECT_NE(errors("model: {classes: 2, activation: tan}\n").find("did you mean 'tanh'?"),
            std::string::npos);
  EXPECT_NE(errors("model: {classes: 2, activation: erf}\n").find("is refused: it is slow"),
            std::string::npos);
  EXPECT_NE(errors("model: {width: 4}\n").find("model.classes: required key is not there"),
            std::string::npos);
  EXPECT_NE(errors("model: {classes: 2, width: 3}\n").find("model.width: must be even"),
            std::string::npos);
  EXPECT_NE(errors("model: {classes: 2, _target_: os.system}\n").find("pictures.Perceptron"),
            std::string::npos);
  EXPECT_NE(errors("model: {classes: 2, optim_param_groups: {tail: {lr: 1}}}\n")
                .find("'tail' not found in model"),
            std::string::npos);
}

TEST(SchemaTest, AerieNodeHasTheDefaultsOfTheFamily) {
  const Value& defaults = pictures().aerie_defaults();
  EXPECT_EQ(defaults.find("aerie.seed")->as_int(), 1234);
  EXPECT_EQ(defaults.find("aerie.on_bad_picture")->as_string(), "skip");
  EXPECT_EQ(defaults.find("aerie.empty_mask"), nullptr);
  EXPECT_EQ(defaults.find("aerie.data.cache_dir"), nullptr);
}

TEST(SchemaTest, FillsWhatTheLoopReads) {
  const auto loop = build_loop_config(tree(
      "name: p\nmodel: {classes: 10}\n"
      "trainer: {max_steps: 7, precision: bf16, limit_val_batches: 0.5, max_time: '00:00:01:00'}\n"
      "exp_manager: {name: run, ema: {enable: true}}\n"
      "aerie: {seed: 9, on_nan: stop, data: {max_shapes: 3}}\n"));
  ASSERT_TRUE(loop.ok()) << loop.status().to_string();
  EXPECT_EQ(loop->name, "p");
  EXPECT_EQ(loop->trainer.max_steps, 7);
  EXPECT_EQ(loop->trainer.precision, Precision::kBf16Mixed);
  EXPECT_EQ(loop->trainer.limit_val_batches.fraction, 0.5);
  EXPECT_EQ(loop->trainer.max_time_s, 60.0);
  EXPECT_TRUE(loop->exp_manager.present);
  EXPECT_EQ(loop->exp_manager.name, "run");
  EXPECT_TRUE(loop->exp_manager.ema.enable);
  EXPECT_EQ(loop->aerie.seed, 9u);
  EXPECT_EQ(loop->aerie.on_nan, OnNan::kStop);
  EXPECT_EQ(loop->aerie.data.max_shapes, 3);
  EXPECT_EQ(*build_loop_config(tree("model: {classes: 2}\n")), LoopConfig());
}

TEST(SchemaTest, IdleKeysFollowTheFamilysRules) {
  const auto idle = [](const std::string& yaml) {
    return idle_keys_sentence(keys_without_effect(pictures(), tree(yaml), 0));
  };
  EXPECT_EQ(
      idle("model: {train: {flip_prob: 0.2, color: false}, valid: {flip: true, flip_prob: 0.2}}\n"),
      "model.train.color (pictures are grey); model.train.flip_prob (flip is false)");
  EXPECT_EQ(idle("trainer: {strategy: ddp}\n"), "trainer.strategy (one device)");
}

TEST(SchemaTest, DocumentationHasEveryRow) {
  const std::string page = pictures().markdown();
  for (const KeySpec* key : pictures().all_keys())
    EXPECT_NE(page.find(str_cat("`", std::string(key->path), "`")), std::string::npos) << key->path;
  EXPECT_EQ(page.find("model.encoder"), std::string::npos);
}

TEST(SchemaTest, ATwofoldRowIsRefused) {
  SchemaParts parts = picture_parts();
  parts.insert_after("aerie.seed", kOwn);
  EXPECT_THROW(Schema twice(parts), std::exception);
}

enum class Shape { kRound, kSquare };
struct Tile {
  int64_t count = 3;
  double gap = 2.0;
  bool glossy = true;
  std::string label;
  std::optional<double> weight;
  std::vector<int64_t> sizes;
  Shape shape = Shape::kSquare;
  bool operator==(const Tile&) const = default;
};

const FieldKeys<Tile>& tile_keys() {
  using T = Tile;
  static const FieldKeys<T> table("tile", [](FieldKeys<T>& keys) {
    keys.key("count", &T::count, works("How many.").range(">=1").absent_is_null());
    keys.key("gap", &T::gap, works("Between two.").whole());
    keys.flag("glossy", &T::glossy, works("They shine."));
    keys.key("label", &T::label, works("What is written on them."));
    keys.key("inner.weight", &T::weight, works("Of one.").not_null());
    keys.key("sizes", &T::sizes, no_effect("All of them."));
    keys.choice("shape", &T::shape, {{"round", Shape::kRound}, {"square", Shape::kSquare}},
                works("Their outline.").refuses("oval", "nobody cuts it"));
    keys.row("twice", "int", "0", works("Adds to count."),
             [](const NodeReader& node, std::string_view key, T& out) {
               int64_t more = 0;
               node.read(key, more);
               out.count += 2 * more;
             });
  });
  return table;
}

TEST(FieldKeysTest, RowsComeFromTheFields) {
  std::string rows;
  for (const KeySpec& row : tile_keys().rows())
    rows += str_cat(std::string(row.path), " ", std::string(row.type), " '",
                    std::string(row.default_value), "' ", std::string(row.choices), "\n");
  EXPECT_EQ(rows,
            "tile.count int|null 'null' \n"
            "tile.gap float '2' \n"
            "tile.glossy bool|null 'true' \n"
            "tile.label str|null 'null' \n"
            "tile.inner.weight float '' \n"
            "tile.sizes list[int] '[]' \n"
            "tile.shape str 'square' round|square|oval\n"
            "tile.twice int '0' \n");
}

TEST(FieldKeysTest, ReadsWhatIsWrittenAndNothingElse) {
  const auto read = [](const std::string& yaml) {
    Tile out;
    Status status;
    const auto value = parse_yaml(yaml, "tile.yaml");
    tile_keys().read(NodeReader(&*value, "tile", &status), out);
    EXPECT_TRUE(status.ok()) << status.to_string();
    return out;
  };
  EXPECT_EQ(read("{}"), Tile());
  EXPECT_EQ(read("{count: null, label: null, shape: null}"), Tile());
  EXPECT_FALSE(read("{glossy: null}").glossy);
  const Tile all = read(
      "{count: 4, gap: 1, glossy: false, label: x, inner: {weight: 2}, sizes: [1, 2], shape: "
      "round, "
      "twice: 5}");
  EXPECT_EQ(all, (Tile{14, 1.0, false, "x", 2.0, {1, 2}, Shape::kRound}));
  Tile out;
  Status status;
  const auto wrong = parse_yaml("{inner: {weight: heavy}}", "tile.yaml");
  tile_keys().read(NodeReader(&*wrong, "tile", &status), out);
  EXPECT_NE(status.to_string().find("tile.inner.weight"), std::string::npos) << status.to_string();
}

}  // namespace
}  // namespace aerie::config
