#include "aerie/train/run_changes.h"

#include "aerie/base/strings.h"
#include "aerie/config/schema/config_text.h"

namespace aerie::train {
namespace {

using config::Value;

std::string text_of(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kNull:
      return "null";
    case Value::Kind::kBool:
      return value.as_bool() ? "true" : "false";
    case Value::Kind::kInt:
      return str_cat(value.as_int());
    case Value::Kind::kFloat:
      return str_cat(value.as_float());
    case Value::Kind::kBigInt:
    case Value::Kind::kString:
    case Value::Kind::kMissing:
    case Value::Kind::kInterpolation:
      return value.as_string();
    case Value::Kind::kList:
    case Value::Kind::kMap: {
      std::vector<std::string> parts;
      if (value.is_list())
        for (const Value& item : value.as_list()) parts.push_back(text_of(item));
      else
        for (const config::MapEntry& entry : value.as_map())
          parts.push_back(str_cat(entry.key, ": ", text_of(entry.value)));
      const std::string inside = join(parts, ", ");
      return value.is_list() ? str_cat("[", inside, "]") : str_cat("{", inside, "}");
    }
  }
  return "";
}

}  // namespace

std::vector<std::string> config_changes(const Value& before, const Value& now) {
  std::vector<std::string> out;
  for (const config::Difference& one : config::config_differences(before, now)) {
    const auto expression = [](const Value* value) {
      return value != nullptr && value->is_interpolation();
    };
    if (expression(one.before) || expression(one.after)) continue;
    const auto show = [](const Value* value) {
      return value == nullptr ? std::string("not set") : text_of(*value);
    };
    out.push_back(str_cat(one.key, ": ", show(one.before), " -> ", show(one.after)));
  }
  return out;
}

std::vector<std::string> data_changes(const data::Cursor& before, const data::Cursor& now) {
  std::vector<std::string> out;
  if (before.data_fingerprint != now.data_fingerprint) {
    const bool counted = before.num_samples && now.num_samples;
    out.push_back(
        counted && *before.num_samples != *now.num_samples
            ? str_cat("training data: ", *before.num_samples, " samples -> ", *now.num_samples)
            : "training data: other samples under the same keys (manifests, durations or "
              "shards)");
  }
  return out;
}

}  // namespace aerie::train
