// A token of a nuScenes table: 32 hexadecimal digits, kept as 128 bits.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aerie/base/status.h"

namespace aerie::nuscenes {

struct Token {
  uint64_t hi = 0, lo = 0;
  bool operator==(const Token&) const = default;
  // The order of the digits as text, which is what sorting by token means elsewhere.
  friend bool operator<(const Token& a, const Token& b) {
    return a.hi != b.hi ? a.hi < b.hi : a.lo < b.lo;
  }
};

// Exactly 32 digits, either case. The form without a Status is for millions of rows.
bool parse_token(std::string_view text, Token& out);
Result<Token> parse_token(std::string_view text);
std::string to_string(const Token& token);  // lower case

}  // namespace aerie::nuscenes
