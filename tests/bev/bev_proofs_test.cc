// Proofs by geometry alone: round trips, conservation of mass, depths of lidar points.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/base/env.h"
#include "aerie/base/philox.h"
#include "aerie/data/nuscenes/camera/image_augmentation.h"
#include "aerie/data/nuscenes/map/bev_augmentation.h"
#include "aerie/geometry/matrix.h"
#include "aerie/kernels/splat/splat.h"
#include "aerie/models/bev/view/frustum.h"
#include "proof_world.h"

namespace aerie::proofs {
namespace {

using nuscenes::ImageAugmentationOptions;
using nuscenes::kNumCameras;

std::array<float, 16> floats_of(const Mat4& a) {
  std::array<float, 16> out;
  to_floats(a, out);
  return out;
}

// Ground points -> camera -> augmented pixel -> back with the known depth, in float32 through the
// matrices of a batch, for 100 draws of both augmentations with mirrors.
TEST(BevProofsTest, RoundTripThroughBothAugmentations) {
  const World& world = World::instance();
  RandomStream random(1, Purpose::kTest, 0, 0);
  double worst = 0.0;
  int points = 0, mirrored_pictures = 0, turned = 0;
  std::array<int, 4> flips{};
  for (uint32_t draw = 0; draw < 100; ++draw) {
    const uint32_t sample = draw % world.index().num_samples();
    const nuscenes::SampleFrames frames = world.frames(sample);
    const nuscenes::BevAugmentation bev = nuscenes::draw_bev_augmentation({}, 7, draw, sample);
    ++flips[bev.flip_x * 2 + bev.flip_y];
    const ImageAugmentationOptions options = draw % 2 == 0
                                                 ? ImageAugmentationOptions::bev_fusion()
                                                 : ImageAugmentationOptions::lift_splat_shoot();
    for (int camera = 0; camera < kNumCameras; ++camera) {
      const Mat4 camera_to_lidar = frames.camera_to_reference[camera];
      const Mat4 camera_to_global = frames.lidar_to_global * camera_to_lidar;
      const auto image =
          nuscenes::draw_image_augmentation(options, 1600, 900, 7, draw, sample, camera);
      mirrored_pictures += image.flip;
      turned += std::abs(image.rotate_deg) > 1.0;
      const auto rays = bev::fused_geometry(floats_of(camera_to_lidar),
                                            floats_of(with_rotation(frames.intrinsic[camera])),
                                            floats_of(image.matrix()), floats_of(bev.matrix()));
      ASSERT_TRUE(rays.ok()) << rays.status().to_string();
      for (int i = 0; i < 20; ++i) {
        // A pixel of the lower half meets the ground; the point is the truth.
        const Ray ray = ray_of(camera_to_global, frames.intrinsic[camera],
                               random.uniform(0.0, 1600.0), random.uniform(500.0, 900.0));
        const Vec3 ground = ray.eye + ray.ground_depth() * ray.direction;
        ASSERT_NEAR(ground.z, 0.0, 1e-9);
        const Vec3 in_lidar = rigid_inverse(frames.lidar_to_global) * ground;
        const Vec3 in_camera = rigid_inverse(camera_to_lidar) * in_lidar;
        const Vec3 projected = frames.intrinsic[camera] * in_camera;
        const double depth = projected.z;
        if (depth < 1.0 || depth > 60.0) continue;
        const Vec3 pixel = image.matrix() * Vec3{projected.x / depth, projected.y / depth, depth};
        EXPECT_NEAR(pixel.z, depth, 1e-9);
        const float u = static_cast<float>(pixel.x), v = static_cast<float>(pixel.y);
        bev::FrustumAxes axes{{u}, {v}, {static_cast<float>(depth)}};
        std::array<float, 3> found;
        bev::frustum_points(*rays, axes, found);
        const Vec3 expected = bev.matrix() * in_lidar;
        const Vec3 off = Vec3{found[0], found[1], found[2]} - expected;
        worst = std::max(worst, std::sqrt(off.x * off.x + off.y * off.y + off.z * off.z));
        ++points;
      }
    }
  }
  EXPECT_LT(worst, 1e-3);
  EXPECT_GT(points, 8000);
  EXPECT_GT(mirrored_pictures, 200);
  EXPECT_GT(turned, 300);
  for (const int count : flips) EXPECT_GT(count, 10);
}

// With ones as context and any depth distribution, what lies in the grid is what was kept.
TEST(BevProofsTest, SplatConservesMass) {
  const World& world = World::instance();
  const nuscenes::SampleFrames frames = world.frames(1);
  const auto axes = bev::frustum_axes(256, 704, 32, 88, {1.0, 60.0, 0.5});
  const auto grid = bev::BevGrid::make({-51.2, 51.2, 0.4}, {-51.2, 51.2, 0.4}, {-10.0, 10.0, 20.0});
  ASSERT_TRUE(axes.ok() && grid.ok());
  const auto image =
      nuscenes::test_image_augmentation(ImageAugmentationOptions::bev_fusion(), 1600, 900);
  std::vector<float> to_lidar, lenses, pictures;
  const auto bev_matrix = floats_of(Mat4::identity());
  for (int camera = 0; camera < kNumCameras; ++camera) {
    const auto add = [](std::vector<float>& to, const std::array<float, 16>& matrix) {
      to.insert(to.end(), matrix.begin(), matrix.end());
    };
    add(to_lidar, floats_of(frames.camera_to_reference[camera]));
    add(lenses, floats_of(with_rotation(frames.intrinsic[camera])));
    add(pictures, floats_of(image.matrix()));
  }
  std::vector<int32_t> cells(static_cast<size_t>(kNumCameras * axes->points()));
  ASSERT_TRUE(bev::frustum_cells({1, kNumCameras, to_lidar, lenses, pictures, bev_matrix}, *axes,
                                 *grid, bev::VoxelRounding::kTrunc, cells)
                  .ok());
  kernels::SplatShape shape{1, kNumCameras, 32 * 88,    static_cast<int64_t>(axes->d.size()),
                            3, grid->n[0],  grid->n[1], grid->n[2]};
  std::vector<float> logits(static_cast<size_t>(shape.points()));
  RandomStream random(2, Purpose::kTest, 0, 0);
  for (float& value : logits) value = random.normal() * 2.0f;
  const std::vector<float> context(static_cast<size_t>(shape.images * shape.pixels * 3), 1.0f);
  std::vector<float> depth(logits.size()), pooled(static_cast<size_t>(shape.cells() * 3));
  const kernels::SplatInputs<float> in{
      shape,          cells.data(),
      logits.data(),  {shape.pixels * shape.depths, 1, shape.depths},
      context.data(), {shape.pixels * 3, 1, 3}};
  kernels::reference::splat_forward(in, kernels::splat_index(shape, cells.data()), depth.data(),
                                    pooled.data());
  double kept = 0.0, dropped = 0.0;
  for (size_t i = 0; i < cells.size(); ++i) (cells[i] >= 0 ? kept : dropped) += depth[i];
  EXPECT_GT(dropped, 0.01 * kept);  // the test must see both
  EXPECT_NEAR(kept + dropped, static_cast<double>(shape.images * shape.pixels), 0.05);
  for (int channel = 0; channel < 3; ++channel) {
    double sum = 0.0;
    for (int64_t i = 0; i < shape.cells(); ++i)
      sum += pooled[static_cast<size_t>(channel * shape.cells() + i)];
    EXPECT_NEAR(sum / kept, 1.0, 1e-5);
  }
}

// Points of the lidar lie on the ground: in every picture their depth is where the pixel's ray
// meets it. A principal point that is one pixel off must show.
TEST(BevProofsTest, LidarPointsHaveTheDepthOfTheGround) {
  const World& world = World::instance();
  double worst = 0.0, worst_wrong = 0.0;
  int points = 0;
  for (uint32_t sample = 0; sample < world.index().num_samples(); sample += 3) {
    const std::string bytes =
        Env::real().read_file(world.path(world.index().lidar(sample).filename)).value();
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
    ASSERT_EQ(values.size() % 5, 0u);
    const nuscenes::SampleFrames frames = world.frames(sample);
    for (int camera = 0; camera < kNumCameras; ++camera) {
      const nuscenes::CameraFrame record = world.index().camera(sample, camera);
      const Mat4 camera_to_global =
          nuscenes::matrix_of(record.ego).value() * nuscenes::matrix_of(record.sensor).value();
      const Mat4 lidar_to_camera = rigid_inverse(frames.camera_to_reference[camera]);
      Mat3 wrong = record.intrinsic;
      wrong(1, 2) += 1.0;
      for (size_t i = 0; i < values.size(); i += 5) {
        const Vec3 p =
            record.intrinsic * (lidar_to_camera * Vec3{values[i], values[i + 1], values[i + 2]});
        if (p.z < 1.0) continue;
        const double u = p.x / p.z, v = p.y / p.z;
        if (u < 0.0 || u >= 1600.0 || v < 0.0 || v >= 900.0) continue;
        const auto off = [&](const Mat3& lens) {
          return std::abs(ray_of(camera_to_global, lens, u, v).ground_depth() - p.z);
        };
        worst = std::max(worst, off(record.intrinsic));
        worst_wrong = std::max(worst_wrong, off(wrong));
        ++points;
      }
    }
  }
  EXPECT_GT(points, 2000);
  EXPECT_LT(worst, 1e-3);
  EXPECT_GT(worst_wrong, 1e-2);
}

// The vehicle drives on between the times of camera and lidar. What a camera sees lies where it is
// only if that way is taken into account.
TEST(BevProofsTest, ForgottenMotionShows) {
  const World& world = World::instance();
  double worst = 0.0, longest = 0.0;
  for (uint32_t sample = 0; sample < world.index().num_samples(); ++sample) {
    const nuscenes::SampleFrames frames = world.frames(sample);
    const nuscenes::SampleFrames still =
        nuscenes::sample_frames(world.index(), sample, nuscenes::ReferenceFrame::kLidar, false)
            .value();
    for (int camera = 0; camera < kNumCameras; ++camera) {
      const nuscenes::CameraFrame record = world.index().camera(sample, camera);
      const Mat4 camera_to_global =
          nuscenes::matrix_of(record.ego).value() * nuscenes::matrix_of(record.sensor).value();
      const Vec3 seen{1.5, 1.2, 14.0};  // in the camera's frame
      const Vec3 truth = rigid_inverse(frames.lidar_to_global) * (camera_to_global * seen);
      const auto off = [&](const nuscenes::SampleFrames& used) {
        const Vec3 d = used.camera_to_reference[camera] * seen - truth;
        return std::sqrt(d.x * d.x + d.y * d.y + d.z * d.z);
      };
      worst = std::max(worst, off(frames));
      longest = std::max(longest, off(still));
    }
  }
  EXPECT_LT(worst, 1e-6);
  EXPECT_GT(longest, 0.15);
  EXPECT_LT(longest, 0.8);  // 12 m/s for 50 ms, and a bend
}

}  // namespace
}  // namespace aerie::proofs
