#include "aerie/base/clock.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <thread>

namespace aerie {

namespace {

class RealClock final : public Clock {
 public:
  int64_t monotonic_ns() override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
  int64_t wall_ns() override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(
               std::chrono::system_clock::now().time_since_epoch())
        .count();
  }
  void sleep_ns(int64_t duration_ns) override {
    std::this_thread::sleep_for(std::chrono::nanoseconds(duration_ns));
  }
};

// Whole seconds and the rest, also right before 1970.
struct SplitTime {
  std::time_t seconds;
  int64_t nanoseconds;
};

SplitTime split_time(int64_t wall_ns) {
  int64_t seconds = wall_ns / 1'000'000'000;
  int64_t rest = wall_ns % 1'000'000'000;
  if (rest < 0) {
    rest += 1'000'000'000;
    --seconds;
  }
  return {static_cast<std::time_t>(seconds), rest};
}

std::string format_local(int64_t wall_ns, const char* format) {
  const std::time_t seconds = split_time(wall_ns).seconds;
  std::tm parts{};
  ::localtime_r(&seconds, &parts);
  char buffer[64];
  return std::string(buffer, std::strftime(buffer, sizeof buffer, format, &parts));
}

}  // namespace

Clock& Clock::real() {
  static Clock* const clock = new RealClock;
  return *clock;
}

double Stopwatch::lap_s() {
  const int64_t now = clock_->monotonic_ns();
  const double lap = static_cast<double>(now - start_ns_) * 1e-9;
  start_ns_ = now;
  return lap;
}

std::string folder_time(int64_t wall_ns) {
  return format_local(wall_ns, "%Y-%m-%d_%H-%M-%S");
}

std::string local_time(int64_t wall_ns) {
  return format_local(wall_ns, "%Y-%m-%d %H:%M:%S");
}

std::string iso_time(int64_t wall_ns) {
  const SplitTime time = split_time(wall_ns);
  std::tm parts{};
  ::gmtime_r(&time.seconds, &parts);
  char day[32];
  std::strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &parts);
  char out[48];
  std::snprintf(out, sizeof out, "%s.%03dZ", day, static_cast<int>(time.nanoseconds / 1'000'000));
  return out;
}

std::string human_duration(double seconds) {
  if (!std::isfinite(seconds) || seconds > 1e15) return "?";
  const char* sign = seconds < 0 ? "-" : "";
  const double value = std::fabs(seconds);
  char out[64];
  if (value < 0.9995) {
    std::snprintf(out, sizeof out, "%s%.0f ms", sign, value * 1e3);
  } else if (value < 59.95) {
    std::snprintf(out, sizeof out, "%s%.1f s", sign, value);
  } else {
    const auto whole = static_cast<long long>(std::llround(value));
    if (whole < 3600) {
      std::snprintf(out, sizeof out, "%s%lld min %02lld s", sign, whole / 60, whole % 60);
    } else if (whole < 86400) {
      std::snprintf(out, sizeof out, "%s%lld h %02lld min", sign, whole / 3600, whole / 60 % 60);
    } else {
      std::snprintf(out, sizeof out, "%s%lld d %02lld h", sign, whole / 86400, whole / 3600 % 24);
    }
  }
  return out;
}

}  // namespace aerie
