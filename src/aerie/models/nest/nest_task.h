// What NEST calls its numbers: the words of logs and reports.
#pragma once

#include <cstdint>

#include "aerie/train/engine.h"
#include "aerie/ui/report_words.h"

namespace aerie::nest {

train::TaskInfo nest_task();
ui::ReportWords nest_report_words();

// Frames that entered the loss, of all valid ones behind the encoder.
void add_frames(train::StepOutcome& outcome, int64_t masked, int64_t frames);
int64_t masked_frames(const train::StepOutcome& outcome);
int64_t all_frames(const train::StepOutcome& outcome);

// Of EvalOutcome::sums and of what an accumulator makes of them.
inline constexpr size_t kMaskedFrames = 0;

}  // namespace aerie::nest
