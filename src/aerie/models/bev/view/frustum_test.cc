#include "aerie/models/bev/view/frustum.h"

#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace aerie::bev {
namespace {

constexpr std::array<float, 16> kIdentity = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};

BevGrid grid_of(const Bound& x, const Bound& y, const Bound& z) {
  return BevGrid::make(x, y, z).value();
}

// Recorded from torch 2.11 on a CPU with AVX2: torch.linspace(0, 351, 44), (0, 127, 16).
TEST(FrustumTest, AxesAreTorchsLinspace) {
  const std::vector<float> u = linspace_float(0.0f, 351.0f, 44);
  ASSERT_EQ(u.size(), 44u);
  EXPECT_EQ(u[0], 0.0f);
  EXPECT_EQ(u[1], 0x1.053594p+3f);
  EXPECT_EQ(u[7], 0x1.c91dc4p+5f);
  EXPECT_EQ(u[22], 0x1.6729aep+7f);
  EXPECT_EQ(u[30], 0x1.e9c478p+7f);
  EXPECT_EQ(u[43], 351.0f);
  const std::vector<float> v = linspace_float(0.0f, 127.0f, 16);
  EXPECT_EQ(v[7], 0x1.da2220p+5f);
  EXPECT_EQ(v[8], 0x1.0eeef0p+6f);
  EXPECT_EQ(v[15], 127.0f);
  EXPECT_EQ(linspace_float(0.0f, 47.0f, 1), std::vector<float>{0.0f});
  EXPECT_EQ(linspace_float(0.0f, 47.0f, 2), (std::vector<float>{0.0f, 47.0f}));
}

TEST(FrustumTest, CountsAreRoundedNotTruncated) {
  EXPECT_EQ(num_cells({-51.2, 51.2, 0.4}, "xbound").value(), 256);  // 255.99999999999997
  EXPECT_EQ(num_cells({-10, 10, 20}, "zbound").value(), 1);
  EXPECT_EQ(num_depths({1, 60, 0.5}, "dbound").value(), 118);
  EXPECT_EQ(num_depths({1, 60, 1}, "dbound").value(), 59);
  EXPECT_EQ(num_depths({4, 45, 1}, "dbound").value(), 41);
  EXPECT_EQ(num_depths({1, 2.2, 0.5}, "dbound").value(), 3);
}

TEST(FrustumTest, RefusesBoundsWithoutCells) {
  const double inf = std::numeric_limits<double>::infinity();
  for (const Bound& bound :
       {Bound{1, 1, 1}, Bound{2, 1, 1}, Bound{0, 1, 0}, Bound{0, 1, -1}, Bound{0, inf, 1},
        Bound{0, 1, std::nan("")}, Bound{0, 1, 3}, Bound{0, 1e9, 1e-3}}) {
    const auto cells = num_cells(bound, "xbound");
    ASSERT_FALSE(cells.ok()) << bound.step;
    EXPECT_NE(cells.status().message().find("xbound"), std::string::npos);
  }
  EXPECT_FALSE(BevGrid::make({0, 1e5, 1}, {0, 1e5, 1}, {0, 1, 1}).ok());
}

// Cells of the edges: truncation keeps the rim (-1, 0), flooring drops it.
TEST(FrustumTest, EdgesFallWhereTheRuleSays) {
  const BevGrid grid = grid_of({-50, 50, 0.5}, {-50, 50, 0.5}, {-10, 10, 20});
  const float inf = std::numeric_limits<float>::infinity();
  const auto trunc = [&](float x, float y, float z) {
    return cell_of_point({x, y, z}, grid, VoxelRounding::kTrunc);
  };
  const auto floor = [&](float x, float y, float z) {
    return cell_of_point({x, y, z}, grid, VoxelRounding::kFloor);
  };
  EXPECT_EQ(trunc(-50, -50, 0), 0);
  EXPECT_EQ(floor(-50, -50, 0), 0);
  EXPECT_EQ(trunc(-50.25f, -50, 0), 0);
  EXPECT_EQ(floor(-50.25f, -50, 0), -1);
  EXPECT_EQ(trunc(-50.5f, -50, 0), -1);
  EXPECT_EQ(trunc(49.75f, 49.75f, -29.0f), 199 * 200 + 199);
  EXPECT_EQ(floor(49.75f, 49.75f, -29.0f), -1);
  EXPECT_EQ(trunc(50, 0, 0), -1);
  EXPECT_EQ(trunc(0, 0, 10), -1);
  for (const float bad : {inf, -inf, std::nanf(""), 3e38f, -3e38f}) {
    EXPECT_EQ(trunc(bad, 0, 0), -1);
    EXPECT_EQ(trunc(0, bad, 0), -1);
    EXPECT_EQ(floor(0, 0, bad), -1);
  }
}

TEST(FrustumTest, CellsAreOrderedBatchHeightXY) {
  const BevGrid grid = grid_of({0, 3, 1}, {0, 2, 1}, {0, 4, 2});
  EXPECT_EQ(cell_of_point({2.5f, 1.5f, 2.5f}, grid, VoxelRounding::kFloor), (1 * 3 + 2) * 2 + 1);
  const FrustumAxes axes = frustum_axes(2, 2, 2, 2, {1, 2, 1}).value();
  // Two samples of one camera that looks along z: pixel (u, v) at depth 1 is the point (u, v, 1).
  std::vector<float> cameras, bev;
  for (int b = 0; b < 2; ++b) {
    cameras.insert(cameras.end(), kIdentity.begin(), kIdentity.end());
    bev.insert(bev.end(), kIdentity.begin(), kIdentity.end());
  }
  std::vector<int32_t> cells(8);
  const CameraMatrices matrices{2, 1, cameras, cameras, cameras, bev};
  ASSERT_TRUE(frustum_cells(matrices, axes, grid, VoxelRounding::kFloor, cells).ok());
  // Pixels row by row: (0,0), (1,0), (0,1), (1,1).
  EXPECT_EQ(cells, (std::vector<int32_t>{0, 2, 1, 3, 12, 14, 13, 15}));
}

TEST(FrustumTest, UndoesBothAugmentations) {
  // The picture is halved, moved by (3, -2) and mirrored; the view is mirrored in y and shifted.
  const std::array<float, 16> image = {-0.5f, 0, 0, 3, 0, 0.5f, 0, -2, 0, 0, 1, 0, 0, 0, 0, 1};
  const std::array<float, 16> camera = {100, 0, 50, 0, 0, 80, 40, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  const std::array<float, 16> frame = {0, 0, 1, 1.5f, -1, 0, 0, 0.5f, 0, -1, 0, 1.8f, 0, 0, 0, 1};
  const std::array<float, 16> bev = {1, 0, 0, 0.25f, 0, -1, 0, 0.5f, 0, 0, 1, 0, 0, 0, 0, 1};
  const CameraRays rays = fused_geometry(frame, camera, image, bev).value();
  // A point of the camera (0.4, -0.3, 5): where it is seen, and where it must come back to.
  const float d = 5.0f, x = 0.4f, y = -0.3f;
  const float u = -0.5f * (100 * x / d + 50) + 3, v = 0.5f * (80 * y / d + 40) - 2;
  FrustumAxes axes;
  axes.u = {u};
  axes.v = {v};
  axes.d = {d};
  std::vector<float> point(3);
  frustum_points(rays, axes, point);
  EXPECT_NEAR(point[0], d + 1.5f + 0.25f, 1e-5);
  EXPECT_NEAR(point[1], -(-x + 0.5f) + 0.5f, 1e-5);
  EXPECT_NEAR(point[2], -y + 1.8f, 1e-5);
}

TEST(FrustumTest, RefusesMatricesThatCannotBeUndone) {
  std::array<float, 16> singular = kIdentity, infinite = kIdentity, deep = kIdentity;
  singular[0] = 0.0f;
  infinite[3] = std::numeric_limits<float>::infinity();
  deep[11] = 1.0f;  // moves depth
  EXPECT_FALSE(fused_geometry(kIdentity, singular, kIdentity, kIdentity).ok());
  EXPECT_FALSE(fused_geometry(kIdentity, kIdentity, singular, kIdentity).ok());
  EXPECT_FALSE(fused_geometry(infinite, kIdentity, kIdentity, kIdentity).ok());
  EXPECT_FALSE(fused_geometry(kIdentity, kIdentity, kIdentity, infinite).ok());
  const auto refused = fused_geometry(kIdentity, kIdentity, deep, kIdentity);
  ASSERT_FALSE(refused.ok());
  EXPECT_NE(refused.status().message().find("depth"), std::string::npos);
  EXPECT_TRUE(fused_geometry(kIdentity, kIdentity, kIdentity, kIdentity).ok());
}

}  // namespace
}  // namespace aerie::bev
