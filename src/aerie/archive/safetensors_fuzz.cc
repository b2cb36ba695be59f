// Any bytes as a safetensors file, or (odd first byte) as its header with data behind it.
#include <cstdint>

#include "aerie/archive/safetensors.h"
#include "aerie/archive/test_support.h"
#include "aerie/base/check.h"

using namespace aerie;
using namespace aerie::archive;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 2, size - 2);
  if (data[0] % 2 == 1) bytes = testing::le(bytes.size(), 8) + bytes + std::string(data[1], '\1');
  const auto archive = read_safetensors(borrowed_source(bytes.data(), bytes.size(), "fuzz"));
  if (!archive.ok()) return 0;
  uint64_t total = 0;
  for (const TensorInfo& info : archive->tensors()) {
    AERIE_CHECK(archive->read(info).ok(), "a tensor that was accepted cannot be read");
    total += info.nbytes();
  }
  std::string out;
  const Status written = write_safetensors(
      [&](std::string_view piece) {
        out += piece;
        return ok_status();
      },
      out_tensors(*archive), archive->text_metadata());
  if (!written.ok()) return 0;  // an empty name
  const auto again = read_safetensors(borrowed_source(out.data(), out.size(), "again"));
  AERIE_CHECK(again.ok(), again.status().to_string());
  AERIE_CHECK(again->total_bytes() == total, "bytes were lost");
  AERIE_CHECK(again->text_metadata() == archive->text_metadata(), "metadata changed");
  return 0;
}
