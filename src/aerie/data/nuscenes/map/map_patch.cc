#include "aerie/data/nuscenes/map/map_patch.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "aerie/raster/exact.h"

namespace aerie::nuscenes {

raster::Point PatchDrawer::Turn::operator()(const raster::Point& p) const {
  return {cos * p.x - sin * p.y + offset_x - centre.x, sin * p.x + cos * p.y + offset_y - centre.y};
}

bool PatchDrawer::draw(const MapExpansion& map, MapLayer layer, const MapPatch& patch, bool exact,
                       const raster::MaskView& canvas) {
  const double angle = -patch.angle_deg * std::numbers::pi / 180.0;
  turn_ = {std::cos(angle), std::sin(angle), 0.0, 0.0, patch.centre};
  constexpr double kNone = 2.5e-16;  // shapely takes right angles as exact
  if (std::abs(turn_.cos) < kNone) turn_.cos = 0.0;
  if (std::abs(turn_.sin) < kNone) turn_.sin = 0.0;
  const double x = patch.centre.x, y = patch.centre.y;
  turn_.offset_x = x - x * turn_.cos + y * turn_.sin;
  turn_.offset_y = y - x * turn_.sin - y * turn_.cos;
  to_cells_ = {patch.width / 2.0, patch.height / 2.0, patch.columns / patch.width,
               patch.rows / patch.height};
  rect_ = {-to_cells_.half_width, -to_cells_.half_height, to_cells_.half_width,
           to_cells_.half_height};

  // With the operations of shapely's rotate, in their order.
  const auto corner = [&](double corner_x, double corner_y) {
    const double sin = -turn_.sin;
    return raster::Point{turn_.cos * corner_x - sin * corner_y + (x - x * turn_.cos + y * sin),
                         sin * corner_x + turn_.cos * corner_y + (y - x * sin - y * turn_.cos)};
  };
  const double right = x + to_cells_.half_width, left = x - to_cells_.half_width;
  const double top = y + to_cells_.half_height, bottom = y - to_cells_.half_height;
  corners_ = {corner(right, bottom), corner(right, top), corner(left, top)};

  // The upright rectangle around the patch, and a bit more: strokes are wider than lines.
  const double margin = 2.0 / std::min(to_cells_.scale_x, to_cells_.scale_y);
  const double reach_x = std::abs(turn_.cos) * to_cells_.half_width +
                         std::abs(turn_.sin) * to_cells_.half_height + margin;
  const double reach_y = std::abs(turn_.sin) * to_cells_.half_width +
                         std::abs(turn_.cos) * to_cells_.half_height + margin;
  area_ = {x - reach_x, y - reach_y, x + reach_x, y + reach_y};
  map.shapes_in(layer, area_, hits_);
  if (hits_.empty()) return false;

  raster::clear(canvas);
  for (const uint32_t i : hits_) {
    const MapExpansion::Shape& shape = map.shape(layer, i);
    if (!map.is_drawn(layer, shape)) continue;
    if (is_line_layer(layer))
      draw_line(map.ring(shape, 0), exact, canvas);
    else if (exact)
      sample_polygon(map, shape, canvas);
    else
      draw_polygon(map, shape, canvas);
  }
  return true;
}

void PatchDrawer::draw_polygon(const MapExpansion& map, const MapExpansion::Shape& shape,
                               const raster::MaskView& canvas) {
  rings_.clear();
  for (uint32_t i = 0; i < shape.num_rings; ++i) {
    if (i > 0 && !map.ring_bounds(shape, i).overlaps(area_)) continue;
    for (const raster::Point& p : map.ring(shape, i)) rings_.points.push_back(turn_(p));
    rings_.close(i > 0);
  }
  clipper_.clip(rings_, rect_);
  cells_.clear();
  for (const raster::Point& p : rings_.points) {
    const raster::Point cell = to_cells_(p);
    cells_.push_back(
        {static_cast<int>(std::nearbyint(cell.x)), static_cast<int>(std::nearbyint(cell.y))});
  }
  outsides_.clear();
  holes_.clear();
  for (size_t i = 0; i < rings_.size(); ++i) {
    const uint32_t begin = i == 0 ? 0 : rings_.end[i - 1];
    (rings_.is_hole[i] != 0 ? holes_ : outsides_)
        .push_back(std::span(cells_).subspan(begin, rings_.end[i] - begin));
  }
  filler_.fill(canvas, outsides_, 1);
  filler_.fill(canvas, holes_, 0);
}

void PatchDrawer::sample_polygon(const MapExpansion& map, const MapExpansion::Shape& shape,
                                 const raster::MaskView& canvas) {
  rings_.clear();
  for (uint32_t i = 0; i < shape.num_rings; ++i) {
    if (i > 0 && !map.ring_bounds(shape, i).overlaps(area_)) continue;
    for (const raster::Point& p : map.ring(shape, i)) rings_.points.push_back(to_cells_(turn_(p)));
    rings_.close(i > 0);
  }
  sampler_.fill(canvas, rings_, 1);
}

void PatchDrawer::stroke_run(const raster::MaskView& canvas) {
  raster::stroke_two_cells(canvas, run_, 1);
  run_.clear();
}

// Lines are truncated to cells, so the last bit decides where they leave the patch on the right or
// at the top: cell 200 or 199. The devkit cuts on the map, rounds, and turns what it has cut.
raster::Point PatchDrawer::rounded_cut(const raster::Point& cut, const raster::Point& from,
                                       const raster::Point& to) const {
  raster::Point rounded = cut;
  if (cut.x == rect_.max_x)
    rounded.x = std::min(cut.x, turn_(raster::crossing_of(from, to, corners_[0], corners_[1])).x);
  if (cut.y == rect_.max_y)
    rounded.y = std::min(cut.y, turn_(raster::crossing_of(from, to, corners_[1], corners_[2])).y);
  return rounded;
}

void PatchDrawer::draw_line(std::span<const raster::Point> line, bool exact,
                            const raster::MaskView& canvas) {
  run_.clear();
  raster::Point from = turn_(line[0]);
  for (size_t i = 1; i < line.size(); ++i) {
    const raster::Point to = turn_(line[i]);
    if (exact) {
      raster::stroke_centres(canvas, to_cells_(from), to_cells_(to), 1.0, 1);
    } else {
      raster::Point a = from, b = to;
      const bool inside = raster::clip_segment(rect_, a, b);
      const auto truncated = [&](const raster::Point& p) {
        const raster::Point cell = to_cells_(p);
        return raster::CellPoint{static_cast<int>(cell.x), static_cast<int>(cell.y)};
      };
      const bool entered = a.x != from.x || a.y != from.y, left = b.x != to.x || b.y != to.y;
      if (!inside || entered) stroke_run(canvas);
      if (inside) {
        if (entered) a = rounded_cut(a, line[i - 1], line[i]);
        if (left) b = rounded_cut(b, line[i - 1], line[i]);
        if (run_.empty()) run_.push_back(truncated(a));
        run_.push_back(truncated(b));
        if (left) stroke_run(canvas);
      }
    }
    from = to;
  }
  stroke_run(canvas);
}

}  // namespace aerie::nuscenes
