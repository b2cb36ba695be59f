#include "aerie/kernels/layout/layout.h"

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels {
namespace {

using testing::Backend;
using testing::random_values;

std::vector<float> bias_gradient_of(Backend& b, Dtype dtype, int rows, int columns, bool add) {
  const size_t width = static_cast<size_t>(columns);
  BiasGradient a;
  a.dtype = dtype;
  a.rows = rows;
  a.columns = columns;
  a.stride = columns + 8;
  a.x = b.upload_as(dtype, random_values(static_cast<size_t>(rows) * (width + 8), 1));
  a.out = b.upload(random_values(width, 2));
  a.accumulate = add;
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

std::vector<float> swapped(Backend& b, Dtype from, Dtype to, bool add) {
  SwapInner s;
  s.from = from;
  s.to = to;
  s.rows = 7;
  s.a = 5;
  s.b = 9;
  s.x = b.upload_as(from, random_values(7 * 45, 1));
  s.out = b.upload_as(to, random_values(7 * 45, 2));
  s.accumulate = add;
  EXPECT_EQ(b.kernels().swap_inner(s, nullptr), kOk);
  return b.download_as(to, s.out, 7 * 45);
}

AERIE_KERNEL_TEST(SwapInner, EqualsTheReference) {
  const auto reference = testing::reference_backend();
  EXPECT_EQ(swapped(backend, Dtype::kFloat, Dtype::kBf16, false),
            swapped(*reference, Dtype::kFloat, Dtype::kBf16, false));
  EXPECT_EQ(swapped(backend, Dtype::kFloat, Dtype::kFloat, true),
            swapped(*reference, Dtype::kFloat, Dtype::kFloat, true));
  EXPECT_EQ(swapped(backend, Dtype::kHalf, Dtype::kFloat, false),
            swapped(*reference, Dtype::kHalf, Dtype::kFloat, false));
}

}  // namespace
}  // namespace aerie::kernels
