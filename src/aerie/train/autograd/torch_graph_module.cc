// libaerie_torch_graph.so: CUDA graphs of torch for the executable, which does not link torch's
// CUDA library.
#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include "aerie/train/autograd/torch_graph.h"

namespace {

// One for all graphs: steps run one after another, so that they can work in the same memory. Torch
// takes a pool for gone with the last graph in it.
struct Pool {
  const at::cuda::MempoolId_t id = at::cuda::graph_pool_handle();
};
std::shared_ptr<Pool> shared_pool() {
  static std::weak_ptr<Pool> current;
  std::shared_ptr<Pool> pool = current.lock();
  if (pool == nullptr) current = pool = std::make_shared<Pool>();
  return pool;
}

// The legacy default stream cannot be captured. Always the same one: cuBLAS makes a workspace for
// every stream.
c10::cuda::CUDAStream capture_stream(c10::DeviceIndex device) {
  static std::map<c10::DeviceIndex, c10::cuda::CUDAStream> streams;
  return streams.try_emplace(device, c10::cuda::getStreamFromPool(false, device)).first->second;
}

class Captured final : public aerie::train::TorchGraph {
 public:
  explicit Captured(int device_index)
      : device_(static_cast<c10::DeviceIndex>(std::max(device_index, 0))) {}

  void capture(std::function<void()> work) override {
    const c10::cuda::CUDAGuard on_device(device_);
    c10::cuda::device_synchronize();
    const c10::cuda::CUDAStreamGuard on_stream(capture_stream(device_));
    auto graph = std::make_unique<at::cuda::CUDAGraph>();
    bool begun = false;
    try {
      // Another thread that allocates pinned memory meanwhile must not end the capture.
      graph->capture_begin(pool_->id, cudaStreamCaptureModeThreadLocal);
      begun = true;
      work();
      graph->capture_end();
    } catch (...) {
      if (begun) end_failed(*graph);
      // Torch's destructor ends the process where a capture has not come to its end.
      (void)graph.release();
      throw;
    }
    graph_ = std::move(graph);
  }

  void replay() override { graph_->replay(); }

 private:
  // Nothing is captured any more, and the pool is left.
  void end_failed(at::cuda::CUDAGraph& graph) const {
    try {
      graph.capture_end();
      graph.reset();
      return;
    } catch (const std::exception&) {
      (void)cudaGetLastError();
    }
    try {
      c10::cuda::CUDACachingAllocator::endAllocateToPool(device_, pool_->id);
      c10::cuda::CUDACachingAllocator::releasePool(device_, pool_->id);
      at::getHostAllocator(at::kCUDA)->end_allocate_to_pool(pool_->id);
      at::getHostAllocator(at::kCUDA)->release_pool(pool_->id);
    } catch (const std::exception&) {
      // Memory that nobody uses stays there.
    }
  }

  const c10::DeviceIndex device_;
  const std::shared_ptr<Pool> pool_ = shared_pool();
  std::unique_ptr<at::cuda::CUDAGraph> graph_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) aerie::train::TorchGraph* aerie_torch_graph_1(
    int device_index) {
  return new Captured(device_index);
}
