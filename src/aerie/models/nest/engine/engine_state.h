// The state of a NestCore on its way to and from checkpoints.
//
//   model      every name of the state dict, aliases included
//   optimizer  "exp_avg.<name>" and so on
//   ema        averaged weights of all parameters, when averaging has begun
//   scalars    {"optimizer":{...},"scaler":{"scale":65536.0,"growth_tracker":12},"ema":{"count":7},
//               "fallen_back_to":"bf16-mixed"}; what does not apply is absent
#pragma once

#include <cstdint>
#include <memory>

#include "aerie/base/status.h"
#include "aerie/models/nest/engine/nest_core.h"
#include "aerie/train/engine.h"
#include "aerie/train/graph/snapshot_memory.h"

namespace aerie::train {

// Bytes of a snapshot's tensors on the device, averaged weights included where they will come.
int64_t snapshot_bytes(NestCore& core);
// Copies the state to the host (snapshot_memory.h); training may change it when this returns.
Result<std::unique_ptr<StateSnapshot>> take_snapshot(NestCore& core,
                                                     std::shared_ptr<SnapshotMemory> memory,
                                                     bool fallen_back);

// What restore() found out beside the tensors.
struct RestoredInfo {
  bool fallen_back = false;
};
// Nothing is changed on error.
Result<RestoredInfo> restore_state(NestCore& core, const StateSource& source);

}  // namespace aerie::train
