#include "aerie/kernels/cuda_memory.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <sys/mman.h>
#include <thread>
#include <vector>

#include <cuda.h>
#include <cuda_runtime.h>

#include "aerie/base/strings.h"
#include "aerie/base/system.h"
#include "aerie/kernels/cuda/driver.h"
#include "aerie/kernels/cuda_status.h"

namespace aerie::kernels {
namespace {

constexpr size_t kMib = size_t{1} << 20;

std::string free_memory_text() {
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return "";
  return str_cat(", ", human_bytes(static_cast<double>(free)), " of ",
                 human_bytes(static_cast<double>(total)), " are free");
}

// The driver's functions for mapping memory.
struct Driver {
  bool complete = true;
  decltype(&cuMemAddressReserve) reserve = find("cuMemAddressReserve");
  decltype(&cuMemAddressFree) free = find("cuMemAddressFree");
  decltype(&cuMemCreate) create = find("cuMemCreate");
  decltype(&cuMemRelease) release = find("cuMemRelease");
  decltype(&cuMemMap) map = find("cuMemMap");
  decltype(&cuMemUnmap) unmap = find("cuMemUnmap");
  decltype(&cuMemSetAccess) set_access = find("cuMemSetAccess");
  decltype(&cuMemGetAllocationGranularity) granularity = find("cuMemGetAllocationGranularity");
  decltype(&cuDeviceGetAttribute) attribute = find("cuDeviceGetAttribute");

 private:
  Symbol find(const char* name) {
    const Symbol symbol = driver_function(name);
    complete = complete && symbol.found != nullptr;
    return symbol;
  }
};

const Driver& driver() {
  static const Driver functions;
  return functions;
}

class MappedArena final : public device::Arena {
 public:
  MappedArena(int device, size_t granularity, size_t reserved, CUdeviceptr base)
      : granularity_(granularity), reserved_(reserved), base_(base) {
    properties_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties_.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
    access_.location = properties_.location;
    access_.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  ~MappedArena() override {
    (void)cudaDeviceSynchronize();
    if (size_ > 0) driver().unmap(base_, size_);
    for (const CUmemGenericAllocationHandle block : blocks_) driver().release(block);
    driver().free(base_, reserved_);
  }

  void* data() const override { return size_ > 0 ? reinterpret_cast<void*>(base_) : nullptr; }
  size_t size() const override { return size_; }

  Status grow(size_t bytes) override {
    if (bytes <= size_) return ok_status();
    // A large one grows in larger pieces: few of them, and little that is not used.
    const size_t piece = std::max(granularity_, bytes > 64 * kMib ? 32 * kMib : size_t{0});
    const size_t wanted = (bytes + piece - 1) / piece * piece;
    const size_t more = wanted - size_;
    const auto too_much = [&] {
      return out_of_memory(str_cat(human_bytes(static_cast<double>(more)),
                                   " more device memory are needed", free_memory_text()));
    };
    if (wanted > reserved_) return too_much();
    CUmemGenericAllocationHandle block = 0;
    if (driver().create(&block, more, &properties_, 0) != CUDA_SUCCESS) return too_much();
    const CUdeviceptr at = base_ + size_;
    CUresult result = driver().map(at, more, 0, block, 0);
    if (result == CUDA_SUCCESS) {
      result = driver().set_access(at, more, &access_, 1);
      if (result != CUDA_SUCCESS) driver().unmap(at, more);
    }
    if (result != CUDA_SUCCESS) {
      driver().release(block);
      return internal_error(str_cat("mapping device memory: CUDA error ", int(result)));
    }
    blocks_.push_back(block);
    size_ = wanted;
    return ok_status();
  }

 private:
  const size_t granularity_, reserved_;
  const CUdeviceptr base_;
  CUmemAllocationProp properties_{};
  CUmemAccessDesc access_{};
  std::vector<CUmemGenericAllocationHandle> blocks_;
  size_t size_ = 0;
};

// For devices without virtual memory management.
class PlainArena final : public device::Arena {
 public:
  ~PlainArena() override { cudaFree(data_); }
  void* data() const override { return data_; }
  size_t size() const override { return size_; }
  Status grow(size_t bytes) override {
    if (bytes <= size_) return ok_status();
    void* block = nullptr;
    const size_t before = size_;
    cudaFree(data_);
    data_ = nullptr;
    size_ = 0;
    cudaError_t error = cudaMalloc(&block, bytes);
    const bool failed = error != cudaSuccess;
    if (failed) {
      (void)cudaGetLastError();
      if (before > 0 && cudaMalloc(&block, before) == cudaSuccess) {
        data_ = block;
        size_ = before;
      }
      return out_of_memory(str_cat(human_bytes(static_cast<double>(bytes)),
                                   " of device memory are needed", free_memory_text()));
    }
    data_ = block;
    size_ = bytes;
    return ok_status();
  }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

// Blocks that were mapped here and then locked, with their sizes.
struct LockedBlocks {
  std::mutex mutex;
  std::map<void*, size_t> sizes;
};
LockedBlocks& locked_blocks() {
  static auto* blocks = new LockedBlocks;  // freed blocks may come after static destructors
  return *blocks;
}

}  // namespace

Result<std::unique_ptr<device::Arena>> make_cuda_arena() {
  int device = 0, supported = 0;
  AERIE_CUDA(cudaGetDevice(&device));
  AERIE_CUDA(cudaFree(nullptr));  // makes the context that the driver's functions need
  if (!driver().complete ||
      driver().attribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED,
                         device) != CUDA_SUCCESS ||
      supported == 0)
    return std::unique_ptr<device::Arena>(std::make_unique<PlainArena>());
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, device};
  size_t granularity = 0, free = 0, total = 0;
  AERIE_CUDA(cudaMemGetInfo(&free, &total));
  CUdeviceptr base = 0;
  if (driver().granularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) !=
          CUDA_SUCCESS ||
      granularity == 0)
    return std::unique_ptr<device::Arena>(std::make_unique<PlainArena>());
  const size_t reserved = (total + 64 * kMib) / (64 * kMib) * (64 * kMib);
  if (driver().reserve(&base, reserved, 0, 0, 0) != CUDA_SUCCESS)
    return std::unique_ptr<device::Arena>(std::make_unique<PlainArena>());
  return std::unique_ptr<device::Arena>(
      std::make_unique<MappedArena>(device, granularity, reserved, base));
}

Status lock_memory(void* data, size_t bytes) {
  constexpr size_t kPage = 4096;
  constexpr unsigned kMaxThreads = 8;
  const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
  const auto touch = [&](unsigned part) {
    auto* bytes_of = static_cast<volatile unsigned char*>(data);
    const size_t pages = bytes / kPage;
    for (size_t p = pages * part / threads; p < pages * (part + 1) / threads; ++p)
      bytes_of[p * kPage] = bytes_of[p * kPage];
  };
  std::vector<std::jthread> others;
  try {
    for (unsigned part = 1; part < threads; ++part) others.emplace_back(touch, part);
  } catch (const std::system_error&) {  // what no thread touches is touched by the lock
  }
  touch(0);
  others.clear();
  const cudaError_t locked = cudaHostRegister(data, bytes, cudaHostRegisterPortable);
  if (locked != cudaSuccess) (void)cudaGetLastError();  // nobody else's error
  return cuda_status(locked, "cudaHostRegister");
}

Result<void*> allocate_pinned_memory(size_t bytes) {
  constexpr size_t kHugePage = 2 * kMib;
  void* pointer = nullptr;
  if (bytes >= 8 * kHugePage) {
    const size_t rounded = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    void* mapped =
        ::mmap(nullptr, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped != MAP_FAILED) {
      ::madvise(mapped, rounded, MADV_HUGEPAGE);
      if (lock_memory(mapped, rounded).ok()) {
        LockedBlocks& blocks = locked_blocks();
        const std::lock_guard lock(blocks.mutex);
        blocks.sizes[mapped] = rounded;
        return mapped;
      }
      ::munmap(mapped, rounded);
    }
  }
  AERIE_CUDA(cudaHostAlloc(&pointer, bytes, cudaHostAllocPortable));
  return pointer;
}

void free_pinned_memory(void* pointer) {
  LockedBlocks& blocks = locked_blocks();
  size_t mapped = 0;
  {
    const std::lock_guard lock(blocks.mutex);
    const auto found = blocks.sizes.find(pointer);
    if (found != blocks.sizes.end()) {
      mapped = found->second;
      blocks.sizes.erase(found);
    }
  }
  if (mapped == 0) {
    cudaFreeHost(pointer);
    return;
  }
  cudaHostUnregister(pointer);
  ::munmap(pointer, mapped);
}

}  // namespace aerie::kernels
