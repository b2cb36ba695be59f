// metrics.jsonl of a run: appended line by line, cut back on resume.
//
// A full or read-only disk does not stop training: lines that cannot be written wait (a bounded
// number of them) and are written when the disk takes them again. A file that somebody removes or
// replaces during the run is reported and made anew. One thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/metrics/record.h"

namespace aerie::metrics {

class MetricsLog {
 public:
  static constexpr size_t kMaxPending = 100000;  // lines kept while the disk refuses them

  // `env` must outlive the log. Nothing is touched before the first call below.
  MetricsLog(Env& env, std::string path) : env_(env), path_(std::move(path)) {}

  // Before a resumed run writes: drops every record after `step` (they will be written again) and
  // torn lines. Line by line, whatever the size of the file. `validates_again`: the validation of
  // that step too.
  Status cut_back_to(int64_t step, bool validates_again = false);

  // Appends one record. An error means that the record is waiting (or, past kMaxPending, that the
  // oldest was dropped).
  Status write(const Record& record);
  Status sync();

  size_t pending() const { return pending_.size(); }
  const std::string& path() const { return path_; }

 private:
  Status write_pending();
  bool arrived(const std::string& line);

  Env& env_;
  std::string path_;
  std::unique_ptr<WritableFile> file_;
  bool was_open_ = false;
  std::deque<std::string> pending_;
};

// Calls `line` with every line of a file, without its newline; the last one, where it has none,
// goes to `cut` unless that is empty.
Status scan_lines(Env& env, const std::string& path,
                  const std::function<void(std::string_view line)>& line,
                  const std::function<void(std::string_view line)>& cut = {});

// Every record of a file; torn or foreign lines are skipped and counted.
struct MetricsFile {
  std::vector<Record> records;
  int64_t bad_lines = 0;
};
// With `most_steps`, of a longer run only about so many training steps, evenly spread, and the
// latest thousand; everything else is read whatever its number.
Result<MetricsFile> read_metrics(Env& env, const std::string& path, int64_t most_steps = 0);
// As many as a report can show.
inline constexpr int64_t kReportSteps = 20000;

}  // namespace aerie::metrics
