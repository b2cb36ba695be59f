// Library exceptions at the edge of the engines.
#pragma once

#include <exception>

#include "aerie/base/status.h"

namespace aerie::train {

// Exhausted memory, of the device or of the host, becomes kOutOfMemory; everything else is
// kInternal.
Status torch_status(const std::exception& error);
// The same for a Status that a lower layer made of an exception without looking closely.
Status refine_torch_status(Status status);

}  // namespace aerie::train
