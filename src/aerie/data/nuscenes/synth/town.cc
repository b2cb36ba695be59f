#include "aerie/data/nuscenes/synth/town.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "aerie/base/philox.h"
#include "aerie/data/nuscenes/synth/streams.h"

namespace aerie::nuscenes::synth {

namespace {

Area area_of(const RoadNetwork& net, const Band& band) {
  return {{band_ring(net, band), {}}, band_quads(net, band)};
}

double distance_to_segment(Point2 p, Point2 a, Point2 b) {
  const Point2 d = b - a;
  const double along = std::clamp(dot(p - a, d) / std::max(1e-12, dot(d, d)), 0.0, 1.0);
  return length(p - a - along * d);
}

// Whether a circle inside the ring stays clear of its border.
bool has_room(const Ring& ring, Point2 centre, double radius) {
  for (size_t i = 0; i < ring.size(); ++i)
    if (distance_to_segment(centre, ring[i], ring[(i + 1) % ring.size()]) < radius) return false;
  return true;
}

bool segments_cross(Point2 a, Point2 b, Point2 c, Point2 d) {
  return cross(b - a, c - a) * cross(b - a, d - a) <= 0.0 &&
         cross(d - c, a - c) * cross(d - c, b - c) <= 0.0;
}

// Whether no two sides touch but neighbours at their corner.
bool is_simple(const Ring& ring) {
  const size_t count = ring.size();
  for (size_t i = 0; i < count; ++i)
    for (size_t j = i + 2; j < count; ++j) {
      if (i == 0 && j + 1 == count) continue;
      if (segments_cross(ring[i], ring[i + 1], ring[j], ring[(j + 1) % count])) return false;
    }
  return true;
}

// What lies at one end of a road, in metres from the junction.
struct EndMarks {
  double clear = 1.0;  // dividers begin here
};

class TownBuilder final {
 public:
  explicit TownBuilder(const TownOptions& options)
      : random_(options.seed, Purpose::kSynth, kFeatureStream,
                static_cast<uint64_t>(options.location)) {
    town_.location = options.location;
    town_.net = make_road_network({.seed = options.seed,
                                   .location = static_cast<uint64_t>(options.location),
                                   .width = options.width,
                                   .height = options.height,
                                   .columns = options.columns,
                                   .rows = options.rows});
  }

  Town build() {
    for (size_t j = 0; j < town_.net.junctions.size(); ++j) add_junction(static_cast<int>(j));
    for (size_t r = 0; r < town_.net.roads.size(); ++r) add_road(static_cast<int>(r));
    return std::move(town_);
  }

 private:
  const RoadNetwork& net() const { return town_.net; }
  bool chance(double share) { return random_.uniform() < share; }

  void add_junction(int number) {
    Area area{{junction_ring(net(), number), {}}, {}};
    const Junction& junction = net().junctions[number];
    const size_t count = junction.ends.size();
    // A traffic island between two roads: a hole.
    if (count >= 3 && chance(0.7)) {
      const size_t i = random_.below(count);
      const Polyline curb =
          corner_curve(net(), junction.ends[i], junction.ends[(i + 1) % count], 0.0, 0.0);
      const Point2 centre = mix(junction.position, curb[curb.size() / 2], 0.62);
      const double radius = random_.uniform(1.1, 1.7), phase = random_.uniform(0.0, 6.28);
      Ring hole;
      for (int k = 0; k < 3; ++k) {
        const double angle = phase + 2.0943951 * k;
        hole.push_back(rounded(centre + radius * Point2{std::cos(angle), std::sin(angle)}));
      }
      if (has_room(area.shape.exterior, centre, radius + 0.3))
        area.shape.holes.push_back(std::move(hole));
    }
    town_.drivable.push_back(area);
    town_.segments.push_back({std::move(area), true, static_cast<int>(town_.drivable.size()) - 1});
    for (size_t i = 0; i < count; ++i) add_walkway_corner(junction, i);
  }

  // Width of the walkway on the left (outwards view) or right side of a road end.
  double walkway_width(const RoadEnd& end, bool left) const {
    return net().roads[end.road].walkway[left == end.at_start ? 1 : 0];
  }

  void add_walkway_corner(const Junction& junction, size_t i) {
    const RoadEnd &end = junction.ends[i], &next = junction.ends[(i + 1) % junction.ends.size()];
    const double a = walkway_width(end, true), b = walkway_width(next, false);
    if (a == 0.0 || b == 0.0) return;
    const Polyline inner = corner_curve(net(), end, next, 0.0, 0.0);
    const Polyline outer = corner_curve(net(), end, next, a, b);
    Area area{{inner, {}}, {}};
    area.shape.exterior.insert(area.shape.exterior.end(), outer.rbegin(), outer.rend());
    if (is_simple(area.shape.exterior))
      town_.walkways.push_back(std::move(area));  // else too sharp
  }

  void add_road(int number) {
    const Road& road = net().roads[number];
    const double half = road.half_width(), whole = road.stretch;
    const Band all{number, 0.0, whole, -half, half};
    town_.drivable.push_back(area_of(net(), all));
    const int segment = static_cast<int>(town_.segments.size());
    town_.segments.push_back(
        {area_of(net(), all), false, static_cast<int>(town_.drivable.size()) - 1});
    const int forward_block = static_cast<int>(town_.blocks.size());
    add_block({number, 0.0, whole, -half, road.divider()}, segment, true);
    add_block({number, 0.0, whole, road.divider(), half}, segment, false);
    for (int lane = 0; lane < road.forward_lanes + road.backward_lanes; ++lane)
      add_lane({number, 0.0, whole, -half + lane * kLaneWidth, -half + (lane + 1) * kLaneWidth},
               lane < road.forward_lanes);
    const EndMarks first = add_end(number, true, segment, forward_block + 1);
    const EndMarks last = add_end(number, false, segment, forward_block);
    add_dividers(number, segment, first.clear, whole - last.clear);
    for (const bool left : {false, true})
      add_side(number, left, left ? forward_block + 1 : forward_block);
  }

  void add_block(const Band& band, int segment, bool forward) {
    Polyline first{rounded(net().roads[band.road].at(band.s0, band.d0)),
                   rounded(net().roads[band.road].at(band.s0, band.d1))};
    Polyline last{rounded(net().roads[band.road].at(band.s1, band.d0)),
                  rounded(net().roads[band.road].at(band.s1, band.d1))};
    if (!forward) std::swap(first, last);
    town_.blocks.push_back({area_of(net(), band), std::move(first), std::move(last), segment});
  }

  void add_lane(const Band& band, bool forward) {
    Lane lane;
    lane.area = area_of(net(), band);
    const int corners = static_cast<int>(lane.area.shape.exterior.size()), half = corners / 2;
    std::vector<int> low, high;  // sides d0 and d1 in the road's direction
    for (int i = 0; i < half; ++i) {
      low.push_back(i);
      high.push_back(corners - 1 - i);
    }
    const Ring& ring = lane.area.shape.exterior;
    lane.from_edge = {ring.front(), ring.back()};
    lane.to_edge = {ring[half - 1], ring[half]};
    if (!forward) {
      std::swap(lane.from_edge, lane.to_edge);
      std::reverse(low.begin(), low.end());
      std::reverse(high.begin(), high.end());
      std::swap(low, high);
    }
    lane.right = std::move(low);
    lane.left = std::move(high);
    town_.lanes.push_back(std::move(lane));
  }

  // Crossing, stop line and traffic light where a road meets a junction. `block` leads to it.
  EndMarks add_end(int number, bool at_start, int segment, int block) {
    const Road& road = net().roads[number];
    const double half = road.half_width();
    EndMarks marks;
    double reached = 0.8;  // metres from the junction
    const auto band = [&](double near, double far, double d0, double d1) {
      return at_start ? Band{number, near, far, d0, d1}
                      : Band{number, road.stretch - far, road.stretch - near, d0, d1};
    };
    int crossing = -1;
    const double depth = random_.uniform(3.0, 4.0);
    if (chance(0.6) && road.stretch > 24.0) {
      const Band place = band(reached, reached + depth, -half, half);
      crossing = static_cast<int>(town_.crossings.size());
      town_.crossings.push_back({area_of(net(), place), segment, place});
      reached += depth + 0.6;
    }
    const double stop_depth = random_.uniform(1.0, 2.0);
    const bool signalled = chance(0.4);
    if (chance(0.75) && road.stretch > 24.0) {
      // Lanes that lead here: the backward ones at the start, the forward ones at the end.
      const double d0 = at_start ? road.divider() : -half, d1 = at_start ? half : road.divider();
      StopLine stop{area_of(net(), band(reached, reached + stop_depth, d0, d1)),
                    StopLineType::kYield, -1, -1, block};
      if (signalled) {
        stop.type = StopLineType::kTrafficLight;
        stop.light = static_cast<int>(town_.lights.size());
        const double s = at_start ? 0.0 : road.stretch;
        const Point2 right = rounded(road.at(s, at_start ? half + 1.0 : -half - 1.0));
        const Point2 along = at_start ? -1.0 * road.direction(s) : road.direction(s);
        town_.lights.push_back({{right, rounded(right + 0.5 * left_of(along))},
                                right,
                                std::atan2(-along.y, -along.x),
                                block});
      } else if (crossing >= 0) {
        stop.type = chance(0.8) ? StopLineType::kCrossing : StopLineType::kTurnStop;
        stop.crossing = crossing;
      } else if (chance(0.5)) {
        stop.type = StopLineType::kStopSign;
      }
      town_.stop_lines.push_back(std::move(stop));
      reached += stop_depth;
    }
    marks.clear = reached + 0.4;
    return marks;
  }

  void add_dividers(int number, int segment, double s0, double s1) {
    const Road& road = net().roads[number];
    if (s1 - s0 < 6.0) return;
    if (chance(0.9))
      town_.road_dividers.push_back({line_along(net(), number, s0, s1, road.divider()), segment,
                                     number, s0, s1, road.divider()});
    for (int lane = 1; lane < road.forward_lanes + road.backward_lanes; ++lane) {
      if (lane == road.forward_lanes) continue;
      const double side = -road.half_width() + lane * kLaneWidth;
      town_.lane_dividers.push_back(
          {line_along(net(), number, s0, s1, side), number, s0, s1, side});
    }
  }

  // Walkway along one side; behind it now and then a square with a planting bed (a hole) or a car
  // park, and bays where there is no walkway.
  void add_side(int number, bool left, int block) {
    const Road& road = net().roads[number];
    const double half = road.half_width(), width = road.walkway[left ? 1 : 0];
    const auto beside = [&](double s0, double s1, double near, double far) {
      return left ? Band{number, s0, s1, half + near, half + far}
                  : Band{number, s0, s1, -half - far, -half - near};
    };
    if (width > 0.0)
      town_.walkways.push_back(area_of(net(), beside(0.0, road.stretch, 0.0, width)));
    const double size = random_.uniform(10.0, 18.0), where = random_.uniform(0.25, 0.75);
    const double what = random_.uniform();
    if (road.stretch < size + 12.0) return;
    const double s0 = where * (road.stretch - size), s1 = s0 + size;
    const Point2 along = road.direction(0.5 * (s0 + s1));
    const double heading = std::atan2(along.y, along.x);
    if (width == 0.0) {
      town_.carparks.push_back({area_of(net(), beside(s0, s1, 0.0, 2.6)), heading, block, number});
    } else if (what < 0.30) {
      town_.carparks.push_back(
          {area_of(net(), beside(s0, s1, width, width + 11.0)), heading, block, number});
    } else if (what < 0.45) {
      Area square{{band_ring(net(), beside(s0, s1, width, width + 9.0)), {}}, {}};
      square.shape.holes.push_back(
          band_ring(net(), beside(s0 + 0.35 * size, s0 + 0.75 * size, width + 2.5, width + 5.5)));
      town_.walkways.push_back(std::move(square));
    }
  }

  RandomStream random_;
  Town town_;
};

// Keeps `count` records, evenly spread, and tells where each went (-1: dropped).
template <typename T>
std::vector<int> thin(std::vector<T>& records, int count) {
  const int64_t all = static_cast<int64_t>(records.size());
  std::vector<int> moved(records.size(), -1);
  std::vector<T> kept;
  for (int64_t i = 0; i < all; ++i) {
    if ((i + 1) * count / all == i * count / all) continue;
    moved[i] = static_cast<int>(kept.size());
    kept.push_back(std::move(records[i]));
  }
  records = std::move(kept);
  return moved;
}

bool has_at_least(const Town& town, const MapCounts& counts) {
  const auto enough = [](const auto& records, int count) {
    return records.size() >= static_cast<size_t>(count);
  };
  return enough(town.drivable, counts.drivable) && enough(town.segments, counts.segments) &&
         enough(town.blocks, counts.blocks) && enough(town.lanes, counts.lanes) &&
         enough(town.crossings, counts.crossings) && enough(town.walkways, counts.walkways) &&
         enough(town.stop_lines, counts.stop_lines) && enough(town.carparks, counts.carparks) &&
         enough(town.road_dividers, counts.road_dividers) &&
         enough(town.lane_dividers, counts.lane_dividers) && enough(town.lights, counts.lights);
}

// Thins every layer; records that pointed to a dropped one point to a neighbour that stayed.
void thin_town(Town& town, const MapCounts& counts) {
  const auto repoint = [](int& reference, const std::vector<int>& moved, int kept) {
    if (reference < 0) return;
    int to = moved[reference];
    if (to < 0) to = std::min<int>(kept - 1, reference * kept / static_cast<int>(moved.size()));
    reference = to;
  };
  town.drivable_records = counts.drivable;
  const auto segments = thin(town.segments, counts.segments);
  for (auto& block : town.blocks) repoint(block.segment, segments, counts.segments);
  for (auto& crossing : town.crossings) repoint(crossing.segment, segments, counts.segments);
  for (auto& line : town.road_dividers) repoint(line.segment, segments, counts.segments);
  const auto blocks = thin(town.blocks, counts.blocks);
  for (auto& stop : town.stop_lines) repoint(stop.block, blocks, counts.blocks);
  for (auto& park : town.carparks) repoint(park.block, blocks, counts.blocks);
  for (auto& light : town.lights) repoint(light.block, blocks, counts.blocks);
  const auto crossings = thin(town.crossings, counts.crossings);
  const auto lights = thin(town.lights, counts.lights);
  for (auto& stop : town.stop_lines) {
    repoint(stop.crossing, crossings, counts.crossings);
    repoint(stop.light, lights, counts.lights);
  }
  thin(town.lanes, counts.lanes);
  thin(town.walkways, counts.walkways);
  thin(town.stop_lines, counts.stop_lines);
  thin(town.carparks, counts.carparks);
  thin(town.road_dividers, counts.road_dividers);
  thin(town.lane_dividers, counts.lane_dividers);
}

void add_paint(Town& town) {
  const RoadNetwork& net = town.net;
  const auto paint = [&](Ground ground, const Band& band) {
    for (Ring& ring : band_quads(net, band)) town.paint.push_back({ground, std::move(ring)});
  };
  for (const Crossing& crossing : town.crossings)
    for (double d = crossing.band.d0 + 0.35; d + 0.5 <= crossing.band.d1; d += 1.0) {
      Band stripe = crossing.band;
      stripe.d0 = d;
      stripe.d1 = d + 0.5;
      paint(Ground::kCrossingStripe, stripe);
    }
  for (const RoadDivider& line : town.road_dividers)
    paint(Ground::kDivider, {line.road, line.s0, line.s1, line.side - 0.15, line.side + 0.15});
  // Broken: 3 m of paint, 1.5 m without.
  for (const LaneDivider& line : town.lane_dividers)
    for (double s = line.s0; s < line.s1; s += 4.5)
      paint(Ground::kDivider,
            {line.road, s, std::min(s + 3.0, line.s1), line.side - 0.12, line.side + 0.12});
}

}  // namespace

const MapCounts& published_counts(int location) {
  static const MapCounts counts[kNumLocations] = {
      {1, 783, 645, 936, 120, 838, 451, 39, 152, 357, 127},
      {426, 167, 387, 601, 28, 498, 300, 0, 107, 220, 119},
      {219, 260, 676, 910, 75, 457, 437, 40, 172, 257, 81},
      {2, 928, 969, 1215, 340, 301, 775, 275, 377, 671, 307},
  };
  return counts[location];
}

Point2 published_canvas(int location) {
  static const Point2 canvas[kNumLocations] = {
      {1585.6, 2025.0}, {2808.3, 2922.9}, {3228.6, 3687.1}, {2979.5, 2118.1}};
  return canvas[location];
}

Town make_town(const TownOptions& options) {
  Town town;
  if (!options.counts) {
    town = TownBuilder(options).build();
  } else {
    // What a node brings of each layer, roughly; a little less to begin with, then more until the
    // scarcest layer is full.
    const MapCounts& counts = *options.counts;
    double nodes = 16.0;
    const std::pair<int, double> brings[] = {
        {counts.segments, 2.7},  {counts.blocks, 3.4},        {counts.lanes, 4.9},
        {counts.crossings, 2.0}, {counts.walkways, 6.0},      {counts.stop_lines, 2.5},
        {counts.carparks, 1.2},  {counts.road_dividers, 1.5}, {counts.lane_dividers, 1.6},
        {counts.lights, 1.0}};
    for (const auto& [count, each] : brings) nodes = std::max(nodes, 0.95 * count / each);
    TownOptions grown = options;
    for (;; nodes *= 1.06) {
      const double columns = std::sqrt(nodes * options.width / options.height);
      grown.columns = std::max(2, static_cast<int>(std::lround(columns)));
      grown.rows = std::max(2, static_cast<int>(std::lround(nodes / columns)));
      town = TownBuilder(grown).build();
      if (has_at_least(town, *options.counts)) break;
    }
    thin_town(town, *options.counts);
  }
  add_paint(town);
  return town;
}

}  // namespace aerie::nuscenes::synth
