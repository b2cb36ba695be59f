// Shard patterns: "audio_{0..127}.tar", "audio__OP_0..127_CL_.tar", "{a,b{1..3}}", "{000..010..2}".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::tar {

// Brace expansion as the Python package braceexpand does it: integer and letter ranges with an
// optional step, zero padding when either bound has a leading zero, comma lists, nesting, braces
// that are neither left as they are. Unbalanced braces are errors, so are more than `max_results`
// strings. With `escape`, a backslash makes the next character literal and is removed.
Result<std::vector<std::string>> brace_expand(std::string_view pattern, bool escape = false,
                                              size_t max_results = 1 << 20);

// A shard path as configs give it: ( [ < and _OP_ open, ) ] > and _CL_ close a brace; then
// brace_expand without escapes.
Result<std::vector<std::string>> expand_shard_pattern(std::string_view pattern,
                                                      size_t max_results = 1 << 20);
std::string normalize_shard_braces(std::string_view pattern);

}  // namespace aerie::tar
