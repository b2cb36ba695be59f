// channel_selector of NeMo's data sets: which channels of a recording are kept, or their mean.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::audio {

// A small value. Indices are zero-based; negative ones count from the last channel, as in NumPy.
class ChannelSelector {
 public:
  enum class Kind : uint8_t { kAll, kIndex, kList, kAverage };

  ChannelSelector() = default;  // null: keep all channels
  static ChannelSelector all() { return {}; }
  static ChannelSelector index(int channel);
  static ChannelSelector list(std::vector<int> channels);
  static ChannelSelector average();
  // "null"/"" -> all, "average", "1", "[0,2]".
  static Result<ChannelSelector> parse(const std::string& text);

  Kind kind() const { return kind_; }
  const std::vector<int>& channels() const { return channels_; }  // kIndex: one entry
  std::string to_string() const;

  // Checks the selector against a signal of `num_channels` (1: a one-dimensional signal, which
  // accepts only null, 0 and average) and returns how many channels come out.
  Result<int> output_channels(int num_channels) const;

  bool operator==(const ChannelSelector&) const = default;

 private:
  Kind kind_ = Kind::kAll;
  std::vector<int> channels_;
};

// Applies the selector to `frames` interleaved frames. `out` may equal `in` unless the selector is
// a list of several channels. output_channels() has accepted the selector. The mean is summed in
// the order NumPy sums float32.
void select_channels(const float* in, int64_t frames, int num_channels,
                     const ChannelSelector& selector, float* out);

}  // namespace aerie::audio
