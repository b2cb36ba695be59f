// Where the speech part of a schema comes from. Internal to the folder.
#pragma once

#include <span>

#include "aerie/config/schema/effect.h"
#include "aerie/config/schema/field_keys.h"
#include "aerie/config/schema/targets.h"
#include "aerie/data/speech/config/dataset_config.h"

namespace aerie::config {

const FieldKeys<DatasetConfig>& dataset_fields();
std::span<const IdleRule> speech_idle_rules();
std::span<const TargetClass> speech_targets();

}  // namespace aerie::config
