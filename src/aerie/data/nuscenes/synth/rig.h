// The sensors of a vehicle: what they are called, where they sit, and the lenses of its cameras.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "aerie/geometry/matrix.h"

namespace aerie::nuscenes::synth {

constexpr int kNumSensors = 12;
constexpr int kNumRigCameras = 6;  // the first six
constexpr int kLidarSensor = 6;
constexpr std::array<std::string_view, kNumSensors> kSensorNames = {
    "CAM_FRONT",        "CAM_FRONT_RIGHT",   "CAM_FRONT_LEFT",  "CAM_BACK",
    "CAM_BACK_LEFT",    "CAM_BACK_RIGHT",    "LIDAR_TOP",       "RADAR_FRONT",
    "RADAR_FRONT_LEFT", "RADAR_FRONT_RIGHT", "RADAR_BACK_LEFT", "RADAR_BACK_RIGHT"};
inline bool is_camera(int sensor) {
  return sensor < kNumRigCameras;
}
inline std::string_view modality(int sensor) {
  return is_camera(sensor) ? "camera" : sensor == kLidarSensor ? "lidar" : "radar";
}

struct MountedSensor {
  Vec3 translation;
  Quaternion rotation;
  Mat3 intrinsic;  // of cameras; pixel i covers [i, i + 1)
};
using Rig = std::array<MountedSensor, kNumSensors>;

// Nominal positions with a degree of roll and pitch and a per cent of focal length, drawn anew for
// every scene as if the vehicle had been calibrated again.
Rig make_rig(uint64_t seed, uint64_t scene, int image_width);

}  // namespace aerie::nuscenes::synth
