#include "aerie/data/nuscenes/synth/road_network.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

#include "aerie/base/philox.h"
#include "aerie/data/nuscenes/synth/streams.h"

namespace aerie::nuscenes::synth {

namespace {

constexpr double kMargin = 45.0;        // between the outermost nodes and the edge of the map
constexpr double kCornerRadius = 4.0;   // added to where two borders meet
constexpr double kMissingRoads = 0.18;  // share of the net's roads that is left out
constexpr int kCornerSteps = 6;

Point2 curve(const Road& road, double u) {
  const double v = 1.0 - u;
  return v * v * road.start + 2.0 * u * v * road.control + u * u * road.end;
}
Point2 slope(const Road& road, double u) {
  const Point2 d =
      2.0 * (1.0 - u) * (road.control - road.start) + 2.0 * u * (road.end - road.control);
  return (1.0 / length(d)) * d;
}

double angle_of(Point2 d) {
  return std::atan2(d.y, d.x);
}
// Anticlockwise from a to b, in (0, 2 pi].
double turn(double a, double b) {
  const double full = 2.0 * std::numbers::pi;
  double d = std::fmod(b - a, full);
  if (d <= 0.0) d += full;
  return d;
}

class RoadBuilder final {
 public:
  explicit RoadBuilder(const RoadNetworkOptions& options)
      : options_(options), random_(options.seed, Purpose::kSynth, kRoadStream, options.location) {
    net_.width = options.width;
    net_.height = options.height;
  }

  RoadNetwork build() {
    place_nodes();
    connect();
    sort_ends();
    cut_mouths();
    return std::move(net_);
  }

 private:
  void place_nodes() {
    const int nx = options_.columns, ny = options_.rows;
    const double step_x = (options_.width - 2 * kMargin) / (nx - 0.6);
    const double step_y = (options_.height - 2 * kMargin) / (ny - 0.6);
    // Columns lean and rows are unevenly spaced: no angle is square and no half is the other's
    // mirror image.
    std::vector<double> x(nx), y(ny);
    for (int i = 0; i < nx; ++i)
      x[i] = kMargin + step_x * (i + 0.05 + random_.uniform(-0.10, 0.10));
    for (int j = 0; j < ny; ++j)
      y[j] = kMargin + step_y * (j + 0.20 + random_.uniform(-0.10, 0.10));
    const double lean = 0.28 * step_x / std::max(1, ny - 1);
    for (int j = 0; j < ny; ++j)
      for (int i = 0; i < nx; ++i) {
        const Point2 p{x[i] + lean * j + random_.uniform(-0.04, 0.04) * step_x,
                       y[j] + random_.uniform(-0.08, 0.08) * step_y};
        net_.junctions.push_back({p, {}});
      }
  }

  void connect() {
    const int nx = options_.columns, ny = options_.rows;
    std::vector<std::array<int, 2>> pairs;
    for (int j = 0; j < ny; ++j)
      for (int i = 0; i < nx; ++i) {
        const int node = j * nx + i;
        if (i + 1 < nx) pairs.push_back({node, node + 1});
        if (j + 1 < ny) pairs.push_back({node, node + nx});
      }
    std::vector<int> degree(net_.junctions.size(), 0);
    for (const auto& pair : pairs)
      for (const int node : pair) ++degree[node];
    for (const auto& pair : pairs) {
      // Three roads at a node make a T-junction; two are the least, so that no road ends.
      if (random_.uniform() < kMissingRoads && degree[pair[0]] > 2 && degree[pair[1]] > 2) {
        for (const int node : pair) --degree[node];
        continue;
      }
      add_road(pair[0], pair[1]);
    }
  }

  void add_road(int from, int to) {
    Road road;
    road.from = from;
    road.to = to;
    const uint64_t lanes = random_.below(10);  // 2 lanes: 4 of 10, 3: 3 of 10, 4: 3 of 10
    road.forward_lanes = lanes < 4 ? 1 : lanes < 6 ? 2 : lanes < 7 ? 1 : 2;
    road.backward_lanes = lanes < 6 ? 1 : lanes < 7 ? 2 : 2;
    for (double& width : road.walkway) {
      const double drawn = random_.uniform(2.0, 4.0);
      width = random_.uniform() < 0.85 ? drawn : 0.0;
    }
    road.start = net_.junctions[from].position;
    road.end = net_.junctions[to].position;
    const Point2 chord = road.end - road.start;
    road.control = mix(road.start, road.end, random_.uniform(0.4, 0.6)) +
                   random_.uniform(-0.1, 0.1) * left_of(chord);
    const int number = static_cast<int>(net_.roads.size());
    net_.roads.push_back(road);
    net_.junctions[from].ends.push_back({number, true});
    net_.junctions[to].ends.push_back({number, false});
  }

  Point2 leaving(const RoadEnd& end) const {
    const Road& road = net_.roads[end.road];
    return end.at_start ? slope(road, 0.0) : -1.0 * slope(road, 1.0);
  }

  void sort_ends() {
    for (Junction& junction : net_.junctions)
      std::sort(junction.ends.begin(), junction.ends.end(),
                [&](const RoadEnd& a, const RoadEnd& b) {
                  return angle_of(leaving(a)) < angle_of(leaving(b));
                });
  }

  // A junction reaches into each road until the outer borders of its neighbours are behind.
  void cut_mouths() {
    for (const Junction& junction : net_.junctions) {
      const size_t count = junction.ends.size();
      for (size_t i = 0; i < count; ++i) {
        const RoadEnd& end = junction.ends[i];
        Road& road = net_.roads[end.road];
        double reach = road.half_width();
        for (const size_t other : {(i + 1) % count, (i + count - 1) % count}) {
          const Road& neighbour = net_.roads[junction.ends[other].road];
          const double angle =
              turn(angle_of(leaving(end)), angle_of(leaving(junction.ends[other])));
          const double sine = std::sin(angle), widest = 4.0;
          if (std::abs(sine) < 0.35) {
            reach = std::max(reach, neighbour.half_width());
          } else {
            reach = std::max(reach, (neighbour.half_width() + widest +
                                     (road.half_width() + widest) * std::cos(angle)) /
                                        std::abs(sine));
          }
        }
        const double u = (reach + kCornerRadius) / length(road.end - road.start);
        (end.at_start ? road.u_from : road.u_to) = end.at_start ? u : 1.0 - u;
      }
    }
    for (Road& road : net_.roads) {
      // Very short roads: keep a middle piece.
      if (road.u_to - road.u_from < 0.1) {
        road.u_from = 0.45;
        road.u_to = 0.55;
      }
      road.stretch = 0.0;
      Point2 last = curve(road, road.u_from);
      for (int i = 1; i <= 64; ++i) {
        const Point2 next = curve(road, road.u_from + (road.u_to - road.u_from) * i / 64.0);
        road.stretch += length(next - last);
        last = next;
      }
    }
  }

  const RoadNetworkOptions& options_;
  RandomStream random_;
  RoadNetwork net_;
};

// Where a line through `a` towards `da` meets one through `b` towards `db`; halfway between the
// points when they are nearly parallel.
Point2 meeting(Point2 a, Point2 da, Point2 b, Point2 db) {
  const double sine = cross(da, db);
  if (std::abs(sine) < 0.3) return mix(a, b, 0.5);
  return a + (cross(b - a, db) / sine) * da;
}

}  // namespace

Point2 Road::at(double s, double side) const {
  const double u = u_from + (u_to - u_from) * s / stretch;
  return curve(*this, u) + side * left_of(slope(*this, u));
}
Point2 Road::direction(double s) const {
  return slope(*this, u_from + (u_to - u_from) * s / stretch);
}

RoadNetwork make_road_network(const RoadNetworkOptions& options) {
  return RoadBuilder(options).build();
}

Polyline line_along(const RoadNetwork& net, int road, double s0, double s1, double side) {
  const int count = std::max(1, static_cast<int>(std::ceil((s1 - s0) / kSectionLength)));
  Polyline out;
  for (int i = 0; i <= count; ++i)
    out.push_back(rounded(net.roads[road].at(s0 + (s1 - s0) * i / count, side)));
  return out;
}

Ring band_ring(const RoadNetwork& net, const Band& band) {
  Ring ring = line_along(net, band.road, band.s0, band.s1, band.d0);
  const Polyline back = line_along(net, band.road, band.s0, band.s1, band.d1);
  ring.insert(ring.end(), back.rbegin(), back.rend());
  return ring;
}

std::vector<Ring> band_quads(const RoadNetwork& net, const Band& band) {
  const Polyline right = line_along(net, band.road, band.s0, band.s1, band.d0);
  const Polyline left = line_along(net, band.road, band.s0, band.s1, band.d1);
  std::vector<Ring> out;
  for (size_t i = 0; i + 1 < right.size(); ++i)
    out.push_back({right[i], right[i + 1], left[i + 1], left[i]});
  return out;
}

Point2 mouth(const RoadNetwork& net, const RoadEnd& end, double side) {
  const Road& road = net.roads[end.road];
  return rounded(end.at_start ? road.at(0.0, side) : road.at(road.stretch, -side));
}

Point2 outwards(const RoadNetwork& net, const RoadEnd& end) {
  const Road& road = net.roads[end.road];
  return end.at_start ? road.direction(0.0) : -1.0 * road.direction(road.stretch);
}

Polyline corner_curve(const RoadNetwork& net, const RoadEnd& end, const RoadEnd& next,
                      double left_extra, double right_extra) {
  const Point2 a = mouth(net, end, net.roads[end.road].half_width() + left_extra);
  const Point2 b = mouth(net, next, -net.roads[next.road].half_width() - right_extra);
  const Point2 middle = meeting(a, outwards(net, end), b, outwards(net, next));
  Polyline out;
  for (int i = 0; i <= kCornerSteps; ++i) {
    const double t = static_cast<double>(i) / kCornerSteps;
    out.push_back(rounded(mix(mix(a, middle, t), mix(middle, b, t), t)));
  }
  return out;
}

Ring junction_ring(const RoadNetwork& net, int junction) {
  const std::vector<RoadEnd>& ends = net.junctions[junction].ends;
  Ring ring;
  for (size_t i = 0; i < ends.size(); ++i) {
    ring.push_back(mouth(net, ends[i], -net.roads[ends[i].road].half_width()));
    const Polyline curb = corner_curve(net, ends[i], ends[(i + 1) % ends.size()], 0.0, 0.0);
    ring.insert(ring.end(), curb.begin(), curb.end() - 1);  // the next mouth adds the last point
  }
  return ring;
}

}  // namespace aerie::nuscenes::synth
