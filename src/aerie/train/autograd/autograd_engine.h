// What engines around an AutogradCore share: parameters, averages, checkpoints, precision, memory,
// other ranks. They differ in how a step is computed.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "aerie/train/autograd/autograd_core.h"
#include "aerie/train/engine.h"
#include "aerie/train/graph/snapshot_memory.h"
#include "aerie/train/job.h"
#include "aerie/train/ranks/engine_ranks.h"

namespace aerie::train {

class AutogradEngine : public Engine {
 public:
  std::string description() const override;
  int64_t num_param_groups() const override;
  int64_t num_parameters() const override;
  Status use_ema_weights(bool on) override;
  Result<std::unique_ptr<StateSnapshot>> snapshot() override;
  Status join_snapshot() override;
  Status restore(const StateSource& source) override;
  Result<std::string> fall_back_precision() override;
  EngineMemory memory() const override;

  virtual AutogradCore& autograd() const = 0;
  // Base learning rate of every parameter group, for the schedule.
  std::vector<double> base_rates() const { return autograd().optimizer().base_rates(); }
  Status set_precision(config::Precision precision);
  // Parts of making the engine, in seconds, for the line about the start of a run.
  const std::vector<std::pair<std::string, double>>& start_times() const { return start_times_; }
  // Begins to reserve the host memory of snapshots, so that the first save finds it.
  void reserve_snapshots();
  // Gradients are added up over ranks before norm, decision and update; null: they are this
  // engine's. BatchNorm's sums are exchanged where `exchange` is not empty. `recordable`: the
  // exchange may be part of a CUDA graph. Between steps; the reducer outlives the engine or is
  // taken away.
  virtual Status set_reducer(GradientReducer* reducer);
  virtual Status set_exchange(kernels::ExchangeSums exchange, bool recordable);
  // Both of them, and rank 0's state before the next step. Every rank makes the same calls from now
  // on: steps, snapshots (or joins them), restores, changes of weights.
  Status set_ranks(std::shared_ptr<EngineRanks> ranks);
  // The same with the ranks of a run, if it has others. `autograd_alone`: RankSettings::autograd.
  Status join_ranks(const EngineOptions& options, const config::TrainerConfig& trainer,
                    const config::AerieConfig& aerie, config::OptimizerKind optimizer,
                    bool autograd_alone);
  EngineRanks* ranks() const { return ranks_.get(); }
  // The core's state was written from outside: weights, buffers, moments, counts, scale, precision.
  virtual Status state_written() { return ok_status(); }

 protected:
  virtual const char* kind() const = 0;  // "reference"
  // What an engine keeps elsewhere goes into the core, which is about to be read.
  virtual Status write_state() { return finish_update(); }
  // What the last step left to do is done.
  virtual Status finish_update() { return ok_status(); }
  // Before a step: all ranks have the same state.
  Status meet_ranks();
  // Device memory beside torch's.
  virtual size_t own_memory_bytes() const { return 0; }

  std::shared_ptr<EngineRanks> ranks_;  // null: this process alone
  std::vector<StepOutcome> finished_;
  std::vector<std::pair<std::string, double>> start_times_;

 private:
  Status restore_whole(const StateSource& source);

  bool fallen_back_ = false;
  bool met_ = true;  // ranks have the same state
  std::shared_ptr<SnapshotMemory> snapshot_memory_ = std::make_shared<SnapshotMemory>();
};

// Where an engine is to be made; peaks of memory count from now on.
Result<at::Device> engine_device(const EngineOptions& options);
// A resumed run may have fallen back.
Status take_precision(const EngineOptions& options, config::TrainerConfig& trainer);
// An engine as a run takes it.
BuiltEngine built_engine(std::unique_ptr<AutogradEngine> engine, const EngineOptions& options);

}  // namespace aerie::train
