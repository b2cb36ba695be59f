#include "aerie/config/schema/type_spec.h"

#include <cmath>
#include <cstdlib>
#include <limits>

#include "aerie/base/check.h"
#include "aerie/base/strings.h"

namespace aerie::config {
namespace {

using Kind = TypeSpec::Kind;

bool is_whole(const Value& value) {
  if (value.is_int()) return true;
  if (!value.is_float()) return false;
  const double number = value.as_float();
  return std::isfinite(number) && number == std::trunc(number) && std::fabs(number) < 9e15;
}

const char* plural_name(Kind kind) {
  switch (kind) {
    case Kind::kNull:
      return "nulls";
    case Kind::kBool:
      return "bools";
    case Kind::kInt:
      return "whole numbers";
    case Kind::kFloat:
      return "numbers";
    case Kind::kStr:
      return "strings";
    case Kind::kMap:
      return "mappings";
    case Kind::kAny:
      return "values";
    case Kind::kList:
      return "lists";
  }
  return "";
}

const char* singular_name(Kind kind) {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kBool:
      return "true or false";
    case Kind::kInt:
      return "a whole number";
    case Kind::kFloat:
      return "a number";
    case Kind::kStr:
      return "a string";
    case Kind::kMap:
      return "a mapping";
    case Kind::kAny:
      return "any value";
    case Kind::kList:
      return "a list";
  }
  return "";
}

}  // namespace

TypeSpec TypeSpec::parse(std::string_view text) {
  TypeSpec spec;
  size_t start = 0;
  int depth = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && text[i] == '[') ++depth;
    if (i < text.size() && text[i] == ']') --depth;
    if (i < text.size() && (text[i] != '|' || depth > 0)) continue;
    const std::string_view part = text.substr(start, i - start);
    start = i + 1;
    if (starts_with(part, "list[") && ends_with(part, "]")) {
      auto element = std::make_shared<TypeSpec>(parse(part.substr(5, part.size() - 6)));
      spec.alternatives.push_back({Kind::kList, std::move(element)});
      continue;
    }
    static constexpr std::pair<std::string_view, Kind> kNames[] = {
        {"null", Kind::kNull}, {"bool", Kind::kBool}, {"int", Kind::kInt}, {"float", Kind::kFloat},
        {"str", Kind::kStr},   {"map", Kind::kMap},   {"any", Kind::kAny},
    };
    bool known = false;
    for (const auto& [name, kind] : kNames) {
      if (part != name) continue;
      spec.alternatives.push_back({kind, nullptr});
      known = true;
    }
    AERIE_CHECK(known, "schema table: unknown type '", std::string(part), "'");
  }
  return spec;
}

bool TypeSpec::has(Kind kind) const {
  for (const Alternative& alternative : alternatives)
    if (alternative.kind == kind) return true;
  return false;
}

bool TypeSpec::accepts(const Value& value) const {
  for (const Alternative& alternative : alternatives) {
    switch (alternative.kind) {
      case Kind::kAny:
        return true;
      case Kind::kNull:
        if (value.is_null()) return true;
        break;
      case Kind::kBool:
        if (value.is_bool()) return true;
        break;
      case Kind::kInt:
        if (value.is_int() || (is_whole(value) && !has(Kind::kFloat))) return true;
        break;
      case Kind::kFloat:
        if (value.is_number()) return true;
        break;
      case Kind::kStr:
        if (value.is_string()) return true;
        if (value.is_number() && !has(Kind::kInt) && !has(Kind::kFloat)) return true;
        break;
      case Kind::kMap:
        if (value.is_map()) return true;
        break;
      case Kind::kList: {
        if (!value.is_list()) break;
        bool all = true;
        for (const Value& item : value.as_list()) all = all && alternative.element->accepts(item);
        if (all) return true;
        break;
      }
    }
  }
  return false;
}

std::string TypeSpec::describe() const {
  std::vector<std::string> parts;
  for (const Alternative& alternative : alternatives) {
    std::string part = singular_name(alternative.kind);
    for (const TypeSpec* element = alternative.element.get(); element != nullptr;) {
      const Alternative& first = element->alternatives.front();
      part += str_cat(" of ", plural_name(first.kind));
      element = first.element.get();
    }
    parts.push_back(std::move(part));
  }
  if (parts.size() == 1) return parts[0];
  const std::string last = std::move(parts.back());
  parts.pop_back();
  return str_cat(join(parts, ", "), " or ", last);
}

RangeSpec RangeSpec::parse(std::string_view text) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::string copy(text);
  if (starts_with(text, ">=")) return {std::strtod(copy.c_str() + 2, nullptr), kInf, false, true};
  if (starts_with(text, ">")) return {std::strtod(copy.c_str() + 1, nullptr), kInf, true, true};
  const std::vector<std::string> ends = split(text, ',');
  AERIE_CHECK(ends.size() == 2 && ends[0].size() > 1 && ends[1].size() > 1,
              "schema table: bad range '", copy, "'");
  return {std::strtod(ends[0].c_str() + 1, nullptr), std::strtod(ends[1].c_str(), nullptr),
          ends[0][0] == '(', ends[1].back() == ')'};
}

bool RangeSpec::contains(double value) const {
  return (min_open ? value > min : value >= min) && (max_open ? value < max : value <= max);
}

std::vector<std::string> choice_names(std::string_view choices) {
  if (choices.empty()) return {};
  return split(choices, '|');
}

bool is_choice(std::string_view text, std::string_view choices) {
  if (choices.empty()) return true;
  for (const std::string& choice : choice_names(choices)) {
    const std::string_view name = choice;
    if (text == name) return true;
    if (ends_with(name, "*") && starts_with(text, name.substr(0, name.size() - 1))) return true;
    if (starts_with(name, "*") && ends_with(text, name.substr(1))) return true;
  }
  return false;
}

}  // namespace aerie::config
