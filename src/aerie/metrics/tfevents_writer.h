// TensorBoard event files (scalars and text-free): length-prefixed records with masked CRC-32C,
// each an Event message. The two message types are encoded by hand: five fields do not justify a
// protobuf dependency. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "aerie/base/env.h"

namespace aerie::metrics {

class TfEventsWriter {
 public:
  // Creates `folder`/events.out.tfevents.<start_s>.<host>.<pid>.0 on the first scalar.
  TfEventsWriter(Env& env, std::string folder, int64_t start_s);

  Status scalar(std::string_view tag, double value, int64_t step, double wall_time_s);
  Status flush();
  const std::string& path() const { return path_; }

 private:
  Status open();
  Status write_record(const std::string& event);

  Env& env_;
  std::string path_;
  int64_t start_s_;
  std::unique_ptr<WritableFile> file_;
};

}  // namespace aerie::metrics
