// Fuzzes the reading of a data cursor; what is accepted must survive being written.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "aerie/data/cursor.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using aerie::data::Cursor;
  const auto cursor = Cursor::parse({reinterpret_cast<const char*>(data), size});
  if (!cursor.ok()) return 0;
  const auto again = Cursor::parse(cursor->to_json());
  if (!again.ok() || !(*again == *cursor)) std::abort();
  return 0;
}
