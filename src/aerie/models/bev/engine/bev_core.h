// Forward, backward and update of LSS + Swin on tensors (train/autograd/autograd_core.h).
//
// kOutOfMemory leaves everything as it was before the call; the request may be repeated with a
// larger split. Parts of a batch run one by one and with recomputed Swin blocks; each updates
// BatchNorm by itself.
//
// One thread. The model is owned.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "aerie/base/status.h"
#include "aerie/models/bev/bev_model.h"
#include "aerie/models/bev/config/run_config.h"
#include "aerie/train/autograd/autograd_core.h"
#include "aerie/train/autograd/recorded_work.h"
#include "aerie/train/engine.h"

namespace aerie::bev {

class BevCore final : public train::AutogradCore {
 public:
  // Builds the model with fresh weights. Sets process-wide switches of torch (deterministic,
  // benchmark, TF32).
  static Result<std::unique_ptr<BevCore>> create(const BevRunConfig& config, at::Device device);

  BevModel& model() { return *model_; }
  // Forward and backward of a request's micro-batches.
  Status add(const train::StepRequest& request);
  // Ends the window.
  Result<train::StepOutcome> finish(const train::StepRequest& request);
  void drop_window() override;
  void release_memory() override;
  int64_t num_graphs() const { return recorded_.num_graphs(); }
  // In eval mode, cut into parts. `probability`: [B][K][nx][ny] of the batch; null: not asked for.
  Result<train::EvalOutcome> evaluate(const BevBatch& batch, int64_t parts,
                                      std::vector<float>* probability);

 private:
  // What the end of a window reads about a micro-batch.
  struct Micro {
    at::Tensor loss;   // 0-dim float32
    at::Tensor parts;  // (parts) float32: the losses of part_names_
    int64_t samples = 0;
  };

  explicit BevCore(std::shared_ptr<BevModel> model)
      : AutogradCore(model, model->parameters()),
        model_(std::move(model)),
        recorded_(model_->parameters().device()) {}
  Status run_all(const train::StepRequest& request);
  // The weights of a request's micro-batches in the step's loss.
  Result<std::vector<double>> weigh(const train::StepRequest& request);
  // `last`: of the window.
  Result<Micro> run_micro(const BevBatch& batch, double weight, int64_t split, bool last);
  // Forward and backward of a whole micro-batch by the graph of its shape; nothing: there is none.
  Result<std::optional<Micro>> replay(const BevBatch& batch, const at::Tensor& factor);
  // Forward and backward of samples that make `share` of a micro-batch, times `factor`.
  Result<Micro> run_part(const BevBatch& batch, double share, const at::Tensor& factor,
                         bool recompute, bool last);
  // A forward pass that exchanges with nobody and leaves no trace.
  Status rehearse(const kernels::ExchangeSums& exchange);
  // `exchange` empty: the batch has its own statistics.
  Result<at::Tensor> forward(const BevBatch& batch, bool training, bool recompute,
                             const kernels::ExchangeSums& exchange);

  const std::shared_ptr<BevModel> model_;
  uint64_t seed_ = 0;
  bool recompute_ = false, capture_ = false;
  std::vector<Micro> window_;
  std::vector<std::string> part_names_;  // of Micro::parts
  train::RecordedWork recorded_;
};

// What to try after running out of memory, in this family's keys.
Status with_advice(Status status);

}  // namespace aerie::bev
