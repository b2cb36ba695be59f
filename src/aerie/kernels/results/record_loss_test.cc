#include "aerie/kernels/results/record_loss.h"

#include <cmath>
#include <limits>

#include "aerie/kernels/testing/backend.h"

namespace aerie::kernels::testing::record_loss_test {
namespace {

AERIE_KERNEL_TEST(RecordLoss, AddsPartsAndRemembersBadLosses) {
  Backend& b = backend;
  const float inf = std::numeric_limits<float>::infinity();
  MicroResult* results = b.scratch<MicroResult>(3);
  float* bad = b.scratch<float>(1);
  const auto run = [&](float loss, int32_t rows, int index, bool add, bool first) {
    RecordLoss r;
    r.loss = b.upload(std::vector<float>{loss});
    r.rows = b.upload(std::vector<int32_t>{rows});
    r.out = results + index;
    r.add = add;
    r.first = first;
    r.bad_loss = bad;
    ASSERT_EQ(b.kernels().record_loss(r, nullptr), kOk);
  };
  run(2.0f, 5, 0, false, true);
  run(1.5f, 2, 0, true, false);
  EXPECT_EQ(b.download(bad, 1)[0], 0.0f);
  run(std::nanf(""), 0, 1, false, false);  // an empty mask is no reason to skip
  EXPECT_EQ(b.download(bad, 1)[0], 0.0f);
  run(inf, 3, 2, false, false);
  EXPECT_TRUE(std::isnan(b.download(bad, 1)[0]));
  run(1.0f, 3, 1, false, false);  // once bad, the step stays so
  EXPECT_TRUE(std::isnan(b.download(bad, 1)[0]));
  const std::vector<MicroResult> got = b.download(results, 3);
  EXPECT_EQ(got[0].loss, 3.5f);
  EXPECT_EQ(got[0].rows, 7);
  EXPECT_EQ(got[1].rows, 3);
  EXPECT_EQ(got[2].loss, inf);
  run(1.0f, 1, 0, false, true);
  EXPECT_EQ(b.download(bad, 1)[0], 0.0f);
}

}  // namespace
}  // namespace aerie::kernels::testing::record_loss_test
