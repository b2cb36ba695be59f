#include "aerie/data/nuscenes/synth/rig.h"

#include <cmath>
#include <numbers>

#include "aerie/base/philox.h"
#include "aerie/data/nuscenes/synth/streams.h"

namespace aerie::nuscenes::synth {

namespace {

struct Mount {
  double x, y, z, yaw_deg;
};
constexpr std::array<Mount, kNumSensors> kMounts = {{
    {1.70, 0.00, 1.51, 0.0},
    {1.55, -0.50, 1.50, -55.0},
    {1.52, 0.50, 1.51, 55.0},
    {0.03, 0.00, 1.57, 180.0},
    {1.04, 0.48, 1.59, 110.0},
    {1.01, -0.48, 1.56, -110.0},
    {0.94, 0.00, 1.84, -90.0},
    {3.41, 0.00, 0.50, 0.0},
    {2.42, 0.80, 0.78, 90.0},
    {2.42, -0.80, 0.77, -90.0},
    {-0.56, 0.62, 0.53, 175.0},
    {-0.56, -0.62, 0.53, -175.0},
}};

Mat3 rotation_x(double a) {
  return {{1, 0, 0, 0, std::cos(a), -std::sin(a), 0, std::sin(a), std::cos(a)}};
}
Mat3 rotation_y(double a) {
  return {{std::cos(a), 0, std::sin(a), 0, 1, 0, -std::sin(a), 0, std::cos(a)}};
}
// Optical axes (x right, y down, z forward) of a camera that looks along the vehicle's x.
constexpr Mat3 kOptical{{0, 0, 1, -1, 0, 0, 0, -1, 0}};

}  // namespace

Rig make_rig(uint64_t seed, uint64_t scene, int image_width) {
  RandomStream random(seed, Purpose::kSynth, kRigStream, scene);
  const double degree = std::numbers::pi / 180.0, scale = image_width / 1600.0;
  Rig rig;
  for (int i = 0; i < kNumSensors; ++i) {
    const Mount& mount = kMounts[i];
    const double pitch = random.uniform(-1.0, 1.0) * degree;
    const double roll = random.uniform(-1.0, 1.0) * degree;
    const double focal = random.uniform(0.99, 1.01);
    Mat3 rotation = rotation_z(mount.yaw_deg * degree) * rotation_y(pitch) * rotation_x(roll);
    if (is_camera(i)) {
      rotation = rotation * kOptical;
      const double f = (kSensorNames[i] == "CAM_BACK" ? 810.0 : 1260.0) * focal * scale;
      const double cx = 800.0 * random.uniform(0.99, 1.01) * scale;
      const double cy = 450.0 * random.uniform(0.99, 1.01) * scale;
      rig[i].intrinsic = {{f, 0, cx, 0, f, cy, 0, 0, 1}};
    }
    rig[i].translation = {mount.x, mount.y, mount.z};
    rig[i].rotation = quaternion_from(rotation);
  }
  return rig;
}

}  // namespace aerie::nuscenes::synth
