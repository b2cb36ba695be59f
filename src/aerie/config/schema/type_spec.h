// The small languages of the schema table: types ("int|list[float]|null"), ranges ("[0,1)") and
// choices ("a|b|group_norm*"), and the test of a value against them.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/config/value.h"

namespace aerie::config {

struct TypeSpec {
  enum class Kind { kNull, kBool, kInt, kFloat, kStr, kMap, kAny, kList };
  struct Alternative {
    Kind kind;
    std::shared_ptr<const TypeSpec> element;  // kList
  };
  std::vector<Alternative> alternatives;

  // AERIE_CHECKs that the text is well-formed: it comes from our own table.
  static TypeSpec parse(std::string_view text);

  // ints pass for floats, floats without fraction for ints where float is not an alternative,
  // numbers for strings where no number is an alternative.
  bool accepts(const Value& value) const;
  bool has(Kind kind) const;
  // "a whole number, a list of numbers, or null"
  std::string describe() const;
};

struct RangeSpec {
  double min;
  double max;
  bool min_open = false;
  bool max_open = false;

  static RangeSpec parse(std::string_view text);  // AERIE_CHECKs the text
  // NaN is never inside; infinity only where a bracket says so, as in "[-inf,inf]".
  bool contains(double value) const;
};

// Whether `text` is one of "a|b|c*"; an empty list takes everything.
bool is_choice(std::string_view text, std::string_view choices);
std::vector<std::string> choice_names(std::string_view choices);

}  // namespace aerie::config
