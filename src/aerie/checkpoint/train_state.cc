#include "aerie/checkpoint/train_state.h"

#include <cmath>

#include <nlohmann/json.hpp>

namespace aerie::train {

namespace {
using Json = nlohmann::ordered_json;

Status read_field(const Json& json, const char* name, int64_t* out) {
  if (!json.contains(name) || !json[name].is_number_integer())
    return data_error(str_cat("no integer '", name, "'"));
  *out = json[name].get<int64_t>();
  return ok_status();
}
Status read_field(const Json& json, const char* name, double* out) {
  if (!json.contains(name) || !(json[name].is_number() || json[name].is_null()))
    return data_error(str_cat("no number '", name, "'"));
  *out = json[name].is_null() ? std::nan("") : json[name].get<double>();
  return ok_status();
}
Status read_field(const Json& json, const char* name, std::string* out) {
  if (!json.contains(name) || !json[name].is_string())
    return data_error(str_cat("no text '", name, "'"));
  *out = json[name].get<std::string>();
  return ok_status();
}
Status read_field(const Json& json, const char* name, bool* out) {
  if (!json.contains(name) || !json[name].is_boolean())
    return data_error(str_cat("no flag '", name, "'"));
  *out = json[name].get<bool>();
  return ok_status();
}
}  // namespace

std::string TrainState::to_json() const {
  Json json;
  json["step"] = step;
  json["epoch"] = epoch;
  json["batch_in_epoch"] = batch_in_epoch;
  if (epoch_batches > 0) json["epoch_batches"] = epoch_batches;
  json["micro_step"] = static_cast<int64_t>(micro_step);
  json["split"] = split;
  json["wall_s"] = wall_s;
  json["precision"] = precision;
  json["data_cursor"] = data_cursor_json;
  json["schedule"] = schedule_json;
  json["guards"] = guards_json;
  json["early_stopping"] = early_stopping_json;
  json["last_saved_step"] = last_saved_step;
  json["last_monitor"] = last_monitor;
  json["last_train_loss"] = last_train_loss;
  json["finished"] = finished;
  if (validation_pending) json["validation_pending"] = true;
  if (!saved_as.empty()) json["saved_as"] = saved_as;
  if (!monitor_name.empty())
    json["monitor"] = {{"name", monitor_name}, {"value", monitor ? Json(*monitor) : Json()}};
  return json.dump(1);
}

Result<TrainState> TrainState::from_json(const std::string& text) {
  const Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) return data_error("the training state is not a JSON object");
  TrainState out;
  int64_t micro_step = 0;
  AERIE_RETURN_IF_ERROR(read_field(json, "step", &out.step));
  AERIE_RETURN_IF_ERROR(read_field(json, "epoch", &out.epoch));
  AERIE_RETURN_IF_ERROR(read_field(json, "batch_in_epoch", &out.batch_in_epoch));
  AERIE_RETURN_IF_ERROR(read_field(json, "micro_step", &micro_step));
  AERIE_RETURN_IF_ERROR(read_field(json, "split", &out.split));
  AERIE_RETURN_IF_ERROR(read_field(json, "wall_s", &out.wall_s));
  AERIE_RETURN_IF_ERROR(read_field(json, "precision", &out.precision));
  AERIE_RETURN_IF_ERROR(read_field(json, "data_cursor", &out.data_cursor_json));
  AERIE_RETURN_IF_ERROR(read_field(json, "schedule", &out.schedule_json));
  AERIE_RETURN_IF_ERROR(read_field(json, "guards", &out.guards_json));
  AERIE_RETURN_IF_ERROR(read_field(json, "early_stopping", &out.early_stopping_json));
  AERIE_RETURN_IF_ERROR(read_field(json, "last_saved_step", &out.last_saved_step));
  AERIE_RETURN_IF_ERROR(read_field(json, "last_monitor", &out.last_monitor));
  if (json.contains("last_train_loss"))
    AERIE_RETURN_IF_ERROR(read_field(json, "last_train_loss", &out.last_train_loss));
  AERIE_RETURN_IF_ERROR(read_field(json, "finished", &out.finished));
  if (json.contains("validation_pending"))
    AERIE_RETURN_IF_ERROR(read_field(json, "validation_pending", &out.validation_pending));
  if (json.contains("epoch_batches"))
    AERIE_RETURN_IF_ERROR(read_field(json, "epoch_batches", &out.epoch_batches));
  if (out.step < 0 || out.epoch < 0 || out.batch_in_epoch < 0 || micro_step < 0 || out.split < 1 ||
      out.epoch_batches < 0)
    return data_error("a counter of the training state is negative");
  if (json.contains("saved_as")) AERIE_RETURN_IF_ERROR(read_field(json, "saved_as", &out.saved_as));
  if (const auto found = json.find("monitor"); found != json.end()) {
    if (!found->is_object()) return data_error("'monitor' is no object");
    AERIE_RETURN_IF_ERROR(read_field(*found, "name", &out.monitor_name));
    double value = 0.0;
    AERIE_RETURN_IF_ERROR(read_field(*found, "value", &value));
    out.monitor = value;
  }
  out.micro_step = static_cast<uint64_t>(micro_step);
  return out;
}

std::optional<double> TrainState::judged_by(const std::string& metric) const {
  if (!monitor_name.empty()) return monitor_name == metric ? monitor : std::nullopt;
  // Earlier versions kept the latest finite value of every metric, and of val_loss any.
  const Json json = Json::parse(early_stopping_json, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  if (const auto metrics = json.find("metrics"); metrics != json.end() && metrics->is_object())
    if (const auto found = metrics->find(metric); found != metrics->end() && found->is_number())
      return found->get<double>();
  const auto validations = json.find("validations");
  const bool measured = validations != json.end() && validations->is_number_integer() &&
                        validations->get<int64_t>() > 0;
  if (measured && metric == "val_loss") return last_monitor;
  return std::nullopt;
}

}  // namespace aerie::train
