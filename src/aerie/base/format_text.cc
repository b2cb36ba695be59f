#include "aerie/base/format_text.h"

#include <cstdarg>
#include <cstdio>

namespace aerie {

// The compiler checks pattern and values, as printf's (see the declaration).
// NOLINTNEXTLINE(cert-dcl50-cpp)
std::string format_text(const char* pattern, ...) {
  va_list list;
  va_start(list, pattern);
  va_list again;
  va_copy(again, list);
  const int size = std::vsnprintf(nullptr, 0, pattern, list);
  va_end(list);
  std::string out(size > 0 ? static_cast<size_t>(size) : 0, '\0');
  // The end that it writes is the string's own.
  if (size > 0) std::vsnprintf(out.data(), out.size() + 1, pattern, again);
  va_end(again);
  return out;
}

}  // namespace aerie
