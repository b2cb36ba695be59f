// How commands print --json.
#pragma once

#include <cstdio>

#include <nlohmann/json.hpp>

#include "aerie/base/printable.h"

namespace aerie::tools {

// Valid JSON whatever its strings hold, without a byte that a terminal obeys. Names and texts come
// out of a JSON reader as they are; bytes that are not UTF-8, which JSON cannot hold, as U+FFFD.
inline void print_document(const nlohmann::ordered_json& json, int indent = 1) {
  using Json = nlohmann::ordered_json;
  const std::string text = json.dump(indent, ' ', false, Json::error_handler_t::replace);
  std::printf("%s\n", printable_json(text).c_str());
}

}  // namespace aerie::tools
