// Progress: a line on the terminal for work that takes longer than two seconds:
//
//   decode [=========>          ]  45%  1,234/2,700 files  512/s  ETA 3 s
//
// Silent when stderr is not a terminal. Log lines appear above it. Plain ASCII, no colour.
//
// Threads: add() and set_note() from any thread, cheap enough for every item; at most ten redraws a
// second, done by whichever thread comes by. One bar at a time; the rest from the owning thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "aerie/base/clock.h"

namespace aerie {

struct ProgressOptions {
  enum class Show { kAuto, kAlways, kNever };  // kAuto: when stderr is a terminal
  std::string label = "";
  uint64_t total = 0;  // 0: unknown; no bar and no time to go
  std::string unit = "items";
  Show show = Show::kAuto;
  double delay_s = 2.0;  // nothing is drawn before
  int width = 0;         // columns; 0: the terminal's
  // For tests.
  Clock* clock = nullptr;
  std::function<void(std::string_view)> write = {};  // instead of stderr
};

class Progress final {
 public:
  explicit Progress(ProgressOptions options);
  ~Progress();  // takes the line away
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void add(uint64_t count = 1);
  uint64_t done() const { return done_.load(std::memory_order_relaxed); }
  // Shown at the end of the line, for example "3 broken".
  void set_note(std::string note);
  // Takes the line away; nothing is drawn afterwards. Also done by the destructor.
  void finish();

 private:
  void draw(int64_t now_ns);
  void erase();
  void write(std::string_view text);

  ProgressOptions options_;
  Clock& clock_;
  const bool enabled_;
  const int64_t start_ns_;
  std::atomic<uint64_t> done_{0};
  std::atomic<int64_t> next_draw_ns_;
  std::mutex mutex_;  // below, and the terminal
  std::string note_;
  bool visible_ = false;
  bool finished_ = false;
};

// The line itself, at most `width` - 1 columns.
std::string format_progress(const std::string& label, uint64_t done, uint64_t total,
                            const std::string& unit, double elapsed_s, const std::string& note,
                            int width);
// Columns of the terminal on stderr; 80 where there is none.
int terminal_width();
// 1234567 -> "1,234,567".
std::string group_digits(uint64_t value);

}  // namespace aerie
