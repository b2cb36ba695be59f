// A block takes eight vectors, so that the codebook is read from the cache once for eight. One warp
// projects each of them; then every thread goes through its share of the codes.
#include "aerie/kernels/device.h"
#include "aerie/kernels/quantizer/quantize.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr int kRows = 8;
constexpr int kThreads = kRows * 32;
constexpr float kClose = 1e-5f;

__device__ inline void dot_codes(const float* code, const float* y, int dim, float* dots) {
  AERIE_UNROLL
  for (int r = 0; r < kRows; ++r) dots[r] = 0.0f;
  for (int d = 0; d < dim; d += 4) {
    const Bits16 raw = *reinterpret_cast<const Bits16*>(code + d);
    float c[4];
    memcpy(c, raw.w, sizeof(c));
    AERIE_UNROLL
    for (int r = 0; r < kRows; ++r) AERIE_UNROLL
    for (int k = 0; k < 4; ++k) dots[r] += c[k] * y[r * dim + d + k];
  }
}

__global__ void __launch_bounds__(kThreads) quantize_kernel(Quantize a) {
  AERIE_DYNAMIC_SHARED(memory);
  float* y = reinterpret_cast<float*>(memory);  // (books, kRows, dim)
  AERIE_SHARED(float, best, kRows* kRows);      // per warp and row
  AERIE_SHARED(double, distances, kRows* kRows);
  AERIE_SHARED(int, winners, kRows* kRows);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = blockIdx.x * kRows;

  // Warp w projects vector w.
  {
    const int token = first + warp;
    int row = token < a.capacity ? token : -1;
    if (row >= 0 && a.rows != nullptr) row = a.rows[row];
    for (int book = 0; book < a.books; ++book) {
      float squares = 0.0f;
      for (int d = 0; d < a.dim; ++d) {
        float sum = 0.0f;
        if (row >= 0) {
          const float* x = a.features + size_t(row) * a.inputs;
          const float* w = a.projection + size_t(book * a.dim + d) * a.inputs;
          for (int i = lane; i < a.inputs; i += 32) sum += w[i] * x[i];
        }
        sum = warp_sum(sum);
        squares += sum * sum;
        if (lane == 0) y[(book * kRows + warp) * a.dim + d] = sum;
      }
      const float norm = fmaxf(sqrtf(squares), 1e-12f);
      __syncwarp();
      for (int d = lane; d < a.dim; d += 32) y[(book * kRows + warp) * a.dim + d] /= norm;
    }
  }
  __syncthreads();

  for (int book = 0; book < a.books; ++book) {
    const float* codes = a.codebooks_float + size_t(book) * a.classes * a.dim;
    const double* exact = a.codebooks + size_t(book) * a.classes * a.dim;
    const float* mine = y + book * kRows * a.dim;
    float top[kRows], dots[kRows];
    AERIE_UNROLL
    for (int r = 0; r < kRows; ++r) top[r] = -INFINITY;
    for (int c = threadIdx.x; c < a.classes; c += kThreads) {
      dot_codes(codes + size_t(c) * a.dim, mine, a.dim, dots);
      AERIE_UNROLL
      for (int r = 0; r < kRows; ++r) top[r] = fmaxf(top[r], dots[r]);
    }
    AERIE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      top[r] = warp_max(top[r]);
      if (lane == 0) best[r * kRows + warp] = top[r];
    }
    __syncthreads();
    double nearest[kRows];
    int winner[kRows];
    AERIE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      for (int w = 0; w < kRows; ++w) top[r] = fmaxf(top[r], best[r * kRows + w]);
      nearest[r] = INFINITY;
      winner[r] = 0x7fffffff;
    }
    for (int c = threadIdx.x; c < a.classes; c += kThreads) {
      dot_codes(codes + size_t(c) * a.dim, mine, a.dim, dots);
      AERIE_UNROLL
      for (int r = 0; r < kRows; ++r) {
        if (!(dots[r] >= top[r] - kClose)) continue;
        double squares = 0.0;
        for (int d = 0; d < a.dim; ++d) {
          const double off = double(mine[r * a.dim + d]) - exact[size_t(c) * a.dim + d];
          squares += off * off;
        }
        const double distance = sqrt(squares);
        if (distance < nearest[r]) {  // codes come in rising order: the first one wins
          nearest[r] = distance;
          winner[r] = c;
        }
      }
    }
    AERIE_UNROLL
    for (int r = 0; r < kRows; ++r) {
      AERIE_UNROLL
      for (int mask = 16; mask > 0; mask >>= 1) {
        const double distance = __shfl_xor_sync(kFullWarp, nearest[r], mask);
        const int other = __shfl_xor_sync(kFullWarp, winner[r], mask);
        if (distance < nearest[r] || (distance == nearest[r] && other < winner[r])) {
          nearest[r] = distance;
          winner[r] = other;
        }
      }
      if (lane == 0) {
        distances[r * kRows + warp] = nearest[r];
        winners[r * kRows + warp] = winner[r];
      }
    }
    __syncthreads();
    if (threadIdx.x < kRows && first + int(threadIdx.x) < a.capacity) {
      const int r = threadIdx.x, token = first + r;
      double distance = distances[r * kRows];
      int chosen = winners[r * kRows];
      for (int w = 1; w < kRows; ++w) {
        const double d = distances[r * kRows + w];
        const int c = winners[r * kRows + w];
        if (d < distance || (d == distance && c < chosen)) {
          distance = d;
          chosen = c;
        }
      }
      const bool wanted = a.rows == nullptr || a.rows[token] >= 0;
      a.tokens[token * a.books + book] = wanted && chosen < a.classes ? chosen : 0;
    }
    __syncthreads();
  }
}

}  // namespace

int quantize(const Quantize& a, void* stream) {
  if (a.capacity <= 0 || a.inputs <= 0 || a.books <= 0 || a.classes <= 0 || a.dim <= 0 ||
      a.dim % 4 != 0 || a.dim > 64)
    return kUnsupported;
  return launch(stream,
                {dim3(unsigned(ceil_div(a.capacity, kRows))), dim3(kThreads),
                 size_t(a.books) * kRows * a.dim * sizeof(float)},
                quantize_kernel, a);
}

}  // namespace aerie::kernels::AERIE_BACKEND
