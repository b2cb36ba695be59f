#include "aerie/kernels/layout/cast.h"

#include <limits>

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels {
namespace {

using testing::Backend;

// One element beyond the buffer's end is checked too.
std::vector<uint16_t> run(Backend& b, Dtype to, const std::vector<float>& values) {
  Cast a;
  a.to = to;
  a.count = static_cast<int64_t>(values.size());
  a.x = b.upload(values);
  uint16_t* out = b.upload(std::vector<uint16_t>(values.size() + 1, 7));
  a.out = out;
  EXPECT_EQ(b.kernels().cast(a, nullptr), kOk);
  return b.download(out, values.size() + 1);
}

AERIE_KERNEL_TEST(Cast, EqualsTheReference) {
  const auto reference = testing::reference_backend();
  for (const Dtype to : {Dtype::kBf16, Dtype::kHalf})
    for (const size_t count : {0, 1, 8, 4099}) {
      std::vector<float> values = testing::random_values(count, 1, 3.0f);
      if (count > 8) {
        values[0] = std::numeric_limits<float>::infinity();
        values[1] = 1e-7f;
        values[2] = 1e6f;
        values[3] = 1.00390625f;  // halfway between two bf16 values
        values[4] = -0.0f;
      }
      const std::vector<uint16_t> actual = run(backend, to, values);
      EXPECT_EQ(actual, run(*reference, to, values));
      EXPECT_EQ(actual.back(), 7);
    }
  Cast wide;
  wide.to = Dtype::kFloat;
  EXPECT_EQ(backend.kernels().cast(wide, nullptr), kUnsupported);
}

}  // namespace
}  // namespace aerie::kernels
