#include "aerie/config/schema/value_parsers.h"

#include <charconv>
#include <cmath>

#include "aerie/base/strings.h"

namespace aerie::config {
namespace {

Result<int64_t> parse_int(std::string_view text) {
  const std::string_view trimmed = trim(text);
  int64_t number = 0;
  const char* const end = trimmed.data() + trimmed.size();
  const auto [stopped, error] = std::from_chars(trimmed.data(), end, number);
  if (error != std::errc() || stopped != end || trimmed.empty())
    return invalid_argument(str_cat("'", std::string(text), "' is not a whole number"));
  return number;
}

Result<DevicesConfig> devices_from_count(int64_t count) {
  DevicesConfig devices;
  if (count == -1) {
    devices.kind = DevicesConfig::Kind::kAll;
  } else if (count >= 1 && count <= 65536) {
    devices.kind = DevicesConfig::Kind::kCount;
    devices.count = count;
  } else {
    return invalid_argument(str_cat("expected -1 or a number of devices from 1, got ", count));
  }
  return devices;
}

Result<DevicesConfig> devices_from_ids(std::vector<int64_t> ids) {
  if (ids.empty()) return invalid_argument("the list of devices is empty");
  if (ids.size() == 1 && ids[0] == -1) return devices_from_count(-1);
  for (const int64_t id : ids)
    if (id < 0) return invalid_argument(str_cat("device ", id, " does not exist"));
  DevicesConfig devices;
  devices.kind = DevicesConfig::Kind::kIds;
  devices.ids = std::move(ids);
  return devices;
}

}  // namespace

int64_t whole_number(const Value& value) {
  return value.is_int() ? value.as_int() : static_cast<int64_t>(value.as_float());
}

Result<DevicesConfig> parse_devices(const Value& value) {
  if (value.is_null()) return DevicesConfig();
  if (value.is_int()) return devices_from_count(value.as_int());
  if (value.is_list()) {
    std::vector<int64_t> ids;
    for (const Value& item : value.as_list()) {
      if (!item.is_int()) return invalid_argument("a list of devices holds whole numbers");
      ids.push_back(item.as_int());
    }
    return devices_from_ids(std::move(ids));
  }
  if (!value.is_string()) return invalid_argument("expected a number, a list of numbers or auto");
  const std::string& text = value.as_string();
  if (text == "auto") return DevicesConfig();
  if (text.find(',') == std::string::npos) {
    AERIE_ASSIGN_OR_RETURN(const int64_t count, parse_int(text));
    return devices_from_count(count);
  }
  std::vector<int64_t> ids;
  for (const std::string& part : split(text, ',')) {
    if (trim(part).empty()) continue;  // "0,"
    AERIE_ASSIGN_OR_RETURN(const int64_t id, parse_int(part));
    ids.push_back(id);
  }
  return devices_from_ids(std::move(ids));
}

Result<double> parse_duration(const Value& value, bool numbers_are_seconds) {
  if (value.is_number()) {
    if (!numbers_are_seconds)
      return invalid_argument(str_cat("expected a time as \"DD:HH:MM:SS\", got ", value.brief()))
          .with_hint("put it in quotes: YAML reads 1:30:00 as a number");
    return value.as_float();
  }
  if (value.is_string()) {
    const std::vector<std::string> parts = split(value.as_string(), ':');
    constexpr double kUnit[] = {86400, 3600, 60, 1};
    double seconds = 0;
    bool good = parts.size() == 4;
    for (size_t i = 0; good && i < 4; ++i) {
      const auto number = parse_int(parts[i]);
      good = number.ok() && *number >= 0;
      if (good) seconds += kUnit[i] * static_cast<double>(*number);
    }
    if (!good)
      return invalid_argument(str_cat("expected a time as \"DD:HH:MM:SS\", got ", value.brief()));
    return seconds;
  }
  if (!value.is_map()) return invalid_argument("expected a time");
  double seconds = 0;
  for (const MapEntry& entry : value.as_map()) {
    static constexpr std::pair<std::string_view, double> kUnits[] = {
        {"weeks", 604800}, {"days", 86400},        {"hours", 3600},        {"minutes", 60},
        {"seconds", 1},    {"milliseconds", 1e-3}, {"microseconds", 1e-6},
    };
    if (entry.key == "_target_") {
      if (!entry.value.is_string() || entry.value.as_string() != "datetime.timedelta")
        return invalid_argument("the only target of a time is datetime.timedelta");
      continue;
    }
    bool known = false;
    for (const auto& [name, unit] : kUnits) {
      if (entry.key != name) continue;
      if (!entry.value.is_number())
        return invalid_argument(str_cat("'", entry.key, "' of a time must be a number"));
      seconds += unit * entry.value.as_float();
      known = true;
    }
    if (!known)
      return invalid_argument(str_cat("'", entry.key, "' is no part of a time"))
          .with_hint("parts are days, hours, minutes and seconds");
  }
  if (!std::isfinite(seconds) || seconds < 0)
    return invalid_argument("a time must not be negative");
  return seconds;
}

Result<BatchLimit> parse_batch_limit(const Value& value) {
  BatchLimit limit;
  if (value.is_null()) return limit;
  if (!value.is_number()) return invalid_argument("expected a number");
  if (value.is_int()) {
    if (value.as_int() < 0) return invalid_argument("expected a number from 0");
    limit.is_fraction = false;
    limit.count = value.as_int();
    return limit;
  }
  const double number = value.as_float();
  if (number >= 0 && number <= 1) {
    limit.fraction = number;
    return limit;
  }
  if (number > 1 && number < 9e15 && number == std::trunc(number)) {
    limit.is_fraction = false;
    limit.count = static_cast<int64_t>(number);
    return limit;
  }
  return invalid_argument(str_cat(
      "expected a whole number of batches or a share from 0.0 to 1.0, got ", value.brief()));
}

Result<Precision> parse_precision(const Value& value) {
  if (value.is_null()) return Precision::k32;
  const std::string text = value.is_string() ? value.as_string() : python_str(value);
  if (text == "32" || text == "32-true") return Precision::k32;
  if (text == "16" || text == "16-mixed") return Precision::k16Mixed;
  if (text == "bf16" || text == "bf16-mixed") return Precision::kBf16Mixed;
  return invalid_argument(str_cat("precision '", text, "' is not available"))
      .with_hint("use 32, 16-mixed or bf16-mixed");
}

}  // namespace aerie::config
