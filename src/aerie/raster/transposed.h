// From a canvas to a mask: other order of axes, mirrors.
#pragma once

#include <cstdint>

#include "aerie/raster/mask.h"

namespace aerie::raster {

// out[x][y] |= canvas row y, column x; out has canvas.width rows of canvas.height cells. Mirrors
// reverse x and y of `out`.
void merge_transposed(const MaskView& canvas, uint8_t* out, bool mirror_x, bool mirror_y);

// out[row][column] = canvas row, column; mirrors reverse columns and rows of `out`.
void copy_mirrored(const MaskView& canvas, uint8_t* out, bool mirror_columns, bool mirror_rows);

}  // namespace aerie::raster
