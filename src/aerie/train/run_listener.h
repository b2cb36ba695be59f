// Who is told what a run logs, beside metrics.jsonl and TensorBoard: the logs that a family's users
// know. Called by the thread of the loop, on the rank that writes.
#pragma once

#include <cstdint>
#include <string>

#include "aerie/base/clock.h"
#include "aerie/base/env.h"
#include "aerie/metrics/record.h"
#include "aerie/metrics/tfevents_writer.h"
#include "aerie/train/engine.h"
#include "aerie/train/step_reporter.h"

namespace aerie::train {

class RunListener {
 public:
  virtual ~RunListener() = default;
  // Every finished step.
  virtual void after_step(const StepOutcome& outcome, const StepInfo& info) = 0;
  // A record of a step that is logged, or of a validation, as metrics.jsonl has it. That of a step
  // comes after its after_step().
  virtual void after_record(const metrics::Record& record) = 0;
};

// What a listener may use; all of it outlives it.
struct ListenerParts {
  Env* env = nullptr;
  Clock* clock = nullptr;
  std::string run_dir;
  int64_t first_step = 0;      // steps that were done before
  int64_t planned_steps = -1;  // -1: not known
  int64_t steps_per_epoch = 0;
  bool gpu = false;
  const Engine* engine = nullptr;
  metrics::TfEventsWriter* tensorboard = nullptr;  // may be null; the loop flushes it
};

}  // namespace aerie::train
