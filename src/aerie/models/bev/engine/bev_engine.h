// train::Engine on the reference model, CPU or CUDA: the yardstick for faster engines, and what
// trains where there is no GPU. submit() returns when the step is done.
//
// A window is the micro-batches of one optimizer step. Gradients gather in the registry's flat
// buffer; the end of the window unscales, decides on the device whether the step is skipped, clips,
// updates weights, averages and loss scale, and reads the results. A skipped step (loss or a
// gradient is not finite) leaves weights, moments, averages, step counts and BatchNorm statistics
// as they were; only the loss scale changes.
//
// kOutOfMemory leaves everything as it was before the call, also the gradients of an unfinished
// window and BatchNorm statistics; the request may be repeated with a larger split. Parts of a
// batch run one by one and with recomputed Swin blocks; each updates BatchNorm by itself.
//
// Over ranks (set_ranks): gradients are reduced while the last backward pass of a window goes on,
// BatchNorm's sums in every pass where asked; all ranks skip a step, or run out of memory,
// together.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "aerie/base/status.h"
#include "aerie/models/bev/bev_model.h"
#include "aerie/models/bev/config/run_config.h"
#include "aerie/models/bev/engine/prediction_sink.h"
#include "aerie/optim/ema.h"
#include "aerie/optim/grad_scaler.h"
#include "aerie/optim/gradients.h"
#include "aerie/optim/optimizer.h"
#include "aerie/train/engine.h"
#include "aerie/train/graph/device_spans.h"
#include "aerie/train/graph/flat_state.h"
#include "aerie/train/ranks/ranked_passes.h"

namespace aerie::bev {

class BevEngine final : public train::Engine {
 public:
  // Builds the model with fresh weights. Sets process-wide switches of torch (deterministic,
  // benchmark, TF32).
  static Result<std::unique_ptr<BevEngine>> create(const BevRunConfig& config, at::Device device);

  std::string description() const override;
  int64_t num_param_groups() const override;
  int64_t num_parameters() const override;
  int64_t max_in_flight() const override { return 0; }
  Status submit(const train::StepRequest& request) override;
  Result<std::vector<train::StepOutcome>> collect(bool wait) override;
  // sums: map_counts() of the batch, [tp, fp, fn][class][threshold], then sign_counts().
  Result<train::EvalOutcome> evaluate(const data::Batch& batch, uint64_t seed,
                                      uint64_t position) override;
  Status use_ema_weights(bool on) override;
  Result<std::unique_ptr<train::StateSnapshot>> snapshot() override;
  Status join_snapshot() override;
  Status restore(const train::StateSource& source) override;
  Result<std::string> fall_back_precision() override;
  train::EngineMemory memory() const override;

  BevModel& model() { return *model_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  optim::GradScaler* scaler() { return scaler_.get(); }  // null: no scaling
  config::Precision precision() const { return precision_; }
  at::Device device() const { return model_->parameters().device(); }
  // Who sees the predictions of evaluate(); null: nobody. Outlives the evaluations.
  void set_prediction_sink(PredictionSink* sink) { sink_ = sink; }
  // Begins to reserve the host memory of snapshots, so that the first save finds it.
  void reserve_snapshots();
  // Trains with other ranks from the next step on, which begins with rank 0's state. Every rank
  // makes the same calls from now on: steps, snapshots (or joins them), restores.
  Status set_ranks(std::shared_ptr<train::EngineRanks> ranks);

 private:
  // What the end of a window reads about a micro-batch.
  struct Micro {
    at::Tensor loss;   // 0-dim float32
    at::Tensor parts;  // (parts) float32: the losses of part_names_
    int64_t samples = 0;
  };
  struct Rollback;

  BevEngine() = default;
  // What to try after running out of memory, in this family's keys.
  static Status with_advice(Status status);
  void set_precision(config::Precision precision);
  train::FlatState flat_state();
  Status add(const train::StepRequest& request);
  Status run_all(const train::StepRequest& request);
  // The weights of a request's micro-batches in the step's loss.
  Result<std::vector<double>> weigh(const train::StepRequest& request);
  // `last`: of the window.
  Result<Micro> run_micro(const BevBatch& batch, double weight, int64_t split, bool last);
  // Forward and backward of samples that make `share` of a micro-batch, times `factor`.
  Result<Micro> run_part(const BevBatch& batch, double share, const at::Tensor& factor,
                         bool recompute, bool last);
  Status backward(const at::Tensor& loss, bool recompute, bool last);
  // A forward pass that exchanges with nobody and leaves no trace.
  Status rehearse(const kernels::ExchangeSums& exchange);
  // Ranks: the same state before a step; the whole moments of a sharded optimizer, for a snapshot
  // to read (`gather`) or a checkpoint to be read into.
  Status meet_ranks();
  Status show_state(bool gather);
  Status restore_whole(const train::StateSource& source);
  Result<at::Tensor> forward(const BevBatch& batch, bool training, bool recompute = false,
                             const kernels::ExchangeSums* exchange = nullptr);
  Result<train::StepOutcome> finish(const train::StepRequest& request);
  // `probability`: [B][K][nx][ny] of the batch; null: not asked for.
  Result<train::EvalOutcome> evaluate_parts(const BevBatch& batch, int64_t parts,
                                            std::vector<float>* probability);
  Rollback mark() const;
  void roll_back(const Rollback& mark);
  void drop_window();

  std::unique_ptr<BevModel> model_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::GradScaler> scaler_;
  std::unique_ptr<optim::Ema> ema_;
  std::optional<train::DeviceSpans> spans_;
  config::Precision precision_ = config::Precision::k32;
  LossScaleConfig loss_scale_;
  optim::ClipSettings clip_;
  uint64_t seed_ = 0;
  bool detect_anomaly_ = false;
  bool recompute_ = false;
  bool fallen_back_ = false;
  std::shared_ptr<train::SnapshotMemory> snapshot_memory_ =
      std::make_shared<train::SnapshotMemory>();

  PredictionSink* sink_ = nullptr;

  std::unique_ptr<train::RankedPasses> passes_;  // null: this process alone
  bool met_ = true;                              // ranks have the same state
  // The loss of a step is the mean over the samples of all micro-batches and ranks; not the mean of
  // the means of micro-batches and ranks.
  bool global_loss_ = false;
  int64_t window_divisor_ = 0, window_samples_ = 0;  // of a global loss: used so far, known now

  bool window_open_ = false;
  std::vector<Micro> window_;
  std::vector<std::string> part_names_;  // of Micro::parts
  // Which trainable parameters got a gradient in this window; hooks on the parameters write it.
  std::shared_ptr<std::vector<uint8_t>> has_grad_;
  std::vector<int64_t> statistics_;             // registry entries that a forward pass changes
  std::vector<at::Tensor> statistics_at_open_;  // their values when the window began
  std::vector<train::StepOutcome> finished_;
};

}  // namespace aerie::bev
