// The part of nvml.h that is used, declared by hand: the header may be absent where this is
// compiled. One declaration for who calls and for the library of tests: sanitizers compare the
// types of functions on both sides.
#pragma once

namespace aerie::metrics {

struct NvmlUtilization {
  unsigned gpu;
  unsigned memory;
};
struct NvmlMemory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

}  // namespace aerie::metrics
