// Where the engine's part of a schema comes from, one file each. Internal to the schema library.
#pragma once

#include <span>
#include <vector>

#include "aerie/config/schema/aerie_config.h"
#include "aerie/config/schema/checks.h"
#include "aerie/config/schema/effect.h"
#include "aerie/config/schema/field_keys.h"
#include "aerie/config/schema/key_table.h"
#include "aerie/config/schema/targets.h"
#include "aerie/config/schema/trainer_config.h"

namespace aerie::config {

std::span<const KeySpec> top_level_keys();
const FieldKeys<AerieConfig>& own_fields();
std::vector<KeySpec> optim_group_keys();
std::vector<KeySpec> optim_keys();
const FieldKeys<TrainerConfig>& trainer_fields();
const FieldKeys<ExpManagerConfig>& exp_manager_fields();

void check_init_from(CheckContext& context);
void check_optim(CheckContext& context);

std::span<const IdleRule> engine_idle_rules();
std::span<const TargetClass> engine_targets();

}  // namespace aerie::config
