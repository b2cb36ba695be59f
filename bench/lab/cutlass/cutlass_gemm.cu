// CUTLASS 4.2 against gemm() (our persistent GEMM where it is chosen) and cuBLASLt, on the GEMMs of
// the step table: bf16, float32 sums, no bias. One line of JSON a shape and weight layout:
// microseconds, medians of runs that take turns, and the largest difference of CUTLASS's results
// from ours. bench/lab/cutlass/run builds and starts it; a GPU of compute capability 9.0 is needed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cutlass/cutlass.h>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cutlass/gemm/kernel/gemm_universal.hpp>
#include <cutlass/util/packed_stride.hpp>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include <cuda_runtime.h>

#include "aerie/kernels/gemm/gemm.h"

namespace {

using aerie::Dtype;
using cute::Int;
using cute::Shape;
namespace kernels = aerie::kernels;

void check(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "cutlass_gemm: %s\n", what.c_str());
  std::exit(1);
}
void check(cudaError_t error, const char* what) {
  check(error == cudaSuccess, std::string(what) + ": " + cudaGetErrorString(error));
}

struct Problem {
  int m, n, k;
  bool weight_nk;  // the weight is (N,K): fprop; otherwise (K,N): dgrad
  const cutlass::bfloat16_t *a, *b;
  cutlass::bfloat16_t* c;
};

using PingPong = cutlass::gemm::KernelTmaWarpSpecializedPingpong;
using Cooperative = cutlass::gemm::KernelTmaWarpSpecializedCooperative;
template <typename Schedule>
using EpilogueOf =
    std::conditional_t<std::is_same_v<Schedule, PingPong>, cutlass::epilogue::TmaWarpSpecialized,
                       cutlass::epilogue::TmaWarpSpecializedCooperative>;

template <typename LayoutB, typename Tile, typename Cluster, typename Schedule>
struct Cutlass {
  using Element = cutlass::bfloat16_t;
  using RowMajor = cutlass::layout::RowMajor;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Tile, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, void, RowMajor, 8, Element,
      RowMajor, 8, EpilogueOf<Schedule>>::CollectiveOp;
  using Mainloop = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Element, RowMajor, 8, Element, LayoutB,
      8, float, Tile, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(
          sizeof(typename Epilogue::SharedStorage))>,
      Schedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<Shape<int, int, int, int>, Mainloop, Epilogue,
                                                      cutlass::gemm::PersistentScheduler>;
  using Device = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  // Ready to run; empty where CUTLASS does not take the problem.
  static std::function<bool(cudaStream_t)> prepare(const Problem& p, int sms) {
    typename Device::Arguments arguments{
        cutlass::gemm::GemmUniversalMode::kGemm,
        {p.m, p.n, p.k, 1},
        {p.a, cutlass::make_cute_packed_stride(typename Kernel::StrideA{}, {p.m, p.k, 1}), p.b,
         cutlass::make_cute_packed_stride(typename Kernel::StrideB{}, {p.n, p.k, 1})},
        {{1.0f, 0.0f},
         nullptr,
         cutlass::make_cute_packed_stride(typename Kernel::StrideC{}, {p.m, p.n, 1}),
         p.c,
         cutlass::make_cute_packed_stride(typename Kernel::StrideD{}, {p.m, p.n, 1})}};
    arguments.hw_info.sm_count = sms;
    auto device = std::make_shared<Device>();
    if (device->can_implement(arguments) != cutlass::Status::kSuccess) return {};
    void* workspace = nullptr;
    check(cudaMalloc(&workspace, Device::get_workspace_size(arguments) + 16), "workspace");
    if (device->initialize(arguments, workspace) != cutlass::Status::kSuccess) return {};
    return [device](cudaStream_t s) { return device->run(s) == cutlass::Status::kSuccess; };
  }
};

struct Contender {
  std::string name;
  std::function<bool(cudaStream_t)> run;
  std::vector<float> us;
};

float time_us(const Contender& c, cudaStream_t stream, cudaEvent_t begin, cudaEvent_t end) {
  constexpr int kRepeats = 20;
  check(cudaEventRecord(begin, stream), "event");
  for (int i = 0; i < kRepeats; ++i) check(c.run(stream), c.name + " does not run");
  check(cudaEventRecord(end, stream), "event");
  check(cudaEventSynchronize(end), "run");
  float ms = 0.0f;
  check(cudaEventElapsedTime(&ms, begin, end), "event");
  return ms * 1000.0f / kRepeats;
}

float widen(uint16_t bits) {
  const uint32_t word = uint32_t{bits} << 16;
  float out;
  memcpy(&out, &word, 4);
  return out;
}

}  // namespace

int main() {
  cudaDeviceProp device;
  check(cudaGetDeviceProperties(&device, 0), "no GPU");
  check(device.major == 9 && device.minor == 0, "a GPU of compute capability 9.0 is needed");
  cudaStream_t stream;
  cudaEvent_t begin, end;
  check(cudaStreamCreate(&stream), "stream");
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  // Rows of 16 and 64 clips of 15 s; widths of NEST-L and NEST-XL.
  const int rows[] = {2816, 3008, 11264};
  const int nk[][2] = {{2048, 512},  {512, 2048},  {1536, 512},  {1024, 512}, {512, 512},
                       {4096, 1024}, {1024, 4096}, {3072, 1024}, {1024, 1024}};
  size_t most = 0;
  for (const int m : rows)
    for (const auto& s : nk)
      most = std::max({most, size_t(m) * s[0], size_t(m) * s[1], size_t(s[0]) * s[1]});
  std::vector<uint16_t> values(most);
  uint32_t state = 1;
  for (uint16_t& v : values) {
    state = state * 1664525u + 1013904223u;
    v = uint16_t(0x3c00u | (state >> 16 & 0x80ffu));  // +-0.008 to +-0.03
  }
  void *a, *b, *c, *workspace;
  constexpr size_t kWorkspace = 32u << 20;
  check(cudaMalloc(&a, most * 2), "memory");
  check(cudaMalloc(&b, most * 2), "memory");
  check(cudaMalloc(&c, most * 2), "memory");
  check(cudaMalloc(&workspace, kWorkspace), "memory");
  check(cudaMemcpy(a, values.data(), most * 2, cudaMemcpyHostToDevice), "copy");
  std::reverse(values.begin(), values.end());
  check(cudaMemcpy(b, values.data(), most * 2, cudaMemcpyHostToDevice), "copy");
  for (const int m : rows)
    for (const auto& s : nk)
      for (const bool weight_nk : {true, false}) {
        const auto typed = [](void* p) { return static_cast<cutlass::bfloat16_t*>(p); };
        const Problem p = {m, s[0], s[1], weight_nk, typed(a), typed(b), typed(c)};
        kernels::Gemm g;
        g.dtype = g.out_dtype = Dtype::kBF16;
        g.m = m;
        g.n = g.ldc = s[0];
        g.k = g.lda = s[1];
        g.a = a;
        g.b = b;
        g.c = c;
        g.transpose_b = weight_nk;
        g.ldb = weight_nk ? s[1] : s[0];
        g.workspace = workspace;
        g.workspace_bytes = kWorkspace;
        kernels::Gemm library = g;
        library.tile.rows = -1;
        std::vector<Contender> all;
        all.push_back(
            {"aerie", [g](cudaStream_t on) { return kernels::cuda::gemm(g, on) == 0; }, {}});
        all.push_back({"cublaslt",
                       [library](cudaStream_t on) { return kernels::cuda::gemm(library, on) == 0; },
                       {}});
        using Nk = cutlass::layout::ColumnMajor;
        using Kn = cutlass::layout::RowMajor;
        const int sms = device.multiProcessorCount;
#define AERIE_LAB_CASE(label, ...)                                      \
  if (auto run = weight_nk ? Cutlass<Nk, __VA_ARGS__>::prepare(p, sms)  \
                           : Cutlass<Kn, __VA_ARGS__>::prepare(p, sms)) \
    all.push_back({label, run, {}});
        using One = Shape<Int<1>, Int<1>, Int<1>>;
        using Two = Shape<Int<2>, Int<1>, Int<1>>;
        using Small = Shape<Int<64>, Int<128>, Int<64>>;
        using Large = Shape<Int<128>, Int<256>, Int<64>>;
        AERIE_LAB_CASE("cutlass_pingpong_64x128", Small, One, PingPong)
        AERIE_LAB_CASE("cutlass_cooperative_128x256_cluster2", Large, Two, Cooperative)
#ifdef AERIE_LAB_ALL
        using Medium = Shape<Int<128>, Int<128>, Int<64>>;
        AERIE_LAB_CASE("cutlass_pingpong_128x128", Medium, One, PingPong)
        AERIE_LAB_CASE("cutlass_pingpong_128x128_cluster2", Medium, Two, PingPong)
        AERIE_LAB_CASE("cutlass_cooperative_128x128_cluster2", Medium, Two, Cooperative)
#endif
        std::vector<uint16_t> ours(size_t(m) * s[0]), theirs(ours.size());
        double worst = 0.0;
        for (size_t i = 0; i < all.size(); ++i) {
          check(all[i].run(stream), all[i].name + " does not run");
          check(cudaStreamSynchronize(stream), all[i].name.c_str());
          std::vector<uint16_t>& to = i == 0 ? ours : theirs;
          check(cudaMemcpy(to.data(), c, to.size() * 2, cudaMemcpyDeviceToHost), "copy");
          for (size_t j = 0; i > 0 && j < ours.size(); ++j)
            worst = std::max(worst, double(std::fabs(widen(ours[j]) - widen(theirs[j]))));
        }
        for (int round = 0; round < 11; ++round)
          for (Contender& one : all) one.us.push_back(time_us(one, stream, begin, end));
        std::printf(
            "{\"m\": %d, \"n\": %d, \"k\": %d, \"weight\": \"%s\", \"largest_difference\": %g", m,
            s[0], s[1], weight_nk ? "nk" : "kn", worst);
        for (Contender& one : all) {
          std::nth_element(one.us.begin(), one.us.begin() + 5, one.us.end());
          std::printf(", \"%s_us\": %.2f", one.name.c_str(), one.us[5]);
        }
        std::printf("}\n");
        std::fflush(stdout);
      }
  return 0;
}
