#include "aerie/kernels/layout/layout.h"

#include <algorithm>

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::layout_test {
namespace {

using testing::Backend;
using testing::random_values;

std::vector<float> bias_gradient_of(Backend& b, Dtype dtype, int rows, int columns, bool add,
                                    const std::vector<int32_t>& num_rows = {}) {
  const size_t width = static_cast<size_t>(columns);
  BiasGradient a;
  a.dtype = dtype;
  a.rows = rows;
  a.columns = columns;
  a.stride = columns + 8;
  a.x = b.upload_as(dtype, random_values(static_cast<size_t>(rows) * (width + 8), 1));
  a.out = b.upload(random_values(width, 2));
  a.accumulate = add;
  a.num_rows = b.upload(num_rows);
  a.partial = b.scratch<float>(bias_gradient_scratch(columns));
  EXPECT_EQ(b.kernels().bias_gradient(a, nullptr), kOk);
  return b.download(a.out, width);
}

AERIE_KERNEL_TEST(BiasGradient, EqualsTheReference) {
  const auto reference = testing::reference_backend();
  for (const Dtype dtype : testing::kDtypes)
    for (const int rows : {1, 700})
      testing::expect_close(bias_gradient_of(backend, dtype, rows, 264, rows > 1),
                            bias_gradient_of(*reference, dtype, rows, 264, rows > 1), 1e-6, 0,
                            "sum");
}

AERIE_KERNEL_TEST(BiasGradient, CountsTheRowsThatAreUsed) {
  const auto reference = testing::reference_backend();
  for (const int32_t used : {0, 1, 333, 900})
    testing::expect_close(bias_gradient_of(backend, Dtype::kBF16, 700, 264, true, {used}),
                          bias_gradient_of(*reference, Dtype::kBF16, 700, 264, true, {used}), 1e-6,
                          0, "sum");
  EXPECT_EQ(bias_gradient_of(backend, Dtype::kBF16, 700, 264, false, {900}),
            bias_gradient_of(backend, Dtype::kBF16, 700, 264, false));
}

std::vector<float> swapped(Backend& b, Dtype from, Dtype to, bool add, int rows = 7,
                           int inner_a = 5, int inner_b = 9) {
  SwapInner s;
  s.from = from;
  s.to = to;
  s.rows = rows;
  s.a = inner_a;
  s.b = inner_b;
  const size_t count = static_cast<size_t>(rows * inner_a * inner_b);
  s.x = b.upload_as(from, random_values(count, 1));
  s.out = b.upload_as(to, random_values(count, 2));
  s.accumulate = add;
  EXPECT_EQ(b.kernels().swap_inner(s, nullptr), kOk);
  return b.download_as(to, s.out, count);
}

AERIE_KERNEL_TEST(SwapInner, EqualsTheReference) {
  const auto reference = testing::reference_backend();
  EXPECT_EQ(swapped(backend, Dtype::kF32, Dtype::kBF16, false),
            swapped(*reference, Dtype::kF32, Dtype::kBF16, false));
  EXPECT_EQ(swapped(backend, Dtype::kF32, Dtype::kF32, true),
            swapped(*reference, Dtype::kF32, Dtype::kF32, true));
  EXPECT_EQ(swapped(backend, Dtype::kF16, Dtype::kF32, false),
            swapped(*reference, Dtype::kF16, Dtype::kF32, false));
  EXPECT_EQ(swapped(backend, Dtype::kF32, Dtype::kBF16, false, 2, 264, 10),
            swapped(*reference, Dtype::kF32, Dtype::kBF16, false, 2, 264, 10));
  // Longer rows than shared memory holds.
  EXPECT_EQ(swapped(backend, Dtype::kF32, Dtype::kF32, true, 2, 300, 200),
            swapped(*reference, Dtype::kF32, Dtype::kF32, true, 2, 300, 200));
}

// Packed and back: what has a row in both layouts is there, the rest is zero.
AERIE_KERNEL_TEST(RepackRows, ThereAndBack) {
  const testing::Packing packing{{3, 9, 1}};
  const int frames = 9, channels = 24;
  const size_t padded = 3 * 9 * 24, packed = packing.num_rows(3, frames) * 24;
  const std::vector<float> values = random_values(padded, 1, 1.0f, Dtype::kBF16);
  for (const Dtype dtype : testing::kDtypes)
    for (Backend* b : {&backend, testing::reference_backend().release()}) {
      const std::unique_ptr<Backend> owned(b == &backend ? nullptr : b);
      RepackRows r;
      r.dtype = dtype;
      r.batch = 3;
      r.frames = frames;
      r.channels = channels;
      r.to = packing.upload(*b);
      r.x = b->upload_as(dtype, values);
      r.out = b->upload_as(dtype, std::vector<float>(packed, 7.0f));
      ASSERT_EQ(b->kernels().repack_rows(r, nullptr), kOk);
      const std::vector<float> there = b->download_as(dtype, r.out, packed);
      std::vector<float> expected = values;
      for (float& value : expected) value = testing::round_to(dtype, value);
      EXPECT_EQ(there, packing.pack(expected, frames, 24));
      r.from = r.to;
      r.to = {};
      r.x = r.out;
      r.out = b->upload_as(dtype, std::vector<float>(padded, 7.0f));
      ASSERT_EQ(b->kernels().repack_rows(r, nullptr), kOk);
      for (size_t row = 0; row < 27; ++row)
        if (static_cast<int>(row % 9) >= packing.rows[row / 9])
          std::fill_n(expected.begin() + static_cast<int64_t>(row * 24), 24, 0.0f);
      EXPECT_EQ(b->download_as(dtype, r.out, padded), expected);
    }
}

}  // namespace
}  // namespace aerie::kernels::layout_test
