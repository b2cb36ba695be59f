#include "aerie/models/nest/nest_task.h"

namespace aerie::nest {

namespace {
constexpr const char* kMaskedShare = "masked_share";
}  // namespace

train::TaskInfo nest_task() {
  train::TaskInfo task;
  task.name = "NEST";
  task.family = "nest";
  task.amount = "audio_s";
  task.throughput = "audio_s_per_s";
  task.throughput_unit = "audio-s/s";
  return task;
}

void add_frames(train::StepOutcome& outcome, int64_t masked, int64_t frames) {
  outcome.metrics.add(kMaskedShare, static_cast<double>(masked), static_cast<double>(frames));
}

int64_t masked_frames(const train::StepOutcome& outcome) {
  const train::MetricValue* share = outcome.metrics.find(kMaskedShare);
  return share == nullptr ? 0 : static_cast<int64_t>(share->sum);
}

int64_t all_frames(const train::StepOutcome& outcome) {
  const train::MetricValue* share = outcome.metrics.find(kMaskedShare);
  return share == nullptr ? 0 : static_cast<int64_t>(share->weight);
}

}  // namespace aerie::nest
