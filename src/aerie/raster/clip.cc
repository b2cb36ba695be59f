#include "aerie/raster/clip.h"

#include <algorithm>
#include <utility>

namespace aerie::raster {

void Rings::clear() {
  points.clear();
  end.clear();
  is_hole.clear();
}

void Rings::close(bool hole) {
  const auto last = static_cast<uint32_t>(points.size());
  if (last == (end.empty() ? 0 : end.back())) return;
  end.push_back(last);
  is_hole.push_back(hole ? 1 : 0);
}

// Always reckoned from outside to inside, so that both directions of an edge give the same point.
Point PolygonClipper::Side::crossing(const Point& outside, const Point& inside) const {
  const double out = inside_by(outside), in = inside_by(inside);
  const double share = out / (out - in);
  return axis == Axis::kX ? Point{limit, outside.y + share * (inside.y - outside.y)}
                          : Point{outside.x + share * (inside.x - outside.x), limit};
}

void PolygonClipper::cut_ring(std::span<const Point> ring, const Side& side) {
  size_t start = 0;  // some point outside
  while (side.inside_by(ring[start]) > 0.0) ++start;
  const Point* previous = &ring[start];
  bool was_inside = false;
  for (size_t i = 1; i <= ring.size(); ++i) {
    const Point& p = ring[(start + i) % ring.size()];
    const bool inside = side.inside_by(p) > 0.0;
    if (inside && !was_inside) {
      const auto begin = static_cast<uint32_t>(chain_points_.size());
      chains_.push_back({begin, begin});
      chain_points_.push_back(side.crossing(*previous, p));
    }
    if (inside) chain_points_.push_back(p);
    if (!inside && was_inside) {
      chain_points_.push_back(side.crossing(p, *previous));
      chains_.back().end = static_cast<uint32_t>(chain_points_.size());
    }
    was_inside = inside;
    previous = &p;
  }
}

// Inside and outside alternate along the side, so ends 0-1, 2-3, ... bound what is inside.
void PolygonClipper::join_chains(const Side& side) {
  ends_.clear();
  for (uint32_t i = 0; i < chains_.size(); ++i) {
    ends_.push_back({side.along(chain_points_[chains_[i].begin]), 2 * i});
    ends_.push_back({side.along(chain_points_[chains_[i].end - 1]), 2 * i + 1});
  }
  std::sort(ends_.begin(), ends_.end(), [](const ChainEnd& a, const ChainEnd& b) {
    return a.along != b.along ? a.along < b.along : a.number < b.number;
  });
  partner_.resize(ends_.size());
  for (size_t i = 0; i < ends_.size(); i += 2) {
    partner_[ends_[i].number] = ends_[i + 1].number;
    partner_[ends_[i + 1].number] = ends_[i].number;
  }
  used_.assign(chains_.size(), 0);
  for (uint32_t first = 0; first < chains_.size(); ++first) {
    for (uint32_t entry = 2 * first; used_[entry / 2] == 0;) {
      used_[entry / 2] = 1;
      const Chain& chain = chains_[entry / 2];
      const auto begin = chain_points_.begin() + chain.begin,
                 end = chain_points_.begin() + chain.end;
      if (entry % 2 == 0)
        next_.points.insert(next_.points.end(), begin, end);
      else  // rings that run the other way round
        next_.points.insert(next_.points.end(), std::reverse_iterator(end),
                            std::reverse_iterator(begin));
      entry = partner_[entry ^ 1u];
    }
    next_.close(false);
  }
}

void PolygonClipper::clip_side(Rings& rings, const Side& side) {
  next_.clear();
  chain_points_.clear();
  chains_.clear();
  for (size_t i = 0; i < rings.size(); ++i) {
    const std::span<const Point> ring = rings.ring(i);
    size_t num_inside = 0, num_on = 0;
    for (const Point& p : ring) {
      const double by = side.inside_by(p);
      num_inside += by > 0.0 ? 1 : 0;
      num_on += by == 0.0 ? 1 : 0;
    }
    if (num_inside == 0) continue;
    // An outside that touches the side is as it was; a hole opens when it touches twice.
    const bool untouched =
        num_inside + num_on == ring.size() && (num_on <= 1 || rings.is_hole[i] == 0);
    if (!untouched) {
      cut_ring(ring, side);
      continue;
    }
    next_.points.insert(next_.points.end(), ring.begin(), ring.end());
    next_.close(rings.is_hole[i] != 0);
  }
  join_chains(side);
  std::swap(rings, next_);
}

void PolygonClipper::clip(Rings& rings, const Rect& rect) {
  clip_side(rings, {Axis::kX, rect.min_x, false});
  clip_side(rings, {Axis::kX, rect.max_x, true});
  clip_side(rings, {Axis::kY, rect.min_y, false});
  clip_side(rings, {Axis::kY, rect.max_y, true});
}

bool clip_segment(const Rect& rect, Point& a, Point& b) {
  const double dx = b.x - a.x, dy = b.y - a.y;
  double first = 0.0, last = 1.0;
  // The limits that were reached last, so that the point lies on them exactly.
  const double *first_x = nullptr, *first_y = nullptr, *last_x = nullptr, *last_y = nullptr;
  const auto cut = [&](double speed, double room_to_min, double room_to_max, const double& min,
                       const double& max, const double*& first_at, const double*& other_first,
                       const double*& last_at, const double*& other_last) {
    if (speed == 0.0) return room_to_min >= 0.0 && room_to_max >= 0.0;
    const bool up = speed > 0.0;
    const double enter = (up ? -room_to_min : room_to_max) / speed;
    const double leave = (up ? room_to_max : -room_to_min) / speed;
    if (enter > first) {
      first = enter;
      first_at = up ? &min : &max;
      other_first = nullptr;
    }
    if (leave < last) {
      last = leave;
      last_at = up ? &max : &min;
      other_last = nullptr;
    }
    return first < last;
  };
  if (!cut(dx, a.x - rect.min_x, rect.max_x - a.x, rect.min_x, rect.max_x, first_x, first_y, last_x,
           last_y) ||
      !cut(dy, a.y - rect.min_y, rect.max_y - a.y, rect.min_y, rect.max_y, first_y, first_x, last_y,
           last_x) ||
      !(first < last))
    return false;
  const Point start = a;
  const auto at = [&](double share, const double* x, const double* y) {
    return Point{x != nullptr ? *x : std::clamp(start.x + share * dx, rect.min_x, rect.max_x),
                 y != nullptr ? *y : std::clamp(start.y + share * dy, rect.min_y, rect.max_y)};
  };
  if (last < 1.0) b = at(last, last_x, last_y);
  if (first > 0.0) a = at(first, first_x, first_y);
  return true;
}

}  // namespace aerie::raster
