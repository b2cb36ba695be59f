#include "aerie/data/speech/manifest_line.h"

#include <cmath>
#include <cstring>

#include <nlohmann/json.hpp>
#include <simdjson.h>

namespace aerie::data {

namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;

Status check_path(std::string_view path) {
  if (path.empty()) return data_error("the audio path is empty");
  if (path.find('\0') != std::string_view::npos)
    return data_error("the audio path contains a zero byte");
  constexpr size_t kLongest = 4095;  // no system opens longer ones
  if (path.size() > kLongest)
    return data_error(str_cat("the audio path has ", path.size(), " bytes; at most ", kLongest,
                              " can be opened"));
  return ok_status();
}

std::string shortened(std::string_view text) {
  return text.size() <= 60 ? std::string(text) : str_cat(text.substr(0, 57), "...");
}

// Both JSON libraries are read through these two, so that the rules stand once.
struct SimdValue {
  element value;
  bool is_null() const { return value.is_null(); }
  bool is_string() const { return value.is_string(); }
  bool is_array() const { return value.is_array(); }
  bool is_number() const { return value.is_number(); }
  bool is_integer() const { return value.is_int64() || value.is_uint64(); }
  std::string_view text() const {
    std::string_view out;
    if (value.get_string().get(out) != simdjson::SUCCESS) return {};
    return out;
  }
  double number() const {
    double out = 0.0;
    if (value.get_double().get(out) != simdjson::SUCCESS) return 0.0;
    return out;
  }
  template <typename Visit>
  void each(Visit visit) const {
    simdjson::dom::array items;
    if (value.get_array().get(items) != simdjson::SUCCESS) return;
    for (const element item : items) visit(SimdValue{item});
  }
  std::string dump() const { return shortened(simdjson::minify(value)); }
};

struct PlainValue {
  const nlohmann::json& value;
  bool is_null() const { return value.is_null(); }
  bool is_string() const { return value.is_string(); }
  bool is_array() const { return value.is_array(); }
  bool is_number() const { return value.is_number(); }
  bool is_integer() const { return value.is_number_integer(); }
  std::string_view text() const { return value.get_ref<const std::string&>(); }
  double number() const { return value.get<double>(); }
  template <typename Visit>
  void each(Visit visit) const {
    for (const nlohmann::json& item : value) visit(PlainValue{item});
  }
  std::string dump() const {
    return shortened(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  }
};

template <typename Value>
Status read_paths(const Value& value, const char* key, ManifestLine& out) {
  out.paths.clear();
  out.is_list = false;
  if (value.is_string()) {
    AERIE_RETURN_IF_ERROR(check_path(value.text()));
    out.paths.emplace_back(value.text());
    return ok_status();
  }
  if (!value.is_array())
    return data_error(str_cat(key, " must be a string or a list of strings, not ", value.dump()));
  out.is_list = true;
  Status status;
  value.each([&](const Value& item) {
    if (!status.ok()) return;
    if (!item.is_string()) {
      status = data_error(str_cat(key, " has an element that is not a string: ", item.dump()));
      return;
    }
    status = check_path(item.text());
    if (status.ok()) out.paths.emplace_back(item.text());
  });
  AERIE_RETURN_IF_ERROR(status);
  if (out.paths.empty()) return data_error(str_cat(key, " is an empty list"));
  return ok_status();
}

template <typename Value>
Status read_seconds(const Value& value, const char* key, double missing, double& out) {
  if (value.is_null()) {
    out = missing;
    return ok_status();
  }
  if (!value.is_number())
    return data_error(str_cat(key, " must be a number of seconds, not ", value.dump()));
  out = value.number();
  if (!std::isfinite(out)) return data_error(str_cat(key, " is not finite"));
  return ok_status();
}

template <typename Value>
Status read_channel(const Value& value, int32_t& out) {
  if (value.is_null()) {
    out = -1;
    return ok_status();
  }
  // NeMo-style manifests write a list for "channel" as well; only a plain index is ours.
  if (!value.is_integer()) {
    out = -1;
    return ok_status();
  }
  const double number = value.number();
  if (number < 0 || number > 32767)
    return data_error(str_cat("channel must be between 0 and 32767, not ", value.dump()));
  out = static_cast<int32_t>(number);
  return ok_status();
}

enum class Key { kOther, kFilename, kFilepath, kDuration, kOffset, kChannel };

Key key_of(std::string_view name) {
  if (name == "audio_filepath") return Key::kFilepath;
  if (name == "audio_filename") return Key::kFilename;
  if (name == "duration") return Key::kDuration;
  if (name == "offset") return Key::kOffset;
  if (name == "channel") return Key::kChannel;
  return Key::kOther;
}

// Collects the last value of each known key, then applies the rules.
template <typename Value>
struct Fields {
  std::optional<Value> filename, filepath, duration, offset, channel;

  void take(std::string_view name, const Value& value) {
    switch (key_of(name)) {
      case Key::kFilename:
        filename.emplace(value);
        break;
      case Key::kFilepath:
        filepath.emplace(value);
        break;
      case Key::kDuration:
        duration.emplace(value);
        break;
      case Key::kOffset:
        offset.emplace(value);
        break;
      case Key::kChannel:
        channel.emplace(value);
        break;
      case Key::kOther:
        break;
    }
  }
  Status finish(ManifestLine& out) const {
    if (filename) {
      AERIE_RETURN_IF_ERROR(read_paths(*filename, "audio_filename", out));
    } else if (filepath) {
      AERIE_RETURN_IF_ERROR(read_paths(*filepath, "audio_filepath", out));
    } else {
      return data_error("neither audio_filepath nor audio_filename is there");
    }
    out.duration_s = std::numeric_limits<double>::quiet_NaN();
    out.offset_s = 0.0;
    out.channel = -1;
    if (duration)
      AERIE_RETURN_IF_ERROR(read_seconds(*duration, "duration", out.duration_s, out.duration_s));
    if (offset) AERIE_RETURN_IF_ERROR(read_seconds(*offset, "offset", 0.0, out.offset_s));
    if (channel) AERIE_RETURN_IF_ERROR(read_channel(*channel, out.channel));
    return ok_status();
  }
};

// Python's json writes and reads numbers that JSON does not have.
bool has_python_number(std::string_view line) {
  for (const std::string_view word : {"NaN", "Infinity"})
    for (size_t at = line.find(word); at != std::string_view::npos; at = line.find(word, at + 1)) {
      const size_t before = line.find_last_not_of(" \t-", at == 0 ? 0 : at - 1);
      if (before != std::string_view::npos && line[before] == ':') return true;
    }
  return false;
}

// simdjson refuses integers beyond 64 bits, which JSON and Python allow.
Status parse_plain(std::string_view line, ManifestLine& out) {
  const nlohmann::json document = nlohmann::json::parse(line, nullptr, false);
  if (document.is_discarded())
    return data_error(
        has_python_number(line)
            ? "not valid JSON: it has no NaN or Infinity; a duration that is not known "
              "is null"
            : "not valid JSON");
  if (!document.is_object()) return data_error("not a JSON object");
  Fields<PlainValue> fields;
  for (const auto& [name, value] : document.items()) fields.take(name, PlainValue{value});
  return fields.finish(out);
}

}  // namespace

Status check_duration(double duration_s) {
  if (duration_s < 0) return data_error(str_cat("duration is negative: ", duration_s, " s"));
  if (duration_s > kMaxDurationS)
    return data_error(str_cat("duration is ", duration_s, " s; no recording is longer than ",
                              static_cast<int64_t>(kMaxDurationS), " s"));
  return ok_status();
}

struct ManifestLineParser::Impl {
  simdjson::dom::parser parser;
  std::vector<char> padded;
};

ManifestLineParser::ManifestLineParser() : impl_(std::make_unique<Impl>()) {}
ManifestLineParser::~ManifestLineParser() = default;
ManifestLineParser::ManifestLineParser(ManifestLineParser&&) noexcept = default;
ManifestLineParser& ManifestLineParser::operator=(ManifestLineParser&&) noexcept = default;

Status ManifestLineParser::parse(std::string_view line, ManifestLine& out) {
  if (line.size() > kMaxLineBytes)
    return data_error(str_cat("the line is longer than ", kMaxLineBytes >> 20, " MiB"));
  const size_t needed = line.size() + simdjson::SIMDJSON_PADDING;
  if (impl_->padded.size() < needed) impl_->padded.resize(needed + needed / 2);
  std::memcpy(impl_->padded.data(), line.data(), line.size());
  std::memset(impl_->padded.data() + line.size(), 0, simdjson::SIMDJSON_PADDING);
  element document;
  const simdjson::error_code error =
      impl_->parser.parse(impl_->padded.data(), line.size(), false).get(document);
  if (error == simdjson::UTF8_ERROR) return data_error("not valid UTF-8");
  if (error != simdjson::SUCCESS) {
    // The name of the error for large integers differs between versions of simdjson, so the other
    // library has the last word on every line of ordinary size.
    constexpr size_t kOrdinaryLine = size_t{1} << 20;
    if (error != simdjson::DEPTH_ERROR && line.size() <= kOrdinaryLine)
      return parse_plain(line, out);
    return data_error(str_cat("not valid JSON: ", simdjson::error_message(error)));
  }
  simdjson::dom::object object;
  if (document.get_object().get(object) != simdjson::SUCCESS)
    return data_error("not a JSON object");
  Fields<SimdValue> fields;
  for (const auto& field : object) fields.take(field.key, SimdValue{field.value});
  return fields.finish(out);
}

}  // namespace aerie::data
