// Attention on tensor cores (bf16, fp16), included by attention's .cu files alone: what forward and
// backward share.
//
// A block of four warps takes 64 queries of one head and walks over tiles of 64 keys, the next tile
// being copied while the current one is used. Tiles are numbered: query tile `it` and key tile `jt`
// see the 128 rows of R whose relative position j - i begins at 64 * (jt - it - 1), so the next key
// tile needs 64 new ones. A warp's 16 queries see 79 of the 128; the position term of 80 rows is
// made like any other and rel-shifted by shuffles, row r by r columns: inside an 8x8 matrix a row
// is held by four lanes. GEMMs with whole tiles are wgmma where there are 64 values per head, in
// backward also of panels of 64 (attention_panels.h); operands that they share stay in shared
// memory then.
#pragma once

#include "aerie/kernels/attention/attention.h"
#include "aerie/kernels/cuda/cp_async.h"
#include "aerie/kernels/cuda/named_barrier.h"
#include "aerie/kernels/cuda/wgmma.h"
#include "aerie/kernels/device.h"

namespace aerie::kernels::AERIE_BACKEND {

constexpr int kTile = kAttentionTile;
constexpr int kMmaWarps = 4;
constexpr int kMmaThreads = kMmaWarps * 32;
constexpr int kBandBlocks = 80 / 8;  // 8-row pieces of R per warp and tile
constexpr float kLog2E = 1.4426950408889634f;

template <int kDim>
constexpr int kTileSize = kTile* kDim;  // values

// Heads have kDim values, which the compiler knows, or are padded: they have fewer in memory, a
// multiple of 4 (Attention::dim). Tiles have zeros in the other columns; heads and rows begin at
// multiples of 8 bytes, and move in pieces of 8.
template <int kDim, bool kPadded>
__device__ inline int head_dim(const Attention& a) {
  return kPadded ? a.dim : kDim;
}

// 64 rows from row `first` of a matrix into a tile; zero outside [0, limit). A row's 16-byte pieces
// are stored in an order that depends on the row, against bank conflicts. dim: columns that exist.
template <int kDim, bool kPadded, typename T>
__device__ inline void copy_tile(T* tile, const T* from, int first, int limit, int stride,
                                 [[maybe_unused]] int dim) {
  constexpr unsigned kValues = kPadded ? 4 : 8;                                // of a piece
  constexpr unsigned kPieces = kDim / kValues, kRows = kMmaThreads / kPieces;  // at a time
  const unsigned thread = threadIdx.x % kMmaThreads, row = thread / kPieces,
                 piece = thread % kPieces;
  const int begin = first + int(row);
  const T* source = from + ptrdiff_t(begin) * stride + piece * kValues;
  if constexpr (kPadded) {
    const bool exists = int(piece * kValues) < dim;
    AERIE_UNROLL
    for (unsigned e = 0; e < kTile / kRows; ++e) {
      const unsigned at = e * kRows + row;
      cp_async8(tile + at * kDim + (piece / 2 ^ at % 8) * 8 + piece % 2 * 4,
                source + ptrdiff_t(e * kRows) * stride,
                exists && unsigned(begin + int(e * kRows)) < unsigned(limit));
    }
  } else {
    T* to = tile + row * kDim + (piece ^ row % 8) * 8;
    AERIE_UNROLL
    for (unsigned e = 0; e < kTile / kRows; ++e) {
      const bool inside = unsigned(begin + int(e * kRows)) < unsigned(limit);
      cp_async16(to + e * kRows * kDim, source + ptrdiff_t(e * kRows) * stride, inside);
    }
  }
}

// A of rows [row, row + 16) and columns [16k, 16k + 16); row is a multiple of 8 here and below.
template <int kDim, typename T>
__device__ inline FragmentA load_a(const T* tile, int row, int k, int lane) {
  const Bits16 m = ldmatrix_x4<false>(shared_address(tile) + (row + lane % 16) * (2 * kDim) +
                                      ((lane / 16 ^ lane % 8) ^ 2 * k) * 16);
  return {{m.w[0], m.w[1], m.w[2], m.w[3]}};
}
// B whose columns are the eight rows from an address on: two steps of 16, from 32k on.
template <int kDim>
__device__ inline Bits16 load_b(SharedAddress rows, int k, int lane) {
  return ldmatrix_x4<false>(rows + (lane % 8 * (2 * kDim) + ((lane / 8 ^ lane % 8) ^ 4 * k) * 16));
}
// B whose rows are the 16 rows from an address on: columns [16n, 16n + 8) and the next 8.
template <int kDim>
__device__ inline Bits16 load_b_transposed(SharedAddress rows, int n, int lane) {
  return ldmatrix_x4<true>(rows + (lane % 16 * (2 * kDim) + ((lane / 16 ^ lane % 8) ^ 2 * n) * 16));
}
__device__ inline FragmentB first_of(const Bits16& m) {
  return {{m.w[0], m.w[1]}};
}
__device__ inline FragmentB second_of(const Bits16& m) {
  return {{m.w[2], m.w[3]}};
}

// c (16x8) += a (16 x kDim) * eight rows, transposed.
template <int kDim, typename T>
__device__ inline void multiply_rows(FragmentC& c, const FragmentA* a, SharedAddress rows,
                                     int lane) {
  AERIE_UNROLL
  for (int k = 0; k < kDim / 32; ++k) {
    const Bits16 b = load_b<kDim>(rows, k, lane);
    mma<T>(c, a[2 * k], first_of(b));
    mma<T>(c, a[2 * k + 1], second_of(b));
  }
}
template <int kDim, typename T>
__device__ inline void multiply_rows(FragmentC& c, const FragmentA* a, const T* tile, int row,
                                     int lane) {
  multiply_rows<kDim, T>(c, a, shared_address(tile) + row * (2 * kDim), lane);
}
// c (16 x kDim) += a (16x16) * 16 rows.
template <int kDim, typename T>
__device__ inline void multiply_columns(FragmentC* c, const FragmentA& a, SharedAddress rows,
                                        int lane) {
  AERIE_UNROLL
  for (int n = 0; n < kDim / 16; ++n) {
    const Bits16 b = load_b_transposed<kDim>(rows, n, lane);
    mma<T>(c[2 * n], a, first_of(b));
    mma<T>(c[2 * n + 1], a, second_of(b));
  }
}

// GEMMs with a whole tile that the warps of a block make together (wgmma.h), begun here and ready
// behind wgmma_wait_all<kDim>(); where the device has none, every warp makes its own at once.
// Without kAdd, what c had is forgotten. c (16x64) += a (16 x kDim) * the tile's 64 rows,
// transposed.
template <int kDim, bool kAdd = true, typename T>
__device__ inline void group_rows(FragmentC* c, const FragmentA* a, const T* tile, int lane) {
  if constexpr (kHaveWgmma && kUsesWgmma<kDim>) {
    const uint64_t b = smem_descriptor(tile);
    wgmma_m64n64k16<T, false, kAdd>(c, a[0], b);
    AERIE_UNROLL
    for (int k = 1; k < kDim / 16; ++k) wgmma_m64n64k16<T, false>(c, a[k], b + 2 * k);
  } else {
    AERIE_UNROLL
    for (int n = 0; n < kTile / 8; ++n) {
      if (!kAdd) c[n] = {};
      multiply_rows<kDim>(c[n], a, tile, n * 8, lane);
    }
  }
}
// The same with a = the warp's 16 rows of `left`.
template <int kDim, bool kAdd = true, typename T>
__device__ inline void group_rows(FragmentC* c, const T* left, const T* tile, int warp, int lane) {
  if constexpr (kHaveWgmma && kUsesWgmma<kDim>) {
    const uint64_t a = smem_descriptor(left), b = smem_descriptor(tile);
    wgmma_m64n64k16<T, false, kAdd>(c, a, b);
    AERIE_UNROLL
    for (int k = 1; k < kDim / 16; ++k) wgmma_m64n64k16<T>(c, a + 2 * k, b + 2 * k);
  } else {
    FragmentA rows[kDim / 16];
    AERIE_UNROLL
    for (int k = 0; k < kDim / 16; ++k) rows[k] = load_a<kDim>(left, warp * 16, k, lane);
    group_rows<kDim, kAdd>(c, rows, tile, lane);
  }
}
// c (16 x kDim) += a (16x64) * the tile's 64 rows.
template <int kDim, typename T>
__device__ inline void group_columns(FragmentC* c, const FragmentA* a, const T* tile, int lane) {
  if constexpr (kHaveWgmma && kUsesWgmma<kDim>) {
    const uint64_t b = smem_descriptor(tile);
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k) wgmma_m64n64k16<T, true>(c, a[k], b + k * (2048 >> 4));
  } else {
    AERIE_UNROLL
    for (int k = 0; k < kTile / 16; ++k)
      multiply_columns<kDim, T>(c, a[k], shared_address(tile) + k * (32 * kDim), lane);
  }
}

// A warp's 16 queries as A, from a tile.
template <int kDim, typename T>
__device__ inline void load_queries(FragmentA* a, const T* tile, int warp, int lane) {
  AERIE_UNROLL
  for (int k = 0; k < kDim / 16; ++k) a[k] = load_a<kDim>(tile, warp * 16, k, lane);
}
// The other way; the warp may have read the same rows before.
template <int kDim, typename T>
__device__ inline void store_queries(T* tile, const FragmentA* a, int warp, int lane) {
  __syncwarp();
  AERIE_UNROLL
  for (int k = 0; k < kDim / 16; ++k) AERIE_UNROLL
  for (int r = 0; r < 4; ++r) {
    const int row = warp * 16 + lane / 4 + r % 2 * 8, piece = 2 * k + r / 2;
    memcpy(tile + row * kDim + (piece ^ row % 8) * 8 + lane % 4 * 2, &a[k].r[r], 4);
  }
}
template <typename T>
__device__ inline FragmentB ones() {
  const uint32_t pair = is_half<T> ? 0x3c003c00u : 0x3f803f80u;
  return {{pair, pair}};
}
// What a lane adds to its values of A: a bias per column.
struct alignas(8) Pair {
  float low, high;
};
// Two floats, which are those of `column` and the next: zeros where a padded head has none.
template <bool kPadded>
__device__ inline Pair load_pair(const float* at, [[maybe_unused]] int column,
                                 [[maybe_unused]] int dim) {
  if (kPadded && column >= dim) return {0.0f, 0.0f};
  return *reinterpret_cast<const Pair*>(at);
}
// Eight values, from `column` on; of a padded head those that exist, and zeros.
template <bool kPadded, typename T>
__device__ inline Bits16 load_columns(const T* at, [[maybe_unused]] int column,
                                      [[maybe_unused]] int dim) {
  if constexpr (kPadded) {
    Bits8 low = {}, high = {};
    if (column < dim) low = *reinterpret_cast<const Bits8*>(at);
    if (column + 4 < dim) high = *reinterpret_cast<const Bits8*>(at + 4);
    return {{low.w[0], low.w[1], high.w[0], high.w[1]}};
  } else {
    return *reinterpret_cast<const Bits16*>(at);
  }
}
template <int kDim, bool kPadded>
struct Bias {
  Pair v[kDim / 8];
  __device__ Bias(const float* bias, int lane, [[maybe_unused]] int dim) {
    AERIE_UNROLL
    for (int n = 0; n < kDim / 8; ++n) {
      const int column = n * 8 + lane % 4 * 2;
      v[n] = load_pair<kPadded>(bias + column, column, dim);
    }
  }
  // out = a + bias, rounded again.
  template <typename T>
  __device__ void add(FragmentA* out, const FragmentA* a) const {
    AERIE_UNROLL
    for (int k = 0; k < kDim / 16; ++k) AERIE_UNROLL
    for (int r = 0; r < 4; ++r) {
      const Pair more = v[2 * k + r / 2];
      out[k].r[r] = pack<T>(low_of<T>(a[k].r[r]) + more.low, high_of<T>(a[k].r[r]) + more.high);
    }
  }
};

// The rel-shift: row g of every 8x8 matrix moves by g columns.
struct RelShift {
  int lower, upper;      // source lanes of the two shuffles, to the right
  int lower_l, upper_l;  // to the left
  bool odd;              // columns change parity
  bool near0, near1;     // moving right, my columns stay within their matrix
  bool near_l, far_l;    // moving left
  uint32_t selector;
};
__device__ inline RelShift rel_shift_of(int lane) {
  const int g = lane / 4, t = lane % 4, quad = lane - t;
  RelShift s;
  s.lower = quad + ((t - (g + 1) / 2) & 3);
  s.upper = quad + ((t - g / 2) & 3);
  s.lower_l = quad + ((t + g / 2) & 3);
  s.upper_l = quad + ((t + (g + 1) / 2) & 3);
  s.odd = g % 2 != 0;
  s.near0 = 2 * t + g <= 7;
  s.near1 = 2 * t + 1 + g <= 7;
  s.near_l = t >= g / 2;
  s.far_l = t >= (g + 1) / 2;
  s.selector = s.odd ? 0x5432u : 0x3210u;
  return s;
}
// The matrix [before, here] seen g columns to the left: out's column c is column c - g of `here`.
__device__ inline void shift_right(const RelShift& s, float before0, float before1, float here0,
                                   float here1, float& out0, float& out1) {
  const float a = s.near0 ? here0 : before0, b = s.near1 ? here1 : before1;
  out0 = __shfl_sync(kFullWarp, s.odd ? b : a, s.lower);
  out1 = __shfl_sync(kFullWarp, s.odd ? a : b, s.upper);
}
// Of [here, after]: out's column c is column c + g of `here`. Pairs of bf16.
__device__ inline uint32_t shift_left(const RelShift& s, uint32_t here, uint32_t after) {
  const uint32_t a = __shfl_sync(kFullWarp, s.near_l ? here : after, s.lower_l);
  const uint32_t b = __shfl_sync(kFullWarp, s.far_l ? here : after, s.upper_l);
  return byte_perm(a, b, s.selector);
}

// The band of R that a warp sees: 80 rows of a ring of tiles.
template <int kDim, int kRing = 3>
struct Band {
  SharedAddress low, high;  // the first row; the same a ring earlier, for rows that begin it again
  int wrap;                 // how many rows lie before the end of the ring

  __device__ Band(const void* ring, int first)
      : low(shared_address(ring) + first * (2 * kDim)),
        high(low - 2 * kRing * kTileSize<kDim>),
        wrap(kRing * kTile - first) {}
  // Rows from `offset`, a multiple of 8, on.
  __device__ SharedAddress at(int offset) const {
    return (offset < wrap ? low : high) + offset * (2 * kDim);
  }
};

// The position term of a warp's S, eight keys after the other.
template <typename T, int kDim, int kRing = 3>
struct PositionTerm {
  const FragmentA* q_v;
  Band<kDim, kRing> band;
  RelShift rel_shift;
  int lane;
  FragmentC here, lower;  // GEMM with the last eight rows; lower rows of the next scores

  __device__ PositionTerm(const FragmentA* queries, const Band<kDim, kRing>& rows,
                          const RelShift& s, int l)
      : q_v(queries), band(rows), rel_shift(s), lane(l), here{}, lower{} {
    multiply_rows<kDim, T>(here, q_v, band.at(0), lane);
    step(1);
  }
  // Of keys [8n, 8n + 8), n = 0 to 7 in turn. Row r, key jj is row jj - r + 16 of the band.
  __device__ FragmentC scores(int n) {
    FragmentC out = {{0.0f, 0.0f, lower.v[2], lower.v[3]}};
    const FragmentC before = step(n + 2);
    shift_right(rel_shift, before.v[0], before.v[1], here.v[0], here.v[1], out.v[0], out.v[1]);
    return out;
  }

 private:
  __device__ FragmentC step(int n) {
    const FragmentC before = here;
    here = {};
    multiply_rows<kDim, T>(here, q_v, band.at(n * 8), lane);
    if (n < kBandBlocks - 1)
      shift_right(rel_shift, before.v[2], before.v[3], here.v[2], here.v[3], lower.v[2],
                  lower.v[3]);
    return before;
  }
};

// Keys that query i sees; tiles of keys that the queries of a tile see. Both ends grow with i.
struct KeyRange {
  int first, end;
};
__device__ inline KeyRange keys_of(const Attention& a, int length, int i) {
  if (i >= length) i = length - 1;
  if (a.chunk > 0) {
    const int chunk = i / a.chunk;
    const int end = (chunk + 1) * a.chunk;
    return {chunk > a.left_chunks ? (chunk - a.left_chunks) * a.chunk : 0,
            end < length ? end : length};
  }
  return {a.left >= 0 && i > a.left ? i - a.left : 0,
          a.right >= 0 && a.right < length - i ? i + a.right + 1 : length};
}
struct KeyTiles {
  int first, end;   // tiles that are visited
  int open, close;  // keys [open, close) are seen by every query: tiles inside need no mask
};
__device__ inline KeyTiles tiles_of(const Attention& a, int length, int it) {
  if (it * kTile >= length) return {0, 0, 0, 0};
  if (a.left < 0 && a.right < 0 && a.chunk == 0) return {0, ceil_div(length, kTile), 0, length};
  const KeyRange top = keys_of(a, length, it * kTile);
  const KeyRange bottom = keys_of(a, length, it * kTile + kTile - 1);
  return {top.first / kTile, ceil_div(bottom.end, kTile), bottom.first, top.end};
}
// Sets what the two rows of a lane do not see of tile jt to -infinity.
__device__ inline void mask_tile(FragmentC* scores, const KeyRange* seen, int jt, int lane) {
  AERIE_UNROLL
  for (int r = 0; r < 2; ++r) {
    const int offset = jt * kTile + lane % 4 * 2 - seen[r].first;
    const unsigned count = unsigned(seen[r].end - seen[r].first);
    AERIE_UNROLL
    for (int n = 0; n < kTile / 8; ++n) AERIE_UNROLL
    for (int e = 0; e < 2; ++e)
      if (unsigned(offset + n * 8 + e) >= count) scores[n].v[2 * r + e] = -INFINITY;
  }
}

// Decisions about a warp's 16 x 64 values, a bit per value: bit 8e + 7 - n of a lane belongs to
// value e of its C tile n, so that shifting by n brings those of one tile to the signs of the
// bytes. pair_mask turns the two of row r of tile n into a mask for a register of two values.
__device__ inline uint32_t pair_mask(uint32_t bits, int n, int r) {
  return byte_perm(bits << n, 0, r == 0 ? 0x9988u : 0xbbaau);
}
__device__ inline bool bit_of(uint32_t bits, int n, int e) {
  return (bits >> (8 * e + 7 - n) & 1u) != 0;
}

// Draws of dropout for a warp's values from (i, j) on. The eight columns of a row of a C tile are
// one Philox block. Of the four lanes that share two rows, the first two draw for the upper row and
// the others for the lower one, the even lanes for C tiles 0 to 3 and the odd ones for 4 to 7.
struct KeepDraw {
  PhiloxKey key;
  uint64_t position;
  uint32_t site, number, limit;
  uint32_t low, high;  // decisions for lanes 0 and 1, and 2 and 3, of the four

  KeepDraw() = default;
  __device__ KeepDraw(const Dropout& dropout, int item, int head, int i, int lane) {
    const RandomState& state = *dropout.state;
    key = state.dropout_key;
    position = item_position(state, uint64_t(item));
    site = dropout.site;
    number = (uint32_t(head) << 23) + (uint32_t(i + lane / 4 + lane % 4 / 2 * 8) << 10) +
             uint32_t(lane % 2 * 4);
    limit = dropout_limit(dropout);
    low = high = 0;
  }
  // All of tile jt; together, because the blocks share the keys of the rounds.
  __device__ void draw(int jt) {
    PhiloxBlock block[4];
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k)
      block[k] = {{number + uint32_t(jt * (kTile / 8) + k), site, uint32_t(position),
                   uint32_t(position >> 32)}};
    PhiloxKey round_key = key;
    AERIE_UNROLL
    for (int round = 0; round < kPhiloxRounds; ++round) {
      AERIE_UNROLL
      for (int k = 0; k < 4; ++k) philox_round(block[k], round_key);
      round_key = philox_next_key(round_key);
    }
    // Word c is for lane c of the four: byte h of its two bytes is half h, bit 7 - k is C tile k.
    low = high = 0;
    AERIE_UNROLL
    for (int k = 0; k < 4; ++k) AERIE_UNROLL
    for (int half = 0; half < 4; ++half) {
      const uint32_t bit = 1u << (8 * half + 7 - k);
      low |= half_above(block[k].v[half / 2], half % 2, limit) ? bit : 0u;
      high |= half_above(block[k].v[2 + half / 2], half % 2, limit) ? bit : 0u;
    }
  }
  // Decisions as pair_mask reads them: hands over what others need, the two rows first.
  __device__ uint32_t finish(int lane) const {
    const bool odd = lane % 2 != 0, second = lane % 4 >= 2;
    const uint32_t mine = second ? high : low;
    const uint32_t other = __shfl_xor_sync(kFullWarp, second ? low : high, 2);
    const uint32_t upper = second ? other : mine, lower = second ? mine : other;
    const uint32_t first = byte_perm(upper, lower, 0x5410u);  // of the even lane
    const uint32_t last = byte_perm(upper, lower, 0x7632u);
    const uint32_t more = __shfl_xor_sync(kFullWarp, odd ? first : last, 1);
    return odd ? more | last >> 4 : first | more >> 4;
  }
};

__device__ inline float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, 1));
  return fmaxf(x, __shfl_xor_sync(kFullWarp, x, 2));
}
__device__ inline float quad_sum(float x) {
  x += __shfl_xor_sync(kFullWarp, x, 1);
  return x + __shfl_xor_sync(kFullWarp, x, 2);
}

// factor * rowsum(a * b), delta where these are dO and O, for a warp's 16 rows of two matrices in
// device memory, of which `valid` exist: on their way first, then sums[0, 16).
template <typename T, int kDim, bool kPadded>
struct RowDelta {
  static constexpr int kRowPieces = kDim / 8, kRows = 32 / kRowPieces;  // at a time
  Bits16 x[16 / kRows] = {}, y[16 / kRows] = {};
  __device__ void load(const T* a, const T* b, int valid, int stride, int lane, int dim) {
    AERIE_UNROLL
    for (int e = 0; e < 16 / kRows; ++e) {
      const int row = e * kRows + lane / kRowPieces;
      const size_t at = size_t(row < valid ? row : valid - 1) * stride + lane % kRowPieces * 8;
      x[e] = load_columns<kPadded>(a + at, lane % kRowPieces * 8, dim);
      y[e] = load_columns<kPadded>(b + at, lane % kRowPieces * 8, dim);
    }
  }
  // Of row e * kRows + lane / kRowPieces.
  __device__ float sum_of(int e) const {
    float sum = 0.0f;
    AERIE_UNROLL
    for (int w = 0; w < 4; ++w)
      sum += low_of<T>(x[e].w[w]) * low_of<T>(y[e].w[w]) +
             high_of<T>(x[e].w[w]) * high_of<T>(y[e].w[w]);
    AERIE_UNROLL
    for (int mask = 1; mask < kRowPieces; mask *= 2) sum += __shfl_xor_sync(kFullWarp, sum, mask);
    return sum;
  }
  __device__ void finish(float* sums, float factor, int lane) const {
    AERIE_UNROLL
    for (int e = 0; e < 16 / kRows; ++e) {
      const float sum = sum_of(e);
      if (lane % kRowPieces == 0) sums[e * kRows + lane / kRowPieces] = sum * factor;
    }
  }
  // Or to registers: of the two rows of a lane of C.
  __device__ void rows(float* out, float factor, int lane) const {
    AERIE_UNROLL
    for (int e = 0; e < 16 / kRows; ++e) {
      const int row = lane / 4;
      const float sum = __shfl_sync(kFullWarp, sum_of(e), row % kRows * kRowPieces);
      if (row / kRows == e % (8 / kRows)) out[e / (8 / kRows)] = sum * factor;
    }
  }
};

// What a block of queries works on, and its tiles in shared memory: those of a walk over the keys.
template <typename T, int kDim, bool kPadded>
struct QueryBlock {
  int lane, warp, it, head, item, length, i;  // i: the warp's first query
  int dim;                                    // values of a head
  size_t first_row;                           // the item's
  const T *k, *v, *p;                         // of the item's head
  T *keys, *values, *band;                    // two, two or one, and three tiles
  T* queries;                                 // one; without wgmma, the second stage of keys
  // Where it makes room for another block: only the current tile's values.
  static constexpr bool kOneOfValues = kUsesWgmma<kDim>;
  KeyTiles tiles;
  int jt, stage, ring;  // current tile of keys, its stage, its first tile of the band

  __device__ QueryBlock(const Attention& a, unsigned char* memory)
      : lane(int(threadIdx.x % 32)),
        warp(int(threadIdx.x / 32)),
        it(int(blockIdx.x)),
        head(int(blockIdx.y)),
        item(int(blockIdx.z)),
        length(attention_length(a, item)),
        i(it * kTile + warp * 16),
        dim(head_dim<kDim, kPadded>(a)),
        first_row(attention_first(a, item)),
        k(static_cast<const T*>(a.k) + base_of(a)),
        v(static_cast<const T*>(a.v) + base_of(a)),
        p(static_cast<const T*>(a.r) + size_t(head) * dim),
        keys(reinterpret_cast<T*>(memory)),
        values(keys + 2 * kTileSize<kDim>),
        band(values + (kOneOfValues ? 1 : 2) * kTileSize<kDim>),
        queries(kUsesWgmma<kDim> ? band + 3 * kTileSize<kDim> : keys + kTileSize<kDim>),
        tiles(tiles_of(a, length, it)),
        jt(tiles.first),
        stage(0),
        ring(0) {}

  __device__ size_t base_of(const Attention& a) const {
    return first_row * a.stride + size_t(head) * dim;
  }
  // 64 rows of a matrix (B,T,H,D) or (2T-1,H,D), from this head on.
  __device__ void copy(T* tile, const T* from, int first, int limit, int stride) const {
    copy_tile<kDim, kPadded>(tile, from, first, limit, stride, dim);
  }
  __device__ const T* current(const T* tile) const { return tile + stage * kTileSize<kDim>; }
  __device__ T* other(T* tile) const { return tile + (1 - stage) * kTileSize<kDim>; }
  __device__ T* band_tile(int which) const {
    const int number = ring + which < 3 ? ring + which : ring + which - 3;
    return band + number * kTileSize<kDim>;
  }
  __device__ Band<kDim> current_band() const { return {band, ring * kTile + 48 - 16 * warp}; }
  __device__ bool needs_mask() const {
    return jt * kTile < tiles.open || jt * kTile + kTile > tiles.close;
  }

  __device__ void copy_band(const Attention& a, int which) const {
    copy(band_tile(which), p, a.frames - 1 + (jt - it - 1 + which) * kTile, 2 * a.frames - 1,
         a.r_stride);
  }
  // The first tiles: positions with what was started before, then keys and values.
  __device__ void copy_first(const Attention& a) const {
    copy_band(a, 0);
    copy_band(a, 1);
    cp_async_commit();
    copy(keys, k, jt * kTile, length, a.stride);
    if (!kOneOfValues) copy(values, v, jt * kTile, length, a.stride);
    cp_async_commit();
  }
  // With one tile of values: it is wanted late.
  __device__ void copy_values(const Attention& a) const {
    copy(values, v, jt * kTile, length, a.stride);
    cp_async_commit();
  }
  __device__ void copy_next(const Attention& a) const {
    if (jt + 1 < tiles.end) {
      copy_band(a, 2);
      copy(other(keys), k, (jt + 1) * kTile, length, a.stride);
      if (!kOneOfValues) copy(other(values), v, (jt + 1) * kTile, length, a.stride);
    }
    cp_async_commit();
  }
  __device__ void advance() {
    cp_async_wait_all();
    fence_proxy_async<kDim>();
    __syncthreads();
    ++jt;
    stage = 1 - stage;
    ring = ring < 2 ? ring + 1 : 0;
  }
};

template <int kDim>
constexpr size_t query_shared() {
  return sizeof(uint16_t) * 7 * kTileSize<kDim>;
}
// Occupancy that registers are limited for: blocks per SM.
template <int kDim>
constexpr int kQueryBlocks = kDim == 64 ? 4 : 2;

}  // namespace aerie::kernels::AERIE_BACKEND
