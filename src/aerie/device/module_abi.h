// The handshake between the executable and libaerie_cuda.so, which are always built together.
#pragma once

#include <cstdint>

namespace aerie::device {

// Raised whenever GpuModule changes, so that a stale module beside a newer binary is refused rather
// than called.
inline constexpr uint32_t kModuleAbi = 8;

}  // namespace aerie::device
