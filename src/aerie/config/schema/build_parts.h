// The parts of build_run_config(), one file each. Internal to the schema library.
#pragma once

#include "aerie/config/schema/node_reader.h"
#include "aerie/models/nest/config/nest_config.h"

namespace aerie::config {

void build_model_parts(const NodeReader& model, ModelConfig& out);
void build_datasets(const NodeReader& model, ModelConfig& out);
void build_optim(const NodeReader& model, const TrainerConfig& trainer, ModelConfig& out);
void build_trainer(const NodeReader& trainer, TrainerConfig& out);
void build_exp_manager(const NodeReader& exp_manager, ExpManagerConfig& out);
void build_aerie(const NodeReader& aerie, AerieConfig& out);

}  // namespace aerie::config
