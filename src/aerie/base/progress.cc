#include "aerie/base/progress.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/ioctl.h>
#include <unistd.h>

#include "aerie/base/log.h"
#include "aerie/base/printable.h"
#include "aerie/base/strings.h"

namespace aerie {

namespace {

constexpr int64_t kRedrawNs = 100'000'000;

bool on_terminal() {
  const char* term = std::getenv("TERM");
  return ::isatty(STDERR_FILENO) == 1 && (term == nullptr || std::strcmp(term, "dumb") != 0);
}

// Three significant digits: "0.52", "7.31", "48.2", "512".
std::string short_number(double value) {
  char out[32];
  if (value >= 100.0) return group_digits(static_cast<uint64_t>(std::min(value + 0.5, 1e18)));
  std::snprintf(out, sizeof out, value >= 10.0 ? "%.1f" : "%.2f", value);
  return out;
}

}  // namespace

int terminal_width() {
  winsize size{};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

std::string group_digits(uint64_t value) {
  std::string out = std::to_string(value);
  for (size_t at = out.size(); at > 3; at -= 3) out.insert(at - 3, 1, ',');
  return out;
}

std::string format_progress(const std::string& label, uint64_t done, uint64_t total,
                            const std::string& unit, double elapsed_s, const std::string& note,
                            int width) {
  const double rate = elapsed_s > 0.0 ? static_cast<double>(done) / elapsed_s : 0.0;
  std::string tail;
  if (total > 0) {
    const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    char percent[16];
    std::snprintf(percent, sizeof percent, " %3d%%  ", static_cast<int>(share * 100.0));
    tail = str_cat(percent, group_digits(done), "/", group_digits(total), " ", unit);
    tail += str_cat("  ", short_number(rate), "/s");
    if (done < total)
      tail +=
          str_cat("  ETA ", rate > 0.0 ? human_duration(static_cast<double>(total - done) / rate)
                                       : std::string("?"));
  } else {
    tail = str_cat(" ", group_digits(done), " ", unit, "  ", short_number(rate), "/s  ",
                   human_duration(elapsed_s));
  }
  if (!note.empty()) tail += "  " + note;
  const size_t room = static_cast<size_t>(std::max(10, width - 1));
  std::string bar;
  if (total > 0 && room >= label.size() + tail.size() + 13) {
    const size_t cells = std::min<size_t>(30, room - label.size() - tail.size() - 3);
    const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    const size_t full = static_cast<size_t>(share * static_cast<double>(cells));
    bar = std::string(cells, ' ');
    std::fill_n(bar.begin(), full, '=');
    if (full < cells) bar[full] = '>';
    bar = str_cat(" [", bar, "]");
  }
  return (label + bar + tail).substr(0, room);
}

Progress::Progress(ProgressOptions options)
    : options_(std::move(options)),
      clock_(options_.clock != nullptr ? *options_.clock : Clock::real()),
      enabled_(options_.show == ProgressOptions::Show::kAlways ||
               (options_.show == ProgressOptions::Show::kAuto && on_terminal())),
      start_ns_(clock_.monotonic_ns()),
      next_draw_ns_(start_ns_ + static_cast<int64_t>(options_.delay_s * 1e9)) {
  if (!enabled_) return;
  set_log_bracket([this](const std::function<void()>& write_line) {
    const std::lock_guard lock(mutex_);
    const bool was_visible = visible_;
    erase();
    write_line();
    if (was_visible && !finished_) draw(clock_.monotonic_ns());
  });
}

Progress::~Progress() {
  finish();
  if (enabled_) set_log_bracket({});
}

void Progress::add(uint64_t count) {
  done_.fetch_add(count, std::memory_order_relaxed);
  if (!enabled_) return;
  const int64_t now_ns = clock_.monotonic_ns();
  int64_t due_ns = next_draw_ns_.load(std::memory_order_relaxed);
  if (now_ns < due_ns) return;
  // One thread draws, the others go on.
  if (!next_draw_ns_.compare_exchange_strong(due_ns, now_ns + kRedrawNs)) return;
  const std::lock_guard lock(mutex_);
  if (!finished_) draw(now_ns);
}

void Progress::set_note(std::string note) {
  const std::lock_guard lock(mutex_);
  note_ = std::move(note);
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  finished_ = true;
  erase();
}

void Progress::draw(int64_t now_ns) {
  const int width = options_.width > 0 ? options_.width : terminal_width();
  const double elapsed_s = static_cast<double>(now_ns - start_ns_) * 1e-9;
  // "\033[K" clears what a longer line left behind.
  write(str_cat("\r",
                format_progress(printable(options_.label), done(), options_.total, options_.unit,
                                elapsed_s, printable(note_), width),
                "\033[K"));
  visible_ = true;
}

void Progress::erase() {
  if (visible_) write("\r\033[K");
  visible_ = false;
}

void Progress::write(std::string_view text) {
  if (options_.write) {
    options_.write(text);
    return;
  }
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
}

}  // namespace aerie
