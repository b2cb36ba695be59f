// What a rank is doing, as the others are told when it is lost or falls silent.
#pragma once

#include <cstdint>

namespace aerie::dist {

enum class Phase : int32_t {
  kStart,      // opening data and model, joining the others
  kData,       // waiting for a batch
  kForward,    // also launching a step that is one CUDA graph
  kBackward,   // with the reductions that overlap it
  kAllReduce,  // waiting for the other ranks
  kUpdate,     // the optimizer
  kSave,       // checkpoints and exports
  kValidate,
  kFinish,  // after the last step
};
inline constexpr int kNumPhases = 9;

const char* phase_name(Phase phase);  // "start", "data", ..., "all-reduce", ...

}  // namespace aerie::dist
