// cuBLASLt, loaded at run time (torch brings the same library), one plan per shape and kept. A plan
// is cuBLASLt's first suggestion, or the fastest of its suggestions, timed once.
//
// Row-major C = op(A) op(B) is column-major C^T = op(B)^T op(A)^T: operands change places, their
// transposition does not. The bias then runs along the rows of C^T, as cuBLASLt's epilogue wants
// it.
#include <algorithm>
#include <array>
#include <dlfcn.h>
#include <map>
#include <memory>
#include <mutex>

#include <cublasLt.h>
#include <cuda_runtime.h>

#include "aerie/kernels/cuda/driver.h"
#include "aerie/kernels/cuda_status.h"
#include "aerie/kernels/gemm/gemm.h"
#include "aerie/kernels/gemm/persistent_gemm.h"

namespace aerie::kernels::cuda {
namespace {

struct Library {
  void* handle = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
  bool ok = handle != nullptr;
  decltype(&cublasLtCreate) create = find("cublasLtCreate");
  decltype(&cublasLtMatmul) matmul = find("cublasLtMatmul");
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = find("cublasLtMatmulAlgoGetHeuristic");
  decltype(&cublasLtMatmulDescCreate) desc_create = find("cublasLtMatmulDescCreate");
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = find("cublasLtMatmulDescDestroy");
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = find("cublasLtMatmulDescSetAttribute");
  decltype(&cublasLtMatrixLayoutCreate) layout_create = find("cublasLtMatrixLayoutCreate");
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = find("cublasLtMatrixLayoutDestroy");
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set = find("cublasLtMatrixLayoutSetAttribute");
  decltype(&cublasLtMatmulPreferenceCreate) preference_create =
      find("cublasLtMatmulPreferenceCreate");
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy =
      find("cublasLtMatmulPreferenceDestroy");
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set =
      find("cublasLtMatmulPreferenceSetAttribute");

 private:
  Symbol find(const char* name) {
    const Symbol symbol{ok ? dlsym(handle, name) : nullptr};
    ok = symbol.found != nullptr;
    return symbol;
  }
};

Library& library() {
  static Library instance;
  return instance;
}

cudaDataType_t data_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBF16:
      return CUDA_R_16BF;
    case Dtype::kF16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

struct Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool ok = false;
};

using Key = std::array<int64_t, 13>;
constexpr int kCandidates = 24;
constexpr int kTimedCalls = 8;  // per replay of a candidate

int multiply(cublasLtHandle_t handle, const Plan& plan, const cublasLtMatmulAlgo_t& algorithm,
             const Gemm& g, void* c, void* stream) {
  const float one = 1.0f, beta = g.accumulate ? 1.0f : 0.0f;
  const cublasStatus_t status = library().matmul(
      handle, plan.desc, &one, g.b, plan.a, g.a, plan.b, &beta, c, plan.c, c, plan.c, &algorithm,
      g.workspace, g.workspace_bytes, static_cast<cudaStream_t>(stream));
  return status == CUBLAS_STATUS_SUCCESS ? kOk : kUnsupported;
}

bool capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) != cudaSuccess ||
         status != cudaStreamCaptureStatusNone;
}

// Times candidates on a stream of its own.
class Stopwatch {
 public:
  bool start() {
    return cudaStreamCreateWithFlags(&stream_.handle, cudaStreamNonBlocking) == cudaSuccess &&
           cudaEventCreate(&begin_.handle) == cudaSuccess &&
           cudaEventCreate(&end_.handle) == cudaSuccess;
  }

  // Zeroed memory of the watch's life; null when there is none.
  void* allocate(size_t bytes) {
    if (cudaMalloc(&memory_.handle, bytes) != cudaSuccess ||
        cudaMemsetAsync(memory_.handle, 0, bytes, stream_.handle) != cudaSuccess) {
      cudaGetLastError();
      return nullptr;
    }
    return memory_.handle;
  }

  // Milliseconds of kTimedCalls calls as a graph, the least of three replays; negative on failure.
  template <typename Call>
  float time(Call call) {
    OwnedGraph graph;
    OwnedGraphExec executable;
    float best = -1.0f;
    if (cudaStreamBeginCapture(stream_.handle, cudaStreamCaptureModeThreadLocal) == cudaSuccess) {
      int failed = kOk;
      for (int i = 0; i < kTimedCalls && failed == kOk; ++i) failed = call(stream_.handle);
      const bool captured = cudaStreamEndCapture(stream_.handle, &graph.handle) == cudaSuccess;
      if (captured && failed == kOk &&
          cudaGraphInstantiate(&executable.handle, graph.handle, 0) == cudaSuccess) {
        for (int i = 0; i < 4; ++i) {
          float ms = 0.0f;
          cudaEventRecord(begin_.handle, stream_.handle);
          cudaGraphLaunch(executable.handle, stream_.handle);
          cudaEventRecord(end_.handle, stream_.handle);
          if (cudaStreamSynchronize(stream_.handle) != cudaSuccess ||
              cudaEventElapsedTime(&ms, begin_.handle, end_.handle) != cudaSuccess) {
            best = -1.0f;
            break;
          }
          if (i > 0) best = best < 0.0f ? ms : std::min(best, ms);
        }
      }
    }
    cudaGetLastError();
    return best;
  }

 private:
  OwnedStream stream_;
  OwnedEvent begin_, end_;
  OwnedMemory memory_;
};

class Plans {
 public:
  // Null when cuBLASLt has nothing for the shape.
  const Plan* get(const Gemm& g, void* stream) {
    const int flags = int(g.transpose_a) | int(g.transpose_b) << 1 | int(g.bias != nullptr) << 2 |
                      int(g.tf32) << 3 | int(g.accumulate) << 4;
    const Key key{int(g.dtype) * 4 + int(g.out_dtype),
                  g.m,
                  g.n,
                  g.k,
                  g.lda,
                  g.ldb,
                  g.ldc,
                  flags,
                  int64_t(g.workspace_bytes),
                  g.count,
                  g.step_a,
                  g.step_b,
                  g.step_c};
    auto [entry, fresh] = plans_.try_emplace(key);
    if (fresh) make(g, entry->second, stream);
    return entry->second.ok ? &entry->second : nullptr;
  }
  cublasLtHandle_t handle() {
    if (handle_ == nullptr) library().create(&handle_);
    return handle_;
  }
  std::mutex mutex;

 private:
  void make(const Gemm& g, Plan& plan, void* stream) {
    Library& lt = library();
    const cublasComputeType_t compute =
        g.dtype == Dtype::kF32 && g.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    if (lt.desc_create(&plan.desc, compute, CUDA_R_32F) != CUBLAS_STATUS_SUCCESS) return;
    const cublasOperation_t first = g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t second = g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    lt.desc_set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof(first));
    lt.desc_set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof(second));
    if (g.bias != nullptr) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      const cudaDataType_t type = data_type(g.out_dtype);
      lt.desc_set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue));
      lt.desc_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type));
      lt.desc_set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g.bias, sizeof(g.bias));
    }
    const auto layout = [&](cublasLtMatrixLayout_t* out, Dtype dtype, int rows, int columns,
                            int stride, int64_t step) {
      if (lt.layout_create(out, data_type(dtype), static_cast<uint64_t>(rows),
                           static_cast<uint64_t>(columns), stride) != CUBLAS_STATUS_SUCCESS)
        return false;
      const int32_t count = g.count;
      return count == 1 || (lt.layout_set(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                          sizeof(count)) == CUBLAS_STATUS_SUCCESS &&
                            lt.layout_set(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &step,
                                          sizeof(step)) == CUBLAS_STATUS_SUCCESS);
    };
    // Column-major shapes as stored: a row-major (r,c) matrix is (c,r).
    if (!layout(&plan.a, g.dtype, g.transpose_b ? g.k : g.n, g.transpose_b ? g.n : g.k, g.ldb,
                g.step_b) ||
        !layout(&plan.b, g.dtype, g.transpose_a ? g.m : g.k, g.transpose_a ? g.k : g.m, g.lda,
                g.step_a) ||
        !layout(&plan.c, g.out_dtype, g.n, g.m, g.ldc, g.step_c))
      return;
    cublasLtMatmulPreference_t preference = nullptr;
    if (lt.preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return;
    lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &g.workspace_bytes,
                      sizeof(g.workspace_bytes));
    // Weights of a flat buffer start at multiples of 128 bytes, not of the 256 assumed otherwise.
    const uint32_t alignment = 16;
    for (const cublasLtMatmulPreferenceAttributes_t which :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
      lt.preference_set(preference, which, &alignment, sizeof(alignment));
    // Sums over parts of k go through the workspace, in a fixed order.
    const uint32_t reductions =
        CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    lt.preference_set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                      sizeof(reductions));
    const bool tune = g.tune && !capturing(stream);
    cublasLtMatmulHeuristicResult_t results[kCandidates] = {};
    int found = 0;
    plan.ok = lt.heuristic(handle(), plan.desc, plan.a, plan.b, plan.c, plan.c, preference,
                           tune ? kCandidates : 1, results, &found) == CUBLAS_STATUS_SUCCESS &&
              found > 0;
    plan.algorithm = results[0].algo;
    if (plan.ok && found > 1) choose(g, plan, results, found, stream);
    lt.preference_destroy(preference);
  }

  // The fastest candidate. C itself takes the results unless they would be added to it.
  void choose(const Gemm& g, Plan& plan, const cublasLtMatmulHeuristicResult_t* results, int found,
              void* stream) {
    Stopwatch watch;
    if (!watch.start() || cudaStreamSynchronize(static_cast<cudaStream_t>(stream)) != cudaSuccess)
      return;
    void* c = g.c;
    if (g.accumulate) {
      const int64_t last = int64_t{g.m - 1} * g.ldc + g.n + (g.count - 1) * g.step_c;
      c = watch.allocate(static_cast<size_t>(last) * dtype_size(g.out_dtype));
      if (c == nullptr) return;
    }
    float best = -1.0f;
    for (int i = 0; i < found; ++i) {
      if (results[i].state != CUBLAS_STATUS_SUCCESS) continue;
      const float ms =
          watch.time([&](void* on) { return multiply(handle(), plan, results[i].algo, g, c, on); });
      // The earlier suggestion wins what the clock cannot tell apart.
      if (ms < 0.0f || (best >= 0.0f && ms > 0.985f * best)) continue;
      best = ms;
      plan.algorithm = results[i].algo;
    }
  }

  std::map<Key, Plan> plans_;
  cublasLtHandle_t handle_ = nullptr;
};

// Of the current device: handle and algorithms are a device's. Null: there is none.
Plans* plans() {
  constexpr int kMostDevices = 64;
  static std::array<Plans, kMostDevices> of_devices;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= kMostDevices) return nullptr;
  return &of_devices[static_cast<size_t>(device)];
}

}  // namespace

int gemm(const Gemm& g, void* stream) {
  if (g.accumulate && g.bias != nullptr) return kUnsupported;
  if (g.m <= 0 || g.n <= 0 || g.k <= 0 || g.count <= 0) return kUnsupported;
  const int own = persistent_gemm(g, stream);
  if (own != kUnsupported || g.tile.m > 0 || !library().ok) return own;
  Plans* const of_device = plans();
  if (of_device == nullptr) return kUnsupported;
  Plans& all = *of_device;
  const std::lock_guard<std::mutex> lock(all.mutex);
  const Plan* plan = all.get(g, stream);
  if (plan == nullptr) return kUnsupported;
  // The plan is shared by all calls of this shape; the bias is this call's.
  if (g.bias != nullptr)
    library().desc_set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g.bias, sizeof(g.bias));
  return multiply(all.handle(), *plan, plan->algorithm, g, g.c, stream);
}

}  // namespace aerie::kernels::cuda
