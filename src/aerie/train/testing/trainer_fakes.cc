#include "aerie/train/testing/trainer_fakes.h"

#include <cmath>

#include "aerie/base/philox.h"
#include "aerie/base/testing/mem_env.h"

namespace aerie::train {

Status FakeEngine::submit(const StepRequest& request) {
  tried_splits.push_back(request.split);
  Status memory;
  if (request.split < needed_split) memory = out_of_memory("fake memory");
  if (request.agree) memory = request.agree(memory);
  AERIE_RETURN_IF_ERROR(memory);
  splits.push_back(request.split);
  for (const data::Batch* batch : request.micro_batches) {
    micro.push_back(str_cat("e", source_.epoch(), "b", source_.index(*batch)));
    losses_.push_back(1.0 / static_cast<double>(micro.size()));
  }
  if (!request.finish) return ok_status();
  windows.push_back(static_cast<int64_t>(losses_.size()));
  divisors.push_back(request.accumulate);
  rates.push_back(request.learning_rates[0]);
  momentums.push_back(request.momentum.value_or(-1.0));
  StepOutcome outcome;
  outcome.step = request.step;
  for (const double loss : losses_) outcome.loss += loss / static_cast<double>(losses_.size());
  outcome.micro_losses = losses_;
  outcome.grad_norm = 1.0;
  outcome.skipped = bad_steps.contains(request.step) || (always_bad && precision != "bf16-mixed");
  if (outcome.skipped) outcome.loss = std::nan("");
  losses_.clear();
  weight = mix64(weight ^ static_cast<uint64_t>(micro.size()) ^ (outcome.skipped ? 1u : 0u));
  pending_.push_back(outcome);
  return ok_status();
}

FakeRun::FakeRun(int64_t batches, int64_t val_batches, int64_t in_flight)
    : env(new_mem_env()),
      train(batches),
      val(val_batches),
      engine(train, in_flight),
      log(*env, "/metrics.jsonl") {
  config.trainer.max_epochs = -1;
  config.trainer.log_every_n_steps = 1;
  config.trainer.num_sanity_val_steps = 0;
}

Result<TrainSummary> FakeRun::go(TrainState start) {
  TrainerParts parts;
  parts.task = task;
  parts.config = &config;
  parts.engine = &engine;
  parts.train = &train;
  if (val.batches_per_epoch() > 0) parts.validation.push_back({"", &val, val.batches_per_epoch()});
  parts.rates = &rates;
  parts.metrics = &log;
  parts.checkpointer = &checkpointer;
  parts.clock = &clock;
  parts.stop_signal = [this] {
    clock.advance_s(seconds_per_step);
    const bool now = static_cast<int64_t>(engine.windows.size()) >= signal_after ||
                     engine.evaluated >= signal_after_evaluated;
    return now ? 15 : 0;
  };
  parts.write_nonfinite = [this](int64_t step, const std::string& json) {
    nonfinite[step] = json;
    return ok_status();
  };
  if (adjust) adjust(parts);
  auto cadence = Cadence::make(config.trainer, train.batches_per_epoch(),
                               val.batches_per_epoch() > 0, cadence_rules(config.aerie));
  if (!cadence.ok()) return cadence.status();
  return Trainer(parts, *cadence, start).run();
}

std::vector<metrics::Record> FakeRun::records(metrics::RecordKind kind) {
  std::vector<metrics::Record> out;
  const auto file = metrics::read_metrics(*env, "/metrics.jsonl");
  for (const auto& record : file->records)
    if (record.kind() == kind) out.push_back(record);
  return out;
}

}  // namespace aerie::train
