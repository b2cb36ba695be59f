// PNG in and out, by libpng.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/image/image.h"

namespace aerie::image {

struct PngWriteOptions {
  int compression = 6;  // zlib's levels, 0 to 9
};

// Eight bits a channel; one (grey), three (colour) or four channels (with alpha).
Result<std::vector<uint8_t>> write_png(const ImageView& picture,
                                       const PngWriteOptions& options = {});

// One channel for grey pictures, three for colour (palettes too), two and four where there is
// transparency. Sixteen bits become eight (the high byte), fewer are spread over 0 to 255. Values
// are taken as stored: gamma and colour profiles are ignored. Larger pictures than `max_pixels`
// are an error.
Result<Image> read_png(std::span<const uint8_t> bytes, int64_t max_pixels = int64_t{1} << 28);

}  // namespace aerie::image
