// How long a training step takes and where the time goes: runs an engine on batches and reports
// medians of the named phases (base/spans.h). `--dry-run` and `aerie bench step` print it; a search
// for settings compares it.
//
// Model-independent: an engine, a source of batches and learning rates are handed in. Uses the
// process's span recording, so one measurement at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "aerie/base/clock.h"
#include "aerie/base/status.h"
#include "aerie/train/batch_source.h"
#include "aerie/train/engine.h"

namespace aerie::train {

// Names of the phases every engine uses, in the order of a step.
inline constexpr const char* kPhaseDataWait = "data wait";
inline constexpr const char* kPhaseHostPrepare = "host prepare";
inline constexpr const char* kPhaseForward = "forward";
inline constexpr const char* kPhaseBackward = "backward";
inline constexpr const char* kPhaseForwardBackward = "forward and backward";  // in one
inline constexpr const char* kPhaseRanks = "waiting for ranks";               // in collectives
inline constexpr const char* kPhaseOptimizer = "optimizer";
inline constexpr const char* kPhaseReadBack = "read-back";
inline constexpr const char* kPhaseValidation = "validation";
inline constexpr const char* kPhaseSave = "save";
inline constexpr const char* kPhaseLog = "log";

struct MeasureOptions {
  int64_t steps = 12;
  int64_t warmup = 4;  // steps before that, not counted
  int64_t accumulate = 1;
  // True: the results of a step are awaited before the next one begins, as Python loops do. False:
  // an engine that works ahead may do so; the time of a step is then the time between results.
  bool wait_for_results = true;
  int64_t split = 1;                     // as StepRequest
  std::vector<double> learning_rates;    // one per parameter group
  Clock* clock = nullptr;                // null: the real one
  std::function<bool()> stop;            // may be empty; ends the measurement early
  std::function<Status()> after_warmup;  // may be empty
  std::string amount_name = "samples";   // TaskInfo::amount
};

// Medians over the steps; milliseconds of one step.
struct PhaseTime {
  std::string name;
  double host_ms = 0.0;
  double host_ms_mean = 0.0;  // what comes in bursts, as waits do, is not in a median
  double device_ms = 0.0;     // 0 where no device was timed
  double share = 0.0;         // of the step's time on the host
};

struct Measurement {
  int64_t steps = 0;
  double step_ms = 0.0;                          // median
  double step_ms_low = 0.0, step_ms_high = 0.0;  // 10th and 90th percentile
  double step_ms_mean = 0.0;
  double warmup_s = 0.0;
  std::string amount_name;  // TaskInfo::amount
  double amount = 0.0;      // valid input of a step, mean
  double throughput = 0.0;  // input per second: sum over the sum of the times
  double padding_share = 0.0;
  double loss = 0.0;  // of the last step
  int64_t skipped = 0;
  std::vector<PhaseTime> phases;  // in order of appearance; "other" is what no phase covers
  EngineMemory memory;

  const PhaseTime* phase(const std::string& name) const;
  std::string to_json() const;  // one object
  std::string to_text() const;  // a table
};

// Trains on the source from where it stands; at its end the next epoch begins. Changes the engine's
// weights.
Result<Measurement> measure_steps(Engine& engine, BatchSource& source,
                                  const MeasureOptions& options);

// `q` in [0, 1] of values in any order; 0 when there are none. Linear between neighbours.
double quantile(std::vector<double> values, double q);

}  // namespace aerie::train
