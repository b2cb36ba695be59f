// Where and how fast the ego drives.
#pragma once

#include <cstdint>
#include <vector>

#include "aerie/data/nuscenes/synth/road_network.h"

namespace aerie::nuscenes::synth {

// A place on the plane and a direction, anticlockwise from x.
struct Pose2 {
  Point2 position;
  double heading = 0.0;
};

// A drive along lanes and through junctions, never turning round.
class Route final {
 public:
  // At least `metres` long. `stream` is the scene's number in the random streams.
  Route(const RoadNetwork& net, uint64_t seed, uint64_t stream, double metres);
  double metres() const { return kSpacing * static_cast<double>(points_.size() - 1); }
  Pose2 at(double metres) const;  // clamped to its ends
  // Highest speed in m/s at which the bends ahead can be taken.
  double speed_limit(double metres) const;
  const std::vector<Point2>& points() const { return points_; }  // half a metre apart

 private:
  static constexpr double kSpacing = 0.5;
  std::vector<Point2> points_;
  std::vector<double> headings_;  // continuous, may leave (-pi, pi]
  std::vector<double> limits_;
};

// Metres along the route as a function of time: speeds between 0 and 12 m/s, slower in bends.
class Motion final {
 public:
  // From `begin_s` (may be negative) to `end_s`; at begin_s the ego is `start` metres along.
  Motion(const Route& route, uint64_t seed, uint64_t stream, double begin_s, double end_s,
         double start);
  double metres(double time_s) const;
  double speed(double time_s) const;

 private:
  static constexpr double kStep = 0.01;
  double begin_s_;
  std::vector<double> metres_;
};
constexpr double kTopSpeed = 12.0;

}  // namespace aerie::nuscenes::synth
