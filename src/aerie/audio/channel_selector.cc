#include "aerie/audio/channel_selector.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <optional>

#include "aerie/base/strings.h"

namespace aerie::audio {
namespace {

std::optional<int> parse_int(std::string_view text) {
  text = trim(text);
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The order in which NumPy adds up a short float32 row: one after the other below 8 values, else 8
// running sums that are joined pairwise.
float row_sum(const float* row, int n) {
  if (n < 8) {
    float sum = row[0];
    for (int i = 1; i < n; ++i) sum += row[i];
    return sum;
  }
  float part[8];
  std::copy(row, row + 8, part);
  int i = 8;
  for (; i + 8 <= n; i += 8)
    for (int k = 0; k < 8; ++k) part[k] += row[i + k];
  float sum =
      ((part[0] + part[1]) + (part[2] + part[3])) + ((part[4] + part[5]) + (part[6] + part[7]));
  for (; i < n; ++i) sum += row[i];
  return sum;
}

}  // namespace

ChannelSelector ChannelSelector::index(int channel) {
  ChannelSelector selector;
  selector.kind_ = Kind::kIndex;
  selector.channels_ = {channel};
  return selector;
}

ChannelSelector ChannelSelector::list(std::vector<int> channels) {
  ChannelSelector selector;
  selector.kind_ = Kind::kList;
  selector.channels_ = std::move(channels);
  return selector;
}

ChannelSelector ChannelSelector::average() {
  ChannelSelector selector;
  selector.kind_ = Kind::kAverage;
  return selector;
}

Result<ChannelSelector> ChannelSelector::parse(const std::string& text) {
  const std::string_view word = trim(text);
  if (word.empty() || word == "null" || word == "None") return all();
  if (word == "average") return average();
  if (const std::optional<int> value = parse_int(word)) return index(*value);
  if (word.size() >= 2 && word.front() == '[' && word.back() == ']') {
    std::vector<int> channels;
    for (const std::string& part : split(word.substr(1, word.size() - 2), ',')) {
      const std::optional<int> value = parse_int(part);
      if (!value) break;
      channels.push_back(*value);
      if (channels.size() == split(word, ',').size()) return list(std::move(channels));
    }
  }
  return invalid_argument(str_cat("channel_selector '", text, "' is not understood"))
      .with_hint("use null, a channel number, a list such as [0,1], or average");
}

std::string ChannelSelector::to_string() const {
  switch (kind_) {
    case Kind::kAll:
      return "null";
    case Kind::kAverage:
      return "average";
    case Kind::kIndex:
      return str_cat(channels_[0]);
    case Kind::kList:
      break;
  }
  std::string text = "[";
  for (size_t i = 0; i < channels_.size(); ++i) text += str_cat(i == 0 ? "" : ", ", channels_[i]);
  return text + "]";
}

Result<int> ChannelSelector::output_channels(int num_channels) const {
  if (kind_ == Kind::kAll) return num_channels;
  if (kind_ == Kind::kAverage) return 1;
  if (num_channels == 1) {
    if (kind_ == Kind::kIndex && channels_[0] == 0) return 1;
    return data_error(str_cat("channel_selector ", to_string(), " on a recording of one channel"))
        .with_hint("only null, 0 and average fit single-channel audio");
  }
  if (channels_.empty())
    return invalid_argument("channel_selector is an empty list").with_hint("name the channels");
  for (const int channel : channels_)
    if (channel >= num_channels || channel < -num_channels)
      return data_error(str_cat("channel_selector ", to_string(), " on a recording of ",
                                num_channels, " channels"))
          .with_hint(str_cat("channels are numbered 0 to ", num_channels - 1));
  return static_cast<int>(channels_.size());
}

void select_channels(const float* in, int64_t frames, int num_channels,
                     const ChannelSelector& selector, float* out) {
  if (frames == 0) return;
  switch (selector.kind()) {
    case ChannelSelector::Kind::kAll:
      if (out != in)
        std::memcpy(out, in, static_cast<size_t>(frames * num_channels) * sizeof(float));
      return;
    case ChannelSelector::Kind::kAverage:
      if (num_channels == 1) {
        if (out != in) std::memcpy(out, in, static_cast<size_t>(frames) * sizeof(float));
        return;
      }
      if (num_channels == 2) {
        for (int64_t i = 0; i < frames; ++i) out[i] = (in[2 * i] + in[2 * i + 1]) / 2.0f;
        return;
      }
      for (int64_t i = 0; i < frames; ++i)
        out[i] = row_sum(in + i * num_channels, num_channels) / static_cast<float>(num_channels);
      return;
    case ChannelSelector::Kind::kIndex:
    case ChannelSelector::Kind::kList:
      break;
  }
  const std::vector<int>& channels = selector.channels();
  const int n = static_cast<int>(channels.size());
  if (n == 1) {
    const int c = channels[0] < 0 ? channels[0] + num_channels : channels[0];
    for (int64_t i = 0; i < frames; ++i) out[i] = in[i * num_channels + c];
    return;
  }
  AERIE_CHECK(out != in, "a list of channels needs its own output buffer");
  for (int64_t i = 0; i < frames; ++i)
    for (int k = 0; k < n; ++k) {
      const int c = channels[static_cast<size_t>(k)];
      out[i * n + k] = in[i * num_channels + (c < 0 ? c + num_channels : c)];
    }
}

}  // namespace aerie::audio
