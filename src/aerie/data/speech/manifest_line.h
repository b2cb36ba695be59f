// One line of a JSON-lines manifest: what a data set needs of it, checked.
//
// Rules (NeMo's): `audio_filename` wins over `audio_filepath`; either may be a list of files that
// are stacked as channels; `duration` and `offset` in seconds may be missing or null; a key that
// appears twice counts the second time. `channel` (ours) picks one channel of this file. Everything
// else is carried in the line itself and never looked at here.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::data {

struct ManifestLine {
  std::vector<std::string> paths;  // one, or several files stacked as channels
  bool is_list = false;
  double duration_s = std::numeric_limits<double>::quiet_NaN();  // NaN: unknown
  double offset_s = 0.0;
  int32_t channel = -1;  // -1: not given
};

// No recording is longer: eleven days.
constexpr double kMaxDurationS = 1e6;
// Whether a duration can be that of a recording: not negative, not longer than kMaxDurationS. 0 and
// NaN say nothing and are fine.
Status check_duration(double duration_s);

// Keeps its buffers between lines. One thread.
class ManifestLineParser {
 public:
  static constexpr size_t kMaxLineBytes = size_t{64} << 20;

  ManifestLineParser();
  ~ManifestLineParser();
  ManifestLineParser(ManifestLineParser&&) noexcept;
  ManifestLineParser& operator=(ManifestLineParser&&) noexcept;

  // `line` without its line break. The error says what is wrong with it, without the place.
  Status parse(std::string_view line, ManifestLine& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aerie::data
