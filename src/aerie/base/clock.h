// Clocks: a seam so that tests can set the time, a stopwatch, and time as text.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

namespace aerie {

// Threads: any.
class Clock {
 public:
  virtual ~Clock() = default;
  static Clock& real();  // lives for ever
  // Nanoseconds from an arbitrary start; never goes back. For durations.
  virtual int64_t monotonic_ns() = 0;
  // Nanoseconds since 1970 UTC. For names and log lines; may jump.
  virtual int64_t wall_ns() = 0;
  virtual void sleep_ns(int64_t duration_ns) = 0;

  double monotonic_s() { return static_cast<double>(monotonic_ns()) * 1e-9; }
  double wall_s() { return static_cast<double>(wall_ns()) * 1e-9; }
};

// Stands still until told; sleeping moves it on at once.
class FakeClock final : public Clock {
 public:
  explicit FakeClock(int64_t wall_ns = 1'000'000'000'000'000'000) : wall_start_ns_(wall_ns) {}
  int64_t monotonic_ns() override { return elapsed_ns_.load(); }
  int64_t wall_ns() override { return wall_start_ns_ + elapsed_ns_.load(); }
  void sleep_ns(int64_t duration_ns) override { advance_ns(duration_ns); }
  void advance_ns(int64_t duration_ns) { elapsed_ns_ += duration_ns; }
  void advance_s(double duration_s) { advance_ns(static_cast<int64_t>(duration_s * 1e9)); }

 private:
  const int64_t wall_start_ns_;
  std::atomic<int64_t> elapsed_ns_{0};
};

// Runs from its construction.
class Stopwatch {
 public:
  explicit Stopwatch(Clock& clock = Clock::real())
      : clock_(&clock), start_ns_(clock.monotonic_ns()) {}
  int64_t elapsed_ns() const { return clock_->monotonic_ns() - start_ns_; }
  double elapsed_s() const { return static_cast<double>(elapsed_ns()) * 1e-9; }
  // The time so far; starts again from zero.
  double lap_s();

 private:
  Clock* clock_;
  int64_t start_ns_;
};

// "2024-03-01_14-05-59", local time: the name exp_manager gives a run's folder.
std::string folder_time(int64_t wall_ns);
// "2024-03-01 14:05:59", local time: log lines.
std::string local_time(int64_t wall_ns);
// "2024-03-01T13:05:59.123Z", UTC: files that are read by programs.
std::string iso_time(int64_t wall_ns);
// "850 ms", "12.3 s", "4 min 05 s", "3 h 12 min", "2 d 03 h".
std::string human_duration(double seconds);

}  // namespace aerie
