// What the training loop asks of a model: an Engine takes micro-batches to an optimizer step. The
// loop knows neither torch nor the model; a second back end (captured CUDA graphs) or another
// system implements the same interface.
//
// Results come late: submit() may return before the device has finished, and learning rate, loss
// scale and the decision to skip a step that is not finite are applied on the device. collect()
// hands over what has finished, in step order. The loop and its guards live with results that are a
// few steps old.
//
// One thread calls an engine.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/checkpoint/state.h"
#include "aerie/train/metric_values.h"

namespace aerie::data {
class Batch;
}

namespace aerie::train {

class EvalAccumulator;

// What the loop needs to know about the task, for names and reports.
struct TaskInfo {
  std::string name;    // "NEST"
  std::string family;  // as records and reports name it: "nest"
  std::string train_loss = "train_loss";
  std::string eval_loss = "val_loss";  // the metric's name
  // The number of an evaluation that decides which checkpoint is best, unless the config says.
  std::string monitor = "val_loss";
  bool monitor_max = false;  // higher is better
  // What is counted of the input: BatchSummary::amount.
  std::string amount = "samples";
  std::string throughput = "samples_per_s";
  std::string throughput_unit = "samples/s";
  // What to try, in the family's keys.
  std::string sample = "sample";  // what batches consist of: "clip"
  std::string smaller_batch = "lower batch_size";
  std::string smaller_sample = "use smaller samples";
  std::string lower_rate = "lower the learning rate";
  // Numbers of an evaluation beside its loss, by name; may be empty.
  std::function<std::vector<std::pair<std::string, double>>(const EvalAccumulator&)> eval_metrics;
};

// What to try where memory ran out, unless the status says it already.
inline Status advise_memory(const TaskInfo& task, Status status) {
  return status.code() == StatusCode::kOutOfMemory ? std::move(status).with_hint(task.smaller_batch)
                                                   : status;
}

// One optimizer step.
struct StepRequest {
  std::span<const data::Batch* const> micro_batches;
  int64_t step = 0;  // optimizer steps done before this one; keys nothing random
  uint64_t first_micro_step =
      0;  // micro-batches of the run before these; keys dropout, dither and masks
  int64_t accumulate =
      1;  // the loss of each micro-batch is divided by this (also in a shorter last window)
  std::vector<double> learning_rates;  // one per parameter group
  std::optional<double> momentum;      // of all groups, where the schedule changes it
  // False: only accumulate. The loop cuts a window in two where validation falls inside it; the
  // outcome comes with the request that finishes the step.
  bool finish = true;
  // Several ranks: called once, when it is known whether there is memory for the step and before
  // anything of it reaches another rank; what it returns is the result of submit(), unless it is
  // ok. A rank that has no memory stops all of them here. Empty: there is only one.
  std::function<Status(const Status& own)> agree;
  int64_t split = 1;  // cut every micro-batch into this many parts (after running out of memory)
};

struct StepOutcome {
  int64_t step = 0;   // as requested
  double loss = 0.0;  // mean over the micro-batches
  std::vector<double> micro_losses;
  double grad_norm = 0.0;   // L2, before clipping, after unscaling
  bool skipped = false;     // loss or gradient was not finite: nothing was updated
  double loss_scale = 1.0;  // the one used for this step
  MetricValues metrics;     // what the family logs of a step beside these
  // Micro-batches that have no loss by the family's rules: a NaN is then a number to log.
  int64_t without_loss = 0;
  // Micro-batches whose shape the engine ran for the first or second time: it loads kernels and
  // captures a graph then, which takes longer.
  int64_t first_runs = 0;
};

struct EvalOutcome {
  double loss = 0.0;    // as the task defines it for one batch
  bool counted = true;  // false: the batch has no loss and does not enter the mean
  // What the family's metrics are made of (TaskInfo::eval_metrics): added up over batches and
  // ranks.
  std::vector<double> sums;
  // In the mean over batches and ranks: with a global loss what the batch's own is a mean of.
  double weight = 1.0;
};

struct EngineMemory {
  double current_gib = 0.0;
  double peak_gib = 0.0;
};

class Engine {
 public:
  virtual ~Engine() = default;

  virtual std::string description() const = 0;  // "reference engine, cpu, float32"
  virtual int64_t num_param_groups() const = 0;
  virtual int64_t num_parameters() const = 0;  // trainable
  // Steps that may be under way when collect() returns; 0: submit() returns when the step is done.
  virtual int64_t max_in_flight() const = 0;

  // Queues one step. The batches are not read after it returns. kOutOfMemory: nothing was changed
  // and the same request may be repeated with a larger split.
  virtual Status submit(const StepRequest& request) = 0;
  // Finished steps, oldest first. With wait, all that were submitted; without, it waits only while
  // more than max_in_flight() are under way.
  virtual Result<std::vector<StepOutcome>> collect(bool wait) = 0;

  // Forward only, in eval mode, with running statistics. `position` keys its random draws (masks).
  virtual Result<EvalOutcome> evaluate(const data::Batch& batch, uint64_t seed,
                                       uint64_t position) = 0;
  // Averaged weights in (true) or out (false) for evaluation; no effect without EMA.
  virtual Status use_ema_weights(bool on) = 0;

  virtual Result<std::unique_ptr<StateSnapshot>> snapshot() = 0;
  // On ranks that write nothing, while another takes its snapshot(): what it needs of them.
  virtual Status join_snapshot() { return ok_status(); }
  virtual Status restore(const StateSource& source) = 0;

  // After running into non-finite values in 16-mixed: goes on in bf16-mixed, or in 32 where there
  // is no bf16. Returns the new precision's name; kUnsupported when there is nothing to fall back
  // to.
  virtual Result<std::string> fall_back_precision() = 0;

  virtual EngineMemory memory() const = 0;
};

}  // namespace aerie::train
