// libaerie_cuda.so: everything that links CUDA, behind device::GpuModule.
#include <algorithm>
#include <vector>

#include <cuda_runtime.h>

#include "aerie/device/gpu.h"
#include "aerie/device/module_abi.h"
#include "aerie/kernels/cuda_memory.h"
#include "aerie/kernels/cuda_status.h"
#include "aerie/kernels/kernel_table.h"

namespace aerie::kernels {
namespace {

#define AERIE_KERNEL_CUDA(name, Args) &cuda::name,
constexpr KernelTable kCudaKernels = {AERIE_KERNELS(AERIE_KERNEL_CUDA)};

class CudaEvent final : public device::Event {
 public:
  CudaEvent(cudaStream_t stream, cudaEvent_t event) : stream_(stream), event_(event) {}
  ~CudaEvent() override { cudaEventDestroy(event_); }
  Status record() override {
    AERIE_CUDA(cudaEventRecord(event_, stream_));
    return ok_status();
  }
  bool passed() override { return cudaEventQuery(event_) != cudaErrorNotReady; }
  Status wait() override {
    AERIE_CUDA(cudaEventSynchronize(event_));
    return ok_status();
  }
  cudaEvent_t event() const { return event_; }

 private:
  cudaStream_t stream_;
  cudaEvent_t event_;
};

class CudaGraph final : public device::Graph {
 public:
  CudaGraph(cudaStream_t stream, cudaGraphExec_t executable)
      : stream_(stream), executable_(executable) {}
  ~CudaGraph() override { cudaGraphExecDestroy(executable_); }
  Status launch() override {
    AERIE_CUDA(cudaGraphLaunch(executable_, stream_));
    return ok_status();
  }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t executable_;
};

class CudaStream final : public device::Stream {
 public:
  CudaStream(cudaStream_t stream, bool owned) : stream_(stream), owned_(owned) {}
  ~CudaStream() override {
    if (owned_) cudaStreamDestroy(stream_);
  }
  const KernelTable& kernels() const override { return kCudaKernels; }
  void* handle() const override { return stream_; }
  Status copy(void* to, const void* from, size_t bytes) override {
    AERIE_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
    return ok_status();
  }
  Result<std::unique_ptr<device::Event>> make_event() override {
    cudaEvent_t event = nullptr;
    // Waiting threads sleep: the processor belongs to the loader.
    AERIE_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync));
    return std::unique_ptr<device::Event>(std::make_unique<CudaEvent>(stream_, event));
  }
  Status wait_for(device::Event& event) override {
    AERIE_CUDA(cudaStreamWaitEvent(stream_, static_cast<CudaEvent&>(event).event(), 0));
    return ok_status();
  }
  Result<std::unique_ptr<device::Graph>> capture(std::function<int(void* stream)> work) override {
    OwnedGraph graph;
    // Loader and checkpoint threads go on using CUDA meanwhile.
    AERIE_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    const int failed = work(stream_);
    const cudaError_t ended = cudaStreamEndCapture(stream_, &graph.handle);
    AERIE_CUDA(static_cast<cudaError_t>(failed));
    AERIE_CUDA(ended);
    cudaGraphExec_t executable = nullptr;
    const cudaError_t made = cudaGraphInstantiate(&executable, graph.handle, 0);
    // A caller that goes on without the graph must not find this error at its next launch.
    if (made != cudaSuccess) (void)cudaGetLastError();
    AERIE_CUDA(made);
    return std::unique_ptr<device::Graph>(std::make_unique<CudaGraph>(stream_, executable));
  }
  Status synchronize() override {
    AERIE_CUDA(cudaStreamSynchronize(stream_));
    return ok_status();
  }
  Status status_of(int code, const char* what) const override {
    return cuda_status(static_cast<cudaError_t>(code), what);
  }

 private:
  cudaStream_t stream_;
  bool owned_;
};

class CudaModule final : public device::GpuModule {
 public:
  std::string cuda_runtime_version() const override {
    int version = 0;
    if (cudaRuntimeGetVersion(&version) != cudaSuccess) return "";
    return str_cat(version / 1000, ".", version % 1000 / 10);
  }

  Status make_context(int device) override {
    AERIE_CUDA(cudaSetDevice(device));
    AERIE_CUDA(cudaFree(nullptr));
    return ok_status();
  }

  Status load_cublas(int device) override {
    AERIE_CUDA(cudaSetDevice(device));
    constexpr int kSide = 64;
    constexpr size_t kOperand = sizeof(float) * kSide * kSide, kWorkspace = size_t{1} << 20;
    OwnedMemory memory;
    AERIE_CUDA(cudaMalloc(&memory.handle, 3 * kOperand + kWorkspace));
    OwnedStream stream;
    AERIE_CUDA(cudaStreamCreateWithFlags(&stream.handle, cudaStreamNonBlocking));
    auto* data = static_cast<uint8_t*>(memory.handle);
    Gemm g;
    g.dtype = g.out_dtype = Dtype::kBF16;
    g.m = g.n = g.k = g.lda = g.ldb = g.ldc = kSide;
    g.a = data;
    g.b = data + kOperand;
    g.c = data + 2 * kOperand;
    g.workspace = data + 3 * kOperand;
    g.workspace_bytes = kWorkspace;
    g.tile.m = -1;
    AERIE_CUDA(static_cast<cudaError_t>(cuda::gemm(g, stream.handle)));
    AERIE_CUDA(cudaStreamSynchronize(stream.handle));
    return ok_status();
  }

  Result<void*> allocate_pinned(size_t bytes) override { return allocate_pinned_memory(bytes); }
  void free_pinned(void* pointer) override { free_pinned_memory(pointer); }
  Status lock_pages(void* data, size_t bytes) override { return lock_memory(data, bytes); }
  void unlock_pages(void* data) override {
    if (cudaHostUnregister(data) != cudaSuccess) (void)cudaGetLastError();
  }

  Result<std::unique_ptr<device::Arena>> make_arena() override { return make_cuda_arena(); }

  const KernelTable& kernels() const override { return kCudaKernels; }

  Result<std::unique_ptr<device::Stream>> make_stream(void* stream, bool high_priority) override {
    cudaStream_t handle = static_cast<cudaStream_t>(stream);
    if (handle == nullptr) {
      int least = 0, greatest = 0;
      AERIE_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
      AERIE_CUDA(cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking,
                                              high_priority ? greatest : least));
    }
    return std::unique_ptr<device::Stream>(std::make_unique<CudaStream>(handle, stream == nullptr));
  }

  Result<void*> allocate_device(size_t bytes) override {
    void* pointer = nullptr;
    AERIE_CUDA(cudaMalloc(&pointer, bytes));
    return pointer;
  }

  void free_device(void* pointer) override { cudaFree(pointer); }

  Status copy_to_device(void* device, const void* host, size_t bytes) override {
    AERIE_CUDA(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice));
    return ok_status();
  }

  Status copy_from_device(void* host, const void* device, size_t bytes) override {
    AERIE_CUDA(cudaDeviceSynchronize());
    AERIE_CUDA(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost));
    return ok_status();
  }

  Result<double> time_us(const std::function<int(void* stream)>& launch, int copies,
                         int replays) override {
    OwnedStream stream;
    OwnedGraph graph;
    OwnedGraphExec executable;
    OwnedEvent begin, end;
    AERIE_CUDA(cudaStreamCreateWithFlags(&stream.handle, cudaStreamNonBlocking));
    AERIE_CUDA(cudaEventCreate(&begin.handle));
    AERIE_CUDA(cudaEventCreate(&end.handle));
    // Once outside the capture: loads the code and shows errors of the kernel itself.
    AERIE_CUDA(static_cast<cudaError_t>(launch(stream.handle)));
    AERIE_CUDA(cudaStreamSynchronize(stream.handle));
    AERIE_CUDA(cudaStreamBeginCapture(stream.handle, cudaStreamCaptureModeThreadLocal));
    int failed = 0;
    for (int i = 0; i < copies && failed == 0; ++i) failed = launch(stream.handle);
    AERIE_CUDA(cudaStreamEndCapture(stream.handle, &graph.handle));
    AERIE_CUDA(static_cast<cudaError_t>(failed));
    AERIE_CUDA(cudaGraphInstantiate(&executable.handle, graph.handle, 0));
    std::vector<double> times;
    for (int i = 0; i < replays + 2; ++i) {
      // Launched while another replay runs, as work that is launched ahead is.
      AERIE_CUDA(cudaGraphLaunch(executable.handle, stream.handle));
      AERIE_CUDA(cudaEventRecord(begin.handle, stream.handle));
      AERIE_CUDA(cudaGraphLaunch(executable.handle, stream.handle));
      AERIE_CUDA(cudaEventRecord(end.handle, stream.handle));
      AERIE_CUDA(cudaStreamSynchronize(stream.handle));
      float ms = 0.0f;
      AERIE_CUDA(cudaEventElapsedTime(&ms, begin.handle, end.handle));
      if (i >= 2) times.push_back(static_cast<double>(ms) * 1000.0 / copies);  // two to warm up
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
  }
};

}  // namespace
}  // namespace aerie::kernels

extern "C" uint32_t aerie_cuda_module_abi() {
  return aerie::device::kModuleAbi;
}

extern "C" aerie::device::GpuModule* aerie_cuda_module() {
  static aerie::kernels::CudaModule module;
  return &module;
}
