#include "aerie/raster/segment.h"

#include <cstdlib>
#include <utility>

namespace aerie::raster {

namespace {

enum Side : unsigned { kLeft = 1, kRight = 2, kAbove = 4, kBelow = 8 };

unsigned column_side(const WidePoint& p, int64_t right) {
  return p.x < 0 ? kLeft : p.x > right ? kRight : 0u;
}

unsigned sides(const WidePoint& p, int64_t right, int64_t bottom) {
  const unsigned row = p.y < 0 ? kAbove : p.y > bottom ? kBelow : 0u;
  return row | column_side(p, right);
}

// How far `to` is along an axis that moves `other` units while the first moves `whole` ones.
int64_t share(int64_t part, int64_t other, int64_t whole) {
  return static_cast<int64_t>(static_cast<double>(part) * static_cast<double>(other) /
                              static_cast<double>(whole));
}

bool inside(const WidePoint& p, int64_t right, int64_t bottom) {
  return p.x >= 0 && p.x <= right && p.y >= 0 && p.y <= bottom;
}

}  // namespace

bool cut_at_canvas(int64_t width, int64_t height, WidePoint& a, WidePoint& b) {
  if (width <= 0 || height <= 0) return false;
  const int64_t right = width - 1, bottom = height - 1;
  unsigned sides_a = sides(a, right, bottom), sides_b = sides(b, right, bottom);
  const auto crosses = [&] { return (sides_a & sides_b) == 0 && (sides_a | sides_b) != 0; };
  if (crosses()) {
    const auto cut_row = [&](WidePoint& p, unsigned& p_sides) {
      if ((p_sides & (kAbove | kBelow)) == 0) return;
      const int64_t row = (p_sides & kBelow) == 0 ? 0 : bottom;
      p.x += share(row - p.y, b.x - a.x, b.y - a.y);
      p.y = row;
      p_sides = column_side(p, right);
    };
    cut_row(a, sides_a);
    cut_row(b, sides_b);
    if (crosses()) {
      const auto cut_column = [&](WidePoint& p, unsigned& p_sides) {
        if (p_sides == 0) return;
        const int64_t column = p_sides == kLeft ? 0 : right;
        p.y += share(column - p.x, b.y - a.y, b.x - a.x);
        p.x = column;
        p_sides = 0;
      };
      cut_column(a, sides_a);
      cut_column(b, sides_b);
    }
  }
  // The last test is ours: rounding of far away points never leads outside.
  return (sides_a | sides_b) == 0 && inside(a, right, bottom) && inside(b, right, bottom);
}

void draw_thin_line(const MaskView& mask, WidePoint a, WidePoint b, uint8_t value) {
  if (mask.width <= 0 || mask.height <= 0) return;
  const int64_t right = mask.width - 1, bottom = mask.height - 1;
  if ((!inside(a, right, bottom) || !inside(b, right, bottom)) &&
      !cut_at_canvas(mask.width, mask.height, a, b))
    return;
  if (b.x < a.x) std::swap(a, b);
  int64_t along = b.x - a.x, across = std::llabs(b.y - a.y);
  const ptrdiff_t row_step = (b.y < a.y ? -1 : 1) * static_cast<ptrdiff_t>(mask.width);
  ptrdiff_t along_step = 1, across_step = row_step;
  if (across > along) {
    std::swap(along, across);
    std::swap(along_step, across_step);
  }
  uint8_t* cell = mask.row(static_cast<int>(a.y)) + a.x;
  int64_t error = along - 2 * across;
  for (int64_t i = 0;; ++i) {
    *cell = value;
    if (i == along) break;
    cell += along_step;
    if (error < 0) {
      cell += across_step;
      error += 2 * along;
    }
    error -= 2 * across;
  }
}

}  // namespace aerie::raster
