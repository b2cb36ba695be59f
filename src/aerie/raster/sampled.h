// Shapes sampled at the centres of cells: cell (x, y) has its centre at (x + 0.5, y + 0.5).
// Coordinates are cells, in double; they may lie anywhere.
#pragma once

#include <cstdint>
#include <vector>

#include "aerie/raster/clip.h"
#include "aerie/raster/mask.h"

namespace aerie::raster {

// One a thread: keeps its buffers.
class CentreSampler {
 public:
  // Sets the cells whose centre lies in the rings together, by the even-odd rule.
  void fill(const MaskView& mask, const Rings& rings, uint8_t value);

 private:
  struct Edge {
    int first_row, end_row;  // rows with a.y <= centre < b.y
    Point a, b;
  };
  std::vector<Edge> edges_;
  std::vector<uint32_t> active_;
  std::vector<double> crossings_;
};

// Sets the cells whose centre is at most `radius` away from the segment a-b.
void stroke_centres(const MaskView& mask, const Point& a, const Point& b, double radius,
                    uint8_t value);

}  // namespace aerie::raster
