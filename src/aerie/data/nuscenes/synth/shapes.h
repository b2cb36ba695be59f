// Plane shapes of the invented town, in global metres.
#pragma once

#include <cmath>
#include <vector>

namespace aerie::nuscenes::synth {

struct Point2 {
  double x = 0.0, y = 0.0;
};
inline Point2 operator+(Point2 a, Point2 b) {
  return {a.x + b.x, a.y + b.y};
}
inline Point2 operator-(Point2 a, Point2 b) {
  return {a.x - b.x, a.y - b.y};
}
inline Point2 operator*(double s, Point2 a) {
  return {s * a.x, s * a.y};
}
inline double dot(Point2 a, Point2 b) {
  return a.x * b.x + a.y * b.y;
}
inline double cross(Point2 a, Point2 b) {
  return a.x * b.y - a.y * b.x;
}
inline double length(Point2 a) {
  return std::hypot(a.x, a.y);
}
inline Point2 left_of(Point2 direction) {
  return {-direction.y, direction.x};
}
inline Point2 mix(Point2 a, Point2 b, double t) {
  return (1.0 - t) * a + t * b;
}
// To the millimetre, so that the map file and the rendered world hold the same numbers.
inline Point2 rounded(Point2 a) {
  return {std::round(a.x * 1000.0) / 1000.0, std::round(a.y * 1000.0) / 1000.0};
}

using Ring = std::vector<Point2>;  // without repeating the first point
using Polyline = std::vector<Point2>;

struct Shape {
  Ring exterior;
  std::vector<Ring> holes;
};

}  // namespace aerie::nuscenes::synth
