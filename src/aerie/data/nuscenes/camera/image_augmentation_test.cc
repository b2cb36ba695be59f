#include "aerie/data/nuscenes/camera/image_augmentation.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <gtest/gtest.h>

#include "aerie/archive/safetensors.h"
#include "aerie/base/env.h"
#include "aerie/base/philox.h"
#include "aerie/base/testing/paths.h"

namespace aerie::nuscenes {
namespace {

TEST(ImageAugmentationTest, MatricesEqualTheReference) {
  const auto fixture =
      archive::read_safetensors(Env::real(), test_data("/bev/matrices.safetensors")).value();
  const auto* parameters = fixture.find("image_aug_params");
  const auto* matrices = fixture.find("image_aug");
  ASSERT_TRUE(parameters != nullptr && matrices != nullptr);
  const auto p = fixture.read_as<double>(*parameters).value();
  const auto want = fixture.read_as<double>(*matrices).value();
  ASSERT_EQ(p.size() / 7, want.size() / 16);
  ASSERT_GE(p.size() / 7, 8u);
  for (size_t i = 0; i < p.size() / 7; ++i) {
    ImageAugmentation a;
    a.resize = p[7 * i];
    a.crop_x = static_cast<int>(p[7 * i + 1]);
    a.crop_y = static_cast<int>(p[7 * i + 2]);
    a.flip = p[7 * i + 3] != 0;
    a.rotate_deg = p[7 * i + 4];
    a.final_height = static_cast<int>(p[7 * i + 5]);
    a.final_width = static_cast<int>(p[7 * i + 6]);
    const Mat4 got = a.matrix();
    for (int k = 0; k < 16; ++k) EXPECT_NEAR(got.m[k], want[16 * i + k], 1e-9) << i << " " << k;
  }
}

TEST(ImageAugmentationTest, EvaluationFollowsTheTwoRules) {
  const auto bf = test_image_augmentation(ImageAugmentationOptions::bev_fusion(), 1600, 900);
  EXPECT_EQ(bf.new_width, 744);  // 0.465
  EXPECT_EQ(bf.new_height, 418);
  EXPECT_EQ(bf.crop_x, 20);
  EXPECT_EQ(bf.crop_y, 162);
  EXPECT_FALSE(bf.flip);
  EXPECT_EQ(bf.rotate_deg, 0.0);
  ImageAugmentationOptions options;
  options.resize_lim = {0.48, 0.48};
  const auto published = test_image_augmentation(options, 1600, 900);
  EXPECT_EQ(published.new_width, 768);
  EXPECT_EQ(published.new_height, 432);
  EXPECT_EQ(published.crop_x, 32);
  EXPECT_EQ(published.crop_y, 176);
  const auto lss = test_image_augmentation(ImageAugmentationOptions::lift_splat_shoot(), 1600, 900);
  EXPECT_DOUBLE_EQ(lss.resize, 0.22);
  EXPECT_EQ(lss.new_width, 352);
  EXPECT_EQ(lss.new_height, 198);
  EXPECT_EQ(lss.crop_x, 0);
  EXPECT_EQ(lss.crop_y, static_cast<int>(0.89 * 198) - 128);
}

// Draws stand at fixed places of a stream, so that a data set made today can be made again.
TEST(ImageAugmentationTest, DrawsStandWhereTheHeaderSays) {
  const auto options = ImageAugmentationOptions::lift_splat_shoot();
  for (uint64_t entry : {uint64_t{0}, uint64_t{7}, uint64_t{1} << 40})
    for (int camera = 0; camera < 6; ++camera) {
      const auto a = draw_image_augmentation(options, 1600, 900, 11, 3, entry, camera);
      const auto key = philox_key(11, Purpose::kImageAugment);
      const auto draw = [&](uint64_t i) {
        return u32x2_to_unit_double(philox_u32(key, 3, entry * 256 + camera, 2 * i),
                                    philox_u32(key, 3, entry * 256 + camera, 2 * i + 1));
      };
      EXPECT_EQ(a.resize, 0.193 + (0.225 - 0.193) * draw(0));
      EXPECT_EQ(a.new_width, static_cast<int>(1600 * a.resize));
      EXPECT_EQ(a.new_height, static_cast<int>(900 * a.resize));
      EXPECT_EQ(a.crop_y, static_cast<int>((1 - 0.22 * draw(1)) * a.new_height) - 128);
      EXPECT_EQ(a.crop_x, static_cast<int>(draw(2) * std::max(0, a.new_width - 352)));
      EXPECT_EQ(a.flip, draw(3) < 0.5);
      EXPECT_EQ(a.rotate_deg, -5.4 + 10.8 * draw(4));
      // Switching the mirror off moves no other draw.
      auto still = options;
      still.rand_flip = false;
      const auto b = draw_image_augmentation(still, 1600, 900, 11, 3, entry, camera);
      EXPECT_FALSE(b.flip);
      EXPECT_EQ(b.rotate_deg, a.rotate_deg);
    }
}

TEST(ImageAugmentationTest, DrawsCoverTheirRangesAndDiffer) {
  const ImageAugmentationOptions options;
  std::set<double> seen;
  double low = 1, high = 0, sum = 0;
  int flips = 0;
  const int n = 3000;
  for (int entry = 0; entry < n / 6; ++entry)
    for (int camera = 0; camera < 6; ++camera) {
      const auto a = draw_image_augmentation(options, 1600, 900, 1, 0, entry, camera);
      seen.insert(a.resize);
      low = std::min(low, a.resize);
      high = std::max(high, a.resize);
      sum += a.rotate_deg;
      flips += a.flip;
      ASSERT_GE(a.crop_x, 0);
      ASSERT_LE(a.crop_x, std::max(0, a.new_width - 704));
      ASSERT_EQ(a.crop_y, a.new_height - 256);
    }
  EXPECT_EQ(seen.size(), static_cast<size_t>(n));
  EXPECT_LT(low, 0.381);
  EXPECT_GT(high, 0.549);
  EXPECT_NEAR(sum / n, 0.0, 0.3);
  EXPECT_NEAR(flips, n / 2, 150);
  for (const uint32_t epoch : {0u, 1u})
    for (const uint64_t seed : {1u, 2u})
      if (epoch != 0 || seed != 1) {
        EXPECT_EQ(seen.count(draw_image_augmentation(options, 1600, 900, seed, epoch, 5, 2).resize),
                  0u);
      }
}

TEST(ImageAugmentationTest, ChoosesCameras) {
  std::array<int, 6> left_out{};
  for (uint64_t entry = 0; entry < 600; ++entry) {
    const auto cameras = draw_cameras(6, 5, 4, 0, entry);
    const std::set<int> different(cameras.begin(), cameras.end());
    ASSERT_EQ(different.size(), 5u);
    for (int c = 0; c < 6; ++c) left_out[c] += different.count(c) == 0;
    ASSERT_EQ(cameras, draw_cameras(6, 5, 4, 0, entry));
  }
  for (const int count : left_out) EXPECT_NEAR(count, 100, 40);
}

TEST(ImageAugmentationTest, RefusesWhatMakesNoSense) {
  const auto refused = [](auto change) {
    ImageAugmentationOptions options;
    change(options);
    return !validate(options, 1600, 900).ok();
  };
  using Options = ImageAugmentationOptions;
  EXPECT_FALSE(refused([](Options&) {}));
  EXPECT_TRUE(validate(Options::lift_splat_shoot(), 1600, 900).ok());
  EXPECT_TRUE(refused([](Options& o) { o.final_height = 0; }));
  EXPECT_TRUE(refused([](Options& o) { o.final_width = 20000; }));
  EXPECT_TRUE(refused([](Options& o) { o.resize_lim = {0.5, 0.4}; }));
  EXPECT_TRUE(refused([](Options& o) { o.resize_lim = {0.0, 0.4}; }));
  EXPECT_TRUE(refused([](Options& o) { o.resize_lim = {0.0005, 0.4}; }));
  EXPECT_TRUE(refused([](Options& o) { o.resize_lim = {NAN, 0.4}; }));
  EXPECT_TRUE(refused([](Options& o) { o.resize_lim = {0.4, 60}; }));
  EXPECT_TRUE(refused([](Options& o) { o.bot_pct_lim = {0.0, 1.5}; }));
  EXPECT_TRUE(refused([](Options& o) { o.rot_lim = {-1e9, 0}; }));
}

}  // namespace
}  // namespace aerie::nuscenes
