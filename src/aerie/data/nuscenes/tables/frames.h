// Where the cameras of a sample stand, in the frame of the bird's-eye view. Composed in double: the
// world's coordinates are kilometres.
#pragma once

#include <array>
#include <cstdint>

#include "aerie/base/status.h"
#include "aerie/data/nuscenes/tables/nuscenes_index.h"
#include "aerie/geometry/matrix.h"

namespace aerie::nuscenes {

enum class ReferenceFrame {
  kLidar,  // x right, y forward, z up, at the lidar
  kEgo,    // x forward, y left, z up, on the ground under the rear axle, when the lidar swept
};

struct SampleFrames {
  Mat4 reference_to_global;  // of the frame that was asked for, at the lidar's time
  Mat4 lidar_to_global;
  std::array<Mat4, kNumCameras> camera_to_reference;
  std::array<Mat3, kNumCameras> intrinsic;
};

// A pose as a matrix; the rotation is normalised first.
Result<Mat4> matrix_of(const Pose& pose);

// With motion compensation the vehicle's way between the two times is in it:
//   inv(T_el) inv(T_gl) T_gc T_ec  (lidar), inv(T_gl) T_gc T_ec  (ego),
// where T_ec, T_el are calibrations and T_gc, T_gl the vehicle's poses at the times of camera and
// lidar. Without it both poses are taken to be the same: inv(T_el) T_ec, T_ec.
Result<Mat4> camera_to_reference(const Pose& camera_sensor, const Pose& camera_ego,
                                 const Pose& lidar_sensor, const Pose& lidar_ego,
                                 ReferenceFrame reference, bool motion_compensation);

// Of a sample with six cameras and a lidar row; else an error that names the sample.
Result<SampleFrames> sample_frames(const NuscenesIndex& index, uint32_t sample,
                                   ReferenceFrame reference, bool motion_compensation);

}  // namespace aerie::nuscenes
