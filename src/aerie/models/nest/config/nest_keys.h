// Where NEST's part of its schema comes from, one file each. Internal to the folder.
#pragma once

#include <span>

#include "aerie/config/schema/checks.h"
#include "aerie/config/schema/effect.h"
#include "aerie/config/schema/key_table.h"

namespace aerie::config {

std::span<const KeySpec> model_keys();       // of the model as a whole
std::span<const KeySpec> model_part_keys();  // of its parts, without the encoder
std::span<const KeySpec> encoder_keys();

void check_model(CheckContext& context);
std::span<const IdleRule> model_idle_rules();

}  // namespace aerie::config
