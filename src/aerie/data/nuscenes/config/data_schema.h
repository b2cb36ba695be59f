// What nuScenes data adds to the schema of a family: rows of `model.<ds>`, checks, and the way from
// a resolved tree to structs.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "aerie/base/status.h"
#include "aerie/config/schema/aerie_config.h"
#include "aerie/config/schema/checks.h"
#include "aerie/config/schema/node_reader.h"
#include "aerie/config/schema/schema.h"
#include "aerie/data/nuscenes/config/data_config.h"

namespace aerie::nuscenes {

// Rows, placeholder and idle rules; the check's place among the family's the family chooses. The
// rows come before the group of that title; empty: at the end.
void add_nuscenes_keys(config::SchemaParts& parts, std::string_view before_title = {});
void check_nuscenes_datasets(config::CheckContext& context);

struct DataSets {
  DataConfig train_ds;
  std::optional<DataConfig> validation_ds;  // where the tree has the node
  std::optional<DataConfig> test_ds;
};

// Keys of validation_ds and test_ds that describe the data and not its use are train_ds's where
// they are absent: root, version, cache_dir, splits, pack, image (not its augment), gt, cameras by
// name, reference_frame, motion_compensation, on_bad_sample, max_bad_fraction. `model` is the tree
// of the `model` node; the result stands in for it.
config::Value inherit_from_train(config::Value model);

// `model` has inherited and passed validate(); a value of a wrong type is reported all the same.
void build_nuscenes_datasets(const config::NodeReader& model, Profile profile, DataSets& out);

// For commands that need data and no model: the data nodes of a resolved tree {model: {...},
// aerie: {...}} (other nodes are passed over), checked. `model.profile` chooses the defaults,
// `model.classes` stands in for gt.classes.
struct StandaloneConfig {
  DataSets data;
  Profile profile = Profile::kSeed;
  config::AerieConfig aerie;
  std::vector<std::string> warnings;
};
Result<StandaloneConfig> read_data_nodes(const config::Value& resolved);

// The keys as docs/config.md lists them.
std::string nuscenes_keys_markdown();

}  // namespace aerie::nuscenes
