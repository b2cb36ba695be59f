#include "aerie/models/nest/run/nest_schedule.h"

namespace aerie::train {

std::optional<int64_t> schedule_steps(const config::RunConfig& run,
                                      std::optional<int64_t> planned) {
  if (run.trainer.max_steps >= 0) return run.trainer.max_steps;
  // -1 is left here only where fast_dev_run bounds the run.
  if (run.model.optim.sched && run.model.optim.sched->max_steps &&
      *run.model.optim.sched->max_steps >= 0)
    return *run.model.optim.sched->max_steps;
  return planned;
}

std::optional<int64_t> schedule_steps(const config::RunConfig& run, const Cadence& cadence) {
  const int64_t planned = cadence.planned_steps();
  return schedule_steps(run, planned >= 0 ? std::optional(planned) : std::nullopt);
}

}  // namespace aerie::train
