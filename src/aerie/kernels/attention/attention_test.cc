#include "aerie/kernels/attention/attention.h"

#include <tuple>

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels {
namespace {

using testing::Backend;
using testing::random_values;

struct Case {
  Dtype dtype;
  int frames, heads, dim;
  std::vector<int32_t> lengths;
  double p;
  int left = -1, right = -1, chunk = 0, left_chunks = 0;
  bool keep = true;                // decisions of dropout beside saved P; deferred reductions
  std::vector<int32_t> rows = {};  // of every item; empty: as many as frames
  int sms = AttentionBackward{}.sms;
  bool saves = false;          // P for backward
  bool forward_alone = false;  // without anything for backward
};
constexpr size_t kGuardRows = 3;  // behind the last item
constexpr float kGuard = 9.0f;

struct Outcome {
  std::vector<float> out, lse, d_q, d_k, d_v, d_p, d_u, d_bias_v;
};

// Activations (B,T,columns) and how a case lays them out. Nothing but valid frames is ever read:
// all else is NaN.
struct Packing {
  const Case& c;
  std::vector<int32_t> begin;
  explicit Packing(const Case& of) : c(of), begin{0} {
    for (size_t b = 0; b < c.lengths.size(); ++b)
      begin.push_back(begin.back() + (c.rows.empty() ? c.frames : c.rows[b]));
  }
  // Calls body(where the frame lies, its number in the batch) for all that have a row.
  template <typename Body>
  void for_each(Body body) const {
    for (size_t b = 0; b < c.lengths.size(); ++b)
      for (int t = 0; t < begin[b + 1] - begin[b]; ++t)
        body(static_cast<size_t>(begin[b] + t),
             b * static_cast<size_t>(c.frames) + static_cast<size_t>(t));
  }
  size_t rows() const { return static_cast<size_t>(begin.back()) + kGuardRows; }
  std::vector<float> pack(const std::vector<float>& values, size_t columns) const {
    std::vector<float> out(rows() * columns, std::nanf(""));
    for_each([&](size_t row, size_t frame) {
      const size_t t = frame % static_cast<size_t>(c.frames);
      const int length = c.lengths[frame / static_cast<size_t>(c.frames)];
      for (size_t d = 0; d < columns && static_cast<int>(t) < length; ++d)
        out[row * columns + d] = values[frame * columns + d];
    });
    return out;
  }
  // Back to (B,T,columns), zeros where there is no row; nothing was written behind the last.
  std::vector<float> unpack(const std::vector<float>& values, size_t columns) const {
    std::vector<float> out(c.lengths.size() * static_cast<size_t>(c.frames) * columns);
    for_each([&](size_t row, size_t frame) {
      for (size_t d = 0; d < columns; ++d) out[frame * columns + d] = values[row * columns + d];
    });
    for (size_t e = static_cast<size_t>(begin.back()) * columns; e < values.size(); ++e)
      EXPECT_EQ(values[e], kGuard);
    return out;
  }
};

// q, k and v side by side in one row, as a fused projection leaves them.
Outcome run(Backend& b, const Case& c) {
  const int batch = static_cast<int>(c.lengths.size()), dense = c.heads * c.dim;
  const size_t rows = static_cast<size_t>(batch * c.frames), width = static_cast<size_t>(dense);
  const Packing packing(c);
  const size_t positions = static_cast<size_t>(2 * c.frames - 1), size = dtype_size(c.dtype);
  const auto part = [&](void* base, size_t index) {
    return static_cast<void*>(static_cast<unsigned char*>(base) + index * width * size);
  };
  Attention f;
  f.dtype = c.dtype;
  f.batch = batch;
  f.frames = c.frames;
  f.heads = c.heads;
  f.dim = c.dim;
  if (!c.rows.empty()) f.layout.cu_seqlens = b.upload(packing.begin);
  void* qkv = b.upload_as(c.dtype, packing.pack(random_values(rows * width * 3, 1), width * 3));
  f.q = part(qkv, 0);
  f.k = part(qkv, 1);
  f.v = part(qkv, 2);
  f.stride = 3 * dense;
  f.r_stride = dense + 8;
  f.r = b.upload_as(c.dtype, random_values(positions * (width + 8), 2));
  f.bias_u = b.upload(random_values(width, 3));
  f.bias_v = b.upload(random_values(width, 4));
  f.lengths = b.upload(c.lengths);
  f.left = c.left;
  f.right = c.right;
  f.chunk = c.chunk;
  f.left_chunks = c.left_chunks;
  f.dropout = dropout_at(b.upload(std::vector<RandomState>{testing::random_state(1, 5)}), 18, c.p);
  f.out = b.upload_as(c.dtype, std::vector<float>(packing.rows() * width, kGuard));
  f.lse = b.scratch<float>(rows * static_cast<size_t>(c.heads));
  if (c.keep || !c.saves)
    f.keep = b.scratch<uint32_t>(attention_keep_size(batch, c.heads, c.frames));
  const size_t square = attention_p_size(batch, c.heads, c.frames);
  if (c.saves) {
    f.saved_p = b.upload_as(c.dtype, std::vector<float>(square, std::nanf("")));
    f.tile_max = b.scratch<float>(attention_tile_max_size(batch, c.heads, c.frames));
  }
  EXPECT_EQ(b.kernels().attention(f, nullptr), kOk);
  Outcome o;
  if (c.forward_alone) {
    // Without anywhere to leave decisions; backward is not to draw them again.
    f.keep = nullptr;
    EXPECT_EQ(b.kernels().attention(f, nullptr), kOk);
    o.out = b.download_as(c.dtype, f.out, packing.rows() * width);
    return o;
  }
  AttentionBackward g;
  g.forward = f;
  g.grad_out = b.upload_as(c.dtype, packing.pack(random_values(rows * width, 5), width));
  void* grads = b.upload_as(c.dtype, std::vector<float>(packing.rows() * width * 3, kGuard));
  g.grad_q = part(grads, 0);
  g.grad_k = part(grads, 1);
  g.grad_v = part(grads, 2);
  g.grad_stride = 3 * dense;
  g.grad_r = b.upload_as(c.dtype, std::vector<float>(positions * width, 9.0f));
  g.grad_r_stride = dense;
  g.grad_bias_u = b.upload(random_values(width, 6));
  g.grad_bias_v = b.upload(random_values(width, 7));
  g.accumulate = c.p > 0.0;
  g.p = b.upload_as(c.dtype, std::vector<float>(square, std::nanf("")));
  g.ds = b.upload_as(c.dtype, std::vector<float>(square, std::nanf("")));
  g.ds_shifted = b.upload_as(
      c.dtype,
      std::vector<float>(attention_ds_shifted_size(batch, c.heads, c.frames), std::nanf("")));
  g.partial = b.scratch<float>(attention_bias_scratch(batch, c.frames, c.heads, c.dim));
  g.sms = c.sms;
  g.r_partial = b.scratch<float>(attention_r_scratch(c.frames, c.heads, c.dim));
  PartialSums deferred;
  if (c.keep) g.deferred = &deferred;
  g.defer_dr = c.keep;
  EXPECT_EQ(b.kernels().attention_backward(g, nullptr), kOk);
  EXPECT_EQ(b.kernels().attention_positions(g, nullptr), kOk);
  EXPECT_EQ(b.kernels().add_partials(deferred, nullptr), kOk);
  o.out = packing.unpack(b.download_as(c.dtype, f.out, packing.rows() * width), width);
  o.lse = b.download(f.lse, rows * static_cast<size_t>(c.heads));
  const std::vector<float> all =
      packing.unpack(b.download_as(c.dtype, grads, packing.rows() * width * 3), width * 3);
  for (size_t row = 0; row < rows; ++row)
    for (size_t d = 0; d < width; ++d) {
      o.d_q.push_back(all[(row * 3 + 0) * width + d]);
      o.d_k.push_back(all[(row * 3 + 1) * width + d]);
      o.d_v.push_back(all[(row * 3 + 2) * width + d]);
    }
  o.d_p = b.download_as(c.dtype, g.grad_r, positions * width);
  o.d_u = b.download(g.grad_bias_u, width);
  o.d_bias_v = b.download(g.grad_bias_v, width);
  return o;
}

void compare(Backend& backend, const Case& c) {
  SCOPED_TRACE(::testing::Message() << c.frames << " frames, " << c.dim << " per head");
  const Outcome e = run(*testing::reference_backend(), c);
  const Outcome a = run(backend, c);
  // On tensor cores weights, score gradients and biased queries are rounded on the way, and
  // what cancels in the softmax's gradient (all of it, for one key) leaves its rounding behind.
  const double t = c.dtype == Dtype::kF32 ? 5e-6 : c.dtype == Dtype::kF16 ? 2e-3 : 1.5e-2;
  const double rest = c.dtype == Dtype::kF32 ? 1e-6 : c.dtype == Dtype::kF16 ? 8e-4 : 6e-3;
  testing::expect_close(a.out, e.out, t, 0, "out");
  testing::expect_close(a.lse, e.lse, t, 0, "lse");
  testing::expect_close(a.d_v, e.d_v, t, 0, "grad_v");
  testing::expect_close(a.d_q, e.d_q, t, rest, "grad_q");
  testing::expect_close(a.d_k, e.d_k, t, rest, "grad_k");
  testing::expect_close(a.d_p, e.d_p, t, rest, "grad_r");
  testing::expect_close(a.d_u, e.d_u, t, rest, "grad_bias_u");
  testing::expect_close(a.d_bias_v, e.d_bias_v, t, rest, "grad_bias_v");
}

// Where items lie changes no bit, nor does what lies around them.
void compare_packed(Backend& backend, Case c, const std::vector<int32_t>& rows) {
  const auto same = [](const std::vector<float>& a, const std::vector<float>& b, const char* what) {
    EXPECT_EQ(a, b) << what;
  };
  const auto same_outcome = [&](const Outcome& a, const Outcome& b) {
    same(a.out, b.out, "out");
    same(a.lse, b.lse, "lse");
    same(a.d_q, b.d_q, "grad_q");
    same(a.d_k, b.d_k, "grad_k");
    same(a.d_v, b.d_v, "grad_v");
    same(a.d_p, b.d_p, "grad_r");
    same(a.d_u, b.d_u, "grad_bias_u");
    same(a.d_bias_v, b.d_bias_v, "grad_bias_v");
  };
  const auto reference = testing::reference_backend();
  const Outcome expected = run(*reference, c), dense = run(backend, c);
  c.rows = rows;
  compare(backend, c);
  same_outcome(run(*reference, c), expected);
  same_outcome(run(backend, c), dense);
}

// Weights that forward leaves: once divided by their row's sum they are the softmax's, and their
// signs are dropout's decisions. Rows of 16 queries and tiles that nobody visits are left alone.
void expect_saved(Backend& b, const Case& c) {
  SCOPED_TRACE(::testing::Message() << c.frames << " frames, " << c.dim << " per head saved");
  const int batch = static_cast<int>(c.lengths.size()), width = c.heads * c.dim;
  const size_t rows = static_cast<size_t>(batch * c.frames);
  const auto at = [](int index) { return static_cast<size_t>(index); };
  const std::vector<float> q = random_values(rows * at(width), 1, 1.0f, c.dtype);
  const std::vector<float> k = random_values(rows * at(width), 2, 1.0f, c.dtype);
  const std::vector<float> p = random_values(at((2 * c.frames - 1) * width), 3, 1.0f, c.dtype);
  const std::vector<float> u = random_values(at(width), 4), v = random_values(at(width), 5);
  Attention f;
  f.dtype = c.dtype;
  f.batch = batch;
  f.frames = c.frames;
  f.heads = c.heads;
  f.dim = c.dim;
  f.q = b.upload_as(c.dtype, q);
  f.k = f.v = b.upload_as(c.dtype, k);
  f.stride = f.r_stride = width;
  f.r = b.upload_as(c.dtype, p);
  f.bias_u = b.upload(u);
  f.bias_v = b.upload(v);
  f.lengths = b.upload(c.lengths);
  f.left = c.left;
  f.right = c.right;
  f.chunk = c.chunk;
  f.left_chunks = c.left_chunks;
  const RandomState state = testing::random_state(1, 5);
  f.dropout = dropout_at(b.upload(std::vector<RandomState>{state}), 18, c.p);
  f.out = b.upload_as(c.dtype, std::vector<float>(rows * at(width)));
  f.lse = b.scratch<float>(rows * at(c.heads));
  if (c.keep) f.keep = b.scratch<uint32_t>(attention_keep_size(batch, c.heads, c.frames));
  const size_t square = attention_p_size(batch, c.heads, c.frames);
  const size_t num_shifts = attention_tile_max_size(batch, c.heads, c.frames);
  f.saved_p = b.upload_as(c.dtype, std::vector<float>(square, std::nanf("")));
  f.tile_max = b.scratch<float>(num_shifts);
  ASSERT_EQ(b.kernels().attention(f, nullptr), kOk);
  const std::vector<float> saved = b.download_as(c.dtype, f.saved_p, square);
  const std::vector<float> tile_max = b.download(f.tile_max, num_shifts);
  const std::vector<float> lse = b.download(f.lse, rows * at(c.heads));
  // Of query i and key j: rows g and g + 8 of a block lie with lanes 4g and on, columns + 8 behind.
  const auto weight_at = [&](int item, int head, int i, int j) {
    const int lane = i % 8 * 4 + j % 8 / 2, value = i % 16 / 8 * 2 + j % 16 / 8 * 4 + j % 2;
    return saved[attention_block_at(f, item, head, i / 16, attention_blocks(c.frames)) +
                 at(j / 16 * 256 + lane * 8 + value)];
  };
  std::vector<float> actual, expected;
  int wrong = 0, unwritten = 0;
  const int side = attention_blocks(c.frames) * 16;
  for (int item = 0; item < batch; ++item)
    for (int head = 0; head < c.heads; ++head)
      for (int i = 0; i < side; ++i) {
        const int length = c.lengths[at(item)];
        std::vector<double> scores;
        double sum = 0.0;
        const auto score_of = [&](int j) {
          double score = 0.0;
          for (int d = head * c.dim; d < (head + 1) * c.dim; ++d) {
            const double query = q[at((item * c.frames + i) * width + d)];
            score += (query + u[at(d)]) * k[at((item * c.frames + j) * width + d)] +
                     (query + v[at(d)]) * p[at((c.frames - 1 - i + j) * width + d)];
          }
          return score / std::sqrt(c.dim);
        };
        for (int j = 0; j < length && i < length; ++j) {
          const bool allowed = attention_allowed(f, length, i, j);
          scores.push_back(allowed ? std::exp(score_of(j)) : 0.0);
          sum += scores.back();
        }
        for (int j = 0; j < side; ++j) {
          const float weight = weight_at(item, head, i, j);
          if (i / 16 * 16 >= length || j / kAttentionTile * kAttentionTile >= length) {
            unwritten += std::isnan(weight) ? 0 : 1;
          } else if (i < length && j < length && !std::isnan(weight)) {
            const float shift =
                tile_max[attention_tile_max_at(f, item, head, j / kAttentionTile, i)];
            const double log_2 = lse[at((item * c.heads + head) * c.frames + i)] / std::log(2.0);
            actual.push_back(
                static_cast<float>(std::fabs(weight) * std::exp2(double{shift} - log_2)));
            expected.push_back(static_cast<float>(scores[at(j)] / sum));
            const bool dropped =
                c.p > 0.0 &&
                dropout_draw(state.dropout_key, 18, item_position(state, at(item)),
                             (at(head) << 26) + (at(i) << 13) + at(j)) < dropout_threshold(c.p);
            wrong += std::signbit(weight) == dropped ? 0 : 1;
          } else if (i < length && j < length) {
            unwritten += attention_allowed(f, length, i, j) ? 1 : 0;
          }
        }
      }
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(unwritten, 0);
  testing::expect_close(actual, expected, c.dtype == Dtype::kF16 ? 2e-3 : 1.5e-2, 0, "weights");
}

AERIE_KERNEL_TEST(Attention, WeightsForBackward) {
  for (const Case& c :
       {Case{Dtype::kBF16, 1, 1, 64, {1}, 0.0}, Case{Dtype::kBF16, 150, 1, 64, {150, 0, 67}, 0.1},
        Case{Dtype::kF16, 75, 2, 64, {75, 40}, 0.2, -1, -1, 0, 0, false},
        Case{Dtype::kF16, 140, 1, 64, {140}, 0.0, 30, 3},
        Case{Dtype::kBF16, 131, 1, 64, {129}, 0.1, -1, -1, 16, 2, false},
        Case{Dtype::kBF16, 70, 1, 128, {70, 49}, 0.1}, Case{Dtype::kF16, 70, 1, 128, {66}, 0.0},
        Case{Dtype::kF16, 68, 2, 128, {68, 3}, 0.1, 5, 60, 0, 0, false}})
    expect_saved(backend, c);
}

AERIE_KERNEL_TEST(Attention, FloatEqualsTheReference) {
  for (const Case& c :
       {Case{Dtype::kF32, 1, 1, 8, {1}, 0.0}, Case{Dtype::kF32, 37, 2, 24, {37, 1, 20}, 0.1},
        Case{Dtype::kF32, 37, 3, 4, {37, 20}, 0.1}, Case{Dtype::kF32, 34, 1, 44, {34}, 0.1},
        Case{Dtype::kF32, 20, 2, 100, {20}, 0.0}, Case{Dtype::kF32, 70, 1, 40, {66}, 0.0},
        Case{Dtype::kF32, 33, 1, 16, {33, 0, 7, 8, 9}, 0.5, 4, 2},
        Case{Dtype::kF32, 33, 1, 16, {31}, 0.1, -1, -1, 5, 1},
        Case{Dtype::kF32, 140, 1, 72, {140, 96}, 0.1, 40, 7}})
    compare(backend, c);
}

AERIE_KERNEL_TEST(Attention, TensorCoresEqualTheReference) {
  for (const Case& c :
       {Case{Dtype::kBF16, 1, 1, 64, {1}, 0.0}, Case{Dtype::kBF16, 75, 2, 64, {75, 1}, 0.1},
        Case{Dtype::kBF16, 67, 1, 64, {65}, 0.0, 30, 3}, Case{Dtype::kF16, 75, 2, 64, {75, 1}, 0.1},
        Case{Dtype::kF16, 20, 1, 128, {20, 3}, 0.0}})
    compare(backend, c);
}

AERIE_KERNEL_TEST(Attention, ForwardKeepsDecisionsForBackward) {
  for (Case c :
       {Case{Dtype::kBF16, 75, 2, 64, {75, 1}, 0.1}, Case{Dtype::kF16, 20, 1, 128, {20, 3}, 0.2}}) {
    c.forward_alone = true;
    testing::expect_close(run(backend, c).out, run(*testing::reference_backend(), c).out,
                          c.dtype == Dtype::kF16 ? 2e-3 : 1.5e-2, 0, "out");
    AttentionBackward g;
    g.forward.dtype = c.dtype;
    g.forward.batch = g.forward.frames = g.forward.heads = 1;
    g.forward.dim = g.forward.stride = g.forward.r_stride = g.grad_stride = g.grad_r_stride = c.dim;
    g.forward.dropout.threshold = 1;
    EXPECT_EQ(backend.kernels().attention_backward(g, nullptr), kUnsupported);
  }
}

AERIE_KERNEL_TEST(Attention, PackedItems) {
  compare_packed(backend, {Dtype::kF32, 37, 2, 24, {20, 0, 37, 1}, 0.1}, {21, 3, 37, 1});
  compare_packed(backend, {Dtype::kF32, 41, 1, 16, {9, 33}, 0.1, 4, 2}, {33, 40});
  compare_packed(backend, {Dtype::kBF16, 75, 1, 64, {66, 1, 0, 75}, 0.1}, {70, 2, 0, 75});
  compare_packed(backend, {Dtype::kBF16, 37, 1, 128, {5, 37}, 0.0, -1, -1, 7, 1}, {24, 37});
  compare_packed(backend, {Dtype::kF16, 67, 2, 64, {3, 65}, 0.1, 30, 3}, {8, 66});
}

AERIE_KERNEL_TEST(Attention, TensorCoresOfOtherShapes) {
  for (const Case& c :
       {Case{Dtype::kBF16, 20, 1, 128, {20, 0, 3, 4, 5}, 0.1},
        Case{Dtype::kBF16, 130, 1, 64, {129}, 0.1, -1, -1, 16, 2},
        Case{Dtype::kBF16, 150, 1, 64, {150, 64}, 0.2, 5, 60, 0, 0, false},
        Case{Dtype::kBF16, 70, 2, 128, {70, 49}, 0.1}, Case{Dtype::kBF16, 261, 1, 64, {259}, 0.1}})
    compare(backend, c);
}

// Sums over positions in all groups, of more items than the lanes of a group know at a time.
TEST(AttentionTest, MoreItemsThanLanes) {
  std::vector<int32_t> lengths(kAttentionGroups * 33, 1);
  lengths[5] = 0;
  lengths.back() = 2;
  compare(*testing::emulated_backend(), {Dtype::kF16, 2, 1, 64, lengths, 0.0});
}

// Small batches on a device that they fill, with the weights of forward.
AERIE_KERNEL_TEST(Attention, SquaresOnChip) {
  const auto on = [](int sms, Case c) {
    c.sms = sms;
    c.saves = true;
    return c;
  };
  for (const Case& c : {on(1, {Dtype::kBF16, 65, 1, 64, {1}, 0.0}),
                        on(2, {Dtype::kBF16, 192, 1, 64, {190, 0, 100}, 0.1}),
                        on(1, {Dtype::kBF16, 131, 1, 64, {0, 129, 0, 20, 131}, 0.1}),
                        on(1, {Dtype::kBF16, 131, 1, 64, {0, 129}, 0.1, -1, -1, 16, 2}),
                        on(2, {Dtype::kBF16, 150, 1, 64, {150, 64}, 0.2, 5, 60, 0, 0, false}),
                        on(1, {Dtype::kF16, 75, 2, 64, {75, 1}, 0.1})})
    compare(backend, c);
  compare_packed(backend, on(2, {Dtype::kBF16, 75, 1, 64, {66, 1, 0, 75}, 0.1}), {70, 2, 0, 75});
  compare_packed(backend, on(2, {Dtype::kF16, 67, 2, 64, {3, 65}, 0.1, 30, 3}), {8, 66});
}

// Three tiles of queries in a block, of which some have no queries, or see no keys of a tile.
AERIE_KERNEL_TEST(Attention, WideHeadsOnAFullDevice) {
  const auto full = [](Case c) {
    c.sms = 1;
    return c;
  };
  for (const Case& c : {full({Dtype::kBF16, 20, 1, 128, {20, 0, 3}, 0.1}),
                        full({Dtype::kBF16, 197, 1, 128, {129}, 0.1}),
                        full({Dtype::kF16, 200, 1, 128, {199}, 0.0, 30, 3}),
                        full({Dtype::kBF16, 261, 1, 128, {259}, 0.1, -1, -1, 16, 2}),
                        full({Dtype::kBF16, 70, 2, 128, {70, 49}, 0.2, 5, 60, 0, 0, false})})
    compare(backend, c);
  compare_packed(backend, full({Dtype::kBF16, 75, 1, 128, {66, 1}, 0.1}), {70, 2});
}

AERIE_KERNEL_TEST(Attention, BackwardOfSavedWeights) {
  const auto saved = [](int sms, Case c) {
    c.sms = sms;
    c.keep = false;
    c.saves = true;
    return c;
  };
  constexpr int kFew = 1, kMany = 1000;  // which chooses among the kernels
  for (const Case& c : {saved(kMany, {Dtype::kBF16, 1, 1, 64, {1}, 0.0}),
                        saved(kMany, {Dtype::kBF16, 75, 2, 64, {75, 0, 1}, 0.1}),
                        saved(kMany, {Dtype::kF16, 150, 1, 64, {150, 64}, 0.2, 5, 60}),
                        saved(kFew, {Dtype::kBF16, 261, 1, 64, {259}, 0.1}),
                        saved(kFew, {Dtype::kF16, 200, 1, 64, {131, 200}, 0.0, -1, -1, 16, 2}),
                        saved(kMany, {Dtype::kF16, 70, 1, 128, {70, 49}, 0.1}),
                        saved(kFew, {Dtype::kBF16, 197, 1, 128, {129}, 0.1}),
                        saved(kFew, {Dtype::kF16, 200, 1, 128, {199, 0}, 0.0, 30, 3}),
                        saved(kFew, {Dtype::kBF16, 261, 1, 128, {259}, 0.1, -1, -1, 16, 2})})
    compare(backend, c);
  compare_packed(backend, saved(kMany, {Dtype::kBF16, 75, 1, 64, {66, 1}, 0.1}), {70, 2});
  compare_packed(backend, saved(kFew, {Dtype::kBF16, 75, 1, 128, {66, 1}, 0.1}), {70, 2});
}

// Heads that do not fill tiles, in every kernel: neighbours begin at multiples of 8 bytes only, and
// what lies beside a head's columns belongs to others.
AERIE_KERNEL_TEST(Attention, PaddedHeads) {
  const auto with = [](int sms, bool saves, Case c) {
    c.sms = sms;
    c.saves = saves;
    return c;
  };
  constexpr int kFew = 1, kMany = 1000;  // which chooses among the kernels
  for (const Case& c : {
           // without the weights of forward
           with(kMany, false, {Dtype::kBF16, 75, 2, 44, {75, 1}, 0.1}),
           with(kMany, false, {Dtype::kF16, 20, 3, 4, {20, 0, 3}, 0.1, -1, -1, 0, 0, false}),
           with(kFew, false, {Dtype::kF16, 67, 1, 100, {65}, 0.1, 30, 3}),
           // with them
           with(kMany, true, {Dtype::kBF16, 70, 3, 12, {70, 49}, 0.1}),
           with(kMany, true, {Dtype::kF16, 66, 1, 60, {66}, 0.0, 5, 60}),
           with(kMany, true, {Dtype::kF16, 70, 1, 124, {70, 3}, 0.1}),
           with(kFew, true, {Dtype::kBF16, 67, 2, 68, {67}, 0.1, -1, -1, 16, 2}),
           // on chip
           with(kFew, true, {Dtype::kBF16, 131, 2, 44, {0, 129, 20}, 0.1}),
           with(kFew, true, {Dtype::kF16, 75, 3, 4, {75, 1}, 0.1, -1, -1, 0, 0, false}),
       })
    compare(backend, c);
  compare_packed(backend, with(kMany, false, {Dtype::kF16, 20, 1, 76, {9, 20}, 0.1}), {12, 20});
  compare_packed(backend, with(kFew, true, {Dtype::kF16, 67, 3, 20, {3, 65}, 0.1}), {8, 66});
  expect_saved(backend, {Dtype::kBF16, 70, 2, 44, {70, 5}, 0.1});
}

// What the kernels do not cover is left to the caller, and nothing is written.
AERIE_KERNEL_TEST(Attention, OtherHeadsAreRefused) {
  Attention a;
  a.batch = a.frames = a.heads = 1;
  for (const auto& [dtype, dim, stride] :
       {std::tuple{Dtype::kBF16, 6, 24}, std::tuple{Dtype::kF16, 132, 132},
        std::tuple{Dtype::kBF16, 0, 0}, std::tuple{Dtype::kBF16, 64, 68},
        std::tuple{Dtype::kBF16, 44, 46}, std::tuple{Dtype::kF32, 260, 260},
        std::tuple{Dtype::kF32, 10, 12}}) {
    a.dtype = dtype;
    a.dim = dim;
    a.stride = a.r_stride = stride;
    EXPECT_EQ(backend.kernels().attention(a, nullptr), kUnsupported) << dim << " per head";
    AttentionBackward b;
    b.forward = a;
    b.grad_stride = b.grad_r_stride = stride;
    EXPECT_EQ(backend.kernels().attention_backward(b, nullptr), kUnsupported) << dim;
  }
}

}  // namespace
}  // namespace aerie::kernels
