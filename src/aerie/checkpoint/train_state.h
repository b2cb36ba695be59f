// Where a run stands, beside the engine's tensors: everything needed to go on as if it had never
// stopped.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::train {

struct TrainState {
  int64_t step = 0;              // optimizer steps done
  int64_t epoch = 0;             // data epoch of the next batch
  int64_t batch_in_epoch = 0;    // micro-batches of this epoch already used
  int64_t epoch_batches = 0;     // micro-batches of this epoch; 0: not known (earlier versions)
  uint64_t micro_step = 0;       // micro-batches used in the whole run
  int64_t split = 1;             // remembered after running out of memory
  double wall_s = 0.0;           // training time of all runs so far
  std::string precision;         // may differ from the config after a fall-back
  std::string data_cursor_json;  // the loader's position
  std::string schedule_json;     // state of schedules that depend on results (plateau)
  std::string guards_json;       // non-finite streak, spike statistics, smoothed loss
  std::string early_stopping_json;
  int64_t last_saved_step = -1;
  double last_monitor = 0.0;     // latest value of the monitor
  double last_train_loss = 0.0;  // of the latest step
  bool finished = false;         // the run had reached its end
  // What the checkpoint that holds this state was called and judged by; empty in checkpoints of
  // earlier versions. A value that is not a number was the worst there is.
  std::string saved_as;
  std::string monitor_name;
  std::optional<double> monitor;
  // A signal ended the validation of this step; a resumed run does it first. Optional in files.
  bool validation_pending = false;

  std::string to_json() const;
  // Strict about types, tolerant about unknown fields.
  static Result<TrainState> from_json(const std::string& text);

  // The value of `metric` that the checkpoint was judged by, also for checkpoints of earlier
  // versions; nothing where it was never measured.
  std::optional<double> judged_by(const std::string& metric) const;
};

}  // namespace aerie::train
