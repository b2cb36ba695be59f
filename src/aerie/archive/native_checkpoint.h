// Finds the native checkpoint (docs/formats/checkpoint.md) that a folder stands for: itself, or the
// newest of a run. Only the weights are looked at; checkpoint/checkpoint_store.h reads whole ones.
#pragma once

#include <string>

#include "aerie/base/env.h"
#include "aerie/base/status.h"

namespace aerie::archive {

inline constexpr char kNativeWeights[] = "model.safetensors";
inline constexpr char kNativeManifest[] = "manifest.json";

// `folder`: a checkpoint, the checkpoints/ of a run, or the run. The newest whose weights have the
// size and checksum their manifest says; others are logged and passed over, as are those of steps
// that were not finite (`-unhealthy`) while there is another.
Result<std::string> find_native_checkpoint(Env& env, const std::string& folder);

}  // namespace aerie::archive
