// The group as torch's collectives, Reducer and hooks take it. Tensors of the CPU go by Gloo; those
// of CUDA by NCCL, or by Gloo (staged through the host) when the group was joined with "gloo".
// Collectives through it are in an order of their own: values of the host do not get between them.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "aerie/base/status.h"
#include "aerie/dist/process_group.h"

namespace aerie::dist {

// Of a group made by join_ranks().
c10::intrusive_ptr<c10d::ProcessGroup> torch_group(ProcessGroup& group);

// One more like it, whose collectives have an order of their own. All ranks make it, with the same
// name. It lives as long as the group.
Result<c10::intrusive_ptr<c10d::ProcessGroup>> another_torch_group(ProcessGroup& group,
                                                                   const std::string& name);

// What torch threw, as a message without its stack.
Status torch_error(const std::exception& error);

}  // namespace aerie::dist
