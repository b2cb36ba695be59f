#include "aerie/kernels/sums/partial_sums.h"

#include <utility>

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::partial_sums_test {
namespace {

using testing::Backend;
using testing::random_values;

constexpr int kParts[] = {1, 70, 33, 264};
constexpr int kColumns[] = {5, 64, 40, 33};

std::vector<float> run(Backend& b) {
  PartialSums a;
  std::vector<std::pair<float*, size_t>> outs;
  for (int i = 0; i < 4; ++i) {
    PartialSum& s = a.sums[a.count++];
    s.parts = kParts[i];
    s.columns = kColumns[i];
    s.stride = kColumns[i] + 3 * i;
    const size_t size = static_cast<size_t>(s.parts * s.stride), seed = static_cast<size_t>(i);
    s.partial = b.upload(random_values(size, seed));
    s.accumulate = i % 2 == 1;
    s.out = b.upload(random_values(static_cast<size_t>(s.columns), seed + 9));
    outs.push_back({s.out, static_cast<size_t>(s.columns)});
  }
  EXPECT_EQ(b.kernels().add_partials(a, nullptr), kOk);
  std::vector<float> all;
  for (const auto& [out, size] : outs)
    for (const float value : b.download(out, size)) all.push_back(value);
  return all;
}

AERIE_KERNEL_TEST(PartialSums, EqualsTheReference) {
  testing::expect_close(run(backend), run(*testing::reference_backend()), 1e-5, 1e-6, "sums");
}

AERIE_KERNEL_TEST(PartialSums, AnEmptyListIsNothing) {
  EXPECT_EQ(backend.kernels().add_partials(PartialSums{}, nullptr), kOk);
}

}  // namespace
}  // namespace aerie::kernels::partial_sums_test
