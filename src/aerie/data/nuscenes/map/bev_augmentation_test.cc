#include "aerie/data/nuscenes/map/bev_augmentation.h"

#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "aerie/archive/safetensors.h"
#include "aerie/base/env.h"
#include "aerie/base/testing/paths.h"

namespace aerie::nuscenes {
namespace {

TEST(BevAugmentationTest, MatricesEqualTheFixture) {
  const auto file = archive::read_safetensors(Env::real(), test_data("/bev/matrices.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  const auto parameters = *file->read_as<double>(*file->find("bev_aug_params")),
             expected = *file->read_as<double>(*file->find("bev_aug"));
  ASSERT_EQ(parameters.size() / 7, expected.size() / 16);
  for (size_t i = 0; i < parameters.size() / 7; ++i) {
    const double* const p = &parameters[i * 7];
    const BevAugmentation augmentation{p[0], p[1], {p[2], p[3], p[4]}, p[6] != 0.0, p[5] != 0.0};
    const Mat4 a = augmentation.matrix();
    for (size_t k = 0; k < 16; ++k)
      EXPECT_NEAR(a.m[k], expected[i * 16 + k], 1e-9) << i << " " << k;
  }
}

TEST(BevAugmentationTest, DrawsDependOnTheirKeysAlone) {
  const BevAugmentationOptions options;
  int flips_x = 0, flips_y = 0;
  double sum_shift = 0.0, sum_square = 0.0, min_scale = 9.0, max_scale = 0.0;
  constexpr int kDraws = 4000;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const auto drawn = draw_bev_augmentation(options, 3, 1, i),
               again = draw_bev_augmentation(options, 3, 1, i);
    EXPECT_EQ(drawn.matrix().m, again.matrix().m);
    EXPECT_GE(drawn.rotation, options.rotation_min);
    EXPECT_LT(drawn.rotation, options.rotation_max);
    min_scale = std::min(min_scale, drawn.scale);
    max_scale = std::max(max_scale, drawn.scale);
    sum_shift += drawn.shift.x + drawn.shift.y + drawn.shift.z;
    sum_square += drawn.shift.x * drawn.shift.x + drawn.shift.y * drawn.shift.y +
                  drawn.shift.z * drawn.shift.z;
    flips_x += drawn.flip_x ? 1 : 0;
    flips_y += drawn.flip_y ? 1 : 0;
  }
  EXPECT_NEAR(min_scale, 0.9, 0.01);
  EXPECT_NEAR(max_scale, 1.1, 0.01);
  EXPECT_NEAR(sum_shift / (3 * kDraws), 0.0, 0.02);
  EXPECT_NEAR(std::sqrt(sum_square / (3 * kDraws)), 0.5, 0.02);
  EXPECT_NEAR(flips_x, kDraws / 2, 120);
  EXPECT_NEAR(flips_y, kDraws / 2, 120);
  EXPECT_NE(draw_bev_augmentation(options, 3, 1, 0).scale,
            draw_bev_augmentation(options, 3, 2, 0).scale);
  EXPECT_NE(draw_bev_augmentation(options, 3, 1, 0).scale,
            draw_bev_augmentation(options, 4, 1, 0).scale);
  BevAugmentationOptions still;
  still.flip_x = still.flip_y = false;
  EXPECT_EQ(draw_bev_augmentation(still, 3, 1, 0).scale,
            draw_bev_augmentation(options, 3, 1, 0).scale);

  EXPECT_TRUE(check(options).ok());
  still.scale_min = 0.0;
  EXPECT_FALSE(check(still).ok());
  still = {};
  still.rotation_min = 1.0;
  EXPECT_FALSE(check(still).ok());
  still = {};
  still.shift_std = -1.0;
  EXPECT_FALSE(check(still).ok());
}

}  // namespace
}  // namespace aerie::nuscenes
