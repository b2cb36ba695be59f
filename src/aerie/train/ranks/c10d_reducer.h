// GradientReducer over torch's c10d::Reducer, as DistributedDataParallel uses it: gradients are
// copied into buckets of its own as autograd writes them, and back when they are added up. For
// engines whose backward pass is autograd's.
#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "aerie/base/status.h"
#include "aerie/nn/param_registry.h"
#include "aerie/train/graph/gradient_reducer.h"
#include "aerie/train/ranks/flat_reducer.h"

namespace aerie::train {

struct C10dReducerOptions : BucketOptions {
  // Parameters may be left out by some passes: the graph is searched for them each time.
  bool find_unused = false;
  // All passes use the same parameters equally often: what the first has found holds for all. Only
  // where every pass is reduced: the Reducer would count in those that only accumulate.
  bool static_graph = false;
  // How values and flags go over the same group; null: as the reducer likes.
  std::shared_ptr<RankGroup> values;
};

// The registry outlives it; the group outlives both.
Result<std::unique_ptr<GradientReducer>> make_c10d_reducer(
    c10::intrusive_ptr<c10d::ProcessGroup> group, nn::ParameterRegistry& registry,
    C10dReducerOptions options);

}  // namespace aerie::train
