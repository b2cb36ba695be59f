// An error as the program says it at its end.
#pragma once

#include <string>

#include "aerie/base/status.h"

namespace aerie::tools {

// Messages name what did not fit; trials and people look for the words "out of memory".
inline std::string error_text(const Status& status) {
  std::string text = status.to_string();
  const bool says_so = text.find("out of memory") != std::string::npos;
  return status.code() == StatusCode::kOutOfMemory && !says_so ? "out of memory: " + text : text;
}

}  // namespace aerie::tools
