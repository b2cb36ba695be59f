#include "aerie/metrics/metrics_log.h"

namespace aerie::metrics {

Result<MetricsFile> read_metrics(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(const std::string text, env.read_file(path));
  MetricsFile out;
  size_t start = 0;
  while (start < text.size()) {
    size_t end = text.find('\n', start);
    if (end == std::string::npos) end = text.size();
    const std::string_view line(text.data() + start, end - start);
    start = end + 1;
    if (trim(line).empty()) continue;
    auto record = Record::from_json(line);
    if (record.ok()) {
      out.records.push_back(std::move(record).value());
    } else {
      ++out.bad_lines;
    }
  }
  return out;
}

Status MetricsLog::cut_back_to(int64_t step) {
  AERIE_CHECK(file_ == nullptr, "cut_back_to() after writing");
  if (!env_.exists(path_)) return ok_status();
  AERIE_ASSIGN_OR_RETURN(const MetricsFile file, read_metrics(env_, path_));
  std::string kept;
  for (const Record& record : file.records)
    if (record.step() <= step) kept += record.to_json() + "\n";
  return env_.atomic_replace(path_, kept);
}

Status MetricsLog::write(const Record& record) {
  pending_.push_back(record.to_json() + "\n");
  if (pending_.size() > kMaxPending) pending_.pop_front();
  return write_pending();
}

Status MetricsLog::write_pending() {
  if (file_ == nullptr) {
    auto opened = env_.open_writable(path_, WriteMode::kAppend);
    if (!opened.ok()) return opened.status();
    file_ = std::move(opened).value();
  }
  while (!pending_.empty()) {
    Status status = file_->append(pending_.front());
    if (status.ok()) status = file_->flush();
    if (!status.ok()) {
      // What reached the disk of this line is unknown: the next attempt starts on a line of its
      // own, and readers skip the torn one.
      file_.reset();
      if (pending_.front().front() != '\n') pending_.front().insert(0, 1, '\n');
      return status;
    }
    pending_.pop_front();
  }
  return ok_status();
}

Status MetricsLog::sync() {
  AERIE_RETURN_IF_ERROR(write_pending());
  return file_->sync();
}

}  // namespace aerie::metrics
