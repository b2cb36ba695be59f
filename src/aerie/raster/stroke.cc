// Strokes of thickness 2: every segment is a four-cornered polygon in 1/65536 cells, one cell to
// each side of the segment, and a plus of five cells at its ends.
#include <algorithm>
#include <array>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <utility>

#include "aerie/raster/polygon.h"
#include "aerie/raster/segment.h"

namespace aerie::raster {

namespace {

constexpr int kStrokeBits = 16;
constexpr int64_t kStrokeCell = int64_t{1} << kStrokeBits;
constexpr int64_t kHalfCell = kStrokeCell / 2;

// The cell that holds a coordinate, to the nearest. Wraps as OpenCV's ints do beyond 32 bits.
int nearest_cell(int64_t x) {
  return static_cast<int>((x + kHalfCell) >> kStrokeBits);
}

void put(const MaskView& mask, int64_t x, int64_t y, uint8_t value) {
  if (x >= 0 && x < mask.width && y >= 0 && y < mask.height)
    mask.row(static_cast<int>(y))[x] = value;
}

// A line one cell wide between points in fractions of cells.
void draw_fine_line(const MaskView& mask, WidePoint a, WidePoint b, uint8_t value) {
  if (!cut_at_canvas(mask.width * kStrokeCell, mask.height * kStrokeCell, a, b)) return;
  const bool flat = std::abs(b.x - a.x) > std::abs(b.y - a.y);
  if (flat ? b.x < a.x : b.y < a.y) std::swap(a, b);
  const int64_t along = flat ? b.x - a.x : b.y - a.y;
  const int64_t across = flat ? b.y - a.y : b.x - a.x;
  const int64_t step = across * kStrokeCell / (along | 1);
  put(mask, nearest_cell(b.x), nearest_cell(b.y), value);
  int64_t place = flat ? nearest_cell(a.x) : nearest_cell(a.y);
  int64_t drift = (flat ? a.y : a.x) + kHalfCell;
  for (int64_t left = along >> kStrokeBits; left >= 0; --left, ++place, drift += step) {
    const int64_t other = drift >> kStrokeBits;
    if (flat)
      put(mask, place, other, value);
    else
      put(mask, other, place, value);
  }
}

// Follows one border of a convex polygon downwards.
struct Border {
  int corner = 0, direction = 0;
  int end_row = 0;
  int64_t x = -kStrokeCell, slope = 0;
};

void fill_quad(const MaskView& mask, const std::array<WidePoint, 4>& corners, uint8_t value) {
  constexpr int kCorners = 4;
  for (int i = 0; i < kCorners; ++i)
    draw_fine_line(mask, corners[static_cast<size_t>((i + kCorners - 1) % kCorners)],
                   corners[static_cast<size_t>(i)], value);

  const auto corner = [&](int i) -> const WidePoint& { return corners[static_cast<size_t>(i)]; };
  int top = 0;
  int64_t min_x = corner(0).x, max_x = min_x, max_y = corner(0).y;
  for (int i = 1; i < kCorners; ++i) {
    if (corner(i).y < corner(top).y) top = i;
    min_x = std::min(min_x, corner(i).x);
    max_x = std::max(max_x, corner(i).x);
    max_y = std::max(max_y, corner(i).y);
  }
  int row = nearest_cell(corner(top).y);
  if (nearest_cell(max_x) < 0 || nearest_cell(max_y) < 0 || nearest_cell(min_x) >= mask.width ||
      row >= mask.height)
    return;
  const int last_row = std::min(nearest_cell(max_y), mask.height - 1);

  std::array<Border, 2> borders;
  borders[0] = {top, 1, row};
  borders[1] = {top, kCorners - 1, row};
  int unused_edges = kCorners;
  while (true) {
    for (Border& border : borders) {
      if (row < border.end_row) continue;
      int start = border.corner;
      int end = (start + border.direction) % kCorners;
      while (unused_edges-- > 0) {
        const int end_row = nearest_cell(corner(end).y);
        if (end_row > row) {
          const int64_t rows = int64_t{end_row} - row;
          border.end_row = end_row;
          border.slope = ((corner(end).x - corner(start).x) * 2 + rows) / (2 * rows);
          border.x = corner(start).x;
          border.corner = end;
          break;
        }
        start = end;
        end = (end + border.direction) % kCorners;
      }
    }
    if (unused_edges < 0) return;
    if (row < 0) {  // nothing to see until a border ends or the canvas begins
      const int64_t until =
          std::min<int64_t>({0, borders[0].end_row, borders[1].end_row, int64_t{last_row} + 1});
      const int64_t rows = std::max<int64_t>(until - row, 1);
      for (Border& border : borders) border.x += border.slope * rows;
      row = static_cast<int>(row + rows);
    } else {
      const auto [left, right] = std::minmax(borders[0].x, borders[1].x);
      const int first = std::max(nearest_cell(left), 0);
      const int last = std::min(nearest_cell(right), mask.width - 1);
      if (first <= last)
        std::memset(mask.row(row) + first, value, static_cast<size_t>(last - first + 1));
      for (Border& border : borders) border.x += border.slope;
      ++row;
    }
    if (row > last_row) return;
  }
}

void draw_plus(const MaskView& mask, const CellPoint& centre, uint8_t value) {
  const int64_t x = centre.x, y = centre.y;
  for (int64_t i = -1; i <= 1; ++i) {
    put(mask, x + i, y, value);
    put(mask, x, y + i, value);
  }
}

void stroke_segment(const MaskView& mask, const CellPoint& from, const CellPoint& to,
                    uint8_t value) {
  const double dx = static_cast<double>(int64_t{from.x} - to.x);
  const double dy = static_cast<double>(int64_t{to.y} - from.y);
  const double squared = dx * dx + dy * dy;
  if (squared > DBL_EPSILON) {
    const double scale = static_cast<double>(kStrokeCell) / std::sqrt(squared);
    const int64_t side_x = std::lrint(dy * scale), side_y = std::lrint(dx * scale);
    const WidePoint a{from.x * kStrokeCell, from.y * kStrokeCell},
        b{to.x * kStrokeCell, to.y * kStrokeCell};
    fill_quad(mask,
              {WidePoint{a.x + side_x, a.y + side_y}, WidePoint{a.x - side_x, a.y - side_y},
               WidePoint{b.x - side_x, b.y - side_y}, WidePoint{b.x + side_x, b.y + side_y}},
              value);
  }
  draw_plus(mask, to, value);
}

}  // namespace

void stroke_two_cells(const MaskView& mask, std::span<const CellPoint> points, uint8_t value) {
  if (mask.width <= 0 || mask.height <= 0 || points.size() < 2) return;
  draw_plus(mask, points[0], value);
  for (size_t i = 1; i < points.size(); ++i) stroke_segment(mask, points[i - 1], points[i], value);
}

}  // namespace aerie::raster
