// TensorBoard event files (scalars and text-free): length-prefixed records with masked CRC-32C,
// each an Event message. The message types are encoded by hand: a few fields do not justify a
// protobuf dependency. One thread at a time.
//
// A full disk or a removed file loses no points as long as fewer than kMaxPending are waiting: they
// go to the next file that can be written. A file with a torn record is not continued, since
// readers stop there.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>

#include "aerie/base/env.h"

namespace aerie::metrics {

class TfEventsWriter {
 public:
  static constexpr size_t kMaxPending = 500000;  // points kept while the disk refuses them

  // Creates `folder`/events.out.tfevents.<start_s>.<host>.<pid>.0 with the first point.
  TfEventsWriter(Env& env, std::string folder, int64_t start_s);

  // A resumed run: readers forget points at `step` and beyond that were written before.
  void start_session(int64_t step, double wall_time_s);
  // Points wait for flush().
  void scalar(std::string_view tag, double value, int64_t step, double wall_time_s);
  // Writes what waits. An error means that it is still waiting (or, past kMaxPending, that the
  // oldest was dropped).
  Status flush();

  const std::string& path() const { return path_; }
  size_t pending() const { return pending_.size(); }

 private:
  void add(std::string event, double wall_time_s);
  void after_failure(size_t head_bytes);

  Env& env_;
  const std::string folder_;
  std::string path_;
  int64_t stamp_s_;             // in the name of the file
  double last_wall_s_ = 0.0;    // of the newest point
  uint64_t written_bytes_ = 0;  // whole records in the file
  std::unique_ptr<WritableFile> file_;
  std::deque<std::string> pending_;  // encoded records
};

}  // namespace aerie::metrics
