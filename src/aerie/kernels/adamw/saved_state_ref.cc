#include <algorithm>

#include "aerie/kernels/adamw/saved_state.h"

namespace aerie::kernels::reference {

int save_state(const SavedState& a, void*) {
  std::copy_n(a.values, a.num_values, a.saved_values);
  std::copy_n(a.counters, a.num_counters, a.saved_counters);
  return kOk;
}

int restore_if_skipped(const SavedState& a, void*) {
  if (a.control == nullptr) return kUnsupported;
  if (a.control->skip == 0) return kOk;
  std::copy_n(a.saved_values, a.num_values, a.values);
  std::copy_n(a.saved_counters, a.num_counters, a.counters);
  return kOk;
}

}  // namespace aerie::kernels::reference
