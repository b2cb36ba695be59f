#include "aerie/data/nuscenes/map/bev_augmentation.h"

#include <cmath>

#include "aerie/base/philox.h"
#include "aerie/base/strings.h"

namespace aerie::nuscenes {

Mat4 BevAugmentation::matrix_before_flips() const {
  const Mat3 turn = rotation_z(-rotation);
  Mat4 a;
  for (int row = 0; row < 3; ++row) {
    for (int column = 0; column < 3; ++column) a(row, column) = scale * turn(row, column);
    a(row, 3) = scale * shift[row];
  }
  return a;
}

Mat4 BevAugmentation::matrix() const {
  Mat4 a = matrix_before_flips();
  for (int column = 0; column < 4; ++column) {
    if (flip_x) a(0, column) = -a(0, column);
    if (flip_y) a(1, column) = -a(1, column);
  }
  return a;
}

Status check(const BevAugmentationOptions& options) {
  const auto finite = [](double a, double b) { return std::isfinite(a) && std::isfinite(b); };
  if (!finite(options.scale_min, options.scale_max) || options.scale_min <= 0.0 ||
      options.scale_min > options.scale_max)
    return invalid_argument(str_cat("scale of the bird's-eye view runs from ", options.scale_min,
                                    " to ", options.scale_max))
        .with_hint("both positive, the smaller one first");
  if (!finite(options.rotation_min, options.rotation_max) ||
      options.rotation_min > options.rotation_max)
    return invalid_argument(str_cat("rotation of the bird's-eye view runs from ",
                                    options.rotation_min, " to ", options.rotation_max))
        .with_hint("radians, the smaller one first");
  if (!std::isfinite(options.shift_std) || options.shift_std < 0.0)
    return invalid_argument(
               str_cat("shift of the bird's-eye view has deviation ", options.shift_std))
        .with_hint("metres, 0 or more");
  return ok_status();
}

BevAugmentation draw_bev_augmentation(const BevAugmentationOptions& options, uint64_t seed,
                                      uint32_t epoch, uint64_t entry) {
  // Every value is drawn, used or not: switching one off leaves the others as they were.
  RandomStream stream(seed, Purpose::kBevAugment, epoch, entry);
  BevAugmentation drawn;
  drawn.scale = stream.uniform(options.scale_min, options.scale_max);
  drawn.rotation = stream.uniform(options.rotation_min, options.rotation_max);
  drawn.shift.x = options.shift_std * stream.normal();
  drawn.shift.y = options.shift_std * stream.normal();
  drawn.shift.z = options.shift_std * stream.normal();
  const bool heads_x = (stream.next_u32() >> 31) != 0, heads_y = (stream.next_u32() >> 31) != 0;
  drawn.flip_x = options.flip_x && heads_x;
  drawn.flip_y = options.flip_y && heads_y;
  return drawn;
}

}  // namespace aerie::nuscenes
