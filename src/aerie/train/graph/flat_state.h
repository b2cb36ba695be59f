// The state of a model with flat weights (nn/param_registry.h) on its way to and from checkpoints,
// whatever the model is.
//
//   model      every name of the state dict, aliases included
//   optimizer  "exp_avg.<name>" and so on
//   ema        averaged weights of all parameters, when averaging has begun
//   scalars    {"optimizer":{...},"scaler":{"scale":65536.0,"growth_tracker":12},"ema":{"count":7}}
//              and texts of the engine's own, as "fallen_back_to":"bf16-mixed"; what does not apply
//              is absent
//
// One thread calls; snapshots may be waited for and read by another.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/checkpoint/state.h"
#include "aerie/nn/param_registry.h"
#include "aerie/optim/ema.h"
#include "aerie/optim/grad_scaler.h"
#include "aerie/optim/optimizer.h"
#include "aerie/train/graph/snapshot_memory.h"

namespace aerie::train {

// Where a state lives; owned by the engine.
struct FlatState {
  nn::ParameterRegistry& registry;
  optim::Optimizer& optimizer;
  optim::GradScaler* scaler = nullptr;  // null: no loss scaling
  optim::Ema* ema = nullptr;            // null: off
};
using TextScalars = std::vector<std::pair<std::string, std::string>>;

// Bytes of a snapshot's tensors on the device, averaged weights included where they will come.
int64_t snapshot_bytes(const FlatState& state);
// Copies the state to the host (snapshot_memory.h); training may change it when this returns.
Result<std::unique_ptr<StateSnapshot>> take_snapshot(const FlatState& state,
                                                     std::shared_ptr<SnapshotMemory> memory,
                                                     TextScalars texts);

// A state that was read and checked. Nothing has changed yet.
class ReadState {
 public:
  struct Values;
  explicit ReadState(std::unique_ptr<Values> values);
  ReadState(ReadState&&) noexcept;
  ~ReadState();

  // One of the engine's own texts; empty where it is of another type.
  std::optional<std::string> text(const std::string& name) const;
  // Puts it where it was read for; scaler and average may be others by now.
  Status write(const FlatState& state);

 private:
  std::unique_ptr<Values> values_;
};
Result<ReadState> read_state(const FlatState& state, const StateSource& source);

}  // namespace aerie::train
