#include "aerie/train/step_reporter.h"

#include <algorithm>

#include "aerie/base/log.h"
#include "aerie/base/spans.h"
#include "aerie/base/system.h"
#include "aerie/train/measure.h"

namespace aerie::train {
namespace {
constexpr double kGib = 1073741824.0;
constexpr double kProgressSmoothing = 0.05;  // weight of a new step in the progress line
constexpr double kGpuSampleAgeS = 1.0;       // older samples are read anew
}  // namespace

std::optional<metrics::GpuSample> StepReporter::gpu_sample() {
  if (parts_.nvml == nullptr) return std::nullopt;
  const double now = parts_.clock->monotonic_s();
  if (!gpu_ || now - gpu_read_s_ >= kGpuSampleAgeS) {
    if (auto sample = parts_.nvml->read()) gpu_ = sample;
    gpu_read_s_ = now;
  }
  return gpu_;
}

void StepReporter::log(const StepOutcome& outcome, const StepInfo& info, bool due,
                       const std::map<std::string, double>& phase_s, double wall_s) {
  const config::ExpManagerConfig& exp = parts_.config->exp_manager;
  // NeMo's timer: mean or sum over the last buffer_size steps.
  step_times_.push_back(info.step_s);
  while (static_cast<int64_t>(step_times_.size()) >
         std::max<int64_t>(1, exp.step_timing_buffer_size))
    step_times_.pop_front();
  if (exp.log_delta_step_timing)
    log_info("train", "Step ", info.step, ": train_step_timing in s=", info.step_s);
  if (!due) return;
  const SpanScope span(kPhaseLog);
  const double throughput = info.step_s > 0.0 ? info.amount / info.step_s : 0.0;
  metrics::Record record(metrics::RecordKind::kTrain, info.step, info.epoch, wall_s);
  record.add(parts_.task->train_loss, outcome.loss)
      .add("learning_rate", info.learning_rate)
      .add("grad_norm", outcome.grad_norm)
      .add("step_ms", info.step_s * 1e3)
      .add("data_wait_ms", info.data_wait_s * 1e3)
      .add(parts_.task->throughput, throughput)
      .add("padding_share", info.padding_share);
  for (const MetricValue& metric : outcome.metrics) record.add(metric.name, metric.value());
  if (outcome.first_runs > 0) record.add("first_runs", outcome.first_runs);
  // An engine names the phases it can tell apart.
  for (const auto& [name, key] : {std::pair{kPhaseForward, "forward_ms"},
                                  {kPhaseBackward, "backward_ms"},
                                  {kPhaseForwardBackward, "forward_backward_ms"},
                                  {kPhaseOptimizer, "optimizer_ms"}})
    if (const auto found = phase_s.find(name); found != phase_s.end())
      record.add(key, found->second * 1e3);
  if (outcome.micro_losses.size() > 1) {
    std::string losses;
    for (const double loss : outcome.micro_losses)
      losses += str_cat(losses.empty() ? "" : " ", loss);
    record.add("micro_losses", losses);
  }
  if (outcome.loss_scale != 1.0) record.add("loss_scale", outcome.loss_scale);
  if (const auto sample = gpu_sample()) {
    if (sample->utilisation_percent >= 0.0) record.add("gpu_util", sample->utilisation_percent);
    record.add("gpu_mem_gib", sample->memory_used_gib);
  }
  record.add("rss_gib", static_cast<double>(process_memory().rss_bytes) / kGib);
  parts_.write(record);
  if (parts_.tensorboard == nullptr) return;
  // Lightning numbers the points from n - 1.
  const int64_t x = info.step - 1;
  const double time = parts_.clock->wall_s();
  const auto put = [&](const char* tag, double value) {
    parts_.tensorboard->scalar(tag, value, x, time);
  };
  put(parts_.task->train_loss.c_str(), outcome.loss);
  put("learning_rate", info.learning_rate);
  put("global_step", static_cast<double>(x));
  put("epoch", static_cast<double>(info.epoch));
  if (exp.log_step_timing) {
    double timing = 0.0;
    for (const double one : step_times_) timing += one;
    if (exp.step_timing_reduction != "sum") timing /= static_cast<double>(step_times_.size());
    put("train_step_timing in s", timing);
    if (const auto found = phase_s.find(kPhaseBackward); found != phase_s.end())
      put("train_backward_timing in s", found->second);
  }
  put("grad_norm", outcome.grad_norm);
  put("data_wait_ms", info.data_wait_s * 1e3);
  put(parts_.task->throughput.c_str(), throughput);
  if (const Status status = parts_.tensorboard->flush(); !status.ok())
    AERIE_LOG_EVERY_S(warn, 60.0, "train",
                      "TensorBoard's points cannot be written and wait: ", status.to_string());
}

ui::ProgressInfo StepReporter::progress(const StepInfo& info, int64_t planned_steps,
                                        double smoothed_loss, double other_share) {
  // The mean of what there is, until there is enough to smooth.
  const double weight = std::max(kProgressSmoothing, 1.0 / static_cast<double>(++shown_));
  smooth_step_s_ += weight * (info.step_s - smooth_step_s_);
  smooth_amount_ += weight * (info.amount - smooth_amount_);
  smooth_wait_s_ += weight * (info.data_wait_s - smooth_wait_s_);
  const double seconds = std::max(1e-9, smooth_step_s_);
  ui::ProgressInfo out;
  out.step = info.step;
  out.planned_steps = planned_steps;
  out.epoch = info.epoch;
  out.smoothed_loss = smoothed_loss;
  out.learning_rate = info.learning_rate;
  out.steps_per_s = 1.0 / seconds;
  out.throughput = smooth_amount_ / seconds;
  out.data_wait_share = std::clamp(smooth_wait_s_ / seconds, 0.0, 1.0);
  if (const auto sample = gpu_sample()) {
    if (sample->utilisation_percent >= 0.0) out.gpu_util = sample->utilisation_percent;
    out.gpu_mem_gib = sample->memory_used_gib;
  }
  if (planned_steps >= 0)
    out.eta_s = static_cast<double>(planned_steps - info.step) * seconds /
                std::max(0.05, 1.0 - other_share);
  out.activity = "train";
  return out;
}

}  // namespace aerie::train
