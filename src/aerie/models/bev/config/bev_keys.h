// Where the family's rows come from. Internal to the folder.
#pragma once

#include <span>
#include <vector>

#include "aerie/config/schema/checks.h"
#include "aerie/config/schema/field_keys.h"
#include "aerie/config/schema/key_table.h"
#include "aerie/models/bev/config/run_config.h"

namespace aerie::bev {

inline void append_rows(std::vector<config::KeySpec>& out, std::span<const config::KeySpec> rows) {
  out.insert(out.end(), rows.begin(), rows.end());
}

// Rows of `model:` except optimizer and data, in order.
std::vector<config::KeySpec> model_rows();
// Fills what a profile left, from the `model` node.
void read_model(const config::NodeReader& model, BevConfig& out);
// What the tree implies elsewhere and repeats: neck.in_channels and the like. `config` is built.
Status check_implied(const config::Value& model, const BevConfig& config);

std::vector<config::KeySpec> optim_rows();  // of model.optim, the schedules' included
void read_optim(const config::NodeReader& optim, BevOptimConfig& out);

std::vector<config::KeySpec> own_rows();  // of `aerie:` and the top level
void read_own(const config::NodeReader& root, BevRunConfig& out);

void check_bev(config::CheckContext& context);

}  // namespace aerie::bev
