#include "aerie/data/nuscenes/tables/frames.h"

#include "aerie/base/strings.h"

namespace aerie::nuscenes {

Result<Mat4> matrix_of(const Pose& pose) {
  AERIE_ASSIGN_OR_RETURN(const Mat3 rotation, rotation_from(pose.rotation));
  return rigid(rotation, pose.translation);
}

Result<Mat4> camera_to_reference(const Pose& camera_sensor, const Pose& camera_ego,
                                 const Pose& lidar_sensor, const Pose& lidar_ego,
                                 ReferenceFrame reference, bool motion_compensation) {
  AERIE_ASSIGN_OR_RETURN(Mat4 out, matrix_of(camera_sensor));
  if (motion_compensation) {
    AERIE_ASSIGN_OR_RETURN(const Mat4 global_camera, matrix_of(camera_ego));
    AERIE_ASSIGN_OR_RETURN(const Mat4 global_lidar, matrix_of(lidar_ego));
    // Kilometres cancel first, before anything small is added to them.
    out = (rigid_inverse(global_lidar) * global_camera) * out;
  }
  if (reference == ReferenceFrame::kLidar) {
    AERIE_ASSIGN_OR_RETURN(const Mat4 ego_lidar, matrix_of(lidar_sensor));
    out = rigid_inverse(ego_lidar) * out;
  }
  return out;
}

Result<SampleFrames> sample_frames(const NuscenesIndex& index, uint32_t sample,
                                   ReferenceFrame reference, bool motion_compensation) {
  const auto missing = [&](std::string_view channel) {
    return data_error(str_cat("sample ", to_string(index.sample(sample).token),
                              " has no key frame of ", channel));
  };
  if (!index.has_lidar(sample)) return missing(kLidarChannel);
  const SensorFrame lidar = index.lidar(sample);
  SampleFrames out;
  AERIE_ASSIGN_OR_RETURN(const Mat4 ego_to_global, matrix_of(lidar.ego));
  AERIE_ASSIGN_OR_RETURN(const Mat4 lidar_to_ego, matrix_of(lidar.sensor));
  out.lidar_to_global = ego_to_global * lidar_to_ego;
  out.reference_to_global =
      reference == ReferenceFrame::kLidar ? out.lidar_to_global : ego_to_global;
  for (int c = 0; c < kNumCameras; ++c) {
    if (!index.has_camera(sample, c)) return missing(kCameras[c]);
    const CameraFrame camera = index.camera(sample, c);
    AERIE_ASSIGN_OR_RETURN(out.camera_to_reference[c],
                           camera_to_reference(camera.sensor, camera.ego, lidar.sensor, lidar.ego,
                                               reference, motion_compensation));
    out.intrinsic[c] = camera.intrinsic;
  }
  return out;
}

}  // namespace aerie::nuscenes
