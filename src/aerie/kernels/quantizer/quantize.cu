// Three launches. The first projects and normalises. The second is a matrix product of vectors and
// codes of which only the largest value per vector and tile of codes is kept. The third goes
// through the tiles that hold the best value or one close to it, almost always a single one.
// Vectors that nobody asked for cost nothing but the look at their entry in the list.
#include "aerie/kernels/device.h"
#include "aerie/kernels/quantizer/quantize.h"

namespace aerie::kernels::AERIE_BACKEND {
namespace {

constexpr float kClose = 1e-5f;

__device__ inline int row_of(const Quantize& a, int token) {
  if (token >= a.capacity) return -1;
  return a.rows != nullptr ? a.rows[token] : token;
}

__host__ __device__ inline int tiles_of(const Quantize& a) {
  return (a.classes + kQuantizeTile - 1) / kQuantizeTile;
}

// Scratch: normalised vectors (capacity, books, dim), then the tiles' maxima (capacity, books,
// tiles).
__device__ inline float* vectors_of(const Quantize& a) {
  return a.scratch;
}
__device__ inline float* maxima_of(const Quantize& a) {
  return a.scratch + size_t(a.capacity) * a.books * a.dim;
}

constexpr int kProjectThreads = 128;
constexpr int kPair = 2;    // vectors per warp
constexpr int kGroup = 16;  // outputs at once

// Adds up 32 values over the lanes of a warp: lane l gets the sum of everyone's value l.
template <int half = 16>
__device__ inline float transpose_sum(float* values, int lane) {
  const bool upper = (lane & half) != 0;
  AERIE_UNROLL
  for (int i = 0; i < half; ++i) {
    const float given = upper ? values[i] : values[i + half];
    const float kept = upper ? values[i + half] : values[i];
    values[i] = kept + __shfl_xor_sync(kFullWarp, given, half);
  }
  if constexpr (half > 1) return transpose_sum<half / 2>(values, lane);
  return values[0];
}

__global__ void __launch_bounds__(kProjectThreads) project_kernel(Quantize a) {
  const int lane = threadIdx.x % 32;
  const int token = (blockIdx.x * (kProjectThreads / 32) + threadIdx.x / 32) * kPair;
  int row[kPair];
  const float* x[kPair];
  AERIE_UNROLL
  for (int r = 0; r < kPair; ++r) {
    row[r] = row_of(a, token + r);
    x[r] = a.features + size_t(row[r] >= 0 ? row[r] : 0) * a.inputs;
  }
  if (row[0] < 0 && row[1] < 0) return;  // the whole warp
  const int outputs = a.books * a.dim;
  const int mine = token + lane / kGroup;  // whose value this lane stores
  float* out = vectors_of(a) + size_t(mine) * outputs;
  const bool wanted = (lane < kGroup ? row[0] : row[1]) >= 0;
  for (int first = 0; first < outputs; first += kGroup) {
    float sums[kPair * kGroup] = {};
    for (int i = lane; i < a.inputs; i += 32) {
      const float x0 = row[0] >= 0 ? x[0][i] : 0.0f, x1 = row[1] >= 0 ? x[1][i] : 0.0f;
      AERIE_UNROLL
      for (int d = 0; d < kGroup; ++d) {
        const int o = first + d < outputs ? first + d : first;
        const float weight = a.projection[size_t(o) * a.inputs + i];
        sums[d] += weight * x0;
        sums[kGroup + d] += weight * x1;
      }
    }
    const float sum = transpose_sum(sums, lane);
    const int o = first + lane % kGroup;
    if (wanted && o < outputs) out[o] = sum;
  }
  __syncwarp();
  AERIE_UNROLL
  for (int r = 0; r < kPair; ++r) {
    if (row[r] < 0) continue;
    for (int book = 0; book < a.books; ++book) {
      float* y = vectors_of(a) + (size_t(token + r) * a.books + book) * a.dim;
      float value[2] = {}, squares = 0.0f;
      AERIE_UNROLL
      for (int k = 0; k < 2; ++k) {
        if (lane + 32 * k < a.dim) value[k] = y[lane + 32 * k];
        squares += value[k] * value[k];
      }
      const float norm = fmaxf(sqrtf(warp_sum(squares)), 1e-12f);
      AERIE_UNROLL
      for (int k = 0; k < 2; ++k)
        if (lane + 32 * k < a.dim) y[lane + 32 * k] = value[k] / norm;
    }
  }
}

constexpr int kSearchThreads = 128;
constexpr int kRows = 64;
constexpr int kTilesPerBlock = 2;
constexpr int kRowStride = kRows + 4, kCodeStride = kQuantizeTile + 4;

// Eight neighbours (or two groups of four) from shared memory.
__device__ inline void load4(const float* p, float* out) {
  const Bits16 raw = *reinterpret_cast<const Bits16*>(p);
  memcpy(out, raw.w, 16);
}

// A thread compares 8 vectors with 8 codes of every tile.
__global__ void __launch_bounds__(kSearchThreads) search_kernel(Quantize a) {
  AERIE_DYNAMIC_SHARED(memory);
  float* y = reinterpret_cast<float*>(memory);  // (dim, kRowStride)
  float* codes = y + a.dim * kRowStride;        // (dim, kCodeStride)
  const int lane = threadIdx.x % 32, first = blockIdx.y * kRows, book = blockIdx.z;
  const bool one = row_of(a, first + lane) >= 0, two = row_of(a, first + 32 + lane) >= 0;
  if (__ballot_sync(kFullWarp, one || two) == 0) return;  // the whole block

  const float* vectors = vectors_of(a);
  for (int i = threadIdx.x; i < kRows * a.dim / 4; i += kSearchThreads) {
    const int r = i % kRows, d = i / kRows * 4;
    float value[4] = {};
    if (row_of(a, first + r) >= 0)
      load4(vectors + (size_t(first + r) * a.books + book) * a.dim + d, value);
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) y[(d + k) * kRowStride + r] = value[k];
  }
  const int tiles = tiles_of(a);
  const int row_group = threadIdx.x / 16 * 8, column = threadIdx.x % 16 * 4;
  for (int tile = blockIdx.x * kTilesPerBlock;
       tile < tiles && tile < (int(blockIdx.x) + 1) * kTilesPerBlock; ++tile) {
    const int begin = tile * kQuantizeTile;
    __syncthreads();  // the last tile has been used
    for (int i = threadIdx.x; i < kQuantizeTile * a.dim / 4; i += kSearchThreads) {
      const int c = i % kQuantizeTile, d = i / kQuantizeTile * 4;
      float value[4] = {};
      if (begin + c < a.classes)
        load4(a.codebooks_float + (size_t(book) * a.classes + begin + c) * a.dim + d, value);
      AERIE_UNROLL
      for (int k = 0; k < 4; ++k) codes[(d + k) * kCodeStride + c] = value[k];
    }
    __syncthreads();
    float dots[8][8] = {};
    AERIE_UNROLL_BY(4)
    for (int d = 0; d < a.dim; ++d) {
      float rows[8], columns[8];
      load4(y + d * kRowStride + row_group, rows);
      load4(y + d * kRowStride + row_group + 4, rows + 4);
      load4(codes + d * kCodeStride + column, columns);
      load4(codes + d * kCodeStride + column + 64, columns + 4);
      AERIE_UNROLL
      for (int r = 0; r < 8; ++r) AERIE_UNROLL
      for (int c = 0; c < 8; ++c) dots[r][c] += rows[r] * columns[c];
    }
    float best[8];
    AERIE_UNROLL
    for (int r = 0; r < 8; ++r) {
      best[r] = -INFINITY;
      AERIE_UNROLL
      for (int c = 0; c < 8; ++c) {
        const bool real = begin + column + c % 4 + c / 4 * 64 < a.classes;
        best[r] = real ? fmaxf(best[r], dots[r][c]) : best[r];
      }
    }
    // Maximum over 16 lanes; every second step halves the rows a lane is in charge of.
    AERIE_UNROLL
    for (int half = 4; half > 0; half >>= 1) {
      const bool upper = (lane & half) != 0;
      AERIE_UNROLL
      for (int i = 0; i < half; ++i) {
        const float given = upper ? best[i] : best[i + half];
        const float kept = upper ? best[i + half] : best[i];
        best[i] = fmaxf(kept, __shfl_xor_sync(kFullWarp, given, half));
      }
    }
    const float most = fmaxf(best[0], __shfl_xor_sync(kFullWarp, best[0], 8));
    const int token = first + row_group + lane % 8;
    if (lane % 16 < 8 && token < a.capacity)
      maxima_of(a)[(size_t(token) * a.books + book) * tiles + tile] = most;
  }
}

constexpr int kDecideThreads = 128;

struct alignas(16) TwoDoubles {
  double v[2];
};

// One warp per vector and book.
__global__ void __launch_bounds__(kDecideThreads) decide_kernel(Quantize a) {
  const int lane = threadIdx.x % 32;
  const int number = blockIdx.x * (kDecideThreads / 32) + threadIdx.x / 32;
  const int token = number / a.books, book = number % a.books;
  if (token >= a.capacity) return;  // the whole warp
  if (row_of(a, token) < 0) {
    if (lane == 0) a.tokens[number] = 0;
    return;
  }
  const int tiles = tiles_of(a);
  const float* maxima = maxima_of(a) + size_t(number) * tiles;
  const float* y = vectors_of(a) + size_t(number) * a.dim;
  const float* codes = a.codebooks_float + size_t(book) * a.classes * a.dim;
  const double* exact = a.codebooks + size_t(book) * a.classes * a.dim;
  float best = -INFINITY;
  for (int t = lane; t < tiles; t += 32) best = fmaxf(best, maxima[t]);
  best = warp_max(best) - kClose;

  double nearest = INFINITY;
  int winner = 0x7fffffff;
  const auto consider = [&](int c) {
    if (c >= a.classes) return;
    float dot = 0.0f;
    AERIE_UNROLL_BY(4)
    for (int d = 0; d < a.dim; d += 4) {
      float code[4], mine[4];
      load4(codes + size_t(c) * a.dim + d, code);
      load4(y + d, mine);
      AERIE_UNROLL
      for (int k = 0; k < 4; ++k) dot += code[k] * mine[k];
    }
    if (!(dot >= best)) return;
    double squares = 0.0;
    AERIE_UNROLL_BY(4)
    for (int d = 0; d < a.dim; d += 2) {
      const TwoDoubles code = *reinterpret_cast<const TwoDoubles*>(exact + size_t(c) * a.dim + d);
      const double one = double(y[d]) - code.v[0], two = double(y[d + 1]) - code.v[1];
      squares += one * one;
      squares += two * two;
    }
    const double distance = sqrt(squares);
    if (distance < nearest) {  // codes come in rising order: the first one wins
      nearest = distance;
      winner = c;
    }
  };
  for (int chunk = 0; chunk < tiles; chunk += 32) {
    unsigned wanted =
        __ballot_sync(kFullWarp, chunk + lane < tiles && maxima[chunk + lane] >= best);
    for (int t = 0; wanted != 0; ++t, wanted >>= 1) {
      if ((wanted & 1u) == 0) continue;
      AERIE_UNROLL
      for (int k = 0; k < kQuantizeTile / 32; ++k)
        consider((chunk + t) * kQuantizeTile + k * 32 + lane);
    }
  }
  AERIE_UNROLL
  for (int mask = 16; mask > 0; mask >>= 1) {
    const double distance = __shfl_xor_sync(kFullWarp, nearest, mask);
    const int other = __shfl_xor_sync(kFullWarp, winner, mask);
    if (distance < nearest || (distance == nearest && other < winner)) {
      nearest = distance;
      winner = other;
    }
  }
  if (lane == 0) a.tokens[number] = winner < a.classes ? winner : 0;
}

}  // namespace

int quantize(const Quantize& a, void* stream) {
  if (a.capacity <= 0 || a.inputs <= 0 || a.books <= 0 || a.books > 65535 || a.classes <= 0 ||
      a.dim <= 0 || a.dim % 4 != 0 || a.dim > 64)
    return kUnsupported;
  AERIE_TRY(launch(
      stream,
      {dim3(unsigned(ceil_div(a.capacity, kProjectThreads / 32 * kPair))), dim3(kProjectThreads)},
      project_kernel, a));
  const int tiles = tiles_of(a);
  AERIE_TRY(launch(stream,
                   {dim3(unsigned(ceil_div(tiles, kTilesPerBlock)),
                         unsigned(ceil_div(a.capacity, kRows)), unsigned(a.books)),
                    dim3(kSearchThreads), sizeof(float) * a.dim * (kRowStride + kCodeStride)},
                   search_kernel, a));
  return launch(
      stream,
      {dim3(unsigned(ceil_div(a.capacity * a.books, kDecideThreads / 32))), dim3(kDecideThreads)},
      decide_kernel, a);
}

}  // namespace aerie::kernels::AERIE_BACKEND
