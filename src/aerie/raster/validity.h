// Whether a polygon is one in the sense of OGC's simple features, as GEOS and shapely's is_valid
// see it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aerie/raster/mask.h"

namespace aerie::raster {

enum class Validity : uint8_t {
  kValid,
  // Too few points, a ring that crosses or touches itself, rings that cross or share an edge, a
  // hole outside its polygon or inside another hole, an inside that falls apart.
  kInvalid,
  kGivenUp,  // more work than allowed
};

// One a thread: keeps its buffers.
class ValidityChecker {
 public:
  // `work` bounds the pairs of edges looked at, over all calls: polygons of n points take about
  // n log n, bad ones n * n.
  explicit ValidityChecker(uint64_t work) : work_left_(work) {}

  // The first ring is the outside, the others are holes; all without their closing point, with
  // finite coordinates.
  Validity check(std::span<const std::span<const Point>> rings);

 private:
  struct Segment {
    Point a, b;
    double min_x, max_x, min_y, max_y;
    uint32_t ring, place, ring_size;
  };
  struct Touch {  // a ring has a point that another ring has, too
    uint32_t ring;
    Point point;
  };
  bool add_ring(std::span<const Point> ring, uint32_t number);
  Validity check_pairs();
  bool add_touch(const Segment& s, const Segment& t);
  bool inside_is_connected();
  Validity check_holes();
  bool spend(uint64_t work);

  uint64_t work_left_;
  std::vector<Segment> segments_;
  std::vector<Touch> touches_;
  std::vector<uint32_t> active_, parent_;
  std::vector<std::vector<Point>> rings_;  // without repeated points
};

}  // namespace aerie::raster
