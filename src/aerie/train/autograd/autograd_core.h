// What forward, backward and update on autograd have in common, whatever is trained: the window of
// an optimizer step, optimizer, loss scale, averages, precision, and the dealings with other ranks.
// Plain ATen on CPU or CUDA.
//
// A window is the micro-batches of one optimizer step. Gradients gather in the registry's flat
// buffer; the end of the window unscales, decides on the device whether the step is skipped, clips,
// updates weights, averages and loss scale, and reads the results.
//
// A skipped step (a gradient or a loss is not finite) leaves weights, moments, averages, step
// counts and BatchNorm statistics as they were; only the loss scale changes.
//
// Over ranks (gradient_reducer.h): with an exchange every rank makes the same passes, also those
// for which it has no samples; what one rank has no memory for, none has done.
//
// One thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "aerie/base/status.h"
#include "aerie/config/schema/aerie_config.h"
#include "aerie/config/schema/trainer_config.h"
#include "aerie/nn/param_registry.h"
#include "aerie/optim/ema.h"
#include "aerie/optim/grad_scaler.h"
#include "aerie/optim/gradients.h"
#include "aerie/optim/optimizer.h"
#include "aerie/train/graph/device_spans.h"
#include "aerie/train/graph/flat_parts.h"
#include "aerie/train/graph/flat_state.h"
#include "aerie/train/ranks/ranked_passes.h"

namespace aerie::train {

class AutogradCore {
 public:
  AutogradCore(const AutogradCore&) = delete;
  AutogradCore& operator=(const AutogradCore&) = delete;

  bool window_open() const { return window_open_; }
  // Forgets a window that will not be finished; statistics stay as they are.
  virtual void drop_window();

  // Goes from 16-mixed to bf16-mixed, or to 32 without bf16.
  Result<config::Precision> fall_back_precision();
  config::Precision precision() const { return precision_; }
  void set_precision(config::Precision precision);

  nn::ParameterRegistry& registry() const { return registry_; }
  at::Device device() const { return registry_.device(); }
  optim::Optimizer& optimizer() { return *optimizer_; }
  optim::GradScaler* scaler() { return scaler_.get(); }  // null: no scaling
  optim::Ema* ema() { return ema_.get(); }               // null: off
  FlatState flat_state() { return {registry_, *optimizer_, scaler_.get(), ema_.get()}; }
  // What the device holds for later use is given back, since memory is short.
  virtual void release_memory();
  // Where the phases of a step are timed.
  DeviceSpans& spans() { return spans_; }

  // The flat buffers as passes read and write them.
  virtual FlatParts flat_parts() const { return parts_as_declared(registry_); }
  // As AutogradEngine has them; not inside a window.
  Status set_reducer(GradientReducer* reducer);
  GradientReducer* reducer() const { return passes_.reducer(); }
  virtual Status set_exchange(kernels::ExchangeSums exchange, bool recordable);
  const kernels::ExchangeSums& exchange() const { return passes_.exchange(); }
  bool exchange_is_recordable() const { return exchange_recordable_; }
  // BatchNorm's statistics as rank 0 has them, where ranks have their own.
  void set_broadcast_statistics(std::function<Status(std::vector<at::Tensor>)> broadcast) {
    broadcast_statistics_ = std::move(broadcast);
  }
  // Who is told what a step is doing, for the messages of other ranks; null: nobody. Outlives it.
  void set_group(dist::ProcessGroup* group) { passes_.set_group(group); }
  dist::ProcessGroup* group() const { return passes_.group(); }
  // The loss of a step is the mean over all that counts, of all micro-batches and ranks; not the
  // mean of the means of micro-batches and ranks. Not inside a window.
  void set_global_loss(bool on) { global_loss_ = on; }
  bool global_loss() const { return global_loss_; }
  // `count` of this rank, added up over all; at least 1.
  Result<int64_t> over_ranks(int64_t count) const;
  // Where the optimizer is sharded: whole moments, for a snapshot to read (`gather`) or a
  // checkpoint to be read into, and back.
  Status show_state(bool gather);
  void hide_state(bool written);

 protected:
  // `model` owns the registry; it goes last.
  AutogradCore(std::shared_ptr<void> model, nn::ParameterRegistry& registry);
  ~AutogradCore() = default;
  // `scaling`: of 16-mixed.
  void set_up(std::unique_ptr<optim::Optimizer> optimizer, const config::TrainerConfig& trainer,
              const config::EmaConfig& ema, const optim::GradScaler::Settings& scaling,
              const optim::ClipSettings& clip);

  // Makes the passes of a request as part of a window, which begins where there is none. Whatever
  // fails leaves gradients gathered before it and BatchNorm statistics as they were, and
  // releases memory. `count`: the passes that every rank makes; `vote`: StepRequest::agree.
  using Vote = std::function<Status(const Status& own)>;
  Status in_window(const std::function<Status()>& passes, int64_t count, bool ends_window,
                   const Vote& vote);
  // What a global loss is divided by, from what this rank's micro-batches of a request count.
  Result<int64_t> divisor_for(int64_t count);
  int world() const { return reducer() != nullptr ? reducer()->world() : 1; }
  // All ranks make as many passes when they meet in them.
  int64_t num_passes(int64_t split, int64_t rows) const {
    return exchange() ? split : std::min(split, rows);
  }
  // `last`: of the window. `whole`: as RankedPasses has it.
  Status backward(const at::Tensor& loss, bool last, bool whole);
  // The end of a window, in this order. Where ranks do not come together, it is dropped.
  Status check_rates(std::span<const double> learning_rates) const;
  Status reduce();                          // gradients over ranks
  Status add_up(const at::Tensor& values);  // over ranks, float32 or float64
  optim::GradientReport prepare_gradients();
  void update(std::span<const double> learning_rates, const at::Tensor& found);
  // What to make of an exception on the way: the update may be half done, so that this is no "try
  // again with smaller parts".
  Status half_done(const Status& status);

  const std::shared_ptr<void> owner_;
  nn::ParameterRegistry& registry_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<optim::GradScaler> scaler_;
  std::unique_ptr<optim::Ema> ema_;
  DeviceSpans spans_;
  RankedPasses passes_;
  config::Precision precision_ = config::Precision::k32;
  bool detect_anomaly_ = false;
  bool global_loss_ = false;
  std::vector<int64_t> statistics_;  // registry entries that a forward pass changes
  // Which trainable parameters got a gradient in this window; hooks on the parameters write it.
  std::shared_ptr<std::vector<uint8_t>> has_grad_;

 private:
  struct Mark;
  bool shards() const { return reducer() != nullptr && reducer()->shards(); }
  Mark mark() const;
  void roll_back(const Mark& mark);
  void open_window(const std::vector<at::Tensor>& statistics);
  // BatchNorm statistics: one flat tensor of each dtype, a copy.
  std::vector<at::Tensor> read_statistics() const;
  void write_statistics(const std::vector<at::Tensor>& values) const;

  optim::GradScaler::Settings scaling_;
  optim::ClipSettings clip_;
  bool exchange_recordable_ = true;
  std::function<Status(std::vector<at::Tensor>)> broadcast_statistics_;
  bool window_open_ = false;
  int64_t window_divisor_ = 0, window_count_ = 0;  // of a global loss: used so far, known now
  std::vector<std::vector<at::Tensor>> statistics_by_dtype_;
  std::vector<at::Tensor> statistics_at_open_;  // their values when the window began
};

// Switches of torch, of the whole process: deterministic, benchmark, TF32, threads of the CPU.
// `fixed_workspace`: cuBLAS gets one also where this engine need not be deterministic. Torch looks
// once in a process, at the first product, so that a deterministic engine after another one would
// be refused.
void set_process_switches(const config::TrainerConfig& trainer, config::Tf32 tf32,
                          at::Device device, bool fixed_workspace = false);
// For the taps of a forward pass: `culprit` becomes the name of the first value that is not finite.
std::function<void(const std::string&, const at::Tensor&)> first_nonfinite(std::string* culprit);

}  // namespace aerie::train
