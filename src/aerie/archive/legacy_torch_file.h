// What torch.save wrote before 1.6, and what OpenMMLab still publishes: five pickles one behind the
// other (a magic number, the protocol, facts of the machine, the object, the keys of its storages),
// then the storages in the order of keys, each as a count of elements and its bytes.
//
// How large an element is stands in the object alone, where it refers to the storage.
#pragma once

#include <vector>

#include "aerie/archive/byte_source.h"
#include "aerie/archive/pickle_reader.h"

namespace aerie::archive {

Result<bool> is_legacy_torch_file(const ByteSource& source);

struct LegacyTorchFile {
  Unpickled unpickled;
  std::vector<SourcePtr> storages;
};

Result<LegacyTorchFile> read_legacy_torch_file(const SourcePtr& source,
                                               const PickleOptions& options);

}  // namespace aerie::archive
