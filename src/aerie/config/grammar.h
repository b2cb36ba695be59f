// What the grammars of OmegaConf's interpolations and Hydra's overrides have in common: constants
// and unquoted text. Internal to config.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "aerie/base/status.h"
#include "aerie/config/value.h"

namespace aerie::config {

// Nesting of brackets, braces and interpolations within one value.
inline constexpr int kMaxValueNesting = 50;

inline bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
inline bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
inline bool is_blank(char c) {
  return c == ' ' || c == '\t';
}
// Letters, digits, `_` and what unquoted text may hold besides.
bool is_unquoted_char(char c);
// What a backslash may escape in unquoted text: \ ( ) [ ] { } : = , space tab.
bool is_escapable(char c);
// [A-Za-z_][A-Za-z0-9_-]*
bool is_identifier(std::string_view text);

// null, true, 1_000, 1e-3, inf, nan in any case; nothing when the text is none of them; an error
// when it is an integer beyond 64 bits.
Result<std::optional<Value>> parse_constant(std::string_view text);

// The key of a map written unquoted: a constant keeps its kind (unless an escape was used); null is
// refused.
Result<MapEntry> make_map_key(std::string_view text, bool escaped);

}  // namespace aerie::config
