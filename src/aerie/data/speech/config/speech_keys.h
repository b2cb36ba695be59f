// Where the speech part of a schema comes from. Internal to the folder.
#pragma once

#include <span>

#include "aerie/config/schema/effect.h"
#include "aerie/config/schema/targets.h"

namespace aerie::config {

std::span<const IdleRule> speech_idle_rules();
std::span<const TargetClass> speech_targets();

}  // namespace aerie::config
