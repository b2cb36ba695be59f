#include "aerie/raster/exact.h"

#include <cmath>

namespace aerie::raster {

namespace {

__extension__ typedef __float128 Quad;

}  // namespace

int side_of(const Point& a, const Point& b, const Point& c) {
  const double left = (b.x - a.x) * (c.y - a.y), right = (b.y - a.y) * (c.x - a.x);
  const double area = left - right;
  // Rounding of six operations stays below this share of the sum.
  const double doubt = 1e-15 * (std::abs(left) + std::abs(right));
  if (area > doubt) return 1;
  if (area < -doubt) return -1;
  const Quad exact = (Quad{b.x} - Quad{a.x}) * (Quad{c.y} - Quad{a.y}) -
                     (Quad{b.y} - Quad{a.y}) * (Quad{c.x} - Quad{a.x});
  return exact > 0 ? 1 : exact < 0 ? -1 : 0;
}

Point crossing_of(const Point& a, const Point& b, const Point& c, const Point& d) {
  const Quad ab_x = Quad{b.x} - Quad{a.x}, ab_y = Quad{b.y} - Quad{a.y};
  const Quad cd_x = Quad{d.x} - Quad{c.x}, cd_y = Quad{d.y} - Quad{c.y};
  const Quad turn = ab_x * cd_y - ab_y * cd_x;
  if (turn == 0) return a;
  const Quad share = ((Quad{c.x} - Quad{a.x}) * cd_y - (Quad{c.y} - Quad{a.y}) * cd_x) / turn;
  return {static_cast<double>(Quad{a.x} + share * ab_x),
          static_cast<double>(Quad{a.y} + share * ab_y)};
}

}  // namespace aerie::raster
