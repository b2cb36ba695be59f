// What happens to a camera's picture on its way into a batch: resized, cropped, mirrored, turned.
//
// Every draw is a pure function of (seed, epoch, entry, camera): not of threads, nor of what was
// drawn before. Stream kImageAugment, position entry * 256 + camera; draws of 53 bits (two 32-bit
// numbers each), each at its own index, used or not:
//   0 resize   1 bottom share cut off   2 place of the crop   3 mirrored   4 angle
// and at camera 255 the choice of cameras (draw_cameras).
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/geometry/matrix.h"

namespace aerie::nuscenes {

// How pictures are resized in evaluation: to the mean of the limits (BEVFusion), or just so that
// they cover the final size (Lift-Splat-Shoot).
enum class TestResize { kMean, kCover };

struct ImageAugmentationOptions {
  int final_height = 256, final_width = 704;
  std::array<double, 2> resize_lim{0.38, 0.55};
  std::array<double, 2> bot_pct_lim{0.0, 0.0};
  std::array<double, 2> rot_lim{-5.4, 5.4};  // degrees
  bool rand_flip = true;
  TestResize test_resize = TestResize::kMean;

  static ImageAugmentationOptions bev_fusion() { return {}; }
  static ImageAugmentationOptions lift_splat_shoot();
};

// Sizes and limits that make sense for pictures of this size; the message names the option.
Status validate(const ImageAugmentationOptions& options, int width, int height);

struct ImageAugmentation {
  double resize = 1.0;
  int new_width = 0, new_height = 0;  // of the whole picture, resized
  int crop_x = 0, crop_y = 0;         // upper left corner; the crop may leave the picture
  int final_width = 0, final_height = 0;
  bool flip = false;
  double rotate_deg = 0.0;  // counter-clockwise

  // From pixels of the original picture to pixels of the final one; touches rows and columns 0, 1
  // and column 3 only. Uses `resize`, not the ratio of the rounded sizes.
  Mat4 matrix() const;
};

// For training. `width`, `height`: of the original picture. Options must be valid.
ImageAugmentation draw_image_augmentation(const ImageAugmentationOptions& options, int width,
                                          int height, uint64_t seed, uint32_t epoch, uint64_t entry,
                                          int camera);
// For evaluation: nothing is drawn.
ImageAugmentation test_image_augmentation(const ImageAugmentationOptions& options, int width,
                                          int height);

// `count` different numbers below `num_cameras`, in drawn order: the cameras of a training sample
// where not all of them are used.
std::vector<int> draw_cameras(int num_cameras, int count, uint64_t seed, uint32_t epoch,
                              uint64_t entry);

}  // namespace aerie::nuscenes
