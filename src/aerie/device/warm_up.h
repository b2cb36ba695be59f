// Loads what a GPU needs (CUDA module, torch's CUDA libraries) and makes its context in a thread of
// its own, while the caller opens its data: together they take longer than anything else at the
// start of a run.
#pragma once

#include <thread>

#include "aerie/device/gpu.h"

namespace aerie::device {

class GpuWarmUp {
 public:
  // `with_torch`: also torch's libraries.
  GpuWarmUp(int gpu_index, bool with_torch);
  ~GpuWarmUp();

  struct Times {
    double libraries_s = 0.0;
    double context_s = 0.0;
  };
  // When libraries and context are there; cuBLASLt may still be on its way. What could not be
  // loaded shows up where it is used.
  Times wait();

 private:
  Times times_;
  std::thread thread_, cublas_;
};

}  // namespace aerie::device
