#include "aerie/data/nuscenes/synth/point_files.h"

#include <cmath>
#include <cstring>
#include <numbers>

#include "aerie/base/strings.h"

namespace aerie::nuscenes::synth {

namespace {

constexpr int kRings = 24, kAzimuths = 72;

bool is_under(const Actor& actor, const Pose2& place, Point2 p) {
  const Point2 d{std::cos(place.heading), std::sin(place.heading)};
  return std::abs(dot(p - place.position, d)) < 0.5 * actor.length &&
         std::abs(cross(d, p - place.position)) < 0.5 * actor.width;
}

void append_float(std::string& out, double value) {
  const float narrow = static_cast<float>(value);
  char bytes[sizeof narrow];
  std::memcpy(bytes, &narrow, sizeof narrow);
  out.append(bytes, sizeof bytes);
}

}  // namespace

Mat4 sensor_to_global(const Scene& scene, const DataRow& row) {
  const Pose2 ego = scene.ego(row.timestamp_us);
  const MountedSensor& sensor = scene.rig()[row.sensor];
  return rigid(rotation_z(ego.heading), {ego.position.x, ego.position.y, 0.0}) *
         rigid(rotation_from(sensor.rotation).value(), sensor.translation);
}

std::string lidar_points(const Scene& scene, const DataRow& row) {
  const Mat4 to_lidar = rigid_inverse(sensor_to_global(scene, row));
  const Pose2 ego = scene.ego(row.timestamp_us);
  std::string out;
  for (int ring = 0; ring < kRings; ++ring) {
    const double distance = 3.0 * std::pow(1.16, ring);
    for (int a = 0; a < kAzimuths; ++a) {
      const double angle = 2.0 * std::numbers::pi * (a + 0.37 * (ring % 3)) / kAzimuths;
      const Point2 p = ego.position + distance * Point2{std::cos(angle), std::sin(angle)};
      bool covered = false;
      for (size_t i = 0; i < scene.actors().size() && !covered; ++i)
        covered = is_under(scene.actors()[i], scene.place(i, row.timestamp_us), p);
      if (covered) continue;
      const Vec3 local = to_lidar * Vec3{p.x, p.y, 0.0};
      for (const double value : {local.x, local.y, local.z, 20.0, static_cast<double>(ring)})
        append_float(out, value);
    }
  }
  return out;
}

std::string radar_points(const Scene& scene, const DataRow& row) {
  const Mat4 to_radar = rigid_inverse(sensor_to_global(scene, row));
  std::string points;
  int count = 0;
  const auto add = [&](const Vec3& p) {
    for (const double value : {p.x, p.y, 0.0}) append_float(points, value);
    points += '\1';  // dyn_prop: standing
    points += static_cast<char>(count & 0xff);
    points += '\0';                                         // id, 16 bits
    append_float(points, 8.0);                              // rcs
    for (int i = 0; i < 4; ++i) append_float(points, 0.0);  // velocities
    points += '\1';                                         // is_quality_valid
    points += '\3';                                         // ambig_state: unambiguous
    points += std::string("\x13\x13\0\1\x03\x03", 6);  // x_rms, y_rms, invalid_state, pdh0, v*_rms
    ++count;
  };
  for (size_t i = 0; i < scene.actors().size(); ++i) {
    const Point2 place = scene.place(i, row.timestamp_us).position;
    const Vec3 local = to_radar * Vec3{place.x, place.y, 0.5};
    if (local.x > 1.0 && std::abs(local.y) < local.x && local.x < 100.0) add(local);
  }
  if (count == 0) add({50.0, 0.0, 0.0});  // the devkit wants one point at least
  return str_cat(
      "# .PCD v0.7 - Point Cloud Data file format\nVERSION 0.7\n"
      "FIELDS x y z dyn_prop id rcs vx vy vx_comp vy_comp is_quality_valid ambig_state x_rms y_rms "
      "invalid_state pdh0 vx_rms vy_rms\n"
      "SIZE 4 4 4 1 2 4 4 4 4 4 1 1 1 1 1 1 1 1\nTYPE F F F I I F F F F F I I I I I I I I\n"
      "COUNT 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1\nWIDTH ",
      count, "\nHEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS ", count, "\nDATA binary\n", points,
      "\n");  // the devkit wants a byte after the last point
}

}  // namespace aerie::nuscenes::synth
