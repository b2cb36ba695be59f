// The state of a NestCore on its way to and from checkpoints.
//
//   model      every name of the state dict, aliases included
//   optimizer  "exp_avg.<name>" and so on
//   ema        averaged weights of all parameters, when averaging has begun
//   scalars    {"optimizer":{...},"scaler":{"scale":65536.0,"growth_tracker":12},"ema":{"count":7},
//               "fallen_back_to":"bf16-mixed"}; what does not apply is absent
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/base/status.h"
#include "aerie/train/engine.h"
#include "aerie/train/nest/nest_core.h"

namespace aerie::train {

// Host memory of snapshots that are done, for the next one: touching fresh pages costs more than
// copying. Thread-safe.
class SnapshotMemory {
 public:
  std::vector<at::Tensor> take();
  void give_back(std::vector<at::Tensor> buffers);

 private:
  std::mutex mutex_;
  std::vector<at::Tensor> spare_;
};

// Copies the state. On the CPU all is done when this returns; on a GPU it is copied on the device
// and wait() brings it to the host on a stream of its own, from whichever thread calls it. A GPU
// without room for the copy is read directly.
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
