// What polygons and strokes share: cutting a segment at the canvas, and a line one cell wide.
#pragma once

#include <cstdint>

#include "aerie/raster/mask.h"

namespace aerie::raster {

// Wide enough for any 32-bit cell in 1/65536 cells.
struct WidePoint {
  int64_t x = 0, y = 0;
};

// Cuts a-b at [0, width - 1] x [0, height - 1], first at rows, then at columns, and truncates what
// is cut to whole units, in the order that OpenCV does it: polygons depend on every unit. False
// when nothing is left; then the points may have moved nevertheless, and OpenCV goes on with them.
bool cut_at_canvas(int64_t width, int64_t height, WidePoint& a, WidePoint& b);

// Bresenham's line from left to right, both ends included.
void draw_thin_line(const MaskView& mask, WidePoint a, WidePoint b, uint8_t value);

}  // namespace aerie::raster
