// Text by printf's patterns, which str_cat() has no words for: digits, widths.
#pragma once

#include <string>

namespace aerie {

std::string format_text(const char* pattern, ...) __attribute__((format(printf, 1, 2)));

}  // namespace aerie
