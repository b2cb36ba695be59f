#include "aerie/config/dialects/hydra/override_functions.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "aerie/base/strings.h"
#include "aerie/config/yaml_scalar.h"

namespace aerie::config {

namespace {

Status cannot_cast(const Value& value, const std::string& to) {
  return invalid_argument(str_cat("cannot cast ", value.brief(60), " to ", to));
}

// Python's int(): blanks around, a sign, digits with single underscores between them.
Result<Value> int_from_text(const Value& value) {
  const std::string_view text = trim(value.as_string());
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (digit || (i == 0 && text[i] == '-')) {
      digits += text[i];
    } else if (i == 0 && text[i] == '+') {
      continue;
    } else if (text[i] != '_' || i + 1 == text.size() || text[i - (i > 0)] == '_' || i == 0 ||
               !(text[i - 1] >= '0' && text[i - 1] <= '9')) {
      return cannot_cast(value, "int");
    }
  }
  const bool negative = starts_with(digits, "-");
  if (negative) digits.erase(0, 1);
  if (digits.empty()) return cannot_cast(value, "int");
  return Value::whole_number(digits, 10, negative);
}

Result<Value> to_int(const Value& value) {
  if (value.is_int() || value.is_big_int()) return value;
  if (value.is_bool()) return Value(value.as_bool() ? 1 : 0);
  if (value.is_string()) return int_from_text(value);
  if (!value.is_float()) return cannot_cast(value, "int");
  const double whole = std::trunc(value.as_float());
  // Also false for nan.
  if (!(whole >= -9223372036854775808.0 && whole < 9223372036854775808.0)) {
    return cannot_cast(value, "int");
  }
  return Value(static_cast<int64_t>(whole));
}

Result<Value> to_float(const Value& value) {
  if (value.is_number()) return Value(value.as_float());
  if (value.is_bool()) return Value(value.as_bool() ? 1.0 : 0.0);
  if (value.is_string()) {
    if (const auto number = python_float(value.as_string())) return Value(*number);
  }
  return cannot_cast(value, "float");
}

Result<Value> to_str(const Value& value) {
  if (value.is_bool()) return Value(value.as_bool() ? "true" : "false");
  if (value.is_null()) return cannot_cast(value, "str");
  return Value(python_str(value));
}

Result<Value> to_bool(const Value& value) {
  if (value.is_null()) return Value(false);
  if (value.is_bool()) return value;
  if (value.is_number()) return Value(value.as_float() != 0.0);
  const std::string lower = to_lower(value.as_string());
  if (lower == "true") return Value(true);
  if (lower == "false") return Value(false);
  return cannot_cast(value, "bool");
}

using Cast = Result<Value> (*)(const Value&);

// Lists and maps are cast item by item.
Result<Value> cast_deep(const Value& value, Cast cast) {
  if (value.is_list()) {
    List out;
    for (const Value& item : value.as_list()) {
      AERIE_ASSIGN_OR_RETURN(Value one, cast_deep(item, cast));
      out.push_back(std::move(one));
    }
    return Value(std::move(out));
  }
  if (value.is_map()) {
    Map out;
    for (const MapEntry& entry : value.as_map()) {
      AERIE_ASSIGN_OR_RETURN(Value one, cast_deep(entry.value, cast));
      out.set(MapEntry{entry.key, std::move(one), entry.key_kind, entry.key_origin});
    }
    return Value(std::move(out));
  }
  return cast(value);
}

Result<Value> sort(const FunctionCall& call) {
  bool reverse = false;
  const Value* list = call.arguments.size() == 1 ? &call.arguments[0] : nullptr;
  for (const auto& [name, value] : call.named) {
    if (name == "list" && !list) {
      list = &value;
    } else if (name == "reverse" && value.is_bool()) {
      reverse = value.as_bool();
    } else {
      return invalid_argument(str_cat("sort: unexpected argument '", name, "'"));
    }
  }
  if (call.arguments.size() > 1) {
    return unsupported("sort(a,b) makes a sweep, which needs --multirun and is not supported");
  }
  if (!list) return invalid_argument("sort takes a list");
  if (!list->is_list()) return *list;
  List items = list->as_list();
  const bool numbers = std::all_of(items.begin(), items.end(), [](const Value& item) {
    return (item.is_number() && !std::isnan(item.as_float())) || item.is_bool();
  });
  const bool strings =
      std::all_of(items.begin(), items.end(), [](const Value& item) { return item.is_string(); });
  if (!numbers && !strings) return invalid_argument("sort takes numbers or strings, not a mixture");
  const auto number = [](const Value& item) {
    return item.is_bool() ? (item.as_bool() ? 1.0 : 0.0) : item.as_float();
  };
  const auto less = [&](const Value& a, const Value& b) {
    return strings ? a.as_string() < b.as_string() : number(a) < number(b);
  };
  std::stable_sort(items.begin(), items.end(), [&](const Value& a, const Value& b) {
    return reverse ? less(b, a) : less(a, b);
  });
  return Value(std::move(items));
}

}  // namespace

Result<Value> evaluate_function(const FunctionCall& call) {
  const std::pair<const char*, Cast> casts[] = {
      {"int", to_int}, {"float", to_float}, {"str", to_str}, {"bool", to_bool}};
  for (const auto& [name, cast] : casts) {
    if (call.name != name) continue;
    if (call.arguments.size() > 1) {
      return unsupported(str_cat("several arguments of ", name,
                                 " make a sweep, which needs --multirun and is not supported"));
    }
    if (call.named.size() + call.arguments.size() != 1 ||
        (!call.named.empty() && call.named[0].first != "value")) {
      return invalid_argument(str_cat(name, " takes one argument"));
    }
    return cast_deep(call.named.empty() ? call.arguments[0] : call.named[0].second, cast);
  }
  if (call.name == "sort") return sort(call);
  for (const char* sweep : {"choice", "range", "interval", "glob", "tag", "shuffle"}) {
    if (call.name != sweep) continue;
    return unsupported(
        str_cat(sweep, "() makes a sweep, which needs --multirun and is not supported"));
  }
  return invalid_argument(str_cat("Unknown function '", call.name,
                                  "' (known are str, int, float, bool, sort; quote the value if it "
                                  "is text)"));
}

}  // namespace aerie::config
