#include "aerie/ui/progress_line.h"

#include <cstdio>

#include "aerie/base/log.h"
#include "aerie/base/strings.h"

namespace aerie::ui {

namespace {
constexpr double kRedrawInterval_s = 0.1;

std::string number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}
}  // namespace

std::string format_progress_line(const train::ProgressInfo& info,
                                 const std::string& throughput_unit) {
  std::string out = str_cat("step ", info.step);
  if (info.planned_steps > 0) out += str_cat("/", info.planned_steps);
  if (info.activity != "train") return str_cat(out, "  ", info.activity);
  out += str_cat(" ep ", info.epoch, "  loss ", number("%.4f", info.smoothed_loss), "  lr ",
                 number("%.2e", info.learning_rate), "  ", number("%.2f", info.steps_per_s),
                 " it/s  ", number("%.0f", info.throughput), " ", throughput_unit, "  data ",
                 number("%.1f", 100.0 * info.data_wait_share), " %");
  if (info.gpu_util) out += str_cat("  GPU ", number("%.0f", *info.gpu_util), " %");
  if (info.gpu_mem_gib) out += str_cat(" ", number("%.1f", *info.gpu_mem_gib), " GiB");
  if (info.eta_s >= 0.0) out += str_cat("  ETA ", human_duration(info.eta_s));
  return out;
}

ProgressLine::ProgressLine(ProgressLineOptions options) : options_(std::move(options)) {
  if (!options_.terminal) return;
  set_log_bracket([this](const std::function<void()>& log) {
    const bool was_visible = visible_;
    erase();
    log();
    if (was_visible) {
      write(last_);
      visible_ = true;
    }
  });
}

ProgressLine::~ProgressLine() {
  finish();
}

void ProgressLine::write(std::string_view text) {
  if (options_.write) {
    options_.write(text);
  } else {
    std::fwrite(text.data(), 1, text.size(), stderr);
    std::fflush(stderr);
  }
}

void ProgressLine::erase() {
  if (visible_) write("\r\x1b[K");
  visible_ = false;
}

void ProgressLine::update(const train::ProgressInfo& info) {
  const double now = options_.clock->monotonic_s();
  if (now < next_s_) return;
  next_s_ = now + (options_.terminal ? kRedrawInterval_s : options_.plain_interval_s);
  const std::string line = format_progress_line(info, options_.throughput_unit);
  if (options_.terminal) {
    erase();
    last_ = line;
    write(line);
    visible_ = true;
  } else if (info.activity == "train") {
    log_info("train", line);
  }
}

void ProgressLine::finish() {
  if (!options_.terminal) return;
  erase();
  set_log_bracket({});
}

}  // namespace aerie::ui
