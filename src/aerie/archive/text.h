// Text from files, made safe to show and to keep.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "aerie/base/printable.h"

namespace aerie::archive {

// 'text' with quotes, control characters and broken UTF-8 written as \xNN (a terminal must not obey
// a file name) and cut to about `max` bytes.
// An object rather than a function, so that an unqualified call never finds std::quoted.
struct Quoted {
  std::string operator()(std::string_view text, size_t max = 120) const;
};
inline constexpr Quoted quoted;
// Without the quotes and the cut; for listings.
using aerie::printable;

// Strict UTF-8: no overlong forms, no surrogates, nothing beyond U+10FFFF.
bool is_utf8(std::string_view text);

// Why a member name of a zip or tar is refused (empty, absolute, "..", backslash, NUL, too long),
// or nullptr. We never unpack members to disk; a name like this still says that the file is not
// what it claims to be.
const char* bad_member_name(std::string_view name);

// "1.5 MiB", "312 bytes".
std::string human_bytes(uint64_t bytes);

}  // namespace aerie::archive
