// The map expansion of a town, version 1.3.
#pragma once

#include <string>

#include "aerie/data/nuscenes/synth/json_rows.h"
#include "aerie/data/nuscenes/synth/town.h"

namespace aerie::nuscenes::synth {

std::string map_expansion_json(const Town& town, const TokenMaker& tokens);

}  // namespace aerie::nuscenes::synth
