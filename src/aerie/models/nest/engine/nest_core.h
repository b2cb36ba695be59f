// Forward, backward and update of NEST on tensors: what every engine of this model is measured
// against. One micro-batch at a time.
//
// A loss that is not finite makes a step be skipped where its micro-batch has masked frames.
//
// Out of memory: add() puts back what the failed call changed (gradients gathered before it,
// BatchNorm statistics), empties the device's cache and returns kOutOfMemory; the call may be
// repeated with more parts.
//
// One thread. The model is owned.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/models/nest/config/nest_config.h"
#include "aerie/models/nest/nest_model.h"
#include "aerie/train/autograd/autograd_core.h"
#include "aerie/train/engine.h"

namespace aerie::train {

class NestCore final : public AutogradCore {
 public:
  // The optimizer, scaler and average follow the config. Sets process-wide switches of torch
  // (deterministic, benchmark, TF32, threads).
  static Result<std::unique_ptr<NestCore>> create(std::unique_ptr<nest::NestModel> model,
                                                  const config::RunConfig& config);

  // Makes micro-batch i of a request; called once per attempt, when its turn comes.
  using MakeBatch = std::function<Result<nest::NestBatch>(int64_t i)>;
  // Forward and backward of `count` micro-batches. Each loss is divided by `accumulate`. `split`
  // cuts every micro-batch into so many parts; each part's loss is weighted by the whole batch's
  // number of masked frames, so that gradients are those of the whole in everything but BatchNorm
  // statistics (and their number of updates). `ends_window`: finish() follows, so that gradients
  // are added up over ranks while the last backward pass goes on.
  // `vote`: StepRequest::agree.
  Status add(int64_t count, const MakeBatch& batch, int64_t accumulate, int64_t split,
             bool ends_window = true, const Vote& vote = {});
  // Ends the window. outcome.step is the caller's.
  Result<StepOutcome> finish(std::span<const double> learning_rates);
  void drop_window() override;
  // The masked frames that all parts of a batch cut into `split` will count. Only post_conv looks
  // at its audio.
  Result<int64_t> masked_frames(const nest::NestBatch& batch, int64_t split);
  // Eval mode, running statistics, masks on, no gradients. Cuts the batch when memory runs out.
  Result<EvalOutcome> evaluate(const nest::NestBatch& batch);

  nest::NestModel& model() { return *model_; }
  // As the step has them (models/nest/step/nest_step.h).
  FlatParts flat_parts() const override;
  Status set_exchange(kernels::ExchangeSums exchange, bool recordable) override;
  // Masks for every following forward pass instead of drawn ones; null: draw again. For tests.
  void force_masks(const nest::MaskSpans* spans) { forced_masks_ = spans; }

 private:
  // What finish() reads about a micro-batch.
  struct Micro {
    at::Tensor loss;    // 0-dim float32
    at::Tensor count;   // 0-dim int64: masked frames
    at::Tensor frames;  // 0-dim int64: valid encoder frames
  };
  // How the sum of losses of a micro-batch enters the step.
  struct Weight {
    bool global = false;  // by `of_sum`; otherwise the mean, by 1 / accumulate
    double of_sum = 1.0;
    int64_t accumulate = 1;
  };
  explicit NestCore(std::shared_ptr<nest::NestModel> model)
      : AutogradCore(model, model->parameters()), model_(std::move(model)) {}
  Result<Micro> run_micro(const nest::NestBatch& batch, const Weight& weight, int64_t split,
                          bool last);
  Status run_all(int64_t count, const MakeBatch& batch, int64_t accumulate, int64_t split,
                 bool ends_window);
  // Of all micro-batches of a request.
  Result<Weight> weigh(const std::vector<nest::NestBatch>& batches, int64_t split);
  Result<nest::NestOutput> forward(const nest::NestBatch& batch, bool training);
  // Recomputed layers add to shared parameters one by one.
  Status backward(const at::Tensor& loss, bool last) {
    return AutogradCore::backward(loss, last, /*whole=*/!model_->recomputes());
  }
  std::string first_nonfinite_gradient() const;

  const std::shared_ptr<nest::NestModel> model_;
  bool nan_when_empty_ = false;
  const nest::MaskSpans* forced_masks_ = nullptr;
  std::vector<Micro> window_;
};

// Rows [begin, end) of a batch, with the random numbers these rows have in the whole batch.
nest::NestBatch batch_rows(const nest::NestBatch& batch, int64_t begin, int64_t end);

}  // namespace aerie::train
