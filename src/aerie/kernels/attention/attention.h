// Multi-head self-attention with relative-position bias (Transformer-XL), in one pass over the keys
// (FlashAttention): no (T,T) matrix in memory forward.
//   s[i][j] = ((q_i + u) . k_j + (q_i + v) . r(i - j)) / sqrt(dim)
//   out_i   = sum over j of dropout(softmax_j(s))[i][j] * v_j
// Letters: S = scores (content term with u, position term with v), P = softmax(S), O = out, LSE =
// log of the softmax's denominator, delta = rowsum(dO * O), R = the projected relative positions r,
// rel-shift: what takes Q R^T to its keys. Row m of r belongs to relative position frames - 1
// - m. Keys at or beyond an item's length, and those outside the context, are blocked; queries
// beyond it give zero.
//
// bf16 and fp16 run on tensor cores, heads of any multiple of 4 values up to 128: those with 64 or
// 128 fill tiles, others are padded to the next of the two with zeros on chip. float32 (any
// multiple of 4 up to 256 values) is plain arithmetic. Backward is fused, one kernel with P and dS
// on chip (attention_fused), or two with P and dS of one layer in scratch memory, where P comes
// from forward (saved-P) or is recomputed; values are added in a fixed order, results repeat
// bitwise.
#pragma once

#include "aerie/kernels/sums/partial_sums.h"
#include "aerie/kernels/types.h"

namespace aerie::kernels {

struct Attention {
  Dtype dtype = Dtype::kF32;
  int batch = 0, frames = 0, heads = 0, dim = 0;
  RowLayout layout;         // of q, k, v, out and their gradients, here (B,T,H,D)
  const void* q = nullptr;  // (B,T,H,D), rows `stride` elements apart
  const void* k = nullptr;
  const void* v = nullptr;
  int stride = 0;           // strides: multiples of 4, on tensor cores of 8 where D is 64 or 128
  const void* r = nullptr;  // (2T-1,H,D), rows r_stride apart
  int r_stride = 0;
  const float* bias_u = nullptr;     // (H,D)
  const float* bias_v = nullptr;     // (H,D)
  const int32_t* lengths = nullptr;  // of an item at most as many as it has rows
  // Which keys a query sees beside padding: [i - left, i + right], -1 unlimited; or, with chunk >
  // 0, those of its own chunk and of left_chunks before it.
  int left = -1, right = -1, chunk = 0, left_chunks = 0;
  Dropout dropout;       // index = (head << 26) + (i << 13) + j
  void* out = nullptr;   // (B,T,H,D), dense
  float* lse = nullptr;  // (B,H,T): log of the softmax's denominator
  // attention_keep_size(...) words: on tensor cores forward leaves the decisions of dropout here
  // for backward; null: not wanted. Of no use beside `saved_p`, whose signs they are.
  uint32_t* keep = nullptr;
  // attention_p_size(...) values of dtype and attention_tile_max_size(...) floats, or null: on
  // tensor cores forward leaves the unnormalised P here, and backward need not recompute it. It is
  // that before dropout, negative where dropped: 2 to the power of a score (times log2(e)) minus
  // the running max of its row at that tile of keys. It is laid out as attention_block_at() says;
  // tiles that forward does not visit are not written.
  void* saved_p = nullptr;
  float* tile_max = nullptr;  // attention_tile_max_at(...)
};

struct AttentionBackward {
  Attention forward;  // with its results
  const void* grad_out = nullptr;
  void* grad_q = nullptr;  // rows grad_stride apart
  void* grad_k = nullptr;
  void* grad_v = nullptr;
  int grad_stride = 0;
  void* grad_r = nullptr;  // (2T-1,H,D), rows grad_r_stride apart
  int grad_r_stride = 0;
  float* grad_bias_u = nullptr;
  float* grad_bias_v = nullptr;
  bool accumulate = false;     // of the two biases
  void* p = nullptr;           // scratch: attention_p_size(...) values of dtype
  void* ds = nullptr;          // scratch: as much again
  void* ds_shifted = nullptr;  // scratch: attention_ds_shifted_size(...) values, on tensor cores
  float* partial = nullptr;    // scratch: attention_bias_scratch(...) floats
  float* r_partial = nullptr;  // scratch: attention_r_scratch(...) floats
  PartialSums* deferred = nullptr;  // adds the biases' parts with others, partial_sums.h
  int sms = 132;                    // that backward is laid out for
  // attention_positions() follows, before anybody writes to the scratch memory and
  // before those sums are added. Until then grad_r may be missing.
  bool defer_dr = false;
};

constexpr int kAttentionTile = 64;
constexpr int kAttentionFloatRows = 32;  // queries of a block in float32
constexpr int kAttentionGroups = 8;      // of items, in the reduction of dR: at most
// What fits on an SM as a whole.
constexpr int kAttentionFusedFrames = 192, kAttentionFusedDim = 64;

// Fewer groups make fewer and longer sums; on tensor cores that suits small batches.
AERIE_HD int attention_groups(const Attention& a) {
  const int most =
      a.batch >= 32 || a.dtype == Dtype::kF32 ? kAttentionGroups : kAttentionGroups / 2;
  return a.dtype == Dtype::kF32 || a.batch > most ? most : a.batch;
}

AERIE_HD int attention_tiles(int frames) {
  return (frames + kAttentionTile - 1) / kAttentionTile;
}
// P and dS in scratch memory: on tensor cores blocks of 16 x 16 values in the order of the lanes
// that hold them, whole tiles; otherwise rows padded to 16 bytes.
AERIE_HD int attention_blocks(int frames) {
  return attention_tiles(frames) * (kAttentionTile / 16);
}
AERIE_HD int attention_row(int frames) {
  return (frames + 7) / 8 * 8;
}
// Heads of items, one behind the other.
AERIE_HD size_t head_of(const Attention& a, int item, int head) {
  return size_t(item) * size_t(a.heads) + size_t(head);
}
AERIE_HD size_t attention_block_at(const Attention& a, int item, int head, int row, int columns) {
  return (head_of(a, item, head) * size_t(attention_blocks(a.frames)) + size_t(row)) *
         size_t(columns) * 256;
}
inline size_t attention_p_size(int batch, int heads, int frames) {
  const size_t side = size_t(attention_blocks(frames)) * 16;
  return size_t(batch) * size_t(heads) * side * side;
}
// dS once more, rel-shifted to positions: block c of 16 queries from i on holds the positions (key
// - query) from 16 * (c - 1) - i on.
inline size_t attention_ds_shifted_size(int batch, int heads, int frames) {
  const size_t blocks = size_t(attention_blocks(frames));
  return size_t(batch) * size_t(heads) * blocks * (blocks + 1) * 256;
}
// One word per lane for 16 queries and a tile of keys.
AERIE_HD size_t attention_keep_at(const Attention& a, int item, int head, int block, int tile) {
  const size_t row = head_of(a, item, head) * size_t(attention_blocks(a.frames)) + size_t(block);
  return (row * size_t(attention_tiles(a.frames)) + size_t(tile)) * 32;
}
inline size_t attention_keep_size(int batch, int heads, int frames) {
  return size_t(batch) * size_t(heads) * size_t(attention_blocks(frames)) *
         size_t(attention_tiles(frames)) * 32;
}
// One running max per query (of whole tiles) and tile of keys.
AERIE_HD size_t attention_tile_max_at(const Attention& a, int item, int head, int tile, int row) {
  return (head_of(a, item, head) * size_t(attention_tiles(a.frames)) + size_t(tile)) *
             size_t(attention_blocks(a.frames) * 16) +
         size_t(row);
}
inline size_t attention_tile_max_size(int batch, int heads, int frames) {
  return size_t(batch) * size_t(heads) * size_t(attention_tiles(frames)) *
         size_t(attention_blocks(frames) * 16);
}
// Parts of the sums of bias u, then of bias v, (H,D) floats each.
inline size_t attention_bias_scratch(int batch, int frames, int heads, int dim) {
  // float32 has more parts of u, and as many of v.
  const size_t u = static_cast<size_t>(batch) *
                   static_cast<size_t>((frames + kAttentionFloatRows - 1) / kAttentionFloatRows);
  const size_t v = static_cast<size_t>(kAttentionGroups * 2 * attention_tiles(frames));
  return (u + (u > v ? u : v)) * static_cast<size_t>(heads * dim);
}
// Whether backward can be fused, P and dS on chip, a block for a head of one item after the other:
// where these are as many as pay. It is with saved P; the memory of P and dS has the items' dR
// then.
AERIE_HD bool attention_fused(const AttentionBackward& b) {
  const Attention& a = b.forward;
  return a.dtype != Dtype::kF32 && a.dim <= kAttentionFusedDim && a.frames > kAttentionTile &&
         a.frames <= kAttentionFusedFrames && 3 * a.batch * a.heads >= b.sms;
}
// Tiles of queries that a block of backward has where it is not fused. Heads of 128 values: an SM
// has room for three only where these share what they read; for a few items, more blocks are
// better.
AERIE_HD int attention_query_tiles(const AttentionBackward& b) {
  const Attention& a = b.forward;
  constexpr int kMost = 3;
  const int blocks = (a.frames + kMost * kAttentionTile - 1) / (kMost * kAttentionTile);
  return a.dim == 128 && 3 * a.batch * a.heads * blocks >= b.sms ? kMost : 1;
}
// The blocks of a head: as many as the device runs at a time, at most one for every item.
AERIE_HD int attention_slots(const AttentionBackward& b) {
  const int most = b.sms / b.forward.heads;
  return most < 1 ? 1 : most < b.forward.batch ? most : b.forward.batch;
}
// Partials of dR of every group, and behind them counters of the groups that are done.
AERIE_HD size_t attention_r_partials(int frames, int heads, int dim) {
  return static_cast<size_t>(kAttentionGroups) * static_cast<size_t>(2 * frames - 1) *
         static_cast<size_t>(heads * dim);
}
// Narrow heads have as much as those of 64 values: where attention_fused() they need no less.
inline size_t attention_r_scratch(int frames, int heads, int dim) {
  const int width = dim > kAttentionFusedDim ? dim : kAttentionFusedDim;
  return attention_r_partials(frames, heads, width) +
         static_cast<size_t>(2 * attention_tiles(frames) * heads);
}
AERIE_HD uint32_t* attention_counters(const AttentionBackward& b, int head, int tile) {
  const Attention& a = b.forward;
  return reinterpret_cast<uint32_t*>(b.r_partial + attention_r_partials(a.frames, a.heads, a.dim)) +
         head * 2 * attention_tiles(a.frames) + tile;
}

// How many frames of an item are valid: the others that it has rows for give zero.
AERIE_HD int attention_length(const Attention& a, int item) {
  const int rows = rows_of(a.layout, item, a.frames);
  return a.lengths[item] < rows ? a.lengths[item] : rows;
}
// An item's first row in activations.
AERIE_HD size_t attention_first(const Attention& a, int item) {
  return static_cast<size_t>(first_row(a.layout, item, a.frames));
}

AERIE_HD bool attention_allowed(const Attention& a, int length, int i, int j) {
  if (i >= length || j >= length) return false;
  if (a.chunk > 0) {
    const int behind = i / a.chunk - j / a.chunk;
    return behind >= 0 && behind <= a.left_chunks;
  }
  return (a.left < 0 || i - j <= a.left) && (a.right < 0 || j - i <= a.right);
}

AERIE_DECLARE_KERNEL(attention, Attention)
AERIE_DECLARE_KERNEL(attention_backward, AttentionBackward)
// What attention_backward() has left to do; nobody else waits for that.
AERIE_DECLARE_KERNEL(attention_positions, AttentionBackward)

}  // namespace aerie::kernels
