// Rotation, scale, shift and mirrors of the bird's-eye view: what makes one drive many. The same
// values change the geometry of the cameras (matrix()) and the masks (GroundTruthMaker).
#pragma once

#include <cstdint>

#include "aerie/base/status.h"
#include "aerie/geometry/matrix.h"

namespace aerie::nuscenes {

// p' = F s (Rz(-rotation) p + shift), where F negates x (flip_x) and y (flip_y). The default is
// the identity: what evaluation uses.
struct BevAugmentation {
  double scale = 1.0;
  double rotation = 0.0;  // radians
  Vec3 shift;             // metres, before scaling
  bool flip_x = false;    // "vertical": x is negated, axis 1 of the mask is reversed
  bool flip_y = false;    // "horizontal": y is negated, axis 2 of the mask is reversed

  Mat4 matrix() const;
  Mat4 matrix_before_flips() const;
};

struct BevAugmentationOptions {
  double scale_min = 0.9, scale_max = 1.1;
  double rotation_min = -0.78539816339744830962, rotation_max = 0.78539816339744830962;  // +-pi/4
  double shift_std = 0.5;             // metres, of each axis
  bool flip_x = true, flip_y = true;  // each with probability one half
};

// Wrong ranges: scales that are not positive, ends in the wrong order, values that are not finite.
Status check(const BevAugmentationOptions& options);

// A pure function of its arguments: the same whoever asks and in which order. `entry` is the
// position in the epoch or the sample's number, as the caller likes, but always the same one.
BevAugmentation draw_bev_augmentation(const BevAugmentationOptions& options, uint64_t seed,
                                      uint32_t epoch, uint64_t entry);

}  // namespace aerie::nuscenes
