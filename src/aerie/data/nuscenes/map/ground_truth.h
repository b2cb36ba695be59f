// What the network shall see from above: masks of map classes, or of vehicles, around the car.
//
// Two ways to draw (GtCompat):
//   kDevkit  as nuscenes-devkit's get_map_mask with OpenCV 4.11 and, around it, BEVFusion: polygons
//            are cut by the patch and rounded to cells, their borders are filled too, holes erase
//            what earlier polygons of the layer left there, lines are strokes of thickness 2 after
//            truncation. For numbers that compare with published ones.
//   kExact   a cell belongs to a polygon when its centre does (holes count for their own polygon
//            alone), and to a line when its centre is at most one cell away from it.
// Records that are not valid polygons are left out in both, those of drivable_area in none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/status.h"
#include "aerie/data/nuscenes/map/bev_augmentation.h"
#include "aerie/data/nuscenes/map/map_expansion.h"
#include "aerie/geometry/matrix.h"

namespace aerie::nuscenes {

enum class GtCompat : uint8_t { kDevkit, kExact };
enum class MaskTask : uint8_t {
  kMap,      // one mask a class of `classes`
  kVehicle,  // one mask: annotations whose category starts with "vehicle"
  kCar,      // one mask: annotations of exactly "vehicle.car"
};

// Cells of one axis: [lower, upper) in steps.
struct GridAxis {
  double lower = -50.0, upper = 50.0, step = 0.5;  // metres
  int cells() const;                               // rounded, not truncated
};

// drivable_area, ped_crossing, walkway, stop_line, carpark_area, divider.
std::vector<std::string> default_map_classes();

struct GroundTruthOptions {
  MaskTask task = MaskTask::kMap;
  // Names of layers (map_expansion.h), "divider" (road_divider or lane_divider) or "drivable_area*"
  // (road_segment or lane). Used by kMap alone.
  std::vector<std::string> classes = default_map_classes();
  GtCompat compat = GtCompat::kDevkit;
  // The patch shrinks as the augmentation enlarges, so that labels fit the scaled geometry.
  // BEVFusion does not do it: false.
  bool scale_patch = true;
  GridAxis x, y;
};

// An annotation in global coordinates.
struct GroundBox {
  std::string_view category;
  Vec3 centre;
  Vec3 size;  // width, length, height
  Quaternion rotation;
};

// One a thread: it keeps its buffers, so that drawing allocates nothing once they have grown.
class GroundTruthMaker {
 public:
  // Unknown classes, none or twice the same, and impossible grids are errors.
  static Result<GroundTruthMaker> make(const GroundTruthOptions& options);
  GroundTruthMaker(GroundTruthMaker&&) noexcept;
  GroundTruthMaker& operator=(GroundTruthMaker&&) noexcept;
  ~GroundTruthMaker();

  const GroundTruthOptions& options() const;
  int num_masks() const;  // K: classes, or 1 for boxes
  int nx() const;
  int ny() const;
  size_t num_bytes() const;  // K * nx * ny

  // Writes 0 and 1 into [K][nx][ny]. `lidar_to_global` is the pose of the frame that the cameras'
  // matrices lead to (LIDAR_TOP's, or the ego's). A layer that the map does not have is an error.
  Status draw(const MapExpansion& map, const Mat4& lidar_to_global,
              const BevAugmentation& augmentation, uint8_t* out);
  // The same for kVehicle and kCar: boxes of other categories are passed over.
  Status draw_boxes(std::span<const GroundBox> boxes, const Mat4& lidar_to_global,
                    const BevAugmentation& augmentation, uint8_t* out);

 private:
  struct Impl;
  explicit GroundTruthMaker(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace aerie::nuscenes
