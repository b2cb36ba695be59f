#include "aerie/metrics/metrics_log.h"

#include <algorithm>
#include <charconv>
#include <unistd.h>

#include "aerie/base/clock.h"
#include "aerie/base/log.h"
#include "aerie/base/path.h"

namespace aerie::metrics {

namespace {

constexpr size_t kChunk = 1 << 20;

// The step of a line as Record::to_json() writes it, without parsing all of it: a run of a million
// steps is resumed in a second. Anything else is left to the parser.
bool quick_step(std::string_view line, int64_t* step) {
  constexpr std::string_view kBegin = "{\"step\":";
  if (!starts_with(line, kBegin) || line.back() != '}') return false;
  line.remove_prefix(kBegin.size());
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), *step);
  if (error != std::errc()) return false;
  line.remove_prefix(static_cast<size_t>(end - line.data()));
  return starts_with(line, ",\"epoch\":") && line.find('{') == std::string_view::npos;
}

bool is_kept(std::string_view line, int64_t last_step, bool validates_again) {
  int64_t step = 0;
  if (quick_step(line, &step) && !(validates_again && step == last_step)) return step <= last_step;
  const auto record = Record::from_json(line);
  if (!record.ok() || record->step() > last_step) return false;
  return !(validates_again && record->step() == last_step && record->kind() == RecordKind::kVal);
}

// The record of a training step, as Record::to_json() writes it.
bool is_step(std::string_view line) {
  return line.substr(0, 160).find("\"kind\":\"train\"") != std::string_view::npos;
}
constexpr int64_t kLatest = 1000;  // steps at the end that are always read

}  // namespace

Status scan_lines(Env& env, const std::string& path,
                  const std::function<void(std::string_view line)>& line,
                  const std::function<void(std::string_view line)>& cut) {
  AERIE_ASSIGN_OR_RETURN(const auto file, env.open_random_access(path));
  std::string rest;  // the beginning of a line that ends in a later chunk
  std::string chunk(kChunk, '\0');
  for (uint64_t offset = 0;;) {
    AERIE_ASSIGN_OR_RETURN(const size_t got, file->read_at(offset, chunk.data(), chunk.size()));
    if (got == 0) break;
    offset += got;
    std::string_view text(chunk.data(), got);
    for (size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
      if (rest.empty()) {
        line(text.substr(0, end));
      } else {
        rest.append(text.substr(0, end));
        line(rest);
        rest.clear();
      }
      text.remove_prefix(end + 1);
    }
    rest.append(text);
  }
  if (!rest.empty()) (cut ? cut : line)(rest);
  return ok_status();
}

Result<MetricsFile> read_metrics(Env& env, const std::string& path, int64_t most_steps) {
  MetricsFile out;
  int64_t steps = 0, stride = 1;
  if (most_steps > 0) {
    AERIE_RETURN_IF_ERROR(
        scan_lines(env, path, [&](std::string_view line) { steps += is_step(line) ? 1 : 0; }));
    stride = std::max<int64_t>(1, (steps + most_steps - 1) / most_steps);
  }
  int64_t step = 0;
  const auto take = [&](std::string_view line, bool whole) {
    if (stride > 1 && is_step(line)) {
      const int64_t index = step++;
      if (index % stride != 0 && index < steps - kLatest) return;
    }
    if (trim(line).empty()) return;
    auto record = Record::from_json(line);
    if (record.ok())
      out.records.push_back(std::move(record).value());
    else if (whole)
      ++out.bad_lines;
  };
  // A run that goes on may be writing its last line, one that was killed has left it so.
  AERIE_RETURN_IF_ERROR(scan_lines(
      env, path, [&](std::string_view line) { take(line, /*whole=*/true); },
      [&](std::string_view line) { take(line, /*whole=*/false); }));
  return out;
}

Status MetricsLog::cut_back_to(int64_t step, bool validates_again) {
  AERIE_CHECK(file_ == nullptr, "cut_back_to() after writing");
  if (!env_.exists(path_)) return ok_status();
  uint64_t kept_bytes = 0;
  AERIE_RETURN_IF_ERROR(scan_lines(env_, path_, [&](std::string_view line) {
    if (is_kept(line, step, validates_again)) kept_bytes += line.size() + 1;
  }));
  AERIE_ASSIGN_OR_RETURN(const FileStat before, env_.stat(path_));
  if (kept_bytes == before.size) return ok_status();
  // As Env::atomic_replace, but never all of it in memory.
  const std::string temporary =
      join_path(parent_path(path_), str_cat(".", base_name(path_), ".tmp-", ::getpid(), "-",
                                            Clock::real().wall_ns() & 0xffffffffff, "-0"));
  const auto write = [&]() -> Status {
    AERIE_ASSIGN_OR_RETURN(const auto file, env_.open_writable(temporary, WriteMode::kCreateNew));
    Status failed;
    AERIE_RETURN_IF_ERROR(scan_lines(env_, path_, [&](std::string_view line) {
      if (!failed.ok() || !is_kept(line, step, validates_again)) return;
      failed = file->append(line);
      if (failed.ok()) failed = file->append("\n");
    }));
    AERIE_RETURN_IF_ERROR(failed);
    AERIE_RETURN_IF_ERROR(file->sync());
    AERIE_RETURN_IF_ERROR(file->close());
    return env_.rename(temporary, path_);
  };
  if (Status status = write(); !status.ok()) {
    (void)env_.remove_file(temporary);
    return std::move(status).with_context(str_cat("cutting back '", path_, "'"));
  }
  return env_.fsync_dir(parent_path(path_));
}

Status MetricsLog::write(const Record& record) {
  pending_.push_back(record.to_json() + "\n");
  if (pending_.size() > kMaxPending) pending_.pop_front();
  return write_pending();
}

// A line goes to the file that was opened, whatever became of its name since.
bool MetricsLog::arrived(const std::string& line) {
  const auto there = env_.stat(path_);
  const bool gone = there.status().code() == StatusCode::kNotFound;
  if (!gone && (!there.ok() || there->size == file_->size())) return true;
  bool written = false;  // by us, and somebody else added to it
  if (!gone && there->size >= line.size()) {
    const auto end = env_.read_range(path_, there->size - line.size(), line.size());
    written = end.ok() && *end == line;
  }
  if (!written)
    log_warn("metrics", path_, " was ", gone ? "removed" : "replaced",
             " by somebody while the run was writing it; lines that only it held are lost, what "
             "comes goes to a new file");
  return written;
}

Status MetricsLog::write_pending() {
  constexpr int kMaxAttempts = 3;  // somebody may remove it again and again
  for (int attempt = 1; !pending_.empty() || file_ == nullptr;) {
    if (file_ == nullptr) {
      // The folder may be gone with the file; before the first line a missing folder is an error.
      if (was_open_) (void)env_.create_dirs(parent_path(path_));
      auto opened = env_.open_writable(path_, WriteMode::kAppend);
      if (!opened.ok()) return opened.status();
      file_ = std::move(opened).value();
      was_open_ = true;
      continue;
    }
    Status status = file_->append(pending_.front());
    if (status.ok()) status = file_->flush();
    if (!status.ok()) {
      // What reached the disk of this line is unknown: the next attempt starts on a line of its
      // own, and readers skip the torn one.
      file_.reset();
      if (pending_.front().front() != '\n') pending_.front().insert(0, 1, '\n');
      return status;
    }
    if (arrived(pending_.front())) {
      pending_.pop_front();
      attempt = 1;
    } else {
      file_.reset();
      if (++attempt > kMaxAttempts) return io_error(str_cat("'", path_, "' does not stay"));
    }
  }
  return ok_status();
}

Status MetricsLog::sync() {
  AERIE_RETURN_IF_ERROR(write_pending());
  return file_->sync();
}

}  // namespace aerie::metrics
