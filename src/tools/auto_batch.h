// `batch_size: auto`: the size of batches is found before a run starts, by the search of `aerie
// tune`, and the run is then as if it had been written. A run that is gone on with keeps the size
// it has, whatever the machine; a fresh one of the same model, data and GPU takes it from the
// cache.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/models/family.h"

namespace aerie::tools {

struct AutoBatch {
  std::vector<std::string> args;   // of the configuration, the size included
  std::vector<std::string> notes;  // what was found and where, for the log
};

// Nothing: the configuration says how large its batches are. `started_by_others`: this process is
// one of several that a launcher started, and may not search on its own.
Result<std::optional<AutoBatch>> settle_auto_batch(const models::Opened& opened,
                                                   const std::vector<std::string>& config_args,
                                                   bool started_by_others);

}  // namespace aerie::tools
