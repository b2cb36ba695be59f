// Any bytes as a .nemo archive. Checksums of tar and zip would stop most mutations at the door, so
// the first byte can ask for the rest to be wrapped: as a whole archive, packed with gzip, as the
// weights, as the pickle inside them, or as the config.
#include <cstdint>

#include "aerie/archive/nemo.h"
#include "aerie/archive/test_support.h"
#include "aerie/base/check.h"

using namespace aerie;
using namespace aerie::archive;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  std::string bytes;
  switch (data[0] % 5) {
    case 0:
      bytes = rest;
      break;
    case 1:
      bytes = testing::gzip(rest);
      break;
    case 2:
      bytes = testing::small_nemo(rest);
      break;
    case 3:
      bytes = testing::small_nemo(testing::torch_zip(rest, {{"0", testing::floats(6)}}));
      break;
    default:
      bytes = testing::tar_member("model_config.yaml", rest) +
              testing::tar_member("model_weights.ckpt", testing::small_torch_file()) +
              testing::tar_end();
  }
  auto nemo = read_nemo({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "fuzz");
  if (!nemo.ok()) return 0;
  for (const TensorInfo& info : nemo->weights.tensors())
    if (!nemo->weights.read(info).ok()) return 0;
  // What can be read can be written and read again.
  std::string out;
  const Status written = write_nemo(
      [&](std::string_view piece) {
        out += piece;
        return ok_status();
      },
      nemo->config_yaml, out_tensors(nemo->weights));
  if (!written.ok()) return 0;
  const auto again = read_nemo({reinterpret_cast<const uint8_t*>(out.data()), out.size()}, "again");
  AERIE_CHECK(again.ok(), again.status().to_string());
  AERIE_CHECK(again->config_yaml == nemo->config_yaml, "config changed");
  AERIE_CHECK(again->weights.total_bytes() == nemo->weights.total_bytes(), "weights changed");
  return 0;
}
