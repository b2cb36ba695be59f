// Undoing the side effects of a step that the optimizer skips: what the forward pass changes
// outside the parameters (BatchNorm's running statistics, its counters of batches) is copied aside
// before it and copied back behind adamw_decide when that decided to skip. The decision is read on
// the device.
#pragma once

#include "aerie/kernels/adamw/adamw.h"

namespace aerie::kernels {

struct SavedState {
  float* values = nullptr;
  float* saved_values = nullptr;
  int64_t num_values = 0;  // 0: none
  int64_t* counters = nullptr;
  int64_t* saved_counters = nullptr;
  int64_t num_counters = 0;               // 0: none
  const AdamwControl* control = nullptr;  // restore_if_skipped: device; its skip decides
};

AERIE_DECLARE_KERNEL(save_state, SavedState)
AERIE_DECLARE_KERNEL(restore_if_skipped, SavedState)

}  // namespace aerie::kernels
