// Three launches. The first projects and normalises, a thread per output. The second is a matrix
// product of vectors and codes of which only the largest value per vector and tile of codes is
// kept. The third goes through the tiles that hold the best value or one close to it, almost always
// a single one. Vectors that nobody asked for cost nothing but the look at their entry in the list.
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

// Four neighbours at a 16-byte boundary.
__device__ inline void load4(const float* p, float* out) {
  const Bits16 raw = *reinterpret_cast<const Bits16*>(p);
  memcpy(out, raw.w, 16);
}

constexpr int kProjectRows = 16;     // vectors per block
constexpr int kProjectOutputs = 16;  // at once
constexpr int kProjectThreads = kProjectRows * kProjectOutputs;
constexpr int kChunk = 320;  // inputs at once
constexpr int kChunkStride = kChunk + 4;

// A chunk of one row of `inputs` values into shared memory, by 16 neighbouring threads; zero behind
// its end and where there is no row.
__device__ inline void load_chunk(const float* row, int inputs, int first, float* out) {
  const int part = threadIdx.x % 16;
  if (row != nullptr && inputs % 4 == 0) {
    AERIE_UNROLL
    for (int i = 0; i < kChunk / 64; ++i) {
      const int at = (i * 16 + part) * 4;
      Bits16 raw = {};
      if (first + at < inputs) raw = *reinterpret_cast<const Bits16*>(row + first + at);
      *reinterpret_cast<Bits16*>(out + at) = raw;
    }
  } else {
    for (int at = part; at < kChunk; at += 16)
      out[at] = row != nullptr && first + at < inputs ? row[first + at] : 0.0f;
  }
}

// Thread (r, o) makes output o of vector r.
__global__ void __launch_bounds__(kProjectThreads) project_kernel(Quantize a) {
  AERIE_SHARED(float, vectors, kProjectRows* kChunkStride);
  AERIE_SHARED(float, weights, kProjectOutputs* kChunkStride);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first = blockIdx.x * kProjectRows;
  const int looked = row_of(a, first + lane % kProjectRows);
  if (__ballot_sync(kFullWarp, looked >= 0) == 0) return;  // the whole block
  const int r = threadIdx.x / 16, o = threadIdx.x % 16, outputs = a.books * a.dim;
  const int row = row_of(a, first + r);
  const float* x = row >= 0 ? a.features + size_t(row) * a.inputs : nullptr;
  for (int group = 0; group < outputs; group += kProjectOutputs) {
    const float* weight =
        group + r < outputs ? a.projection + size_t(group + r) * a.inputs : nullptr;
    float sums[4] = {};
    for (int chunk = 0; chunk < a.inputs; chunk += kChunk) {
      __syncthreads();  // the last chunk has been used
      load_chunk(x, a.inputs, chunk, vectors + r * kChunkStride);
      load_chunk(weight, a.inputs, chunk, weights + r * kChunkStride);
      __syncthreads();
      AERIE_UNROLL_BY(4)
      for (int i = 0; i < kChunk; i += 4) {
        float mine[4], w[4];
        load4(vectors + r * kChunkStride + i, mine);
        load4(weights + o * kChunkStride + i, w);
        AERIE_UNROLL
        for (int k = 0; k < 4; ++k) sums[k] += mine[k] * w[k];
      }
    }
    if (row >= 0 && group + o < outputs)
      vectors_of(a)[size_t(first + r) * outputs + group + o] =
          (sums[0] + sums[1]) + (sums[2] + sums[3]);
  }
  __syncthreads();
  // One warp per vector and book.
  for (int i = warp; i < kProjectRows * a.books; i += kProjectThreads / 32) {
    if (row_of(a, first + i / a.books) < 0) continue;
    float* y = vectors_of(a) + (size_t(first) * a.books + i) * a.dim;
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

constexpr int kSearchThreads = 128;
constexpr int kRows = 64;
constexpr int kTilesPerBlock = 2;
constexpr int kRowStride = kRows + 4, kCodeStride = kQuantizeTile + 4;

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
  if (a.silent_tokens != nullptr) {
    const bool sound =
        (lane < a.dim && y[lane] != 0.0f) || (lane + 32 < a.dim && y[lane + 32] != 0.0f);
    if (__ballot_sync(kFullWarp, sound) == 0) {
      if (lane == 0) a.tokens[number] = a.silent_tokens[book];
      return;
    }
  }
  float best = -INFINITY;
  for (int t = lane; t < tiles; t += 32) best = fmaxf(best, maxima[t]);
  best = warp_max(best) - kClose;
  if (!(best > -INFINITY)) {  // not a number: nothing is near
    if (lane == 0) a.tokens[number] = 0;
    return;
  }

  double nearest = INFINITY;
  int winner = 0x7fffffff;
  const auto consider = [&](int c) {
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
  constexpr int kPerLane = kQuantizeTile / 32;
  for (int chunk = 0; chunk < tiles; chunk += 32) {
    unsigned wanted =
        __ballot_sync(kFullWarp, chunk + lane < tiles && maxima[chunk + lane] >= best);
    for (int t = chunk; wanted != 0; ++t, wanted >>= 1) {
      if ((wanted & 1u) == 0) continue;
      const int begin = t * kQuantizeTile + lane;
      float dots[kPerLane] = {};
      AERIE_UNROLL_BY(2)
      for (int d = 0; d < a.dim; d += 4) {
        float mine[4];
        load4(y + d, mine);
        AERIE_UNROLL
        for (int k = 0; k < kPerLane; ++k) {
          const int c = begin + 32 * k;
          float code[4];
          load4(codes + size_t(c < a.classes ? c : 0) * a.dim + d, code);
          AERIE_UNROLL
          for (int i = 0; i < 4; ++i) dots[k] += code[i] * mine[i];
        }
      }
      AERIE_UNROLL
      for (int k = 0; k < kPerLane; ++k)
        if (begin + 32 * k < a.classes && dots[k] >= best) consider(begin + 32 * k);
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
  AERIE_TRY(launch(stream,
                   {dim3(unsigned(ceil_div(a.capacity, kProjectRows))), dim3(kProjectThreads)},
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
