// What is different from the run's previous start, for the log of a resumed run.
#pragma once

#include <string>
#include <vector>

#include "aerie/config/value.h"
#include "aerie/data/cursor.h"

namespace aerie::train {

// "model.optim.lr: 0.001 -> 0.002" for every key whose value differs. Values that are still
// expressions in one of the two are not compared.
std::vector<std::string> config_changes(const config::Value& before, const config::Value& now);

// The same of the training data: other samples or another order under the same keys.
std::vector<std::string> data_changes(const data::Cursor& before, const data::Cursor& now);

}  // namespace aerie::train
