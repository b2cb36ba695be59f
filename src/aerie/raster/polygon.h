// Polygons and strokes on a mask, cell by cell as OpenCV 4.11 draws them (fillPoly and polylines of
// one channel, 8-connected, no shift): inside the canvas, across its border and far outside.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aerie/raster/mask.h"

namespace aerie::raster {

// One a thread: keeps its buffers.
class PolygonFiller {
 public:
  // cv2.fillPoly(mask, rings, value): all rings together by the even-odd rule, and the border of
  // each. A ring closes itself; one or two points give a dot or a line.
  void fill(const MaskView& mask, std::span<const std::span<const CellPoint>> rings, uint8_t value);
  void fill(const MaskView& mask, std::span<const CellPoint> ring, uint8_t value);

 private:
  struct Edge {
    int64_t first_row, end_row;  // [first, end)
    int64_t x, slope;            // in 1/65536 cells: at first_row, a row
  };
  void add_ring(const MaskView& mask, std::span<const CellPoint> ring, uint8_t value);
  void fill_edges(const MaskView& mask, uint8_t value);

  std::vector<Edge> edges_;
  std::vector<uint32_t> active_;
  std::vector<int64_t> crossings_;
};

// cv2.polylines(mask, [points], isClosed=False, color=value, thickness=2). One point draws nothing.
void stroke_two_cells(const MaskView& mask, std::span<const CellPoint> points, uint8_t value);

}  // namespace aerie::raster
