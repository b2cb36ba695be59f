// What speech data adds to the schema of a family: rows of `model.<ds>` and of `aerie:`, checks,
// and the way from a resolved tree to structs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aerie/config/schema/checks.h"
#include "aerie/config/schema/node_reader.h"
#include "aerie/config/schema/schema.h"
#include "aerie/data/speech/config/dataset_config.h"
#include "aerie/data/speech/config/speech_aerie_config.h"

namespace aerie::config {

// Everything but the check, whose place among the family's the family chooses.
void add_speech_keys(SchemaParts& parts);
void check_datasets(CheckContext& context);

// `sample_rate`: for data sets that name none.
void build_datasets(const NodeReader& model, int64_t sample_rate, SpeechDatasets& out);

// The keys of `aerie:` that concern audio.
void build_aerie_speech(const NodeReader& aerie, SpeechAerieConfig& out);

// NeMo's metric prefix of a validation or test set: the file's stem (or the name itself when it is
// no path), '-' to '_', without "manifest" and "dataset", ending in '_'. Empty when nothing is
// left, which NeMo refuses.
std::string dataset_metric_name(std::string_view manifest_or_name);

}  // namespace aerie::config
