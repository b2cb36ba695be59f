// One location: its roads and everything that lies on and beside them, as the map expansion
// describes it and as the renderer paints it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "aerie/data/nuscenes/synth/road_network.h"
#include "aerie/data/nuscenes/synth/shapes.h"

namespace aerie::nuscenes::synth {

constexpr int kNumLocations = 4;
constexpr std::array<std::string_view, kNumLocations> kLocations = {
    "singapore-onenorth", "singapore-hollandvillage", "singapore-queenstown", "boston-seaport"};

// What a point of the ground looks like, the topmost last.
enum class Ground : uint8_t {
  kTerrain,
  kDrivable,
  kWalkway,
  kCarpark,
  kCrossing,
  kCrossingStripe,
  kStopLine,
  kDivider,
};
constexpr int kNumGrounds = 8;

// A polygon. `pieces` cover the same ground and are quicker to test; empty: the shape itself.
struct Area {
  Shape shape;
  std::vector<Ring> pieces;
};

struct RoadSegment {
  Area area;
  bool is_intersection = false;
  int drivable = 0;
};
struct RoadBlock {
  Area area;
  Polyline from_edge, to_edge;
  int segment = 0;
};
struct Lane {
  Area area;
  Polyline from_edge, to_edge;
  // Corners of the area along either side, in driving direction.
  std::vector<int> left, right;
};
struct Crossing {
  Area area;
  int segment = 0;
  Band band;  // stripes run along the road
};
struct TrafficLight {
  Polyline line;
  Point2 position;
  double heading = 0.0;
  int block = 0;
};
enum class StopLineType { kCrossing, kTurnStop, kStopSign, kYield, kTrafficLight };
struct StopLine {
  Area area;
  StopLineType type = StopLineType::kYield;
  int crossing = -1, light = -1;
  int block = 0;
};
struct Carpark {
  Area area;
  double heading = 0.0;
  int block = 0;
  int road = 0;
};
struct RoadDivider {
  Polyline line;
  int segment = 0;
  int road = 0;
  double s0 = 0.0, s1 = 0.0, side = 0.0;
};
struct LaneDivider {
  Polyline line;
  int road = 0;
  double s0 = 0.0, s1 = 0.0, side = 0.0;
};
struct Paint {
  Ground ground = Ground::kDivider;
  Ring ring;
};

struct Town {
  int location = 0;
  RoadNetwork net;
  int drivable_records = 1;  // the polygons of `drivable` are dealt out to so many records
  std::vector<Area> drivable;
  std::vector<RoadSegment> segments;
  std::vector<RoadBlock> blocks;
  std::vector<Lane> lanes;
  std::vector<Crossing> crossings;
  std::vector<Area> walkways;
  std::vector<StopLine> stop_lines;
  std::vector<Carpark> carparks;
  std::vector<RoadDivider> road_dividers;
  std::vector<LaneDivider> lane_dividers;
  std::vector<TrafficLight> lights;
  std::vector<Paint> paint;  // stripes and divider marks
};

// Records per layer.
struct MapCounts {
  int drivable, segments, blocks, lanes, crossings, walkways, stop_lines, carparks, road_dividers,
      lane_dividers, lights;
};
// Those of the published map expansion 1.3 and the size of its canvas in metres.
const MapCounts& published_counts(int location);
Point2 published_canvas(int location);

struct TownOptions {
  uint64_t seed = 1;
  int location = 0;
  double width = 400.0, height = 360.0;
  int columns = 4, rows = 4;
  std::optional<MapCounts> counts =
      {};  // given: the net grows until it has as many, then is thinned
};
Town make_town(const TownOptions& options);

}  // namespace aerie::nuscenes::synth
