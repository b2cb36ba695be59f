// Logging: one line = "[area] sentence with values".
//
//   log_info("data", "manifest ", path, " has ", lines, " lines");
//   AERIE_LOG_ONCE(warn, "data", "this disk is rotational; set aerie.data.cache_dir");
//
// Levels: error (the run ends), warn (the user should act), info (once per event), debug.
// Ranks: info and debug come from rank 0 only; warnings and errors from every rank, marked with the
// rank when there is more than one. Console output goes to stderr, coloured only on a terminal; any
// number of files can be added later (they get every rank's own lines, with time and level).
// Never log inside a per-sample loop; repeated warnings go through LogLimiter.
//
// Threads: everything here may be called from any thread, except from signal handlers.
// No fmt or spdlog in this header: it is used beside torch.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "aerie/base/status.h"
#include "aerie/base/strings.h"

namespace aerie {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3, kOff = 4 };

const char* log_level_name(LogLevel level);  // "debug", "info", "warn", "error", "off"
Result<LogLevel> parse_log_level(std::string_view name);

// Messages below `level` are dropped (default: info, or what AERIE_LOG names).
void set_log_level(LogLevel level);
LogLevel log_level();
// Rank of this process and number of processes; 0 of 1 until told.
void set_log_rank(int rank, int world);

// True when a message of this level would be written by this process; guards costly texts.
bool log_enabled(LogLevel level);
void log_message(LogLevel level, std::string_view area, std::string_view text);

template <typename... Pieces>
void log_debug(std::string_view area, const Pieces&... pieces) {
  if (log_enabled(LogLevel::kDebug)) log_message(LogLevel::kDebug, area, str_cat(pieces...));
}
template <typename... Pieces>
void log_info(std::string_view area, const Pieces&... pieces) {
  if (log_enabled(LogLevel::kInfo)) log_message(LogLevel::kInfo, area, str_cat(pieces...));
}
template <typename... Pieces>
void log_warn(std::string_view area, const Pieces&... pieces) {
  if (log_enabled(LogLevel::kWarn)) log_message(LogLevel::kWarn, area, str_cat(pieces...));
}
template <typename... Pieces>
void log_error(std::string_view area, const Pieces&... pieces) {
  if (log_enabled(LogLevel::kError)) log_message(LogLevel::kError, area, str_cat(pieces...));
}

// Copies every line from now on to `path` (appended; missing folders are made) until the process
// ends or close_log_files(). Lines below `level` are left out of the file.
Status add_log_file(const std::string& path, LogLevel level = LogLevel::kDebug);
void close_log_files();
void flush_logs();

// Receives the console line (no time, colour or newline) instead of stderr; for tests. An empty
// function restores stderr. Must not log itself.
using LogConsole = std::function<void(LogLevel level, std::string_view line)>;
void set_log_console(LogConsole console);
// Called with the action that writes a line to stderr, so that a progress line can take itself away
// before and come back after. Must call the action exactly once and not log itself.
using LogBracket = std::function<void(const std::function<void()>& write)>;
void set_log_bracket(LogBracket bracket);

// At most one message per kind and interval; the next one that passes tells how many were held
// back.
//   static LogLimiter limiter(10.0);
//   limiter.warn("bad_audio", "data", "cannot decode ", path);
class LogLimiter {
 public:
  explicit LogLimiter(double interval_s, uint64_t burst = 1)
      : interval_s_(interval_s), burst_(burst) {}
  template <typename... Pieces>
  void warn(const std::string& kind, std::string_view area, const Pieces&... pieces) {
    uint64_t held_back = 0;
    if (!log_enabled(LogLevel::kWarn) || !admit(kind, &held_back)) return;
    log_message(LogLevel::kWarn, area,
                held_back == 0 ? str_cat(pieces...)
                               : str_cat(pieces..., " (", held_back, " more like this)"));
  }
  // True when a message of this kind may pass now; `held_back` gets the number refused since the
  // last one that passed.
  bool admit(const std::string& kind, uint64_t* held_back);

 private:
  struct Kind {
    double window_start_s = 0.0;
    uint64_t in_window = 0;
    uint64_t held_back = 0;
  };
  const double interval_s_;
  const uint64_t burst_;
  std::mutex mutex_;
  std::unordered_map<std::string, Kind> kinds_;
};

}  // namespace aerie

// AERIE_LOG_ONCE(warn, area, pieces...): the first time this line is reached, from whichever
// thread.
#define AERIE_LOG_ONCE(level, area, ...)                         \
  do {                                                           \
    static std::atomic<bool> aerie_logged{false};                \
    if (!aerie_logged.exchange(true, std::memory_order_relaxed)) \
      ::aerie::log_##level(area, __VA_ARGS__);                   \
  } while (false)

// AERIE_LOG_EVERY_S(warn, seconds, area, pieces...): at most once per interval from this line.
#define AERIE_LOG_EVERY_S(level, seconds, area, ...)                                           \
  do {                                                                                         \
    static ::aerie::LogLimiter aerie_limiter(seconds);                                         \
    uint64_t aerie_held_back = 0;                                                              \
    if (aerie_limiter.admit("", &aerie_held_back))                                             \
      ::aerie::log_##level(area, __VA_ARGS__,                                                  \
                           aerie_held_back == 0                                                \
                               ? std::string()                                                 \
                               : ::aerie::str_cat(" (", aerie_held_back, " more like this)")); \
  } while (false)
