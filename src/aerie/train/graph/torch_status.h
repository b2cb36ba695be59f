// Library exceptions at the edge of the engines.
#pragma once

#include <exception>
#include <functional>

#include "aerie/base/status.h"

namespace aerie::train {

// Exhausted memory, of the device or of the host, becomes kOutOfMemory; everything else is
// kInternal.
Status torch_status(const std::exception& error);
// The same for a Status that a lower layer made of an exception without looking closely.
Status refine_torch_status(Status status);
// The failure of a step once `roll_back` has undone the step. Where that throws too (a device that
// is lost fails in every call), the step cannot be tried again: the first failure is told, never as
// kOutOfMemory, with the second behind it.
Status roll_back_after(Status failure, const std::function<void()>& roll_back);

}  // namespace aerie::train
