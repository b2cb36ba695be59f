#include "aerie/raster/sampled.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace aerie::raster {

namespace {

// First cell whose centre is at or right of x, within [0, size].
int first_cell(double x, int size) {
  const double cell = std::ceil(x - 0.5);
  return cell >= size ? size : cell > 0.0 ? static_cast<int>(cell) : 0;
}

// Last cell whose centre is at or left of x, within [-1, size - 1].
int last_cell(double x, int size) {
  const double cell = std::floor(x - 0.5);
  return cell >= size ? size - 1 : cell >= 0.0 ? static_cast<int>(cell) : -1;
}

void set_cells(const MaskView& mask, int row, int first, int last, uint8_t value) {
  if (first <= last)
    std::memset(mask.row(row) + first, value, static_cast<size_t>(last - first + 1));
}

}  // namespace

void CentreSampler::fill(const MaskView& mask, const Rings& rings, uint8_t value) {
  edges_.clear();
  for (size_t r = 0; r < rings.size(); ++r) {
    const std::span<const Point> ring = rings.ring(r);
    for (size_t i = 0; i < ring.size(); ++i) {
      Point a = ring[i], b = ring[i + 1 == ring.size() ? 0 : i + 1];
      if (a.y > b.y) std::swap(a, b);
      const int first = first_cell(a.y, mask.height), end = first_cell(b.y, mask.height);
      if (first < end) edges_.push_back({first, end, a, b});
    }
  }
  std::sort(edges_.begin(), edges_.end(),
            [](const Edge& a, const Edge& b) { return a.first_row < b.first_row; });
  active_.clear();
  size_t next = 0;
  for (int row = edges_.empty() ? mask.height : edges_.front().first_row; row < mask.height;
       ++row) {
    std::erase_if(active_, [&](uint32_t i) { return edges_[i].end_row <= row; });
    for (; next < edges_.size() && edges_[next].first_row <= row; ++next)
      active_.push_back(static_cast<uint32_t>(next));
    crossings_.clear();
    for (const uint32_t i : active_) {
      const auto& [first, end, a, b] = edges_[i];
      crossings_.push_back(a.x + (row + 0.5 - a.y) / (b.y - a.y) * (b.x - a.x));
    }
    std::sort(crossings_.begin(), crossings_.end());
    // Rings are closed: every row has an even number of crossings.
    for (size_t i = 0; i + 1 < crossings_.size(); i += 2)
      set_cells(mask, row, first_cell(crossings_[i], mask.width),
                first_cell(crossings_[i + 1], mask.width) - 1, value);
  }
}

void stroke_centres(const MaskView& mask, const Point& from, const Point& to, double radius,
                    uint8_t value) {
  Point a = from, b = to;
  // What is farther away from the canvas than the stroke is wide does not show.
  const double margin = radius + 1.0;
  if (!clip_segment({-margin, -margin, mask.width + margin, mask.height + margin}, a, b)) return;
  const double dx = b.x - a.x, dy = b.y - a.y, length = std::hypot(dx, dy);
  if (!(length > 0.0)) return;
  const double side_x = -dy / length * radius, side_y = dx / length * radius;
  const Point corners[4] = {{a.x + side_x, a.y + side_y},
                            {b.x + side_x, b.y + side_y},
                            {b.x - side_x, b.y - side_y},
                            {a.x - side_x, a.y - side_y}};
  const int last_row = last_cell(std::max(a.y, b.y) + radius, mask.height);
  for (int row = first_cell(std::min(a.y, b.y) - radius, mask.height); row <= last_row; ++row) {
    const double y = row + 0.5;
    double left = INFINITY, right = -INFINITY;
    const auto widen = [&](double x) {
      left = std::min(left, x);
      right = std::max(right, x);
    };
    for (const Point& end : {a, b}) {  // round caps
      const double rest = radius * radius - (y - end.y) * (y - end.y);
      if (rest < 0.0) continue;
      widen(end.x - std::sqrt(rest));
      widen(end.x + std::sqrt(rest));
    }
    for (int i = 0; i < 4; ++i) {
      const Point &p = corners[i], &q = corners[(i + 1) % 4];
      if ((p.y <= y) != (q.y <= y)) widen(p.x + (y - p.y) / (q.y - p.y) * (q.x - p.x));
    }
    if (left <= right)
      set_cells(mask, row, first_cell(left, mask.width), last_cell(right, mask.width), value);
  }
}

}  // namespace aerie::raster
