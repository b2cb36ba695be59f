// GPUs as the rest of aerie sees them, without any CUDA or torch header.
//
// The executable links no CUDA library. What needs one lives in a module, libaerie_cuda.so beside
// the executable, which is loaded the first time somebody asks for it and only where the driver
// reports a device. So one binary serves machines with and without a GPU, and a machine without one
// never touches CUDA.
//
// Thread-safe; everything here is cheap after the first call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/device/arena.h"
#include "aerie/device/stream.h"

namespace aerie::device {

struct GpuInfo {
  int index = 0;
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  uint64_t memory_bytes = 0;
  int sms = 0;             // streaming multiprocessors; 0 where the driver does not say
  uint64_t l2_bytes = 0;   // the same
  std::string pci_bus_id;  // "0000:3b:00.0", as NVML takes it; empty where the driver does not say
};

struct DriverInfo {
  bool present = false;  // libcuda.so.1 could be loaded and initialised
  int cuda_version = 0;  // 13000 = 13.0; 0 without a driver
  std::string problem;   // why the driver cannot be used although it is installed; empty otherwise
  std::vector<GpuInfo> gpus;
};

// Asks the driver (libcuda.so.1, loaded at run time). Honours CUDA_VISIBLE_DEVICES as the driver
// does.
const DriverInfo& driver();

// What the CUDA module offers. Implemented in src/aerie/kernels; obtained from gpu_module().
class GpuModule {
 public:
  virtual ~GpuModule() = default;

  virtual std::string cuda_runtime_version() const = 0;

  // Makes the context of a device now rather than at the first use, which takes a good part of a
  // second; from any thread.
  virtual Status make_context(int device) = 0;
  // Loads cuBLASLt and its kernels now rather than at the first GEMM, which takes a quarter of a
  // second; after make_context(), from any thread.
  virtual Status load_cublas(int device) = 0;

  // Page-locked host memory, for batches that are copied to the device asynchronously.
  virtual Result<void*> allocate_pinned(size_t bytes) = 0;
  virtual void free_pinned(void* pointer) = 0;
  // Locks the pages of memory that is there already, in whole pages; unlocked before it is freed.
  virtual Status lock_pages(void* data, size_t bytes) = 0;
  virtual void unlock_pages(void* data) = 0;

  // Kernels as functions on device memory (aerie/kernels/kernel_table.h).
  virtual const kernels::KernelTable& kernels() const = 0;

  // A stream over one of the caller's (a cudaStream_t, which must outlive it) or, with null, on one
  // of its own. On the current device. `high_priority`: high priority for a stream of its own.
  virtual Result<std::unique_ptr<Stream>> make_stream(void* stream, bool high_priority = false) = 0;

  // Memory of the current device that grows in place.
  virtual Result<std::unique_ptr<Arena>> make_arena() = 0;

  // Device memory and copies that wait, for tests and tools.
  virtual Result<void*> allocate_device(size_t bytes) = 0;
  virtual void free_device(void* pointer) = 0;
  virtual Status copy_to_device(void* device, const void* host, size_t bytes) = 0;
  virtual Status copy_from_device(void* host, const void* device, size_t bytes) = 0;
  // Time of what `launch` puts on the stream it is given, in microseconds: captured `copies` times
  // into a graph; median over `replays` replays, per copy.
  virtual Result<double> time_us(const std::function<int(void* stream)>& launch, int copies,
                                 int replays) = 0;
};

// The module, loaded on first use. kUnavailable with a reason and a hint when there is no GPU, no
// module in this build, or the module does not load.
Result<GpuModule*> gpu_module();

// Where a module of this program is looked for: beside the executable, or in AERIE_MODULE_DIR.
std::string module_path(const std::string& library);

// Of a visible GPU, as NVML takes it; empty: not known.
std::string pci_bus_id(int64_t gpu_index);

// Loads libtorch_cuda.so beside the libtorch_cpu.so of this process, so that torch sees its CUDA
// devices; AERIE_TORCH_CUDA names another one (tests/fake_gpu).
Status load_torch_cuda();

}  // namespace aerie::device
