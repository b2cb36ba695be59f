// The perfect-depth oracle: every feature pixel knows the depth at which its ray meets the ground
// and the classes there. Lifted, splatted and voted, it must give the truth from above; with any
// error in the geometry it must not.
#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/data/nuscenes/camera/image_augmentation.h"
#include "aerie/data/nuscenes/map/bev_augmentation.h"
#include "aerie/data/nuscenes/map/ground_truth.h"
#include "aerie/geometry/matrix.h"
#include "aerie/kernels/splat/splat.h"
#include "aerie/models/bev/view/frustum.h"
#include "proof_world.h"

namespace aerie::proofs {
namespace {

using nuscenes::BevAugmentation;
using nuscenes::ImageAugmentation;
using nuscenes::ImageAugmentationOptions;
using nuscenes::kNumCameras;

constexpr int kClasses = 6;
constexpr int kCells = 200;

struct Layout {
  int height, width, feature_height, feature_width;
};

// What the network would be given; a control changes it behind the oracle's back.
struct Geometry {
  std::array<Mat4, kNumCameras> camera_to_lidar;
  std::array<Mat4, kNumCameras> intrinsic;
  std::array<Mat4, kNumCameras> image;
  Mat4 bev;
};
using Mistake = std::function<void(Geometry&)>;

// One sample under one pair of augmentations: labels of all feature pixels and the truth.
class Oracle final {
 public:
  Oracle(uint32_t sample, const Layout& layout,
         const std::array<ImageAugmentation, kNumCameras>& images, const BevAugmentation& bev)
      : shape_{1,
               kNumCameras,
               layout.feature_height * layout.feature_width,
               0,
               kClasses + 1,
               kCells,
               kCells,
               1},
        axes_(bev::frustum_axes(layout.height, layout.width, layout.feature_height,
                                layout.feature_width, {1.0, 60.0, 0.5})
                  .value()) {
    shape_.depths = static_cast<int64_t>(axes_.d.size());
    const World& world = World::instance();
    const nuscenes::SampleFrames frames = world.frames(sample);
    PointClasses classes(world.map(sample), 0.5);
    logits_.assign(static_cast<size_t>(shape_.points()), -1e4f);
    context_.assign(static_cast<size_t>(shape_.images * shape_.pixels * shape_.channels), 0.0f);
    for (int camera = 0; camera < kNumCameras; ++camera) {
      right_.camera_to_lidar[camera] = frames.camera_to_reference[camera];
      right_.intrinsic[camera] = with_rotation(frames.intrinsic[camera]);
      right_.image[camera] = images[camera].matrix();
      label_camera(frames, camera, classes);
    }
    right_.bev = bev.matrix();
    nuscenes::GroundTruthOptions options;
    options.compat = nuscenes::GtCompat::kExact;
    auto maker = nuscenes::GroundTruthMaker::make(options).value();
    truth_.resize(maker.num_bytes());
    const Status drawn = maker.draw(world.map(sample), frames.lidar_to_global, bev, truth_.data());
    EXPECT_TRUE(drawn.ok()) << drawn.to_string();
  }

  struct Score {
    std::array<int64_t, kClasses> both{}, either{};
    int64_t hit = 0;
    double iou(int of_class) const {
      return static_cast<double>(both[of_class]) /
             std::max<double>(1.0, static_cast<double>(either[of_class]));
    }
    double iou() const {  // of all classes together
      double b = 0, e = 0;
      for (int k = 0; k < kClasses; ++k) {
        b += static_cast<double>(both[k]);
        e += static_cast<double>(either[k]);
      }
      return b / e;
    }
    void add(const Score& other) {
      for (int k = 0; k < kClasses; ++k) {
        both[k] += other.both[k];
        either[k] += other.either[k];
      }
      hit += other.hit;
    }
  };

  // Votes of the splat against the truth, on the cells that were hit.
  Score score(const Mistake& mistake = {}) const {
    Geometry geometry = right_;
    if (mistake) mistake(geometry);
    std::vector<float> to_lidar, lenses, images;
    const auto add = [](std::vector<float>& to, const Mat4& matrix) {
      std::array<float, 16> values;
      to_floats(matrix, values);
      to.insert(to.end(), values.begin(), values.end());
    };
    for (int camera = 0; camera < kNumCameras; ++camera) {
      add(to_lidar, geometry.camera_to_lidar[camera]);
      add(lenses, geometry.intrinsic[camera]);
      add(images, geometry.image[camera]);
    }
    std::vector<float> bev_matrix;
    add(bev_matrix, geometry.bev);
    const auto grid =
        bev::BevGrid::make({-50.0, 50.0, 0.5}, {-50.0, 50.0, 0.5}, {-10.0, 10.0, 20.0});
    std::vector<int32_t> cells(static_cast<size_t>(shape_.points()));
    const Status found = bev::frustum_cells({1, kNumCameras, to_lidar, lenses, images, bev_matrix},
                                            axes_, grid.value(), bev::VoxelRounding::kFloor, cells);
    EXPECT_TRUE(found.ok()) << found.to_string();
    std::vector<float> depth(logits_.size());
    std::vector<float> pooled(static_cast<size_t>(shape_.cells() * shape_.channels));
    const kernels::SplatInputs<float> in{
        shape_,          cells.data(),
        logits_.data(),  {shape_.pixels * shape_.depths, 1, shape_.depths},
        context_.data(), {shape_.pixels * shape_.channels, 1, shape_.channels}};
    kernels::reference::splat_forward(in, kernels::splat_index(shape_, cells.data()), depth.data(),
                                      pooled.data());
    Score score;
    const size_t plane = static_cast<size_t>(shape_.cells());
    for (size_t cell = 0; cell < plane; ++cell) {
      const float votes = pooled[kClasses * plane + cell];
      if (votes < 0.5f) continue;
      ++score.hit;
      for (int k = 0; k < kClasses; ++k) {
        const bool said = pooled[static_cast<size_t>(k) * plane + cell] > 0.5f * votes;
        const bool is = truth_[static_cast<size_t>(k) * plane + cell] != 0;
        score.both[k] += said && is;
        score.either[k] += said || is;
      }
    }
    return score;
  }

 private:
  void label_camera(const nuscenes::SampleFrames& frames, int camera, PointClasses& classes) {
    const Mat4 to_global = frames.lidar_to_global * frames.camera_to_reference[camera];
    const Mat4 to_original = inverse(right_.image[camera]).value();
    for (size_t row = 0; row < axes_.v.size(); ++row)
      for (size_t column = 0; column < axes_.u.size(); ++column) {
        const Vec3 pixel = to_original * Vec3{axes_.u[column], axes_.v[row], 0.0};
        // Padding beside the picture sees nothing.
        if (pixel.x < 0.0 || pixel.x > 1600.0 || pixel.y < 0.0 || pixel.y > 900.0) continue;
        const Ray ray = ray_of(to_global, frames.intrinsic[camera], pixel.x, pixel.y);
        const double depth = ray.ground_depth();
        if (ray.direction.z >= 0.0 || depth < 1.0 || depth > 59.5) continue;
        const size_t point =
            (static_cast<size_t>(camera) * axes_.v.size() + row) * axes_.u.size() + column;
        const size_t bin = static_cast<size_t>(std::lround((depth - 1.0) / 0.5));
        logits_[point * axes_.d.size() + bin] = 0.0f;
        const Vec3 ground = ray.eye + depth * ray.direction;
        const auto found = classes.at(ground.x, ground.y);
        float* context = context_.data() + point * static_cast<size_t>(shape_.channels);
        for (int k = 0; k < kClasses; ++k) context[k] = found[k] ? 1.0f : 0.0f;
        context[kClasses] = 1.0f;
      }
  }

  kernels::SplatShape shape_;
  bev::FrustumAxes axes_;
  Geometry right_;
  std::vector<float> logits_, context_;
  std::vector<uint8_t> truth_;
};

std::array<ImageAugmentation, kNumCameras> test_images(const ImageAugmentationOptions& options) {
  std::array<ImageAugmentation, kNumCameras> out;
  out.fill(nuscenes::test_image_augmentation(options, 1600, 900));
  return out;
}

constexpr Layout kLarge{256, 704, 32, 88}, kSmall{128, 352, 16, 44};

std::vector<Oracle> plain_oracles(const Layout& layout, const ImageAugmentationOptions& options,
                                  uint32_t step = 2) {
  std::vector<Oracle> out;
  for (uint32_t sample = 0; sample < World::instance().index().num_samples(); sample += step)
    out.emplace_back(sample, layout, test_images(options), BevAugmentation{});
  return out;
}

Oracle::Score score_of(const std::vector<Oracle>& oracles, const Mistake& mistake = {}) {
  Oracle::Score sum;
  for (const Oracle& oracle : oracles) sum.add(oracle.score(mistake));
  return sum;
}

// Half-metre depths and half-metre cells cost narrow classes some of their border: the bounds are
// those of the drivable area, all six classes together get a point less.
TEST(OracleProofsTest, PerfectDepthGivesTheTruthAtBothSizes) {
  const Oracle::Score large =
      score_of(plain_oracles(kLarge, ImageAugmentationOptions::bev_fusion()));
  const Oracle::Score small =
      score_of(plain_oracles(kSmall, ImageAugmentationOptions::lift_splat_shoot()));
  EXPECT_GE(large.iou(0), 0.95);
  EXPECT_GE(large.iou(), 0.94);
  EXPECT_GE(small.iou(0), 0.93);
  EXPECT_GE(small.iou(), 0.92);
  EXPECT_GT(large.hit, 4 * 3000);  // cells of four samples
  for (int k = 0; k < kClasses; ++k) EXPECT_GT(large.either[k], 40) << k;
  RecordProperty("iou_256x704", std::to_string(large.iou()));
  RecordProperty("iou_128x352", std::to_string(small.iou()));
}

// The same with everything drawn as in training: resize, crop, mirror and rotation of every
// picture, rotation, scale, shift and mirrors of the view from above.
TEST(OracleProofsTest, HoldsUnderBothAugmentations) {
  std::vector<Oracle> oracles;
  for (uint32_t draw = 0; draw < 4; ++draw) {
    const uint32_t sample = 2 * draw + 1;
    std::array<ImageAugmentation, kNumCameras> images;
    for (int camera = 0; camera < kNumCameras; ++camera)
      images[camera] = nuscenes::draw_image_augmentation(ImageAugmentationOptions::bev_fusion(),
                                                         1600, 900, 3, draw, sample, camera);
    BevAugmentation bev = nuscenes::draw_bev_augmentation({}, 3, draw, sample);
    bev.flip_x = draw % 2 == 1;  // each mirror is seen, whatever was drawn
    bev.flip_y = draw / 2 == 1;
    oracles.emplace_back(sample, kLarge, images, bev);
  }
  const Oracle::Score right = score_of(oracles);
  EXPECT_GE(right.iou(0), 0.95);
  EXPECT_GE(right.iou(), 0.92);
  const auto forgotten = [](Geometry& geometry) { geometry.bev = Mat4::identity(); };
  EXPECT_LT(score_of(oracles, forgotten).iou(), right.iou() - 0.1);
}

struct Control {
  const char* name;
  Mistake mistake;
};

TEST(OracleProofsTest, EveryMistakeShows) {
  const auto in_plane = [](double radians, double scale, bool swap, bool mirror_x, bool mirror_y) {
    return [=](Geometry& geometry) {
      Mat4 change = with_rotation(rotation_z(radians));
      for (int row = 0; row < 2; ++row)
        for (int column = 0; column < 2; ++column) {
          change(row, column) *= scale;
          if ((row == 0 && mirror_x) || (row == 1 && mirror_y)) change(row, column) *= -1.0;
        }
      if (swap) std::swap_ranges(change.m.begin(), change.m.begin() + 4, change.m.begin() + 4);
      geometry.bev = change * geometry.bev;
    };
  };
  const auto lenses = [](double factor) {
    return [=](Geometry& geometry) {
      for (Mat4& lens : geometry.intrinsic) {
        lens(0, 0) *= factor;
        lens(1, 1) *= factor;
      }
    };
  };
  const auto pictures = [](bool forget_resize, bool forget_crop) {
    return [=](Geometry& geometry) {
      for (Mat4& image : geometry.image) {
        if (forget_resize) image(0, 0) = image(1, 1) = 1.0;
        if (forget_crop) image(0, 3) = image(1, 3) = 0.0;
      }
    };
  };
  const double degree = std::numbers::pi / 180.0;
  const Control controls[] = {{"axes swapped", in_plane(0.0, 1.0, true, false, false)},
                              {"resize ignored", pictures(true, false)},
                              {"y mirrored", in_plane(0.0, 1.0, false, false, true)},
                              {"yaw + 5 degrees", in_plane(5.0 * degree, 1.0, false, false, false)},
                              {"scale 1.1 without labels", in_plane(0.0, 1.1, false, false, false)},
                              {"x mirrored", in_plane(0.0, 1.0, false, true, false)},
                              {"crop ignored", pictures(false, true)},
                              {"focal length + 5 %", lenses(1.05)},
                              {"yaw + 1 degree", in_plane(degree, 1.0, false, false, false)}};
  const std::vector<Oracle> oracles =
      plain_oracles(kLarge, ImageAugmentationOptions::bev_fusion(), 4);  // one of each scene
  const double right = score_of(oracles).iou();
  for (const Control& control : controls) {
    const double wrong = score_of(oracles, control.mistake).iou();
    EXPECT_GE(right - wrong, 0.01) << control.name;
    RecordProperty(control.name, std::to_string(wrong));
  }
}

}  // namespace
}  // namespace aerie::proofs
