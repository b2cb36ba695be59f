#include "aerie/train/measure.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <nlohmann/json.hpp>

#include "aerie/base/format_text.h"
#include "aerie/base/spans.h"
#include "aerie/base/strings.h"

namespace aerie::train {

namespace {

// Times of one phase, one value a step.
struct Samples {
  std::string name;
  std::vector<double> host_ms, device_ms;
};

Samples& samples_of(std::vector<Samples>& all, const std::string& name, size_t steps_before) {
  for (Samples& samples : all)
    if (samples.name == name) return samples;
  all.push_back({name, {}, {}});
  all.back().host_ms.assign(steps_before, 0.0);
  all.back().device_ms.assign(steps_before, 0.0);
  return all.back();
}

// The spans since the last call, as the values of step number `step`.
void take_spans(std::vector<Samples>& all, size_t step) {
  for (const SpanTotal& total : take_thread_spans())
    samples_of(all, total.name, step).host_ms.push_back(static_cast<double>(total.self_ns) * 1e-6);
  for (const SpanTotal& total : take_device_spans())
    samples_of(all, total.name, step)
        .device_ms.push_back(static_cast<double>(total.total_ns) * 1e-6);
  for (Samples& samples : all) {
    samples.host_ms.resize(step + 1, 0.0);
    samples.device_ms.resize(step + 1, 0.0);
  }
}

struct StepInput {
  std::vector<const data::Batch*> batches;
  double amount = 0.0, padding_share = 0.0;
};

class Runner {
 public:
  Runner(Engine& engine, BatchSource& source, const MeasureOptions& options)
      : engine_(engine), source_(source), options_(options) {}

  // Submits one step and collects what has finished.
  Status step() {
    const bool wait = options_.wait_for_results;
    StepInput input;
    Status status = fetch(input);
    if (status.ok()) {
      StepRequest request;
      request.micro_batches = input.batches;
      request.step = submitted_;
      request.first_micro_step = static_cast<uint64_t>(submitted_ * options_.accumulate);
      request.accumulate = options_.accumulate;
      request.learning_rates = options_.learning_rates;
      request.split = options_.split;
      set_span_step(submitted_ + 1);
      status = engine_.submit(request);
    }
    release(input);
    AERIE_RETURN_IF_ERROR(status);
    ++submitted_;
    last_amount_ = input.amount;
    last_padding_ = input.padding_share;
    return collect(wait);
  }

  Status collect(bool wait) {
    auto outcomes = engine_.collect(wait);
    if (!outcomes.ok()) return outcomes.status();
    for (const StepOutcome& outcome : *outcomes) {
      last_loss = outcome.loss;
      skipped += outcome.skipped ? 1 : 0;
    }
    return ok_status();
  }

  double last_amount() const { return last_amount_; }
  double last_padding() const { return last_padding_; }

  double last_loss = 0.0;
  int64_t skipped = 0;

 private:
  Status fetch(StepInput& input) {
    for (int64_t i = 0; i < options_.accumulate; ++i) {
      const SpanScope span(kPhaseDataWait);
      AERIE_ASSIGN_OR_RETURN(const data::Batch* batch, source_.next());
      if (batch == nullptr) {
        AERIE_RETURN_IF_ERROR(source_.start_epoch(++epoch_));
        AERIE_ASSIGN_OR_RETURN(batch, source_.next());
        if (batch == nullptr) return data_error("there are no batches to measure with");
      }
      input.batches.push_back(batch);
      const BatchSummary summary = source_.summary(*batch);
      input.amount += summary.amount;
      input.padding_share += summary.padding_share / static_cast<double>(options_.accumulate);
    }
    return ok_status();
  }
  void release(const StepInput& input) {
    for (const data::Batch* batch : input.batches) source_.release(batch);
  }

  Engine& engine_;
  BatchSource& source_;
  const MeasureOptions& options_;
  int64_t submitted_ = 0, epoch_ = 0;
  double last_amount_ = 0.0, last_padding_ = 0.0;
};

class SpanRecording {
 public:
  explicit SpanRecording(Clock* clock) { start_spans({0, clock}); }
  ~SpanRecording() { stop_spans(); }
};

}  // namespace

double quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const double at = q * static_cast<double>(values.size() - 1);
  const size_t low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (at - static_cast<double>(low));
}

Result<Measurement> measure_steps(Engine& engine, BatchSource& source,
                                  const MeasureOptions& options) {
  if (options.steps < 1 || options.warmup < 0 || options.accumulate < 1)
    return invalid_argument("a measurement needs at least one step");
  Clock& clock = options.clock != nullptr ? *options.clock : Clock::real();
  const SpanRecording recording(options.clock);
  Runner runner(engine, source, options);
  Measurement out;
  out.amount_name = options.amount_name;

  const auto stopped = [&] { return options.stop && options.stop(); };
  const double begin = clock.monotonic_s();
  for (int64_t i = 0; i < options.warmup && !stopped(); ++i) AERIE_RETURN_IF_ERROR(runner.step());
  AERIE_RETURN_IF_ERROR(runner.collect(/*wait=*/true));
  out.warmup_s = clock.monotonic_s() - begin;
  if (options.after_warmup) AERIE_RETURN_IF_ERROR(options.after_warmup());
  (void)take_thread_spans();
  (void)take_device_spans();

  std::vector<Samples> phases;
  std::vector<double> step_ms;
  double amount = 0.0, padding = 0.0;
  const double start = clock.monotonic_s();
  double before = start;
  while (static_cast<int64_t>(step_ms.size()) < options.steps && !stopped()) {
    AERIE_RETURN_IF_ERROR(runner.step());
    // The results of the last steps belong to them.
    if (static_cast<int64_t>(step_ms.size()) + 1 == options.steps)
      AERIE_RETURN_IF_ERROR(runner.collect(/*wait=*/true));
    const double now = clock.monotonic_s();
    take_spans(phases, step_ms.size());
    step_ms.push_back((now - before) * 1e3);
    before = now;
    amount += runner.last_amount();
    padding += runner.last_padding();
  }
  AERIE_RETURN_IF_ERROR(runner.collect(/*wait=*/true));
  if (step_ms.empty()) return Status(StatusCode::kCancelled, "stopped before the first step");
  const double total_s = clock.monotonic_s() - start;

  const double count = static_cast<double>(step_ms.size());
  out.steps = static_cast<int64_t>(step_ms.size());
  out.step_ms = quantile(step_ms, 0.5);
  out.step_ms_low = quantile(step_ms, 0.1);
  out.step_ms_high = quantile(step_ms, 0.9);
  out.step_ms_mean = total_s * 1e3 / count;
  out.amount = amount / count;
  out.throughput = total_s > 0.0 ? amount / total_s : 0.0;
  out.padding_share = padding / count;
  out.loss = runner.last_loss;
  out.skipped = runner.skipped;
  out.memory = engine.memory();

  std::vector<double> other(step_ms);
  for (const Samples& samples : phases)
    for (size_t i = 0; i < other.size(); ++i) other[i] -= samples.host_ms[i];
  phases.push_back({"other", std::move(other), std::vector<double>(step_ms.size(), 0.0)});
  for (const Samples& samples : phases) {
    PhaseTime phase;
    phase.name = samples.name;
    phase.host_ms = std::max(0.0, quantile(samples.host_ms, 0.5));
    phase.host_ms_mean =
        std::max(0.0, std::accumulate(samples.host_ms.begin(), samples.host_ms.end(), 0.0) / count);
    phase.device_ms = quantile(samples.device_ms, 0.5);
    phase.share = out.step_ms > 0.0 ? phase.host_ms / out.step_ms : 0.0;
    out.phases.push_back(std::move(phase));
  }
  return out;
}

const PhaseTime* Measurement::phase(const std::string& name) const {
  for (const PhaseTime& phase : phases)
    if (phase.name == name) return &phase;
  return nullptr;
}

std::string Measurement::to_json() const {
  nlohmann::ordered_json json{{"steps", steps},
                              {"step_ms", step_ms},
                              {"step_ms_p10", step_ms_low},
                              {"step_ms_p90", step_ms_high},
                              {"step_ms_mean", step_ms_mean},
                              {"warmup_s", warmup_s},
                              {amount_name + "_per_step", amount},
                              {amount_name + "_per_s", throughput},
                              {"padding_share", padding_share},
                              {"peak_memory_gib", memory.peak_gib},
                              {"skipped", skipped}};
  json["loss"] = std::isfinite(loss) ? nlohmann::ordered_json(loss) : nlohmann::ordered_json();
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const PhaseTime& phase : phases) {
    nlohmann::ordered_json row{{"name", phase.name}, {"host_ms", phase.host_ms}};
    if (phase.device_ms > 0.0) row["device_ms"] = phase.device_ms;
    row["share"] = phase.share;
    list.push_back(std::move(row));
  }
  json["phases"] = std::move(list);
  return json.dump();
}

std::string Measurement::to_text() const {
  bool device = false;
  for (const PhaseTime& phase : phases) device = device || phase.device_ms > 0.0;
  std::string out = format_text("  %-14s %12s%s %8s\n", "phase", "host ms",
                                device ? "    device ms" : "", "share");
  for (const PhaseTime& phase : phases) {
    out += format_text("  %-14s %12.3f", phase.name.c_str(), phase.host_ms);
    if (device) out += format_text(" %12.3f", phase.device_ms);
    out += format_text(" %7.1f%%\n", 100.0 * phase.share);
  }
  return out + format_text("  %-14s %12.3f   median of %lld steps (10%%..90%%: %.3f .. %.3f)\n",
                           "step", step_ms, static_cast<long long>(steps), step_ms_low,
                           step_ms_high);
}

}  // namespace aerie::train
