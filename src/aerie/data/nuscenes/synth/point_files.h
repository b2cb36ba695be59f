// The small point files of a scene.
#pragma once

#include <string>

#include "aerie/data/nuscenes/synth/scene.h"

namespace aerie::nuscenes::synth {

// float32 x, y, z, intensity, ring of ground points in the lidar's frame.
std::string lidar_points(const Scene& scene, const DataRow& row);
// A .pcd with nuScenes' 18 fields: the actors around a radar.
std::string radar_points(const Scene& scene, const DataRow& row);

// The sensor's pose in the world at the time of the row.
Mat4 sensor_to_global(const Scene& scene, const DataRow& row);

}  // namespace aerie::nuscenes::synth
