// The roads of one location: an irregular net of slightly curved roads with junctions in between.
//
// Every node has at least two roads, so a drive that never turns round never ends.
#pragma once

#include <cstdint>
#include <vector>

#include "aerie/data/nuscenes/synth/shapes.h"

namespace aerie::nuscenes::synth {

constexpr double kLaneWidth = 3.5;

struct Road {
  int from = 0, to = 0;  // nodes
  // Lanes that lead from `from` to `to`, on the right-hand side, and those that come back.
  int forward_lanes = 1, backward_lanes = 1;
  double walkway[2] = {0.0, 0.0};   // widths right and left; 0: none
  Point2 start, control, end;       // centre line, quadratic
  double u_from = 0.0, u_to = 1.0;  // where the junctions end on it
  double stretch = 0.0;             // metres between the two junctions

  double half_width() const { return 0.5 * kLaneWidth * (forward_lanes + backward_lanes); }
  // Sideways position between the two directions; left is positive.
  double divider() const { return kLaneWidth * forward_lanes - half_width(); }
  // `s` metres after the first junction, `side` metres to the left of the centre line.
  Point2 at(double s, double side) const;
  Point2 direction(double s) const;
};

// One end of a road at a node, seen from the node outwards.
struct RoadEnd {
  int road = 0;
  bool at_start = true;  // this node is the road's `from`
};

struct Junction {
  Point2 position;
  std::vector<RoadEnd> ends;  // anticlockwise
};

struct RoadNetwork {
  double width = 0.0, height = 0.0;
  std::vector<Road> roads;
  std::vector<Junction> junctions;
};

struct RoadNetworkOptions {
  uint64_t seed = 1;
  uint64_t location = 0;  // number in the random streams
  double width = 400.0, height = 360.0;
  int columns = 4, rows = 4;  // nodes
};

RoadNetwork make_road_network(const RoadNetworkOptions& options);

// A band along a road: metres s0..s1 after the first junction, d0 < d1 metres to the left of the
// centre line. Its cross sections are at most `kSectionLength` apart.
constexpr double kSectionLength = 4.0;
struct Band {
  int road = 0;
  double s0 = 0.0, s1 = 0.0, d0 = 0.0, d1 = 0.0;
};
Ring band_ring(const RoadNetwork& net, const Band& band);  // anticlockwise
// The band cut at its cross sections: quadrilaterals with exactly the ring's corners.
std::vector<Ring> band_quads(const RoadNetwork& net, const Band& band);
Polyline line_along(const RoadNetwork& net, int road, double s0, double s1, double side);

// Sideways of a road end, outwards view: mouth(end, -h) is on the right-hand side.
Point2 mouth(const RoadNetwork& net, const RoadEnd& end, double side);
Point2 outwards(const RoadNetwork& net, const RoadEnd& end);  // unit vector at the mouth

// The curb between the left side of one road end and the right side of the next one, both moved
// out by the given widths (0: the road's own border). Starts and ends at the mouths.
Polyline corner_curve(const RoadNetwork& net, const RoadEnd& end, const RoadEnd& next,
                      double left_extra, double right_extra);
Ring junction_ring(const RoadNetwork& net, int junction);

}  // namespace aerie::nuscenes::synth
