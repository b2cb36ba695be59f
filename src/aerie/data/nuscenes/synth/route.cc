#include "aerie/data/nuscenes/synth/route.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "aerie/base/philox.h"
#include "aerie/data/nuscenes/synth/streams.h"

namespace aerie::nuscenes::synth {

namespace {

// Side of the middle of lane `lane`, counted from the right-hand border of the direction.
double lane_side(const Road& road, bool forward, int lane) {
  const double side = road.half_width() - (lane + 0.5) * kLaneWidth;
  return forward ? -side : side;
}

// Points of the drive, unevenly spaced.
Polyline walk(const RoadNetwork& net, RandomStream& random, double metres) {
  Polyline path;
  double driven = 0.0;
  const auto add = [&](Point2 point) {
    if (!path.empty()) driven += length(point - path.back());
    path.push_back(point);
  };
  int number = static_cast<int>(random.below(net.roads.size()));
  bool forward = random.below(2) == 0;
  double s = random.uniform(0.0, 0.6) * net.roads[number].stretch;
  while (driven < metres) {
    const Road& road = net.roads[number];
    const int lanes = forward ? road.forward_lanes : road.backward_lanes;
    const double side = lane_side(road, forward, static_cast<int>(random.below(lanes)));
    const auto on_road = [&](double at) { return forward ? at : road.stretch - at; };
    if (path.size() > 1) {
      // Through the junction, from the last lane's direction into this one's.
      const Point2 a = path.back(), before = path[path.size() - 2];
      const Point2 b = road.at(on_road(0.0), side);
      const Point2 da = (1.0 / length(a - before)) * (a - before);
      const Point2 db = (forward ? 1.0 : -1.0) * road.direction(on_road(0.0));
      const double reach = 0.42 * length(b - a);
      for (int i = 1; i <= 24; ++i) {
        const double t = i / 24.0, r = 1.0 - t;
        add(r * r * r * a + 3 * r * r * t * (a + reach * da) + 3 * r * t * t * (b - reach * db) +
            t * t * t * b);
      }
    }
    for (double at = s; at < road.stretch; at += 1.0) add(road.at(on_road(at), side));
    add(road.at(on_road(road.stretch), side));
    s = 1.0;
    // Any road but the one it came from.
    const std::vector<RoadEnd>& ends = net.junctions[forward ? road.to : road.from].ends;
    std::vector<RoadEnd> choices;
    for (const RoadEnd& end : ends)
      if (end.road != number) choices.push_back(end);
    const RoadEnd& next = choices[random.below(choices.size())];
    number = next.road;
    forward = next.at_start;
  }
  return path;
}

}  // namespace

Route::Route(const RoadNetwork& net, uint64_t seed, uint64_t stream, double metres) {
  RandomStream random(seed, Purpose::kSynth, kRouteStream, stream);
  const Polyline path = walk(net, random, metres);
  // Evenly spaced points: walk along with the distance from the start.
  double passed = 0.0;  // at path[i]
  for (size_t i = 0; i + 1 < path.size(); ++i) {
    const double step = length(path[i + 1] - path[i]);
    if (step == 0.0) continue;
    for (double at = kSpacing * static_cast<double>(points_.size()); at < passed + step;
         at += kSpacing)
      points_.push_back(mix(path[i], path[i + 1], (at - passed) / step));
    passed += step;
  }
  // Headings over two metres, so that they turn smoothly.
  const int count = static_cast<int>(points_.size());
  for (int i = 0; i < count; ++i) {
    const Point2 d = points_[std::min(i + 2, count - 1)] - points_[std::max(i - 2, 0)];
    double heading = std::atan2(d.y, d.x);
    if (i > 0)
      heading =
          headings_.back() + std::remainder(heading - headings_.back(), 2.0 * std::numbers::pi);
    headings_.push_back(heading);
  }
  // v = sqrt(a / curvature) with a sideways acceleration of 2.5 m/s^2, looking 12 m ahead.
  std::vector<double> here(points_.size(), kTopSpeed);
  for (int i = 2; i + 2 < count; ++i) {
    const double curvature = std::abs(headings_[i + 2] - headings_[i - 2]) / (4 * kSpacing);
    here[i] = std::min(kTopSpeed, std::sqrt(2.5 / std::max(curvature, 1e-6)));
  }
  for (int i = 0; i < count; ++i)
    limits_.push_back(*std::min_element(here.begin() + i, here.begin() + std::min(i + 24, count)));
}

Pose2 Route::at(double metres) const {
  const double position =
      std::clamp(metres / kSpacing, 0.0, static_cast<double>(points_.size() - 1) - 1e-9);
  const size_t i = static_cast<size_t>(position);
  const double t = position - static_cast<double>(i);
  return {mix(points_[i], points_[i + 1], t), (1.0 - t) * headings_[i] + t * headings_[i + 1]};
}

double Route::speed_limit(double metres) const {
  const double last = static_cast<double>(limits_.size() - 1);
  return limits_[static_cast<size_t>(std::clamp(metres / kSpacing, 0.0, last))];
}

Motion::Motion(const Route& route, uint64_t seed, uint64_t stream, double begin_s, double end_s,
               double start)
    : begin_s_(begin_s) {
  RandomStream random(seed, Purpose::kSynth, kTimeStream, stream);
  // The driver's wish: a slow wave between standing and a scene's own top speed.
  const double top = random.uniform(5.0, kTopSpeed), period = random.uniform(12.0, 25.0);
  const double phase = random.uniform(0.0, 2.0 * std::numbers::pi);
  const auto wish = [&](double t) {
    const double wave = 0.62 + 0.62 * std::sin(2.0 * std::numbers::pi * t / period + phase);
    return top * std::clamp(wave, 0.0, 1.0);
  };
  double speed = std::min(wish(begin_s), route.speed_limit(start));
  const int steps = static_cast<int>(std::ceil((end_s - begin_s) / kStep)) + 2;
  metres_.push_back(start);
  for (int i = 1; i < steps; ++i) {
    const double wanted = std::min(wish(begin_s + i * kStep), route.speed_limit(metres_.back()));
    speed += std::clamp(wanted - speed, -6.0 * kStep, 2.5 * kStep);
    metres_.push_back(metres_.back() + speed * kStep);
  }
}

double Motion::metres(double time_s) const {
  const double position =
      std::clamp((time_s - begin_s_) / kStep, 0.0, static_cast<double>(metres_.size() - 1) - 1e-6);
  const size_t i = static_cast<size_t>(position);
  const double t = position - static_cast<double>(i);
  return (1.0 - t) * metres_[i] + t * metres_[i + 1];
}

double Motion::speed(double time_s) const {
  return (metres(time_s + 0.05) - metres(time_s - 0.05)) / 0.1;
}

}  // namespace aerie::nuscenes::synth
