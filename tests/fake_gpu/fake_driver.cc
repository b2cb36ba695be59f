// libcuda.so.1 of a machine that has GPUs only for torch (fake_torch_cuda.cc): the few functions
// that device/gpu.cc asks.
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kSuccess = 0, kInvalidValue = 1;

int gpus() {
  const char* count = std::getenv("AERIE_FAKE_GPUS");
  return count == nullptr ? 2 : static_cast<int>(std::strtol(count, nullptr, 10));
}

}  // namespace

extern "C" {

int cuInit(unsigned) {
  return kSuccess;
}
int cuDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}
int cuDeviceGetCount(int* count) {
  *count = gpus();
  return kSuccess;
}
int cuDeviceGet(int* device, int index) {
  *device = index;
  return index < gpus() ? kSuccess : kInvalidValue;
}
int cuDeviceGetName(char* name, int size, int) {
  std::snprintf(name, static_cast<size_t>(size), "none (computed on the CPU)");
  return kSuccess;
}
int cuDeviceTotalMem_v2(size_t* bytes, int) {
  *bytes = size_t{4} << 30;
  return kSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int kMajor = 75;
  *value = attribute == kMajor ? 9 : 0;
  return kSuccess;
}
int cuDeviceGetPCIBusId(char* text, int size, int device) {
  std::snprintf(text, static_cast<size_t>(size), "0000:%02x:00.0", device + 1);
  return kSuccess;
}
}
