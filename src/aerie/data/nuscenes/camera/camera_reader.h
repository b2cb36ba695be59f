// From the bytes of a camera's JPEG to the augmented picture of a batch.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "aerie/base/status.h"
#include "aerie/data/nuscenes/camera/image_augmentation.h"
#include "aerie/image/image.h"
#include "aerie/image/jpeg.h"
#include "aerie/image/resample.h"

namespace aerie::nuscenes {

// exact   every pixel as Pillow's open, resize (bicubic), crop, transpose and rotate give it
// scaled  decoded at 1/2, 1/4 or 1/8 where the picture is to become that small anyway (resize <=
//         1/2, 1/4, 1/8), then resized from there: fewer operations, slightly other pixels
// auto    the same as exact: what is learnt does not depend on a choice nobody made
enum class DecodeMode { kAuto, kExact, kScaled };

// "auto", "exact" or "scaled". "gpu" is a name kept for later and refused.
Result<DecodeMode> parse_decode_mode(std::string_view text);
std::string_view decode_mode_name(DecodeMode mode);
// What the mode means where it is used: evaluation always decodes exactly.
DecodeMode decode_mode_for(DecodeMode configured, bool training);

// One thread at a time; after the first pictures it allocates nothing (libjpeg's own memory aside).
class CameraReader final {
 public:
  explicit CameraReader(const image::JpegLimits& limits = {},
                        image::ResampleSimd simd = image::ResampleSimd::kBest);

  // Size and kind of a picture, from its header.
  Result<image::JpegInfo> probe(std::span<const uint8_t> jpeg) { return jpeg_.open(jpeg); }

  // The whole picture, whatever its size, is resized to new_width x new_height of `augmentation`;
  // `out` has its final size and three channels. Only the rows that the crop needs are decoded.
  Status read(std::span<const uint8_t> jpeg, const ImageAugmentation& augmentation, DecodeMode mode,
              const image::MutableImageView& out);

 private:
  image::JpegReader jpeg_;
  image::BicubicResizer resizer_;
  image::Image cropped_;  // one row more than the crop: rotation reads a byte beyond
};

// 1, 2, 4 or 8: at which part of its size a picture is decoded in mode kScaled.
int decode_denominator(const ImageAugmentation& augmentation, int width, int height);

}  // namespace aerie::nuscenes
