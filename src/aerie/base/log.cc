#include "aerie/base/log.h"

#include <cstdlib>
#include <vector>

#include <spdlog/logger.h>
#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/sinks/base_sink.h>

#include "aerie/base/clock.h"
#include "aerie/base/early_log.h"
#include "aerie/base/env.h"
#include "aerie/base/log_tap.h"
#include "aerie/base/path.h"
#include "aerie/base/printable.h"

namespace aerie {

namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarn:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
    case LogLevel::kOff:
      break;
  }
  return spdlog::level::off;
}

spdlog::color_mode console_colour() {
  // https://no-color.org: any non-empty value switches colour off, also on a terminal.
  const char* no_colour = std::getenv("NO_COLOR");
  return no_colour != nullptr && *no_colour != '\0' ? spdlog::color_mode::never
                                                    : spdlog::color_mode::automatic;
}

LogLevel initial_level() {
  const char* name = std::getenv("AERIE_LOG");
  if (name == nullptr) return LogLevel::kInfo;
  auto level = parse_log_level(name);
  return level.ok() ? *level : LogLevel::kInfo;
}

// Never destroyed: threads may still log while the process exits.
// A log file behind the file-system seam. A line that cannot be written is lost; the next one tries
// to open the file again.
class FileSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  explicit FileSink(std::string path) : path_(std::move(path)) {}
  Status open() {
    AERIE_RETURN_IF_ERROR(Env::real().create_dirs(parent_path(path_)));
    AERIE_ASSIGN_OR_RETURN(file_, Env::real().open_writable(path_, WriteMode::kAppend));
    return ok_status();
  }

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    if (file_ == nullptr && !open().ok()) return;
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (!file_->append(line.data(), line.size()).ok() || !file_->flush().ok()) file_.reset();
  }
  void flush_() override {
    if (file_ != nullptr && !file_->flush().ok()) file_.reset();
  }

  const std::string path_;
  std::unique_ptr<WritableFile> file_;
};

struct EarlyLine {
  LogLevel level;
  spdlog::log_clock::time_point time;
  std::string line;
};

struct LogState {
  LogState()
      : console(std::make_shared<spdlog::sinks::ansicolor_stderr_sink_mt>(console_colour())) {
    console->set_pattern("%H:%M:%S %^%v%$");
    console->set_color(spdlog::level::info, console->reset);
    console->set_color(spdlog::level::debug, console->dark);
  }

  std::atomic<LogLevel> level{initial_level()};
  std::atomic<int> rank{0};
  std::atomic<int> world{1};
  std::atomic<bool> have_files{false};
  std::atomic<bool> have_tap{false};

  std::mutex mutex;  // everything below, and the order of lines
  std::shared_ptr<spdlog::sinks::ansicolor_stderr_sink_mt> console;
  std::vector<std::shared_ptr<FileSink>> files;
  bool keep_early = false;
  std::vector<EarlyLine> early;
  LogConsole replacement;
  LogBracket bracket;
  LogTap tap;
};

LogState& state() {
  static LogState* const instance = new LogState;
  return *instance;
}

// A log line is never worth the run: a full disk under a log file is ignored here.
void write_to(spdlog::sinks::sink& sink, LogLevel level, const std::string& line,
              spdlog::log_clock::time_point time) {
  try {
    if (sink.should_log(to_spdlog(level)))
      sink.log(spdlog::details::log_msg(time, {}, "", to_spdlog(level), line));
  } catch (const std::exception&) {
  }
}

}  // namespace

const char* log_level_name(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarn:
      return "warn";
    case LogLevel::kError:
      return "error";
    case LogLevel::kOff:
      break;
  }
  return "off";
}

Result<LogLevel> parse_log_level(std::string_view name) {
  const std::string lower = to_lower(name);
  for (const LogLevel level :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarn, LogLevel::kError, LogLevel::kOff})
    if (lower == log_level_name(level)) return level;
  if (lower == "warning") return LogLevel::kWarn;
  return invalid_argument(str_cat("unknown log level '", name, "'"))
      .with_hint("one of debug, info, warn, error, off");
}

void set_log_level(LogLevel level) {
  state().level = level;
}

LogLevel log_level() {
  return state().level;
}

void set_log_rank(int rank, int world) {
  state().rank = rank;
  state().world = world;
}

bool log_enabled(LogLevel level) {
  const LogState& log = state();
  if (level < log.level || level == LogLevel::kOff) return false;
  return level >= LogLevel::kWarn || log.rank == 0 || log.have_files || log.have_tap;
}

void log_message(LogLevel level, std::string_view area, std::string_view text) {
  if (!log_enabled(level)) return;
  LogState& log = state();
  const bool show_rank = log.world > 1 && level >= LogLevel::kWarn;
  const std::string line =
      str_cat("[", area, "] ", show_rank ? str_cat("rank ", log.rank.load(), ": ") : std::string(),
              level == LogLevel::kWarn    ? "warning: "
              : level == LogLevel::kError ? "error: "
                                          : "",
              printable_lines(text));
  const std::lock_guard lock(log.mutex);
  const auto now = spdlog::log_clock::now();
  if (log.tap) log.tap(level, line);
  if (log.keep_early) log.early.push_back({level, now, line});
  for (const auto& file : log.files) {
    write_to(*file, level, line, now);
    // So that a killed run leaves its last words.
    if (level >= LogLevel::kInfo) {
      try {
        file->flush();
      } catch (const std::exception&) {
      }
    }
  }
  if (log.rank != 0 && level < LogLevel::kWarn) return;
  if (log.replacement) {
    log.replacement(level, line);
  } else if (log.bracket) {
    log.bracket([&] { write_to(*log.console, level, line, now); });
  } else {
    write_to(*log.console, level, line, now);
  }
}

Status add_log_file(const std::string& path, LogLevel level) {
  LogState& log = state();
  auto file = std::make_shared<FileSink>(path);
  if (const Status status = file->open(); !status.ok())
    return io_error(str_cat("cannot write the log file '", path, "': ", status.message()));
  file->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
  file->set_level(to_spdlog(level));
  const std::lock_guard lock(log.mutex);
  for (const EarlyLine& said : log.early) write_to(*file, said.level, said.line, said.time);
  log.files.push_back(std::move(file));
  log.have_files = true;
  return ok_status();
}

EarlyLog::EarlyLog() {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  log.keep_early = true;
}

EarlyLog::~EarlyLog() {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  log.keep_early = false;
  log.early.clear();
}

void close_log_files() {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  log.files.clear();
  log.have_files = false;
}

void flush_logs() {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  for (const auto& file : log.files) {
    try {
      file->flush();
    } catch (const std::exception&) {
    }
  }
}

void set_log_console(LogConsole console) {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  log.replacement = std::move(console);
}

void set_log_bracket(LogBracket bracket) {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  log.bracket = std::move(bracket);
}

void set_log_tap(LogTap tap) {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  log.have_tap = static_cast<bool>(tap);
  log.tap = std::move(tap);
}

bool LogLimiter::admit(const std::string& kind, uint64_t* held_back) {
  const double now_s = Clock::real().monotonic_s();
  const std::lock_guard lock(mutex_);
  const auto [found, is_new] = kinds_.try_emplace(kind);
  Kind& entry = found->second;
  if (is_new || now_s - entry.window_start_s >= interval_s_) {
    entry.window_start_s = now_s;
    entry.in_window = 0;
  }
  if (entry.in_window >= burst_) {
    ++entry.held_back;
    return false;
  }
  ++entry.in_window;
  *held_back = std::exchange(entry.held_back, 0);
  return true;
}

}  // namespace aerie
