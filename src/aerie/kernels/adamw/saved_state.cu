// A few tens of kilobytes: one value per thread.
#include "aerie/kernels/adamw/saved_state.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kThreads = 256;

template <bool kSave>
__global__ void __launch_bounds__(kThreads) copy_state(SavedState a) {
  if (!kSave && a.control->skip == 0) return;
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < a.num_values) {
    (kSave ? a.saved_values : a.values)[i] = (kSave ? a.values : a.saved_values)[i];
  } else if (i - a.num_values < a.num_counters) {
    const int64_t j = i - a.num_values;
    (kSave ? a.saved_counters : a.counters)[j] = (kSave ? a.counters : a.saved_counters)[j];
  }
}

template <bool kSave>
int launch_copy(const SavedState& a, void* stream) {
  if (a.num_values < 0 || a.num_counters < 0 || (!kSave && a.control == nullptr))
    return kUnsupported;
  const int64_t count = a.num_values + a.num_counters;
  if (count == 0) return kOk;
  return launch(stream, {dim3(unsigned(ceil_div(count, kThreads))), dim3(kThreads)},
                copy_state<kSave>, a);
}

}  // namespace

int save_state(const SavedState& a, void* stream) {
  return launch_copy<true>(a, stream);
}

int restore_if_skipped(const SavedState& a, void* stream) {
  return launch_copy<false>(a, stream);
}

}  // namespace aerie::kernels::AERIE_BACKEND
