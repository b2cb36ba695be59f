// The names an unpickler may meet, and what we make of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "aerie/base/dtype.h"

namespace aerie::archive {

enum class GlobalRole : uint8_t {
  kForeign,  // unknown, harmless as long as nothing is called
  kAttack,   // executes code or touches the system when called
  kOrderedDict,
  kDefaultDict,  // first argument is a factory
  kCounter,      // argument is a dict
  kSet,
  kFrozenSet,
  kSize,  // torch.Size: a tuple
  kDevice,
  kCodecsEncode,  // how protocol 2 writes bytes
  kRebuildTensor,
  kRebuildTensorV2,
  kRebuildTensorV3,
  kRebuildParameter,
  kRebuildParameterWithState,
  kRebuildFromType,
  kNumpyScalar,
  kNumpyDtype,
  kStorage,  // torch.FloatStorage ...
  kUntypedStorage,
  kDType,   // torch.float32 ...
  kLayout,  // torch.serialization._get_layout
};

struct GlobalInfo {
  GlobalRole role = GlobalRole::kForeign;
  Dtype dtype = Dtype::kF32;  // for kStorage and kDType
};

GlobalInfo classify_global(std::string_view module, std::string_view name);

}  // namespace aerie::archive
