// A grid of cells, one byte each: row y, column x. Somebody else's memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace aerie::raster {

struct MaskView {
  uint8_t* data = nullptr;
  int width = 0, height = 0;  // columns, rows
  uint8_t* row(int y) const { return data + static_cast<size_t>(y) * width; }
};

// Sets every cell.
void clear(const MaskView& mask, uint8_t value = 0);

struct Point {
  double x = 0.0, y = 0.0;
};
struct CellPoint {
  int x = 0, y = 0;
};

}  // namespace aerie::raster
