#include "aerie/raster/validity.h"

#include <algorithm>
#include <tuple>

#include "aerie/raster/exact.h"

namespace aerie::raster {

namespace {

bool same(const Point& a, const Point& b) {
  return a.x == b.x && a.y == b.y;
}

enum class Place : uint8_t { kOutside, kBorder, kInside };

Place place_in(std::span<const Point> ring, const Point& p) {
  bool inside = false;
  for (size_t i = 0; i < ring.size(); ++i) {
    const Point& a = ring[i];
    const Point& b = ring[i + 1 == ring.size() ? 0 : i + 1];
    if (p.y < std::min(a.y, b.y) || p.y > std::max(a.y, b.y)) continue;
    const int side = side_of(a, b, p);
    if (side == 0 && p.x >= std::min(a.x, b.x) && p.x <= std::max(a.x, b.x)) return Place::kBorder;
    if ((a.y <= p.y) != (b.y <= p.y) && (side > 0) == (b.y > a.y)) inside = !inside;
  }
  return inside ? Place::kInside : Place::kOutside;
}

}  // namespace

bool ValidityChecker::spend(uint64_t work) {
  if (work > work_left_) {
    work_left_ = 0;
    return false;
  }
  work_left_ -= work;
  return true;
}

bool ValidityChecker::add_ring(std::span<const Point> ring, uint32_t number) {
  std::vector<Point>& points = rings_[number];
  points.clear();
  for (const Point& p : ring)
    if (points.empty() || !same(points.back(), p)) points.push_back(p);
  while (points.size() > 1 && same(points.front(), points.back())) points.pop_back();
  if (points.size() < 3) return false;
  const auto size = static_cast<uint32_t>(points.size());
  for (uint32_t i = 0; i < size; ++i) {
    const Point& a = points[i];
    const Point& b = points[i + 1 == size ? 0 : i + 1];
    segments_.push_back({a, b, std::min(a.x, b.x), std::max(a.x, b.x), std::min(a.y, b.y),
                         std::max(a.y, b.y), number, i, size});
  }
  return true;
}

// False when both have more than single points in common, cross, or meet where they must not.
bool ValidityChecker::add_touch(const Segment& s, const Segment& t) {
  const int t_a = side_of(s.a, s.b, t.a), t_b = side_of(s.a, s.b, t.b);
  if (t_a * t_b > 0) return true;
  const int s_a = side_of(t.a, t.b, s.a), s_b = side_of(t.a, t.b, s.b);
  if (s_a * s_b > 0) return true;
  if (t_a * t_b < 0 && s_a * s_b < 0) return false;

  Point meeting;
  if (t_a == 0 && t_b == 0) {  // on one straight line, and their boxes overlap
    const double width = std::min(s.max_x, t.max_x) - std::max(s.min_x, t.min_x);
    const double height = std::min(s.max_y, t.max_y) - std::max(s.min_y, t.min_y);
    if (width > 0.0 || height > 0.0) return false;
    meeting = same(s.a, t.a) || same(s.a, t.b) ? s.a : s.b;
  } else {
    meeting = t_a == 0 ? t.a : t_b == 0 ? t.b : s_a == 0 ? s.a : s.b;
  }
  if (s.ring == t.ring) {
    const uint32_t apart = s.place > t.place ? s.place - t.place : t.place - s.place;
    return apart == 1 || apart == s.ring_size - 1;  // neighbours share a point
  }
  touches_.push_back({s.ring, meeting});
  touches_.push_back({t.ring, meeting});
  return true;
}

Validity ValidityChecker::check_pairs() {
  std::sort(segments_.begin(), segments_.end(),
            [](const Segment& s, const Segment& t) { return s.min_x < t.min_x; });
  active_.clear();
  for (uint32_t i = 0; i < segments_.size(); ++i) {
    const Segment& s = segments_[i];
    if (!spend(active_.size() + 1)) return Validity::kGivenUp;
    size_t kept = 0;
    for (const uint32_t j : active_) {
      const Segment& t = segments_[j];
      if (t.max_x < s.min_x) continue;
      active_[kept++] = j;
      if (t.min_y > s.max_y || s.min_y > t.max_y) continue;
      if (!add_touch(s, t)) return Validity::kInvalid;
    }
    active_.resize(kept);
    active_.push_back(i);
  }
  return Validity::kValid;
}

// Rings and the points where they touch form a graph; a circle in it cuts the inside in two.
bool ValidityChecker::inside_is_connected() {
  const auto key = [](const Touch& t) { return std::tie(t.point.x, t.point.y, t.ring); };
  std::sort(touches_.begin(), touches_.end(),
            [&](const Touch& a, const Touch& b) { return key(a) < key(b); });
  touches_.erase(std::unique(touches_.begin(), touches_.end(),
                             [&](const Touch& a, const Touch& b) { return key(a) == key(b); }),
                 touches_.end());
  parent_.resize(rings_.size() + touches_.size());
  for (uint32_t i = 0; i < parent_.size(); ++i) parent_[i] = i;
  const auto root = [&](uint32_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  };
  auto point = static_cast<uint32_t>(rings_.size());
  for (size_t i = 0; i < touches_.size(); ++i) {
    if (i > 0 && !same(touches_[i].point, touches_[i - 1].point)) ++point;
    const uint32_t a = root(touches_[i].ring), b = root(point);
    if (a == b) return false;
    parent_[a] = b;
  }
  return true;
}

Validity ValidityChecker::check_holes() {
  // Rings touch in one point at most by now: any other point of a hole tells for all of it.
  const auto place_of = [&](size_t hole, size_t outer) {
    for (const Point& p : rings_[hole]) {
      const Place place = place_in(rings_[outer], p);
      if (place != Place::kBorder) return place;
    }
    return Place::kBorder;
  };
  for (size_t hole = 1; hole < rings_.size(); ++hole) {
    if (!spend(rings_[0].size())) return Validity::kGivenUp;
    if (place_of(hole, 0) != Place::kInside) return Validity::kInvalid;
  }
  for (size_t a = 1; a < rings_.size(); ++a) {
    const auto [left, right] =
        std::minmax_element(rings_[a].begin(), rings_[a].end(),
                            [](const Point& p, const Point& q) { return p.x < q.x; });
    for (size_t b = 1; b < rings_.size(); ++b) {
      if (a == b) continue;
      if (!spend(1)) return Validity::kGivenUp;
      const Point& p = rings_[b].front();
      if (p.x < left->x || p.x > right->x) continue;
      if (!spend(rings_[a].size())) return Validity::kGivenUp;
      if (place_of(b, a) == Place::kInside) return Validity::kInvalid;
    }
  }
  return Validity::kValid;
}

Validity ValidityChecker::check(std::span<const std::span<const Point>> rings) {
  segments_.clear();
  touches_.clear();
  rings_.resize(rings.size());
  if (rings.empty()) return Validity::kInvalid;
  for (uint32_t i = 0; i < rings.size(); ++i)
    if (!add_ring(rings[i], i)) return Validity::kInvalid;
  if (const Validity pairs = check_pairs(); pairs != Validity::kValid) return pairs;
  if (!inside_is_connected()) return Validity::kInvalid;
  return check_holes();
}

}  // namespace aerie::raster
