// RankGroup over a process group of torch.
#pragma once

#include <memory>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "aerie/dist/process_group.h"
#include "aerie/train/ranks/rank_group.h"

namespace aerie::train {

// `of`: who is told while the host waits in one (Phase::kAllReduce); outlives it; null: nobody.
std::unique_ptr<RankGroup> make_rank_group(c10::intrusive_ptr<c10d::ProcessGroup> group,
                                           dist::ProcessGroup* of = nullptr);

}  // namespace aerie::train
