#include "aerie/config/schema/checks.h"

#include <cmath>

#include "aerie/base/strings.h"
#include "aerie/config/schema/engine_keys.h"
#include "aerie/config/schema/schema.h"
#include "aerie/config/schema/value_parsers.h"

namespace aerie::config {

const Value* CheckContext::written(std::string_view path) const {
  const Value* value = root_.find(path);
  return value == nullptr || value->is_null() || value->is_missing() ? nullptr : value;
}

const Value* CheckContext::effective(std::string_view path) const {
  if (const Value* value = root_.find(path)) return value;
  const KeyNode* node = schema_.find_node(path);
  return node != nullptr && node->spec != nullptr ? &node->default_value : nullptr;
}

std::optional<int64_t> CheckContext::integer(std::string_view path) const {
  const Value* value = effective(path);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  // Rules multiply and add such numbers; what lies beyond has been reported as out of range.
  constexpr double kLimit = 1e9;
  if (!(std::fabs(value->as_float()) <= kLimit)) return std::nullopt;
  return whole_number(*value);
}

std::optional<double> CheckContext::number(std::string_view path) const {
  const Value* value = effective(path);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  return value->as_float();
}

std::optional<bool> CheckContext::flag(std::string_view path) const {
  const Value* value = effective(path);
  if (value == nullptr || !value->is_bool()) return std::nullopt;
  return value->as_bool();
}

std::optional<std::string> CheckContext::text(std::string_view path) const {
  const Value* value = effective(path);
  if (value == nullptr || !value->is_string()) return std::nullopt;
  return value->as_string();
}

void CheckContext::add(Finding::Severity severity, std::string_view path, std::string message,
                       std::string hint) {
  // The nearest node that exists tells where to look.
  Origin origin;
  std::string at(path);
  while (true) {
    if (const Value* value = root_.find(at)) {
      origin = value->origin();
      break;
    }
    const size_t dot = at.rfind('.');
    if (dot == std::string::npos) break;
    at.resize(dot);
  }
  findings_.add({severity, std::string(path), std::move(message), std::move(hint),
                 origin.kind == Origin::Kind::kDefault ? "" : origin.to_string()});
}

void CheckContext::error(std::string_view path, std::string message, std::string hint) {
  if (told_.contains(path)) return;
  add(Finding::Severity::kError, path, std::move(message), std::move(hint));
}

void CheckContext::warn(std::string_view path, std::string message, std::string hint) {
  add(Finding::Severity::kWarning, path, std::move(message), std::move(hint));
}

void check_init_from(CheckContext& context) {
  const char* first = nullptr;
  for (const char* key :
       {"init_from_nemo_model", "init_from_pretrained_model", "init_from_ptl_ckpt"}) {
    if (context.written(key) == nullptr) continue;
    if (first != nullptr)
      context.error(key, str_cat("given together with ", first, "; only one of them can be used"));
    if (first == nullptr) first = key;
  }
}

}  // namespace aerie::config
