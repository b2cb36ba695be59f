#include "aerie/kernels/adamw/adamw.h"

#include <limits>

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::adamw_test {
namespace {

using testing::Backend;

struct State {
  std::vector<float> params, exp_avg, exp_avg_sq, ema, steps, grads;
  std::vector<uint16_t> compute_weights;
  AdamwControl control{};
  float loss_scale = 0.0f;
  int32_t growth = 0;
  int64_t ema_count = 0;
};

// The step with its update at once, or in the parts that its elements' chunks were dealt to.
int do_step(const Backend& b, const AdamwStep& a) {
  AdamwUpdate all;
  all.step = a;
  const int code = b.kernels().adamw_decide(a, nullptr);
  return code == kOk ? b.kernels().adamw_update(all, nullptr) : code;
}
int do_step(Backend& b, const AdamwStep& a, int num_parts) {
  if (num_parts == 0) return do_step(b, a);
  int code = b.kernels().adamw_decide(a, nullptr);
  for (int part = 0; part < num_parts && code == kOk; ++part) {
    std::vector<int32_t> chunks;
    for (int32_t c = part; int64_t{c} * kAdamwChunk < a.count; c += num_parts) chunks.push_back(c);
    AdamwUpdate some;
    some.step = a;
    some.chunks = b.upload(chunks);
    some.num_chunks = static_cast<int32_t>(chunks.size());
    some.share = 2;
    // Not wanted the first time.
    for (const uint32_t wanted : {0u, 1u}) {
      some.wanted = b.upload(std::vector<uint32_t>{wanted});
      if (code == kOk) code = b.kernels().adamw_update(some, nullptr);
    }
  }
  return code;
}

// Several steps: plain, clipped, one that is not finite, one after it.
State run(Backend& b, Dtype compute_dtype, bool by_value, double clip, bool scaled, int64_t count,
          int num_parts = 0) {
  const std::vector<AdamwSegment> segments = {
      {0, 64, 0, true, 0.9, 0.98, 1e-8, 1e-3},
      {64, count / 2 / 8 * 8, 1, false, 0.8, 0.999, 1e-6, 1e-2},
      {count / 2 / 8 * 8 + 8, count, 1, true, 0.9, 0.98, 1e-8, 0.0},
  };
  const size_t n = static_cast<size_t>(count);
  AdamwStep a;
  a.count = count;
  a.params = b.upload(testing::random_values(n, 1));
  a.exp_avg = b.upload(testing::random_values(n, 2, 0.01f));
  std::vector<float> squares = testing::random_values(n, 3, 0.01f);
  for (float& v : squares) v = v * v;
  a.exp_avg_sq = b.upload(squares);
  a.ema = b.upload(testing::random_values(n, 4));
  a.compute_weights = b.upload(std::vector<uint16_t>(n, 7));
  a.compute_dtype = compute_dtype;
  a.segments = b.upload(segments);
  a.num_segments = static_cast<int32_t>(segments.size());
  a.steps = b.upload(std::vector<float>{4.0f, 0.0f, 1999.0f});
  a.learning_rates = b.upload(std::vector<double>{1e-3, 5e-4});
  a.factors = b.scratch<AdamwFactors>(segments.size());
  a.partial = b.scratch<double>(kAdamwParts);
  a.control = b.scratch<AdamwControl>(1);
  a.clip = clip;
  a.clip_by_value = by_value;
  if (scaled) {
    a.loss_scale = b.upload(std::vector<float>{1024.0f});
    a.growth_tracker = b.upload(std::vector<int32_t>{0});
    a.growth_interval = 2;
  }
  a.ema_decay = 0.9;
  a.ema_every = 2;
  a.ema_count = b.upload(std::vector<int64_t>{0});
  State out;
  for (uint64_t step = 0; step < 5; ++step) {
    out.grads = testing::random_values(n, 10 + step, scaled ? 100.0f : 0.1f);
    if (step == 2) out.grads[n - 3] = std::numeric_limits<float>::infinity();
    a.grads = b.upload(out.grads);
    a.loss = b.upload(std::vector<float>{step == 3 ? std::nanf("") : 1.0f});
    EXPECT_EQ(do_step(b, a, num_parts), kOk);
    out.control = b.download(a.control, 1)[0];
    EXPECT_EQ(out.control.skip, step == 2 || step == 3 ? 1u : 0u);
  }
  out.params = b.download(a.params, n);
  out.exp_avg = b.download(a.exp_avg, n);
  out.exp_avg_sq = b.download(a.exp_avg_sq, n);
  out.ema = b.download(a.ema, n);
  out.compute_weights = b.download(static_cast<uint16_t*>(a.compute_weights), n);
  out.steps = b.download(a.steps, segments.size());
  out.ema_count = b.download(a.ema_count, 1)[0];
  if (scaled) {
    out.loss_scale = b.download(a.loss_scale, 1)[0];
    out.growth = b.download(a.growth_tracker, 1)[0];
  }
  return out;
}

AERIE_KERNEL_TEST(Adamw, StepsEqualTheReference) {
  const auto reference = testing::reference_backend();
  struct Case {
    Dtype compute_dtype;
    bool by_value;
    double clip;
    bool scaled;
    int64_t count;
  };
  for (const Case& c :
       {Case{Dtype::kBF16, false, 0.0, false, 128}, Case{Dtype::kF16, false, 0.5, true, 5000},
        Case{Dtype::kBF16, true, 0.05, false, 4096}}) {
    const State e = run(*reference, c.compute_dtype, c.by_value, c.clip, c.scaled, c.count);
    const State a = run(backend, c.compute_dtype, c.by_value, c.clip, c.scaled, c.count);
    testing::expect_close(a.params, e.params, 1e-6, 0, "params");
    testing::expect_close(a.exp_avg, e.exp_avg, 1e-6, 0, "exp_avg");
    testing::expect_close(a.exp_avg_sq, e.exp_avg_sq, 1e-6, 0, "exp_avg_sq");
    testing::expect_close(a.ema, e.ema, 1e-6, 0, "ema");
    EXPECT_NEAR(a.control.norm, e.control.norm, 1e-12 * e.control.norm);
    EXPECT_EQ(a.steps, e.steps);
    EXPECT_EQ(a.loss_scale, e.loss_scale);
    EXPECT_EQ(a.growth, e.growth);
    EXPECT_EQ(a.ema_count, e.ema_count);
    // Written outside the segments: nothing.
    const size_t gap = static_cast<size_t>(c.count / 2 / 8 * 8);
    for (size_t i = gap; i < gap + 8; ++i) EXPECT_EQ(a.compute_weights[i], 7);
    for (size_t i = 0; i < a.params.size(); ++i) {
      if (i >= gap && i < gap + 8) continue;
      const uint16_t want = c.compute_dtype == Dtype::kF16 ? float_to_half_bits(a.params[i])
                                                           : float_to_bf16_bits(a.params[i]);
      ASSERT_EQ(a.compute_weights[i], want) << i;
    }
  }
}

AERIE_KERNEL_TEST(Adamw, PartsAreTheWholeBitForBit) {
  for (const int64_t count : {int64_t{128}, int64_t{kAdamwChunk}, int64_t{9 * kAdamwChunk + 136}}) {
    const State whole = run(backend, Dtype::kF16, false, 0.5, true, count);
    const State parts = run(backend, Dtype::kF16, false, 0.5, true, count, 3);
    EXPECT_EQ(parts.params, whole.params);
    EXPECT_EQ(parts.exp_avg, whole.exp_avg);
    EXPECT_EQ(parts.exp_avg_sq, whole.exp_avg_sq);
    EXPECT_EQ(parts.ema, whole.ema);
    EXPECT_EQ(parts.compute_weights, whole.compute_weights);
    EXPECT_EQ(parts.steps, whole.steps);
    EXPECT_EQ(parts.loss_scale, whole.loss_scale);
  }
}

// Some sums of squares are known, and ranges cover the rest.
AERIE_KERNEL_TEST(Adamw, NormFromKnownSquares) {
  const size_t n = 40000;
  const std::vector<float> grads = testing::random_values(n, 5);
  std::vector<double> known(3000);
  std::vector<AdamwRange> ranges;
  for (int64_t begin = 0; begin < 40000; begin += 8000) {
    // Two thirds of each range of 8000 are known.
    ranges.push_back({begin, 2664});
    for (int64_t i = begin + 2664; i < begin + 8000; ++i) {
      const double value = grads[static_cast<size_t>(i)];
      known[static_cast<size_t>(i) % known.size()] += value * value;
    }
  }
  double squares = 0.0;
  for (const float value : grads) squares += static_cast<double>(value) * value;
  for (Backend* b : {&backend, testing::reference_backend().release()}) {
    const std::unique_ptr<Backend> owned(b == &backend ? nullptr : b);
    AdamwStep a;
    a.count = static_cast<int64_t>(n);
    a.grads = b->upload(grads);
    a.partial = b->scratch<double>(kAdamwParts);
    a.control = b->scratch<AdamwControl>(1);
    a.square_partials = b->upload(known);
    a.num_square_partials = static_cast<int64_t>(known.size());
    a.ranges = b->upload(ranges);
    a.num_ranges = static_cast<int32_t>(ranges.size());
    ASSERT_EQ(b->kernels().adamw_decide(a, nullptr), kOk);
    const AdamwControl control = b->download(a.control, 1)[0];
    EXPECT_NEAR(control.norm, std::sqrt(squares), 1e-12 * squares);
    EXPECT_EQ(control.skip, 0u);
    known[77] = std::numeric_limits<double>::infinity();
    a.square_partials = b->upload(known);
    ASSERT_EQ(b->kernels().adamw_decide(a, nullptr), kOk);
    EXPECT_EQ(b->download(a.control, 1)[0].skip, 1u);
    known[77] = 0.0;
    for (size_t i = 77; i < n; i += known.size())
      if (i % 8000 >= 2664) known[77] += static_cast<double>(grads[i]) * grads[i];
  }
}

TEST(AdamwReferenceTest, OneStepByHand) {
  const auto b = testing::reference_backend();
  AdamwStep a;
  a.count = 8;
  a.params = b->upload(std::vector<float>(8, 1.0f));
  a.grads = b->upload(std::vector<float>(8, 0.5f));
  a.exp_avg = b->upload(std::vector<float>(8, 0.0f));
  a.exp_avg_sq = b->upload(std::vector<float>(8, 0.0f));
  a.segments = b->upload(std::vector<AdamwSegment>{{0, 8, 0, true, 0.9, 0.98, 1e-8, 1e-3}});
  a.num_segments = 1;
  a.steps = b->upload(std::vector<float>{0.0f});
  a.learning_rates = b->upload(std::vector<double>{1e-2});
  a.factors = b->scratch<AdamwFactors>(1);
  a.control = b->scratch<AdamwControl>(1);
  ASSERT_EQ(do_step(*b, a), kOk);
  // The first step moves by the learning rate against the sign of the gradient, after the decay.
  EXPECT_NEAR(a.params[0], 1.0f - 1e-5f - 1e-2f, 1e-6f);
  EXPECT_NEAR(a.control->norm, 0.5 * std::sqrt(8.0), 1e-12);
}

}  // namespace
}  // namespace aerie::kernels::adamw_test
