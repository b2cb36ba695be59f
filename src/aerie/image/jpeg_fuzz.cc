// libFuzzer target: arbitrary bytes as a JPEG file. What decodes as a whole must decode in parts,
// to the same pixels. The first two bytes of the input choose scale and rows.
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "aerie/image/jpeg.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aerie::image;
  if (size < 2) return 0;
  JpegLimits limits;
  limits.max_pixels = 1 << 20;
  limits.max_working_bytes = 64 << 20;
  limits.max_scans = 20;
  static JpegReader reader(limits);
  const int denominator = 1 << (data[0] & 3);
  const std::span<const uint8_t> bytes(data + 2, size - 2);
  const auto info = reader.open(bytes);
  if (!info.ok()) return 0;
  const int rows = reader.scaled_height(denominator);
  Image whole, part;
  if (!reader.read_rows(0, rows, denominator, whole).ok()) return 0;
  const int first = (data[0] >> 2) * rows / 64;
  const int end = first + 1 + (rows - first - 1) * data[1] / 255;
  if (!reader.read_rows(first, end, denominator, part).ok()) std::abort();
  if (std::memcmp(part.row(0), whole.row(first), part.bytes()) != 0) std::abort();
  return 0;
}
