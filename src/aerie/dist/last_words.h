// What a rank says and leaves behind when the run cannot go on.
#pragma once

#include <string>

#include "aerie/base/status.h"
#include "aerie/dist/process_group.h"

namespace aerie::dist {

// This rank cannot go on: onto its console, with a mark for the launcher.
void report_failure(const std::string& why);

// Another rank is to blame: into the log, from one rank of each machine also on its console; and a
// mark for the launcher.
void report_loss(const RankLoss& loss, const World& world);

// The reason for torchrun, which prints the one that came first (TORCHELASTIC_ERROR_FILE).
void write_elastic_error(const Status& error);

}  // namespace aerie::dist
