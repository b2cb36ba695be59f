// The syntax tree of a text with interpolations, in OmegaConf's grammar. Internal to config.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config {

struct Interpolation;
struct Element;

// Literal text (unescaped), or an interpolation.
struct TextPart {
  std::string text;
  std::unique_ptr<Interpolation> interpolation;
};
using Text = std::vector<TextPart>;

// `${..a.b[c]}`, or `${name:argument,...}` when `is_resolver`.
struct Interpolation {
  bool is_resolver = false;
  int dots = 0;                 // leading dots of a relative key
  std::vector<TextPart> keys;   // one part each: the path, or the dotted name of the resolver
  std::vector<bool> bracketed;  // per key: written as [key]
  std::vector<Element> arguments;
};

// An argument of a resolver, or what oc.decode reads.
struct Element {
  enum class Kind { kConstant, kText, kQuoted, kList, kMap };
  Kind kind = Kind::kConstant;
  Value constant;
  Text text;
  std::vector<Element> items;      // of a list or map
  std::vector<MapEntry> map_keys;  // of a map, beside items
};

// Text of a configuration value; always at least one part.
Result<Text> parse_text(std::string_view text);
// A single value, as oc.decode takes it.
Result<Element> parse_element(std::string_view text);

}  // namespace aerie::config
