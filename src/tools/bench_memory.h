// What the parts of `aerie bench kernels` share: sizes of the model and device memory with random
// contents. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include "aerie/base/philox.h"
#include "aerie/base/status.h"
#include "aerie/device/gpu.h"
#include "aerie/kernels/types.h"

namespace aerie::tools {

struct KernelBenchOptions {
  int batch = 16, seconds = 15, width = 512, heads = 8, layers = 17, classes = 8192, channels = 256;
  bool step = false;    // a whole NestStep, call by call
  bool memory = false;  // its memory alone, no GPU needed
  bool keep = false;    // of that step: nothing is computed twice
  bool tune = false;    // products: the fastest algorithm, not the first suggestion
  int64_t parameters = 112964608;
  double gb_per_s = 4200.0;    // what copies reach on the device
  double tflop_per_s = 700.0;  // what bf16 matrix products reach
  std::string only;            // part of the names wanted; empty: all
};

// Device memory for the length of the command. Values are random: matrix products of zeros draw
// less power and run faster than real ones.
class BenchMemory {
 public:
  explicit BenchMemory(device::GpuModule* module) : module_(module) {}
  ~BenchMemory() {
    for (void* pointer : blocks_) module_->free_device(pointer);
  }
  BenchMemory(const BenchMemory&) = delete;
  BenchMemory& operator=(const BenchMemory&) = delete;

  template <typename T>
  T* take(size_t count, float scale = 1.0f) {
    std::vector<T> pattern(std::min<size_t>(count, size_t{1} << 20));
    RandomStream random(blocks_.size(), Purpose::kTest, 0, 0);
    for (T& value : pattern) {
      const float unit = (u32_to_unit_float(random.next_u32()) * 2.0f - 1.0f) * scale;
      if constexpr (std::is_same_v<T, float>) value = unit;
      if constexpr (std::is_same_v<T, kernels::Bf16>)
        value = kernels::from_float<kernels::Bf16>(unit);
    }
    auto block = module_->allocate_device(count * sizeof(T));
    if (!block.ok()) {
      if (status_.ok()) status_ = block.status();
      return nullptr;
    }
    blocks_.push_back(*block);
    T* out = static_cast<T*>(*block);
    for (size_t at = 0; at < count && status_.ok(); at += pattern.size())
      status_ = module_->copy_to_device(out + at, pattern.data(),
                                        std::min(pattern.size(), count - at) * sizeof(T));
    return out;
  }
  template <typename T>
  T* upload(const std::vector<T>& values) {
    T* out = take<T>(values.size());
    if (status_.ok())
      status_ = module_->copy_to_device(out, values.data(), values.size() * sizeof(T));
    return out;
  }
  const Status& status() const { return status_; }

 private:
  device::GpuModule* module_;
  std::vector<void*> blocks_;
  Status status_;
};

// The step of one micro-batch, call by call and as one graph.
Status run_bench_kernel_step(device::GpuModule* module, const KernelBenchOptions& options);

// What it keeps in device memory.
void print_step_memory(const KernelBenchOptions& options);

}  // namespace aerie::tools
