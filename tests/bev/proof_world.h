// A synthetic data set for the proofs, read back through the real readers.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/temp_dir.h"
#include "aerie/data/nuscenes/camera/image_augmentation.h"
#include "aerie/data/nuscenes/map/map_expansion.h"
#include "aerie/data/nuscenes/tables/frames.h"
#include "aerie/data/nuscenes/tables/nuscenes_index.h"
#include "aerie/geometry/matrix.h"

namespace aerie::proofs {

// Two scenes of 1600x900 cameras. Made once for all tests of the process, without pictures.
class World final {
 public:
  static const World& instance();

  const nuscenes::NuscenesIndex& index() const { return *index_; }
  nuscenes::SampleFrames frames(uint32_t sample) const;
  const nuscenes::MapExpansion& map(uint32_t sample) const;
  std::string path(std::string_view name) const;

 private:
  World();
  TempDir dir_;
  std::shared_ptr<const nuscenes::NuscenesIndex> index_;
  std::vector<std::shared_ptr<const nuscenes::MapExpansion>> maps_;  // by scene
};

// A ray of a camera in global coordinates: eye + depth * direction, depth along the optical axis.
struct Ray {
  Vec3 eye, direction;
  double ground_depth() const { return -eye.z / direction.z; }  // z = 0
};
Ray ray_of(const Mat4& camera_to_global, const Mat3& intrinsic, double u, double v);

// The classes of the map at a point, in the order of default_map_classes(), by geometry alone:
// inside a polygon (and none of its holes), or at most `line_reach` metres from a line.
class PointClasses final {
 public:
  PointClasses(const nuscenes::MapExpansion& map, double line_reach)
      : map_(map), line_reach_(line_reach) {}
  std::array<bool, 6> at(double x, double y);

 private:
  bool on_layer(nuscenes::MapLayer layer, double x, double y);

  const nuscenes::MapExpansion& map_;
  const double line_reach_;
  std::vector<uint32_t> near_;
};

}  // namespace aerie::proofs
