#include "aerie/device/gpu.h"

#include <cstdlib>
#include <dlfcn.h>
#include <link.h>
#include <mutex>
#include <unistd.h>

#include <climits>

#include "aerie/device/module_abi.h"

namespace aerie::device {

namespace {

// The few driver functions used here, declared by hand: cuda.h may be absent where this is
// compiled.
using CuResult = int;
constexpr CuResult kCudaSuccess = 0;
constexpr CuResult kCudaErrorNoDevice = 100;
constexpr int kAttributeMajor = 75;
constexpr int kAttributeMinor = 76;
constexpr int kAttributeSms = 16;
constexpr int kAttributeL2Bytes = 38;

template <typename Function>
Function* symbol(void* library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library, name));
}

DriverInfo ask_driver() {
  DriverInfo info;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return info;
  auto* init = symbol<CuResult(unsigned)>(library, "cuInit");
  auto* version = symbol<CuResult(int*)>(library, "cuDriverGetVersion");
  auto* count = symbol<CuResult(int*)>(library, "cuDeviceGetCount");
  auto* get = symbol<CuResult(int*, int)>(library, "cuDeviceGet");
  auto* name = symbol<CuResult(char*, int, int)>(library, "cuDeviceGetName");
  auto* memory = symbol<CuResult(size_t*, int)>(library, "cuDeviceTotalMem_v2");
  auto* attribute = symbol<CuResult(int*, int, int)>(library, "cuDeviceGetAttribute");
  auto* pci_bus_id = symbol<CuResult(char*, int, int)>(library, "cuDeviceGetPCIBusId");
  if (init == nullptr || version == nullptr || count == nullptr || get == nullptr ||
      name == nullptr || memory == nullptr || attribute == nullptr) {
    info.problem = "libcuda.so.1 lacks expected functions";
    return info;
  }
  const CuResult started = init(0);
  if (started != kCudaSuccess) {
    if (started != kCudaErrorNoDevice) info.problem = str_cat("cuInit failed with error ", started);
    return info;
  }
  info.present = true;
  version(&info.cuda_version);
  int devices = 0;
  if (count(&devices) != kCudaSuccess) return info;
  for (int i = 0; i < devices; ++i) {
    GpuInfo gpu;
    gpu.index = i;
    int handle = 0;
    char text[256] = {};
    size_t bytes = 0;
    if (get(&handle, i) != kCudaSuccess) continue;
    if (name(text, sizeof text - 1, handle) == kCudaSuccess) gpu.name = text;
    if (memory(&bytes, handle) == kCudaSuccess) gpu.memory_bytes = bytes;
    char pci[32] = {};
    if (pci_bus_id != nullptr && pci_bus_id(pci, sizeof pci, handle) == kCudaSuccess)
      gpu.pci_bus_id = pci;
    attribute(&gpu.compute_major, kAttributeMajor, handle);
    attribute(&gpu.compute_minor, kAttributeMinor, handle);
    attribute(&gpu.sms, kAttributeSms, handle);
    int l2_bytes = 0;
    if (attribute(&l2_bytes, kAttributeL2Bytes, handle) == kCudaSuccess && l2_bytes > 0)
      gpu.l2_bytes = static_cast<uint64_t>(l2_bytes);
    info.gpus.push_back(std::move(gpu));
  }
  return info;
}

std::string executable_folder() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return ".";
  const std::string whole(path, static_cast<size_t>(length));
  return whole.substr(0, whole.rfind('/'));
}

Result<GpuModule*> load_module() {
  const DriverInfo& info = driver();
  if (!info.problem.empty())
    return unavailable(str_cat("the NVIDIA driver does not work: ", info.problem))
        .with_hint("check `nvidia-smi`");
  if (info.gpus.empty()) return unavailable("no GPU on this machine");
  const std::string path = module_path("libaerie_cuda.so");
  if (access(path.c_str(), R_OK) != 0)
    return unavailable(str_cat("this build has no CUDA module (", path, ")"))
        .with_hint("build with a CUDA toolkit: `scripts/setup.sh --cuda && make`");
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return unavailable(
               str_cat("the CUDA module does not load: ", reason ? reason : "unknown reason"))
        .with_hint(
            "the CUDA 13 run-time libraries must be found; `scripts/setup.sh --cuda` fetches them");
  }
  auto* abi = symbol<uint32_t()>(library, "aerie_cuda_module_abi");
  auto* create = symbol<GpuModule*()>(library, "aerie_cuda_module");
  if (abi == nullptr || create == nullptr || abi() != kModuleAbi)
    return unavailable(str_cat(path, " belongs to another build of aerie"))
        .with_hint("rebuild with `make`");
  return create();
}

}  // namespace

const DriverInfo& driver() {
  static const DriverInfo info = ask_driver();
  return info;
}

std::string module_path(const std::string& library) {
  const char* folder = std::getenv("AERIE_MODULE_DIR");
  return str_cat(folder != nullptr ? std::string(folder) : executable_folder(), "/", library);
}

Result<GpuModule*> gpu_module() {
  static const Result<GpuModule*> module = load_module();
  return module;
}

std::string pci_bus_id(int64_t gpu_index) {
  const auto& gpus = driver().gpus;
  return static_cast<size_t>(gpu_index) < gpus.size()
             ? gpus[static_cast<size_t>(gpu_index)].pci_bus_id
             : std::string();
}

Status load_torch_cuda() {
  static const Status status = []() -> Status {
    std::string folder;
    const char* given = std::getenv("AERIE_TORCH_CUDA");
    dl_iterate_phdr(
        [](dl_phdr_info* object, size_t, void* out) {
          const std::string name(object->dlpi_name);
          const size_t at = name.rfind("/libtorch_cpu.so");
          if (at == std::string::npos) return 0;
          *static_cast<std::string*>(out) = name.substr(0, at);
          return 1;
        },
        &folder);
    if (folder.empty()) return unavailable("this program does not use torch");
    const std::string path =
        given != nullptr ? std::string(given) : str_cat(folder, "/libtorch_cuda.so");
    if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      const char* reason = dlerror();
      return unavailable(str_cat("torch's CUDA library does not load: ",
                                 reason ? reason : "unknown reason"))
          .with_hint("`scripts/setup.sh --cuda` fetches the CUDA libraries that torch needs");
    }
    return ok_status();
  }();
  return status;
}

}  // namespace aerie::device
