#include "aerie/config/schema/key_table.h"

#include "aerie/base/check.h"
#include "aerie/config/yaml.h"

namespace aerie::config {

Value default_of(const KeySpec& key) {
  if (key.default_value.empty() || key.default_value == kRequired) return Value();
  auto value = parse_yaml(key.default_value, "schema table");
  AERIE_CHECK(value.ok(), "schema table: default of ", std::string(key.path), ": ",
              value.status().to_string());
  Value result = std::move(value).value();
  result.set_origin_deep(Origin::by_default());
  return result;
}

const char* key_status_name(KeyStatus status) {
  switch (status) {
    case KeyStatus::kWorks:
      return "works";
    case KeyStatus::kNoEffect:
      return "no effect";
    case KeyStatus::kLater:
      return "later";
    case KeyStatus::kRefused:
      return "refused";
  }
  return "";
}

}  // namespace aerie::config
