// Where NEST's part of its schema comes from, one file each. Internal to the folder.
#pragma once

#include <span>

#include "aerie/config/schema/checks.h"
#include "aerie/config/schema/effect.h"
#include "aerie/config/schema/field_keys.h"
#include "aerie/models/nest/config/nest_config.h"

namespace aerie::config {

const FieldKeys<ModelConfig>& model_fields();       // of the model as a whole
const FieldKeys<ModelConfig>& model_part_fields();  // of its parts, without the encoder
const FieldKeys<EncoderConfig>& encoder_fields();

// The parts of build_run_config().
void build_model_parts(const NodeReader& model, ModelConfig& out);
void build_aerie_nest(const NodeReader& aerie, NestAerieConfig& out);

void check_model(CheckContext& context);
std::span<const IdleRule> model_idle_rules();

}  // namespace aerie::config
