#include "aerie/metrics/record.h"

#include <cmath>

#include <nlohmann/json.hpp>

namespace aerie::metrics {

namespace {
using Json = nlohmann::ordered_json;

Result<RecordKind> parse_kind(const std::string& name) {
  for (const RecordKind kind : {RecordKind::kTrain, RecordKind::kVal, RecordKind::kEvent})
    if (name == record_kind_name(kind)) return kind;
  return data_error(str_cat("unknown record kind '", name, "'"));
}
}  // namespace

const char* record_kind_name(RecordKind kind) {
  switch (kind) {
    case RecordKind::kTrain:
      return "train";
    case RecordKind::kVal:
      return "val";
    case RecordKind::kEvent:
      return "event";
  }
  return "";
}

Record& Record::add(std::string name, double value) {
  fields_.emplace_back(std::move(name), value);
  return *this;
}
Record& Record::add(std::string name, int64_t value) {
  fields_.emplace_back(std::move(name), value);
  return *this;
}
Record& Record::add(std::string name, bool value) {
  fields_.emplace_back(std::move(name), value);
  return *this;
}
Record& Record::add(std::string name, std::string value) {
  fields_.emplace_back(std::move(name), std::move(value));
  return *this;
}

bool Record::number(std::string_view name, double* out) const {
  for (const auto& [key, value] : fields_) {
    if (key != name) continue;
    if (const auto* real = std::get_if<double>(&value)) {
      *out = *real;
      return true;
    }
    if (const auto* integer = std::get_if<int64_t>(&value)) {
      *out = static_cast<double>(*integer);
      return true;
    }
    return false;
  }
  return false;
}

std::string Record::text(std::string_view name) const {
  for (const auto& [key, value] : fields_)
    if (key == name)
      if (const auto* string = std::get_if<std::string>(&value)) return *string;
  return "";
}

std::string Record::to_json() const {
  Json json;
  json["step"] = step_;
  json["epoch"] = epoch_;
  json["wall_s"] = wall_s_;
  json["kind"] = record_kind_name(kind_);
  for (const auto& [name, value] : fields_) {
    std::visit(
        [&, key = name](const auto& v) {
          if constexpr (std::is_same_v<std::decay_t<decltype(v)>, double>) {
            json[key] = std::isfinite(v) ? Json(v) : Json(nullptr);
          } else {
            json[key] = v;
          }
        },
        value);
  }
  // Text from files (sample ids, paths) may hold bytes that are not UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<Record> Record::from_json(std::string_view line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return data_error("not a JSON object");
  for (const char* name : {"step", "epoch"})
    if (!json.contains(name) || !json[name].is_number_integer())
      return data_error(str_cat("no integer '", name, "'"));
  if (!json.contains("wall_s") || !json["wall_s"].is_number())
    return data_error("no number 'wall_s'");
  if (!json.contains("kind") || !json["kind"].is_string()) return data_error("no 'kind'");
  AERIE_ASSIGN_OR_RETURN(const RecordKind kind, parse_kind(json["kind"].get<std::string>()));
  Record record(kind, json["step"].get<int64_t>(), json["epoch"].get<int64_t>(),
                json["wall_s"].get<double>());
  for (const auto& [name, value] : json.items()) {
    if (name == "step" || name == "epoch" || name == "wall_s" || name == "kind") continue;
    if (value.is_number_integer()) {
      record.add(name, value.get<int64_t>());
    } else if (value.is_number()) {
      record.add(name, value.get<double>());
    } else if (value.is_null()) {
      record.add(name, std::nan(""));
    } else if (value.is_boolean()) {
      record.add(name, value.get<bool>());
    } else if (value.is_string()) {
      record.add(name, value.get<std::string>());
    } else {
      record.add(name, value.dump());
    }
  }
  return record;
}

}  // namespace aerie::metrics
