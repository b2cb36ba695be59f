// Polygons and lines cut by a rectangle, in double precision.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "aerie/raster/mask.h"

namespace aerie::raster {

struct Rect {
  double min_x = 0.0, min_y = 0.0, max_x = 0.0, max_y = 0.0;
};

// Rings back to back. A ring that a rectangle cut is the outside of a part; a hole stays one while
// it is untouched.
struct Rings {
  std::vector<Point> points;
  std::vector<uint32_t> end;     // of each ring in `points`
  std::vector<uint8_t> is_hole;  // of each ring

  size_t size() const { return end.size(); }
  std::span<const Point> ring(size_t i) const {
    const uint32_t begin = i == 0 ? 0 : end[i - 1];
    return std::span(points).subspan(begin, end[i] - begin);
  }
  void clear();
  void close(bool hole);  // the points since the last ring become the next one
};

// Cuts a polygon at the four sides, one after the other. At each side the rings fall into chains;
// where chains end on the side, they are joined in the order along it, two by two: so a polygon
// becomes as many parts as it has, and holes that reach the side open up. What only touches the
// rectangle from outside leaves nothing. One a thread: keeps its buffers.
class PolygonClipper {
 public:
  // Replaces `rings` by what lies in `rect`. Even-odd rule, so any rings will do.
  void clip(Rings& rings, const Rect& rect);

 private:
  enum class Axis : uint8_t { kX, kY };
  struct Side {
    Axis axis;
    double limit;
    bool keep_below;
    double along(const Point& p) const { return axis == Axis::kX ? p.y : p.x; }
    double inside_by(const Point& p) const {
      const double value = axis == Axis::kX ? p.x : p.y;
      return keep_below ? limit - value : value - limit;
    }
    Point crossing(const Point& outside, const Point& inside) const;
  };
  struct Chain {
    uint32_t begin, end;  // in chain_points_; its first and last point are on the side
  };
  struct ChainEnd {
    double along;
    uint32_t number;  // 2 * chain, + 1 for its last point
  };
  void clip_side(Rings& rings, const Side& side);
  void cut_ring(std::span<const Point> ring, const Side& side);
  void join_chains(const Side& side);

  Rings next_;
  std::vector<Point> chain_points_;
  std::vector<Chain> chains_;
  std::vector<ChainEnd> ends_;
  std::vector<uint32_t> partner_;  // of each chain end: the one it is joined to
  std::vector<uint8_t> used_;
};

// The part of a-b in `rect`, by Liang and Barsky; false when it is at most a point.
bool clip_segment(const Rect& rect, Point& a, Point& b);

}  // namespace aerie::raster
