// Meeting the other ranks: the store of torch (TCPStore), a Gloo group for values of the host and a
// Gloo or NCCL group for tensors. Nothing of c10d is touched before join_ranks() is called.
#pragma once

#include <memory>

#include "aerie/base/status.h"
#include "aerie/dist/process_group.h"

namespace aerie::dist {

// Waits for all ranks. Also for a world of one (which trainers do not need to join).
Result<std::shared_ptr<ProcessGroup>> join_ranks(const World& world, const GroupOptions& options);

// Whether this build can reduce over NCCL; kUnavailable with the reason otherwise.
Status nccl_available();

}  // namespace aerie::dist
