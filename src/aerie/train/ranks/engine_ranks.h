// Everything an engine needs to train with other ranks: the reducer of its gradients, the exchange
// of BatchNorm's sums, and rank 0's state to begin with. Made of a process group; no torch group
// shows here.
//
// One thread, the engine's. It outlives the engine's use of what it hands out.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/base/status.h"
#include "aerie/dist/process_group.h"
#include "aerie/kernels/conv/batch_norm_sums.h"
#include "aerie/nn/param_registry.h"
#include "aerie/train/graph/flat_state.h"
#include "aerie/train/graph/gradient_reducer.h"
#include "aerie/train/ranks/flat_reducer.h"

namespace aerie::train {

struct RankSettings {
  // Gradients are autograd's: torch's own reducer can watch them.
  bool autograd = true;
  bool find_unused = false;
  bool static_graph = false;
  // Gradients are the buckets (flat_reducer.h); otherwise, with autograd, buckets are torch's.
  bool gradient_as_bucket_view = false;
  double bucket_cap_mb = 25.0;
  Compression compression = Compression::kNone;
  bool reduces = true;            // FlatReducerOptions
  bool shard = false;             // of the optimizer
  bool sync_batchnorm = false;    // statistics of all ranks
  bool broadcast_buffers = true;  // otherwise: rank 0's, before every step
};

class EngineRanks {
 public:
  // Fails when the ranks do not have the same model: names, shapes, what is trained. All ranks.
  static Result<std::unique_ptr<EngineRanks>> create(std::shared_ptr<dist::ProcessGroup> group,
                                                     nn::ParameterRegistry& registry,
                                                     const RankSettings& settings);
  GradientReducer& reducer() { return *reducer_; }
  // Empty: statistics are each rank's own.
  const kernels::ExchangeSums& exchange() const { return exchange_; }
  bool exchange_is_recordable() const { return exchange_recordable_; }
  // Whether tensors like BatchNorm's statistics are to be rank 0's before every step.
  bool broadcasts_buffers() const { return broadcasts_buffers_; }
  // Rank 0's values, queued on torch's current stream.
  Status broadcast(std::vector<at::Tensor> tensors);
  // Rank 0's weights, buffers, moments (where a rank has all of them), counts, averages and scale.
  Status broadcast_state(const FlatState& state);
  dist::ProcessGroup& group() { return *group_; }

 private:
  EngineRanks() = default;

  std::shared_ptr<dist::ProcessGroup> group_;
  std::shared_ptr<RankGroup> tensors_;  // of gradients and weights
  std::unique_ptr<GradientReducer> reducer_;
  kernels::ExchangeSums exchange_;
  bool exchange_recordable_ = false;
  bool broadcasts_buffers_ = false;
};

}  // namespace aerie::train
