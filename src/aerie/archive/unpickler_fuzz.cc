// Any bytes as a pickle, in both modes; what is accepted is walked, and written again if it can be.
#include <cstdint>

#include "aerie/archive/lightning_checkpoint.h"
#include "aerie/archive/omegaconf.h"
#include "aerie/archive/pickle_reader.h"
#include "aerie/archive/pickle_writer.h"
#include "aerie/archive/test_support.h"
#include "aerie/archive/torch_file.h"
#include "aerie/base/check.h"

using namespace aerie;
using namespace aerie::archive;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const StorageResolver resolve = [](std::string_view key, uint64_t) -> Result<StorageRef> {
    if (key.size() != 1) return data_error("no such storage");
    return StorageRef{0, 96};
  };
  PickleOptions strict;
  strict.foreign = ForeignObjects::kRefuse;
  (void)unpickle(bytes, "fuzz", resolve, strict);
  auto out = unpickle(bytes, "fuzz", resolve);
  if (!out.ok()) return 0;
  for (const TensorInfo& info : out->tensors)
    AERIE_CHECK(check_bounds(info, 96).ok(), "a tensor outside its storage");
  (void)decode_omegaconf(out->tree, out->root);
  std::vector<OutTensor> tensors(out->tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    tensors[i].dtype = out->tensors[i].dtype;
    tensors[i].shape = out->tensors[i].shape;
  }
  if (const auto written = write_pickle(out->tree, out->root, tensors); written.ok()) {
    const StorageResolver any = [&](std::string_view key, uint64_t) -> Result<StorageRef> {
      const size_t index = static_cast<size_t>(std::stoul(std::string(key)));
      return StorageRef{0, tensors[index].nbytes()};
    };
    PickleOptions roomy;
    roomy.limits.max_bytes = written->size();
    const auto again = unpickle(*written, "again", any, roomy);
    AERIE_CHECK(again.ok(), "what we wrote cannot be read: ", again.status().to_string());
  }
  // The same in torch's old format, one storage of whatever size behind it.
  const std::string old =
      testing::legacy_torch(std::string(bytes), {{"0", std::string(96, '\1')}}, 4);
  if (const auto legacy = read_torch_file(borrowed_source(old.data(), old.size(), "fuzz"));
      legacy.ok())
    for (const TensorInfo& info : legacy->tensors.tensors()) (void)legacy->tensors.read(info);
  // The same through the whole file format and the Lightning reader.
  const std::string file = testing::torch_zip(std::string(bytes), {{"0", std::string(96, '\1')}});
  (void)read_lightning_checkpoint(borrowed_source(file.data(), file.size(), "fuzz"));
  return 0;
}
