// cuBLASLt, loaded at run time (torch brings the same library), one plan per shape and kept.
//
// Row-major C = op(A) op(B) is column-major C^T = op(B)^T op(A)^T: operands change places, their
// transposition does not. The bias then runs along the rows of C^T, as cuBLASLt's epilogue wants
// it.
#include <dlfcn.h>
#include <map>
#include <memory>
#include <mutex>
#include <tuple>

#include <cublasLt.h>

#include "aerie/kernels/gemm/gemm.h"

namespace aerie::kernels::cuda {
namespace {

struct Library {
  void* handle = nullptr;
  decltype(&cublasLtCreate) create = nullptr;
  decltype(&cublasLtMatmul) matmul = nullptr;
  decltype(&cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
  decltype(&cublasLtMatmulDescCreate) desc_create = nullptr;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy = nullptr;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set = nullptr;
  decltype(&cublasLtMatrixLayoutCreate) layout_create = nullptr;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create = nullptr;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy = nullptr;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set = nullptr;
  bool ok = false;

  template <typename F>
  bool find(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(handle, name));
    return function != nullptr;
  }
  Library() {
    handle = dlopen("libcublasLt.so.13", RTLD_NOW | RTLD_LOCAL);
    ok = handle != nullptr && find(create, "cublasLtCreate") && find(matmul, "cublasLtMatmul") &&
         find(heuristic, "cublasLtMatmulAlgoGetHeuristic") &&
         find(desc_create, "cublasLtMatmulDescCreate") &&
         find(desc_destroy, "cublasLtMatmulDescDestroy") &&
         find(desc_set, "cublasLtMatmulDescSetAttribute") &&
         find(layout_create, "cublasLtMatrixLayoutCreate") &&
         find(layout_destroy, "cublasLtMatrixLayoutDestroy") &&
         find(preference_create, "cublasLtMatmulPreferenceCreate") &&
         find(preference_destroy, "cublasLtMatmulPreferenceDestroy") &&
         find(preference_set, "cublasLtMatmulPreferenceSetAttribute");
  }
};

Library& library() {
  static Library instance;
  return instance;
}

cudaDataType_t data_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kFloat:
      return CUDA_R_32F;
    case Dtype::kBf16:
      return CUDA_R_16BF;
    case Dtype::kHalf:
      return CUDA_R_16F;
  }
  return CUDA_R_32F;
}

struct Plan {
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool ok = false;
};

using Key = std::tuple<int, int, int, int, int, int, int, int, size_t>;

class Plans {
 public:
  // Null when cuBLASLt has nothing for the shape.
  const Plan* get(const Gemm& g) {
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
                  g.workspace_bytes};
    auto [entry, fresh] = plans_.try_emplace(key);
    if (fresh) make(g, entry->second);
    return entry->second.ok ? &entry->second : nullptr;
  }
  cublasLtHandle_t handle() {
    if (handle_ == nullptr) library().create(&handle_);
    return handle_;
  }
  std::mutex mutex;

 private:
  void make(const Gemm& g, Plan& plan) {
    Library& lt = library();
    const cublasComputeType_t compute =
        g.dtype == Dtype::kFloat && g.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
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
                            int stride) {
      return lt.layout_create(out, data_type(dtype), static_cast<uint64_t>(rows),
                              static_cast<uint64_t>(columns), stride) == CUBLAS_STATUS_SUCCESS;
    };
    // Column-major shapes as stored: a row-major (r,c) matrix is (c,r).
    if (!layout(&plan.a, g.dtype, g.transpose_b ? g.k : g.n, g.transpose_b ? g.n : g.k, g.ldb) ||
        !layout(&plan.b, g.dtype, g.transpose_a ? g.m : g.k, g.transpose_a ? g.k : g.m, g.lda) ||
        !layout(&plan.c, g.out_dtype, g.n, g.m, g.ldc))
      return;
    cublasLtMatmulPreference_t preference = nullptr;
    if (lt.preference_create(&preference) != CUBLAS_STATUS_SUCCESS) return;
    lt.preference_set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &g.workspace_bytes,
                      sizeof(g.workspace_bytes));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    plan.ok = lt.heuristic(handle(), plan.desc, plan.a, plan.b, plan.c, plan.c, preference, 1,
                           &result, &found) == CUBLAS_STATUS_SUCCESS &&
              found > 0;
    plan.algorithm = result.algo;
    lt.preference_destroy(preference);
  }

  std::map<Key, Plan> plans_;
  cublasLtHandle_t handle_ = nullptr;
};

Plans& plans() {
  static Plans instance;
  return instance;
}

}  // namespace

int gemm(const Gemm& g, void* stream) {
  if (!library().ok || (g.accumulate && g.bias != nullptr)) return kUnsupported;
  if (g.m <= 0 || g.n <= 0 || g.k <= 0) return kUnsupported;
  Plans& all = plans();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const Plan* plan = all.get(g);
  if (plan == nullptr) return kUnsupported;
  // The plan is shared by all calls of this shape; the bias is this call's.
  if (g.bias != nullptr)
    library().desc_set(plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &g.bias, sizeof(g.bias));
  const float one = 1.0f, beta = g.accumulate ? 1.0f : 0.0f;
  const cublasStatus_t status = library().matmul(
      all.handle(), plan->desc, &one, g.b, plan->a, g.a, plan->b, &beta, g.c, plan->c, g.c, plan->c,
      &plan->algorithm, g.workspace, g.workspace_bytes, static_cast<cudaStream_t>(stream));
  return status == CUBLAS_STATUS_SUCCESS ? kOk : kUnsupported;
}

}  // namespace aerie::kernels::cuda
