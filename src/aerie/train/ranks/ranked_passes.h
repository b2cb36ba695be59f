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
#include "aerie/nn/param_registry.h"
#include "aerie/train/graph/backward_watch.h"
#include "aerie/train/ranks/engine_ranks.h"

namespace aerie::train {

class RankedPasses {
 public:
  // The registry outlives it.
  static Result<std::unique_ptr<RankedPasses>> create(std::shared_ptr<EngineRanks> ranks,
                                                      nn::ParameterRegistry& registry);

  EngineRanks& ranks() { return *ranks_; }
  GradientReducer& reducer() { return ranks_->reducer(); }
  // For forward passes of training; null: every batch has its own statistics.
  const kernels::ExchangeSums* exchange() const { return exchange_ ? &exchange_ : nullptr; }
  // Which sums a pass exchanges is known from the first one. A rank that has no samples then, as
  // after resuming at the end of an epoch, asks here: a forward pass of training over any batch,
  // which exchanges with nobody and leaves the model as it was.
  using Rehearsal = std::function<Status(const kernels::ExchangeSums&)>;
  void set_rehearsal(Rehearsal rehearsal) { rehearsal_ = std::move(rehearsal); }
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
  // A call of the exchange.
  struct Exchanged {
    int layer = 0;
    bool backward = false;
    int64_t count = 0;
  };

  RankedPasses(std::shared_ptr<EngineRanks> ranks, nn::ParameterRegistry& registry)
      : ranks_(std::move(ranks)), registry_(registry) {}
  Status learn_script();
  Status exchange_nothing();
  void begin_part(int part);
  Status begin_rest(std::span<uint8_t> has_grad);
  Status finish_parts();

  std::shared_ptr<EngineRanks> ranks_;
  nn::ParameterRegistry& registry_;
  std::unique_ptr<BackwardWatch> watch_;
  int num_parts_ = 0, begun_ = 0, code_ = 0;
  bool reduced_ = false;  // the reducer has watched the last pass
  kernels::ExchangeSums exchange_;
  Rehearsal rehearsal_;
  int64_t exchanges_ = 0;          // of this request
  std::vector<Exchanged> script_;  // of a pass, as the first one went
  bool script_done_ = false;
};

}  // namespace aerie::train
