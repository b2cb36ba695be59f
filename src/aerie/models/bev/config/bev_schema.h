// Every key of a bird's-eye-view configuration: the engine's, those of nuScenes data, the model's.
#pragma once

#include "aerie/config/schema/schema.h"

namespace aerie::bev {

const config::Schema& bev_schema();

// The documentation of all keys, docs/config_bev.md.
std::string bev_keys_markdown();

}  // namespace aerie::bev
