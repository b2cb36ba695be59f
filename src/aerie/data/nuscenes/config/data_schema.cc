#include "aerie/data/nuscenes/config/data_schema.h"

#include <algorithm>

#include "aerie/base/strings.h"
#include "aerie/config/merge.h"
#include "aerie/config/schema/build_loop_config.h"
#include "aerie/config/schema/validate.h"
#include "aerie/data/nuscenes/config/data_keys.h"

namespace aerie::nuscenes {
namespace {

using config::Map;
using config::NodeReader;
using config::Value;

constexpr std::string_view kInherited[] = {"root",
                                           "data_root",
                                           "version",
                                           "cache_dir",
                                           "pack",
                                           "splits",
                                           "cameras",
                                           "reference_frame",
                                           "motion_compensation",
                                           "on_bad_sample",
                                           "max_bad_fraction"};

void inherit(const Value& train, Value& node) {
  Value shared{Map()};
  for (const std::string_view key : kInherited)
    if (const Value* value = train.child(key); value != nullptr) {
      // A drawn number of cameras is for training alone.
      if (key == "cameras" && !value->is_list()) continue;
      // One of the two names is enough: the other node may use the other.
      if ((key == "root" || key == "data_root") &&
          (node.child("root") != nullptr || node.child("data_root") != nullptr))
        continue;
      shared.as_map().set(key, *value);
    }
  for (const std::string_view key : {"image", "gt"})
    if (const Value* value = train.child(key); value != nullptr && value->is_map()) {
      Value copy = *value;
      copy.as_map().erase("augment");
      shared.as_map().set(key, std::move(copy));
    }
  config::fill_defaults(node, shared);
}

Result<Profile> profile_of(const Value* model) {
  const Value* name = model != nullptr ? model->child("profile") : nullptr;
  if (name == nullptr || name->is_null()) return Profile::kSeed;
  if (name->is_string()) {
    if (name->as_string() == "bf") return Profile::kBf;
    if (name->as_string() == "seed") return Profile::kSeed;
    if (name->as_string() == "lss") return Profile::kLss;
  }
  return invalid_argument(str_cat("unknown profile ", name->brief(40)))
      .with_context("model.profile")
      .with_hint("there are bf, seed and lss");
}

const config::Schema& standalone_schema() {
  static const config::Schema kSchema = [] {
    config::SchemaParts parts = config::engine_schema();
    add_nuscenes_keys(parts);
    parts.checks = {check_nuscenes_datasets};
    return config::Schema(std::move(parts));
  }();
  return kSchema;
}

}  // namespace

void add_nuscenes_keys(config::SchemaParts& parts, std::string_view before_title) {
  const std::span<const config::KeySpec> rows = data_fields().rows();
  parts.insert_group(before_title,
                     {"model.train_ds, model.validation_ds, model.test_ds",
                      "`<ds>` stands for any of the three. What describes the data (root, version, "
                      "image, gt, ...) need only stand in train_ds.",
                      {rows.begin(), rows.end()}});
  parts.placeholders.push_back({"<ds>", {"train_ds", "validation_ds", "test_ds"}});
  parts.not_for_training.emplace_back("model.test_ds");
  const std::span<const config::IdleRule> rules = data_idle_rules();
  parts.idle_rules.insert(parts.idle_rules.end(), rules.begin(), rules.end());
}

Value inherit_from_train(Value model) {
  if (!model.is_map()) return model;
  const Value* train = model.child("train_ds");
  if (train == nullptr || !train->is_map()) return model;
  for (const std::string_view name : {"validation_ds", "test_ds"})
    if (Value* node = model.child(name); node != nullptr && node->is_map())
      inherit(*model.child("train_ds"), *node);
  return model;
}

void build_nuscenes_datasets(const NodeReader& model, Profile profile, DataSets& out) {
  const auto build = [&](std::string_view name, DataRole role) {
    DataConfig config = default_config(profile, role);
    const NodeReader node = model.child(name);
    data_fields().read(node, config);
    // Named for an evaluation that inherits what training draws from.
    if (role != DataRole::kTrain) config.num_cameras = 0;
    if (!config.gt.classes.empty()) config.gt.task = GtTaskChoice::kMap;
    return config;
  };
  out.train_ds = build("train_ds", DataRole::kTrain);
  if (model.child("validation_ds").is_map())
    out.validation_ds = build("validation_ds", DataRole::kValidation);
  if (model.child("test_ds").is_map()) out.test_ds = build("test_ds", DataRole::kTest);
}

Result<StandaloneConfig> read_data_nodes(const Value& resolved) {
  StandaloneConfig out;
  const Value* model = resolved.child("model");
  AERIE_ASSIGN_OR_RETURN(out.profile, profile_of(model));
  Value nodes{Map()};
  if (model != nullptr && model->is_map()) {
    for (const std::string_view name : {"train_ds", "validation_ds", "test_ds"})
      if (const Value* node = model->child(name); node != nullptr && !node->is_null())
        nodes.as_map().set(name, *node);
    const Value* classes = model->child("classes");
    Value* train = nodes.child("train_ds");
    if (classes != nullptr && classes->is_list() && train != nullptr && train->is_map() &&
        train->find("gt.classes") == nullptr && train->find("gt.task") == nullptr)
      AERIE_RETURN_IF_ERROR(train->set("gt.classes", *classes));
  }
  Value tree{Map()};
  tree.as_map().set("model", inherit_from_train(std::move(nodes)));
  Value aerie = standalone_schema().aerie_defaults();
  if (const Value* written = resolved.child("aerie"); written != nullptr) {
    Value given{Map()};
    given.as_map().set("aerie", *written);
    AERIE_RETURN_IF_ERROR(config::merge(aerie, given));
  }
  tree.as_map().set("aerie", *aerie.child("aerie"));
  const config::Findings findings = config::validate(standalone_schema(), tree, {});
  AERIE_RETURN_IF_ERROR(findings.to_status());
  for (const config::Finding& finding : findings.warnings())
    out.warnings.push_back(finding.to_string());
  Status status;
  const NodeReader root(&tree, "", &status);
  build_nuscenes_datasets(root.child("model"), out.profile, out.data);
  config::LoopConfig loop;
  config::build_loop_config(root, loop);
  AERIE_RETURN_IF_ERROR(status);
  out.aerie = loop.aerie;
  return out;
}

std::string nuscenes_keys_markdown() {
  config::SchemaParts parts;
  add_nuscenes_keys(parts);
  return config::Schema(std::move(parts)).markdown();
}

}  // namespace aerie::nuscenes
