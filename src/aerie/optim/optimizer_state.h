// Optimizer state on its way to and from checkpoints.
#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/archive/lightning_checkpoint.h"
#include "aerie/base/status.h"
#include "aerie/optim/optimizer.h"

namespace aerie::optim {

// Kind and step counts as a JSON object: {"name":"adamw","step":1200,"steps":{"x.weight":1190}},
// where `steps` holds the parameters whose count differs. `counts`: step_counts(), copied to the
// host.
std::string step_counts_json(const Optimizer& optimizer, const at::Tensor& counts);
// The counts of such an object, on the host and not yet applied. Errors: not JSON, another kind of
// optimizer, unknown parameter names.
Result<at::Tensor> parse_step_counts(const Optimizer& optimizer, const std::string& json);

// Takes moments and step counts from the first optimizer of a Lightning checkpoint, whose numbers
// follow the order of parameters in the groups (frozen ones included). Parameters without state in
// the file start afresh. Nothing is changed on error.
Status load_lightning_state(const archive::LightningCheckpoint& checkpoint, Optimizer& optimizer);
// The same where the numbers of parameters are known: `entries` gives the registry's entry of each,
// -1 for one that is not there. The groups of the file may be others than here.
Status load_numbered_state(const archive::LightningCheckpoint& checkpoint,
                           const std::vector<int64_t>& entries, Optimizer& optimizer);

}  // namespace aerie::optim
