// Turning a picture about its centre as Pillow's Image.rotate(angle) does it: nearest pixel, same
// size, black where nothing is. Equal to Pillow bit by bit, its 16.16 fixed point included.
#pragma once

#include "aerie/image/image.h"

namespace aerie::image {

// Pictures up to this size a side: beyond it Pillow computes otherwise.
inline constexpr int kMaxRotateSize = 16384;

// `in`, mirrored left to right first if `mirror`, then turned counter-clockwise. Three channels,
// equal sizes, and no overlap of the two. `in` is readable one byte beyond its last pixel.
void rotate_nearest(const ImageView& in, bool mirror, double degrees, const MutableImageView& out);

// Mirrored left to right or only copied; three channels.
void copy_mirrored(const ImageView& in, bool mirror, const MutableImageView& out);

}  // namespace aerie::image
