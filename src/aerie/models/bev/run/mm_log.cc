#include "aerie/models/bev/run/mm_log.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "aerie/base/format_text.h"
#include "aerie/base/log.h"
#include "aerie/base/strings.h"

namespace aerie::bev {
namespace {

using LogJson = nlohmann::ordered_json;

// Shares of time and percents of a busy GPU that the verdict turns on.
constexpr double kWaits = 0.10, kWaitsWhileIdle = 0.05;
constexpr double kIdlePercent = 80.0, kGapsPercent = 90.0, kBusyPercent = 95.0;

// mmcv keeps five digits behind the point.
LogJson rounded(double value) {
  if (!std::isfinite(value)) return nullptr;
  return std::round(value * 1e5) / 1e5;
}

// "20240301_140559" of "2024-03-01_14-05-59".
std::string mm_stamp(int64_t wall_ns) {
  std::string out = folder_time(wall_ns);
  std::erase(out, '-');
  return out;
}

class MmLog final : public train::RunListener {
 public:
  MmLog(const MmLogOptions& options, const train::ListenerParts& parts)
      : options_(options), parts_(parts) {}

  Status open() {
    if (!options_.text) return ok_status();
    // Two starts within a second have files of their own.
    std::string stem;
    for (int64_t later = 0;; ++later) {
      stem = str_cat(parts_.run_dir, "/", mm_stamp(parts_.clock->wall_ns() + later * 1000000000));
      if (!parts_.env->exists(stem + ".log.json")) break;
    }
    AERIE_RETURN_IF_ERROR(add_log_file(stem + ".log", LogLevel::kInfo));
    path_ = stem + ".log.json";
    LogJson head;
    head["exp_name"] = options_.name;
    head["seed"] = options_.seed;
    head["CLASSES"] = options_.classes;
    write(head);
    return ok_status();
  }

  void after_step(const train::StepOutcome& outcome, const train::StepInfo& info) override {
    const auto width = static_cast<double>(std::max<int64_t>(1, info.width));
    ++steps_;
    time_s_ += info.step_s;
    data_s_ += info.data_wait_s;
    for (const train::MetricValue& metric : outcome.metrics)
      losses_.add(metric.name, metric.value() * width, width);
    losses_.add("loss", outcome.loss * width, width);
    losses_.add("grad_norm", outcome.grad_norm * width, width);
    amount_ += info.amount;
    iterations_ += width;
    rate_ = info.learning_rate;
    momentum_ = info.momentum;
    // The first step of a process finds its kernels: it says nothing about the others.
    if (steps_ == 1) return;
    step_s_ += info.step_s;
    wait_s_ += info.data_wait_s;
  }

  void after_record(const metrics::Record& record) override {
    if (record.kind() == metrics::RecordKind::kTrain)
      log_steps(record);
    else
      log_validation(record);
  }

 private:
  int64_t iteration(int64_t step) const {
    if (!options_.by_epoch || parts_.steps_per_epoch <= 0) return step;
    return (step - 1) % parts_.steps_per_epoch + 1;
  }

  LogJson line(const char* mode, const metrics::Record& record) const {
    LogJson out;
    out["mode"] = mode;
    out["epoch"] = record.epoch() + 1;
    out["iter"] = iteration(record.step());
    out["lr"] = rate_;
    return out;
  }

  void log_steps(const metrics::Record& record) {
    double percent = 0.0;
    const bool busy = record.number("gpu_util", &percent);
    if (busy) busy_.push_back(percent);
    const double iterations = std::max(1.0, iterations_);
    const double time = time_s_ / iterations, wait = data_s_ / iterations;
    logged_s_ += time_s_;
    if (options_.text && iterations_ > 0.0) {
      std::string text =
          options_.by_epoch
              ? str_cat("Epoch [", record.epoch() + 1, "][", iteration(record.step()), "/",
                        parts_.steps_per_epoch, "]\t")
              : str_cat("Iter [", record.step(),
                        parts_.planned_steps >= 0 ? str_cat("/", parts_.planned_steps) : "", "]\t");
      LogJson json = line("train", record);
      text += str_cat("lr: ", format_text("%.3e", rate_), ", ");
      const auto done = static_cast<double>(record.step() - parts_.first_step);
      if (parts_.planned_steps >= 0 && done > 0.0)
        text += str_cat("eta: ",
                        mm_duration(logged_s_ / done *
                                    static_cast<double>(std::max<int64_t>(
                                        0, parts_.planned_steps - record.step()))),
                        ", ");
      text +=
          str_cat("time: ", format_text("%.3f", time), ", data_time: ", format_text("%.3f", wait));
      if (parts_.gpu) {
        const auto mib = static_cast<int64_t>(parts_.engine->memory().peak_gib * 1024.0);
        text += str_cat(", memory: ", mib);
        json["memory"] = mib;
      }
      json["data_time"] = rounded(wait);
      for (const train::MetricValue& one : losses_) {
        text += str_cat(", ", one.name, ": ", format_text("%.4f", one.value()));
        json[one.name] = rounded(one.value());
      }
      json["time"] = rounded(time);
      if (time > 0.0)
        text += str_cat(", samples/s: ", format_text("%.2f", amount_ / (time * iterations_)),
                        ", iter/s: ", format_text("%.3f", 1.0 / time));
      if (busy) text += str_cat(", gpu_util: ", format_text("%.0f", percent));
      if (time > 0.0) text += str_cat(", wait: ", format_text("%.3f", wait / time));
      log_info("train", text);
      write(json);
    }
    if (parts_.tensorboard != nullptr && iterations_ > 0.0) {
      for (const train::MetricValue& one : losses_) point("train/" + one.name, one.value(), record);
      if (momentum_) point("momentum", *momentum_, record);
    }
    losses_ = {};
    time_s_ = data_s_ = amount_ = iterations_ = 0.0;
  }

  void log_validation(const metrics::Record& record) {
    std::string text = str_cat(options_.by_epoch ? str_cat("Epoch(val) [", record.epoch() + 1, "]")
                                                 : str_cat("Iter(val) [", record.step(), "]"),
                               "\t");
    LogJson json = line("val", record);
    bool first = true;
    for (const auto& [name, value] : record.fields()) {
      double number = 0.0;
      if (name == "validation_s" || !record.number(name, &number)) continue;
      json[name] = rounded(number);
      if (parts_.tensorboard != nullptr) point("val/" + name, number, record);
      // Every threshold of every class is in the files.
      if (name.find("/iou@0.") != std::string::npos) continue;
      text += str_cat(first ? "" : ", ", name, ": ", format_text("%.4f", number));
      first = false;
    }
    if (options_.text) log_info("train", text);
    if (step_s_ > 0.0) {
      std::optional<double> percent;
      if (!busy_.empty()) {
        // The median: a sample that was taken during a save says nothing about the steps.
        const auto middle = busy_.begin() + static_cast<std::ptrdiff_t>(busy_.size() / 2);
        std::nth_element(busy_.begin(), middle, busy_.end());
        percent = *middle;
      }
      const StepVerdict verdict = step_verdict(wait_s_ / step_s_, percent);
      json["verdict"] = verdict.name;
      log_info("train", "step ", record.step(), ": ", verdict.sentence);
    }
    if (options_.text) write(json);
    step_s_ = wait_s_ = 0.0;
    busy_.clear();
  }

  // The loop's own points number from step - 1, and what a resumed run writes again is found so.
  void point(const std::string& tag, double value, const metrics::Record& record) {
    parts_.tensorboard->scalar(tag, value, std::max<int64_t>(0, record.step() - 1),
                               parts_.clock->wall_s());
  }

  // A disk that is full does not stop the run; metrics.jsonl has the numbers too.
  void write(const LogJson& json) {
    const auto put = [&]() -> Status {
      if (file_ == nullptr) {
        AERIE_ASSIGN_OR_RETURN(file_, parts_.env->open_writable(path_, WriteMode::kAppend));
      }
      AERIE_RETURN_IF_ERROR(
          file_->append(json.dump(-1, ' ', false, LogJson::error_handler_t::replace) + "\n"));
      return file_->flush();
    };
    if (const Status status = put(); !status.ok()) {
      file_.reset();
      AERIE_LOG_EVERY_S(warn, 60.0, "train", path_, " lacks a line: ", status.to_string());
    }
  }

  const MmLogOptions options_;
  const train::ListenerParts parts_;
  std::string path_;
  std::unique_ptr<WritableFile> file_;
  // Since the line before.
  train::MetricValues losses_;
  double time_s_ = 0.0, data_s_ = 0.0, amount_ = 0.0, iterations_ = 0.0, rate_ = 0.0;
  std::optional<double> momentum_;
  // Since the start.
  int64_t steps_ = 0;
  double logged_s_ = 0.0;
  // Since the validation before.
  double step_s_ = 0.0, wait_s_ = 0.0;
  std::vector<double> busy_;
};

}  // namespace

StepVerdict step_verdict(double wait, std::optional<double> gpu_percent) {
  const std::string numbers = str_cat(
      "data wait ", format_text("%.1f", 100.0 * wait), " % of step time, ",
      gpu_percent ? str_cat("GPU ", format_text("%.0f", *gpu_percent), " % busy") : "no GPU");
  const auto verdict = [&](const char* name, const char* advice) {
    return StepVerdict{name, str_cat(name, ": ", numbers, advice)};
  };
  if (wait > kWaits || (gpu_percent && *gpu_percent < kIdlePercent && wait > kWaitsWhileIdle))
    return verdict("loader-bound",
                   "; raise workers and prefetch_factor, pack the pictures (aerie data pack), "
                   "check the disk");
  if (!gpu_percent || *gpu_percent > kBusyPercent) return verdict("compute-bound", "");
  if (*gpu_percent < kGapsPercent)
    return verdict(
        "launch-bound",
        "; the GPU waits between kernels: raise the batch, leave aerie.compile.enabled at "
        "auto (CUDA graphs)");
  return verdict("balanced", "");
}

std::string mm_duration(double seconds) {
  const auto all = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e12));
  const int64_t days = all / 86400, rest = all % 86400;
  const std::string text =
      format_text("%lld:%02lld:%02lld", static_cast<long long>(rest / 3600),
                  static_cast<long long>(rest / 60 % 60), static_cast<long long>(rest % 60));
  return days == 0 ? text : str_cat(days, days == 1 ? " day, " : " days, ", text);
}

Result<std::unique_ptr<train::RunListener>> make_mm_log(const MmLogOptions& options,
                                                        const train::ListenerParts& parts) {
  auto log = std::make_unique<MmLog>(options, parts);
  AERIE_RETURN_IF_ERROR(log->open());
  return std::unique_ptr<train::RunListener>(std::move(log));
}

}  // namespace aerie::bev
