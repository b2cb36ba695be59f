// The parts of build_loop_config(). Internal to the schema library.
#pragma once

#include "aerie/config/schema/loop_config.h"
#include "aerie/config/schema/node_reader.h"

namespace aerie::config {

void build_trainer(const NodeReader& trainer, TrainerConfig& out);
void build_exp_manager(const NodeReader& exp_manager, ExpManagerConfig& out);

}  // namespace aerie::config
