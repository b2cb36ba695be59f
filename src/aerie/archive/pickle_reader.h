// A restricted unpickler for what torch.save writes. It interprets a pickle as data: nothing is
// ever imported or called. Names on a short list (dict types, tensor and storage rebuilders,
// dtypes, numpy scalars) are understood; any other object becomes an opaque node or, where only
// weights belong, an error. Names that have no business in a checkpoint (os.system, builtins.eval,
// ...) always are an error, because they tell that the file is an attack.
//
// Memory is bounded by PickleLimits whatever the input says. Accepts protocols 2 to 5.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/archive/node.h"
#include "aerie/archive/tensor_archive.h"
#include "aerie/base/dtype.h"
#include "aerie/base/status.h"

namespace aerie::archive {

struct PickleLimits {
  uint64_t max_bytes = uint64_t{16} << 20;  // of the pickle itself, tensors not counted
  size_t max_nodes = 500000;
  size_t max_stack = 1000000;
  size_t max_memo = 1000000;
  size_t max_tensors = 100000;
};

enum class ForeignObjects {
  kOpaque,  // kept as (callable, arguments, state), never built
  kRefuse,  // an error that names the class
};

struct PickleOptions {
  ForeignObjects foreign = ForeignObjects::kOpaque;
  PickleLimits limits;
};

// What a storage reference resolves to.
struct StorageRef {
  uint32_t index = 0;  // into the storages of the archive under construction
  uint64_t bytes = 0;  // that exist
};
// Finds the storage with this key ("0", "1", ...), which the pickle says holds so many bytes.
using StorageResolver =
    std::function<Result<StorageRef>(std::string_view key, uint64_t claimed_bytes)>;

struct Unpickled {
  NodeTree tree;
  NodeId root = kNoNode;
  std::vector<TensorInfo> tensors;  // without names; bounds are checked
};

// `where` names the pickle in messages.
Result<Unpickled> unpickle(std::string_view bytes, const std::string& where,
                           const StorageResolver& resolve, const PickleOptions& options = {});
// The first of several pickles one behind the other; `used` becomes its length.
Result<Unpickled> unpickle_first(std::string_view bytes, const std::string& where,
                                 const StorageResolver& resolve, const PickleOptions& options,
                                 size_t& used);

}  // namespace aerie::archive
