#include "aerie/config/schema/node_reader.h"

#include <cmath>

namespace aerie::config {

bool NodeReader::convert(const Value& value, bool& out) {
  if (!value.is_bool()) return false;
  out = value.as_bool();
  return true;
}

bool NodeReader::convert(const Value& value, int64_t& out) {
  if (value.is_int()) {
    out = value.as_int();
    return true;
  }
  if (!value.is_float()) return false;
  const double number = value.as_float();
  if (!std::isfinite(number) || number != std::trunc(number) || std::fabs(number) > 9e15)
    return false;
  out = static_cast<int64_t>(number);
  return true;
}

bool NodeReader::convert(const Value& value, double& out) {
  if (!value.is_number()) return false;
  out = value.as_float();
  return true;
}

bool NodeReader::convert(const Value& value, std::string& out) {
  if (value.is_string()) {
    out = value.as_string();
    return true;
  }
  if (!value.is_number()) return false;
  out = python_str(value);
  return true;
}

void NodeReader::read(std::string_view key, bool& out) const {
  read_scalar(key, out);
}
void NodeReader::read(std::string_view key, int64_t& out) const {
  read_scalar(key, out);
}
void NodeReader::read(std::string_view key, double& out) const {
  read_scalar(key, out);
}
void NodeReader::read(std::string_view key, std::string& out) const {
  read_scalar(key, out);
}

void NodeReader::fail(std::string_view key, const Value& value, const std::string& message) const {
  if (!status_->ok()) return;
  *status_ = invalid_argument(message)
                 .with_context(str_cat(path_, path_.empty() ? "" : ".", std::string(key)))
                 .with_context(value.origin().to_string());
}

}  // namespace aerie::config
