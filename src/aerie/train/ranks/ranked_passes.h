// The dealings of an engine on autograd with other ranks, pass by pass: gradients that are added up
// while the last backward pass of a step goes on, BatchNorm's sums that are exchanged in every
// pass, ranks that have no samples or no memory for them.
//
// One thread.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/dist/process_group.h"
#include "aerie/kernels/conv/batch_norm_sums.h"
#include "aerie/nn/param_registry.h"
#include "aerie/train/graph/backward_watch.h"
#include "aerie/train/graph/flat_parts.h"
#include "aerie/train/graph/gradient_reducer.h"

namespace aerie::train {

class RankedPasses {
 public:
  // Alone until there is a reducer. The registry outlives it.
  explicit RankedPasses(nn::ParameterRegistry& registry) : registry_(registry) {}

  // Not inside a window. Null: this process is alone. The reducer outlives it or is taken away.
  Status set_reducer(GradientReducer* reducer, const FlatParts& parts);
  GradientReducer* reducer() const { return reducer_; }
  // A layer's part in an exchange, forward.
  struct Exchanged {
    int layer = 0;
    int64_t channels = 0;
    int64_t weight = 0;  // of the layer, in the registry; its statistics are declared behind it
    bool backward = false;
  };
  // Not inside a window. Empty: every batch has its own statistics. `forward`: what a forward pass
  // exchanges; empty: the first pass shows it, whose layers are numbered by their weights.
  void set_exchange(kernels::ExchangeSums exchange, std::vector<Exchanged> forward = {});
  // For forward passes of training; empty as above.
  const kernels::ExchangeSums& exchange() const { return exchange_; }
  // A rank that has no samples in the first pass, as after resuming at the end of an epoch, asks
  // here: a forward pass of training over any batch, which exchanges with nobody and leaves the
  // model as it was.
  using Rehearsal = std::function<Status(const kernels::ExchangeSums&)>;
  void set_rehearsal(Rehearsal rehearsal) { rehearsal_ = std::move(rehearsal); }
  // Who is told what a step is doing, for the messages of other ranks; null: nobody. Outlives it.
  void set_group(dist::ProcessGroup* group) { group_ = group; }
  dist::ProcessGroup* group() const { return group_; }
  void enter(dist::Phase phase) const {
    if (group_ != nullptr) group_->set_phase(phase);
  }
  // What the reducer takes: torch's current stream on the model's device; null: the CPU.
  void* stream() const;

  void open_window();
  void open_request() { exchanges_ = 0; }
  // Calls run(), which is the backward pass of `loss`. `last`: of the window. `whole`: every
  // parameter gets its gradient at once, which recomputed layers do not do.
  Status backward(const at::Tensor& loss, bool last, bool whole, const std::function<void()>& run);
  // A pass of the others for which this rank has no samples.
  Status without_samples();
  // Behind the passes of a request, each rank with its own result: out of memory is everybody's
  // afterwards. `passes`: as many as every rank makes; `vote`: asks all ranks, empty: the reducer
  // does.
  Status agree(Status status, int64_t passes, bool ends_window, std::span<uint8_t> has_grad,
               const std::function<Status(const Status&)>& vote);
  // Gradients are the mean over ranks when this returns, and flags are set that any rank has set.
  Status finish(std::span<uint8_t> has_grad);

 private:
  Status learn_script();
  void note(const kernels::ExchangedSums& sums);
  void mirror_script();
  Status exchange_nothing();
  void begin_part(int part);
  Status begin_rest(std::span<uint8_t> has_grad);
  Status finish_parts();

  nn::ParameterRegistry& registry_;
  GradientReducer* reducer_ = nullptr;
  dist::ProcessGroup* group_ = nullptr;
  std::unique_ptr<BackwardWatch> watch_;
  int num_parts_ = 0, begun_ = 0, code_ = 0;
  bool reduced_ = false;  // the reducer has watched the last pass
  kernels::ExchangeSums exchange_;
  Rehearsal rehearsal_;
  int64_t exchanges_ = 0;          // of this request
  std::vector<Exchanged> script_;  // of a pass
  bool script_done_ = false;
};

// A model's flat gradients in at most 16 parts: parameters are declared in about the order in which
// a forward pass uses them.
FlatParts parts_as_declared(const nn::ParameterRegistry& registry);

}  // namespace aerie::train
