// Forward, backward and update of NEST on tensors: what every engine of this model is measured
// against. Plain ATen on CPU or CUDA; one micro-batch at a time.
//
// A window is the micro-batches of one optimizer step. Gradients gather in the registry's flat
// buffer; finish() unscales, decides on the device whether the step is skipped, clips, updates
// weights, averages and loss scale, and reads the results.
//
// A skipped step (a gradient, or the loss of a micro-batch with masked frames, is not finite)
// leaves weights, moments, averages, step counts and BatchNorm statistics as they were; only the
// loss scale changes.
//
// Over ranks (gradient_reducer.h): with an exchange every rank makes the same passes, also those
// for which it has no samples; what one rank has no memory for, none has done.
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
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/dist/process_group.h"
#include "aerie/models/nest/config/nest_config.h"
#include "aerie/models/nest/nest_model.h"
#include "aerie/optim/ema.h"
#include "aerie/optim/grad_scaler.h"
#include "aerie/optim/gradients.h"
#include "aerie/optim/optimizer.h"
#include "aerie/train/engine.h"
#include "aerie/train/graph/backward_watch.h"
#include "aerie/train/graph/device_spans.h"
#include "aerie/train/graph/flat_parts.h"
#include "aerie/train/graph/flat_state.h"
#include "aerie/train/graph/gradient_reducer.h"

namespace aerie::train {

class NestCore {
 public:
  // The optimizer, scaler and average follow the config. Sets process-wide switches of torch
  // (deterministic, benchmark, TF32, threads).
  static Result<std::unique_ptr<NestCore>> create(std::unique_ptr<nest::NestModel> model,
                                                  const config::RunConfig& config);
  ~NestCore();

  // Makes micro-batch i of a request; called once per attempt, when its turn comes.
  using MakeBatch = std::function<Result<nest::NestBatch>(int64_t i)>;
  // Forward and backward of `count` micro-batches. Each loss is divided by `accumulate`. `split`
  // cuts every micro-batch into so many parts; each part's loss is weighted by the whole batch's
  // number of masked frames, so that gradients are those of the whole in everything but BatchNorm
  // statistics (and their number of updates). `ends_window`: finish() follows, so that gradients
  // are added up over ranks while the last backward pass goes on.
  // `vote`: StepRequest::agree.
  using Vote = std::function<Status(const Status& own)>;
  Status add(int64_t count, const MakeBatch& batch, int64_t accumulate, int64_t split,
             bool ends_window = true, const Vote& vote = {});
  // Ends the window. outcome.step is the caller's.
  Result<StepOutcome> finish(std::span<const double> learning_rates);
  bool window_open() const { return window_open_; }
  // Forgets a window that will not be finished; statistics stay as they are.
  void drop_window();

  // The masked frames that all parts of a batch cut into `split` will count. Only post_conv looks
  // at its audio.
  Result<int64_t> masked_frames(const nest::NestBatch& batch, int64_t split);

  // Eval mode, running statistics, masks on, no gradients. Cuts the batch when memory runs out.
  Result<EvalOutcome> evaluate(const nest::NestBatch& batch);

  // Goes from 16-mixed to bf16-mixed, or to 32 without bf16.
  Result<config::Precision> fall_back_precision();
  config::Precision precision() const { return precision_; }
  void set_precision(config::Precision precision);

  nest::NestModel& model() { return *model_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  optim::GradScaler* scaler() { return scaler_.get(); }  // null: no scaling
  optim::Ema* ema() { return ema_.get(); }               // null: off
  at::Device device() const { return model_->parameters().device(); }
  FlatState flat_state() { return {model_->parameters(), *optimizer_, scaler_.get(), ema_.get()}; }
  // The flat buffers as the step reads and writes them (models/nest/step/nest_step.h).
  FlatParts flat_parts() const;
  // As CoreEngine has them; not inside a window.
  Status set_reducer(GradientReducer* reducer);
  GradientReducer* reducer() const { return reducer_; }
  Status set_exchange(kernels::ExchangeSums exchange, bool recordable);
  const kernels::ExchangeSums& exchange() const { return exchange_; }
  bool exchange_is_recordable() const { return exchange_recordable_; }
  // The loss of a step is the mean over all frames that count, of all micro-batches and ranks; not
  // the mean of the means of micro-batches and ranks. Not inside a window.
  void set_global_loss(bool on) { global_loss_ = on; }
  bool global_loss() const { return global_loss_; }
  // `frames` of this rank, added up over all; at least 1.
  Result<int64_t> over_ranks(int64_t frames);
  // Where the optimizer is sharded: whole moments, for a snapshot to read (`gather`) or a
  // checkpoint to be read into, and back.
  Status show_state(bool gather);
  void hide_state(bool written);
  // Takes part in what other ranks exchange in a pass over a batch without samples.
  Status exchange_nothing();
  // BatchNorm's statistics as rank 0 has them, where ranks have their own.
  void set_broadcast_statistics(std::function<Status(std::vector<at::Tensor>)> broadcast) {
    broadcast_statistics_ = std::move(broadcast);
  }
  // Who is told what a step is doing, for the messages of other ranks; null: nobody. Outlives it.
  void set_group(dist::ProcessGroup* group) { group_ = group; }
  dist::ProcessGroup* group() const { return group_; }
  // Where the phases of a step are timed.
  DeviceSpans& spans() { return *spans_; }
  // Masks for every following forward pass instead of drawn ones; null: draw again. For tests.
  void force_masks(const nest::MaskSpans* spans) { forced_masks_ = spans; }

 private:
  // What finish() reads about a micro-batch.
  struct Micro {
    at::Tensor loss;    // 0-dim float32
    at::Tensor count;   // 0-dim int64: masked frames
    at::Tensor frames;  // 0-dim int64: valid encoder frames
  };
  struct Rollback;
  // How the sum of losses of a micro-batch enters the step.
  struct Weight {
    bool global = false;  // by `of_sum`; otherwise the mean, by 1 / accumulate
    double of_sum = 1.0;
    int64_t accumulate = 1;
  };

  NestCore() = default;
  // `statistics`: copies of the running ones as they are now.
  void open_window(const std::vector<at::Tensor>& statistics);
  Result<Micro> run_micro(const nest::NestBatch& batch, const Weight& weight, int64_t split,
                          bool last);
  Status run_all(int64_t count, const MakeBatch& batch, int64_t accumulate, int64_t split,
                 bool ends_window);
  // Of all micro-batches of a request.
  Result<Weight> weigh(const std::vector<nest::NestBatch>& batches, int64_t split);
  // Whether all ranks have done what this one has done with this result. `passes`: with an
  // exchange, as many as every rank makes.
  Status agree(Status status, int64_t passes, bool ends_window, const Vote& vote);
  Status exchange_next();
  Result<nest::NestOutput> forward(const nest::NestBatch& batch, bool training);
  // `last`: of the window.
  Status backward(const at::Tensor& loss, bool last);
  void* stream() const;  // what the reducer takes
  void enter(dist::Phase phase) const {
    if (group_ != nullptr) group_->set_phase(phase);
  }
  void begin_part(int part);
  Status begin_rest();
  Status finish_reduction();
  Rollback mark() const;
  void roll_back(const Rollback& mark);
  std::string first_nonfinite_gradient() const;

  std::unique_ptr<nest::NestModel> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::GradScaler> scaler_;
  std::unique_ptr<optim::Ema> ema_;
  config::Precision precision_ = config::Precision::k32;
  std::optional<double> loss_scale_;
  optim::ClipSettings clip_;
  std::optional<DeviceSpans> spans_;
  bool detect_anomaly_ = false;
  bool nan_when_empty_ = false;
  const nest::MaskSpans* forced_masks_ = nullptr;

  GradientReducer* reducer_ = nullptr;
  std::unique_ptr<BackwardWatch> watch_;  // with a reducer
  int num_parts_ = 0;
  int reducing_ = 0;      // parts of the window that the reducer has begun
  int reducer_code_ = 0;  // its first error
  kernels::ExchangeSums exchange_;
  bool exchange_recordable_ = true;
  int64_t exchanges_ = 0;  // calls in this request
  dist::ProcessGroup* group_ = nullptr;
  bool watched_pass_ = false;  // the reducer has watched a pass of this window
  bool global_loss_ = false;
  int64_t window_divisor_ = 0, window_frames_ = 0;  // of a global loss: used so far, known now
  std::function<Status(std::vector<at::Tensor>)> broadcast_statistics_;

  bool window_open_ = false;
  std::vector<Micro> window_;
  // Which trainable parameters got a gradient in this window; hooks on the parameters write it.
  std::shared_ptr<std::vector<uint8_t>> has_grad_;
  std::vector<int64_t> statistics_;             // registry entries that a forward pass changes
  std::vector<at::Tensor> statistics_at_open_;  // their values when the window began
};

// Rows [begin, end) of a batch, with the random numbers these rows have in the whole batch.
nest::NestBatch batch_rows(const nest::NestBatch& batch, int64_t begin, int64_t end);

}  // namespace aerie::train
