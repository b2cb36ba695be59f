// RankGroup over a process group of torch.
#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "aerie/train/ranks/rank_group.h"

namespace aerie::train {

std::unique_ptr<RankGroup> make_rank_group(c10::intrusive_ptr<c10d::ProcessGroup> group);

}  // namespace aerie::train
