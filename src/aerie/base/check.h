// Checks for programmer mistakes. User input never reaches a check: it is answered with a Status.
#pragma once

#include <stdexcept>
#include <string>

#include "aerie/base/strings.h"

namespace aerie {

// Thrown by AERIE_CHECK; caught only at the edge of a command, which reports a bug of ours.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void throw_internal_error(const char* file, int line, const char* condition,
                                       const std::string& text);

}  // namespace aerie

// AERIE_CHECK(index < size, "index ", index, " of ", size)
#define AERIE_CHECK(condition, ...)                                 \
  do {                                                              \
    if (!(condition)) [[unlikely]]                                  \
      ::aerie::throw_internal_error(__FILE__, __LINE__, #condition, \
                                    ::aerie::str_cat(__VA_ARGS__)); \
  } while (false)

#ifdef NDEBUG
#define AERIE_DCHECK(condition, ...) \
  do {                               \
  } while (false)
#else
#define AERIE_DCHECK(condition, ...) AERIE_CHECK(condition, __VA_ARGS__)
#endif
