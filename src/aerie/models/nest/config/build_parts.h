// The parts of build_run_config(). Internal to the folder.
#pragma once

#include "aerie/config/schema/node_reader.h"
#include "aerie/models/nest/config/nest_config.h"

namespace aerie::config {

void build_model_parts(const NodeReader& model, ModelConfig& out);
void build_aerie_nest(const NodeReader& aerie, NestAerieConfig& out);

}  // namespace aerie::config
