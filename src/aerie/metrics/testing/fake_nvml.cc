// A libnvidia-ml.so.1 for tests on machines without one: a card that test_nvml_behave() makes one
// that is divided, or whose driver counts no utilisation.
#include <atomic>

#include "aerie/metrics/nvml_types.h"

using aerie::metrics::NvmlMemory;
using aerie::metrics::NvmlUtilization;

namespace {

constexpr int kSuccess = 0, kNotSupported = 3;
std::atomic<bool> divided{false}, counts{true};

}  // namespace

#pragma GCC visibility push(default)
extern "C" {
void test_nvml_behave(bool is_divided, bool counts_utilisation) {
  divided = is_divided;
  counts = counts_utilisation;
}
int nvmlInit_v2() {
  return kSuccess;
}
int nvmlShutdown() {
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned, void** device) {
  *device = nullptr;
  return kSuccess;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char*, void** device) {
  *device = nullptr;
  return kSuccess;
}
int nvmlDeviceGetUtilizationRates(void*, NvmlUtilization* out) {
  if (!counts || divided) return kNotSupported;
  *out = {75, 10};
  return kSuccess;
}
int nvmlDeviceGetMemoryInfo(void*, NvmlMemory* out) {
  *out = {80ull << 30, 60ull << 30, 20ull << 30};
  return kSuccess;
}
int nvmlDeviceGetPowerUsage(void*, unsigned*) {
  return kNotSupported;
}
int nvmlDeviceGetTemperature(void*, int, unsigned*) {
  return kNotSupported;
}
int nvmlDeviceGetMigMode(void*, unsigned* current, unsigned* pending) {
  *current = *pending = divided ? 1 : 0;
  return kSuccess;
}
}
#pragma GCC visibility pop
