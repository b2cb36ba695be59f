#include "aerie/ui/progress_line.h"

#include <algorithm>
#include <cstdio>
#include <vector>

#include "aerie/base/log.h"
#include "aerie/base/progress.h"
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

std::string format_progress_line(const ProgressInfo& info, const std::string& throughput_unit) {
  std::string out = str_cat("step ", info.step);
  if (info.planned_steps > 0) out += str_cat("/", info.planned_steps);
  if (info.activity != "train") {
    out += str_cat("  ", info.activity);
    if (info.of > 0) out += str_cat(" ", info.done, "/", info.of);
    return out;
  }
  out += str_cat(" ep ", info.epoch, "  loss ", number("%.4f", info.smoothed_loss), "  lr ",
                 number("%.2e", info.learning_rate), "  ", number("%.2f", info.steps_per_s),
                 " it/s  ", number(info.throughput < 10.0 ? "%.2g" : "%.0f", info.throughput), " ",
                 throughput_unit, "  data ", number("%.1f", 100.0 * info.data_wait_share), " %");
  if (info.gpu_util) out += str_cat("  GPU ", number("%.0f", *info.gpu_util), " %");
  if (info.gpu_mem_gib) out += str_cat(" ", number("%.1f", *info.gpu_mem_gib), " GiB");
  if (info.eta_s >= 0.0) out += str_cat("  ETA ", human_duration(info.eta_s));
  return out;
}

std::string fit_progress_line(const std::string& line, int width) {
  if (width <= 1 || static_cast<int>(line.size()) < width) return line;
  // Parts are set apart by two spaces; time to go, at the end, is worth more than what precedes it.
  std::vector<std::string> parts;
  for (size_t at = 0; at <= line.size();) {
    const size_t next = std::min(line.find("  ", at), line.size());
    parts.push_back(line.substr(at, next - at));
    at = next + 2;
  }
  while (parts.size() > 1) {
    const std::string out = join(parts, "  ");
    if (static_cast<int>(out.size()) < width) return out;
    const bool has_eta = starts_with(parts.back(), "ETA") && parts.size() > 2;
    parts.erase(parts.end() - (has_eta ? 2 : 1));
  }
  return parts[0].substr(0, static_cast<size_t>(width) - 1);
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

void ProgressLine::update(const ProgressInfo& info) {
  const double now = options_.clock->monotonic_s();
  if (now < next_s_) return;
  next_s_ = now + (options_.terminal ? kRedrawInterval_s : options_.plain_interval_s);
  const std::string line = format_progress_line(info, options_.throughput_unit);
  if (options_.terminal) {
    erase();
    last_ = fit_progress_line(line, options_.width > 0 ? options_.width : terminal_width());
    write(last_);
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
