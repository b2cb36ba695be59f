// The parts of a translation. Internal to the folder.
#pragma once

#include "aerie/models/bev/config/mm_node.h"

namespace aerie::bev {

enum class RunnerKind { kIterations, kEpochs };

RunnerKind translate_runner(MmState& state, MmNode& top);
void translate_optimizer(MmState& state, MmNode& top);
void translate_policies(MmState& state, MmNode& top, RunnerKind runner);
void translate_evaluation(MmState& state, MmNode& top, RunnerKind runner);
void translate_checkpoints(MmState& state, MmNode& top, RunnerKind runner);
void translate_logs(MmState& state, MmNode& top);
void translate_data(MmState& state, MmNode& top);
void translate_model(MmState& state, MmNode& top);

}  // namespace aerie::bev
