#include "aerie/kernels/adamw/saved_state.h"

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::saved_state_test {
namespace {

using testing::Backend;

struct Outcome {
  std::vector<float> values;
  std::vector<int64_t> counters;
};

// Saves, changes everything, restores under `skip`.
Outcome run(Backend& b, size_t num_values, size_t num_counters, uint32_t skip) {
  std::vector<int64_t> counters(num_counters), later(num_counters);
  for (size_t i = 0; i < num_counters; ++i) {
    counters[i] = (int64_t{1} << 40) + static_cast<int64_t>(i);
    later[i] = counters[i] + 1;
  }
  SavedState a;
  a.num_values = static_cast<int64_t>(num_values);
  a.num_counters = static_cast<int64_t>(num_counters);
  a.values = b.upload(testing::random_values(num_values, 1));
  a.saved_values = b.scratch<float>(num_values);
  a.counters = b.upload(counters);
  a.saved_counters = b.scratch<int64_t>(num_counters);
  AdamwControl control{};
  control.skip = skip;
  a.control = b.upload(std::vector<AdamwControl>{control});
  EXPECT_EQ(b.kernels().save_state(a, nullptr), kOk);
  EXPECT_EQ(b.download(a.saved_values, num_values), testing::random_values(num_values, 1));
  EXPECT_EQ(b.download(a.saved_counters, num_counters), counters);
  const std::vector<float> changed = testing::random_values(num_values, 2);
  if (num_values > 0) b.write(a.values, changed.data(), num_values * sizeof(float));
  if (num_counters > 0) b.write(a.counters, later.data(), num_counters * sizeof(int64_t));
  EXPECT_EQ(b.kernels().restore_if_skipped(a, nullptr), kOk);
  return {b.download(a.values, num_values), b.download(a.counters, num_counters)};
}

AERIE_KERNEL_TEST(SavedState, ComesBackWhenTheStepWasSkipped) {
  const auto reference = testing::reference_backend();
  for (const size_t num_values : {0, 1, 700})
    for (const size_t num_counters : {0, 3, 300})
      for (const uint32_t skip : {0u, 1u}) {
        const Outcome e = run(*reference, num_values, num_counters, skip);
        const Outcome a = run(backend, num_values, num_counters, skip);
        EXPECT_EQ(a.values, e.values);
        EXPECT_EQ(a.counters, e.counters);
        EXPECT_EQ(a.values, testing::random_values(num_values, skip != 0 ? 1 : 2));
      }
  SavedState none;
  EXPECT_EQ(backend.kernels().restore_if_skipped(none, nullptr), kUnsupported);
}

}  // namespace
}  // namespace aerie::kernels::saved_state_test
