#include "proof_world.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "aerie/base/check.h"
#include "aerie/base/env.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/synth/synth_nuscenes.h"

namespace aerie::proofs {

using nuscenes::MapExpansion;
using nuscenes::MapLayer;

World::World() {
  nuscenes::SynthOptions options;
  options.out = dir_.file("root");
  options.scenes = 2;
  options.seed = 11;
  options.pictures = false;
  options.quiet = true;
  AERIE_CHECK(nuscenes::make_nuscenes(options).ok(), "no data set");
  index_ = nuscenes::NuscenesIndex::open(Env::real(), {.root = options.out,
                                                       .version = "",
                                                       .cache_dir = "",
                                                       .use_cache = false,
                                                       .find_files = false,
                                                       .quiet = true})
               .value();
  for (uint32_t scene = 0; scene < index_->num_scenes(); ++scene)
    maps_.push_back(
        MapExpansion::load(Env::real(),
                           join_path(options.out, str_cat("maps/expansion/",
                                                          index_->scene(scene).location, ".json")))
            .value());
}

const World& World::instance() {
  static const World world;
  return world;
}

nuscenes::SampleFrames World::frames(uint32_t sample) const {
  return nuscenes::sample_frames(*index_, sample, nuscenes::ReferenceFrame::kLidar, true).value();
}

const MapExpansion& World::map(uint32_t sample) const {
  return *maps_[index_->sample(sample).scene];
}

std::string World::path(std::string_view name) const {
  return join_path(index_->root(), name);
}

Ray ray_of(const Mat4& camera_to_global, const Mat3& intrinsic, double u, double v) {
  const Vec3 local = inverse(intrinsic).value() * Vec3{u, v, 1.0};
  return {translation_of(camera_to_global), rotation_of(camera_to_global) * local};
}

namespace {

bool inside_ring(std::span<const raster::Point> ring, double x, double y) {
  bool inside = false;
  for (size_t i = 0, j = ring.size() - 1; i < ring.size(); j = i++)
    if ((ring[i].y > y) != (ring[j].y > y) &&
        x < (ring[j].x - ring[i].x) * (y - ring[i].y) / (ring[j].y - ring[i].y) + ring[i].x)
      inside = !inside;
  return inside;
}

double distance_to(const raster::Point& a, const raster::Point& b, double x, double y) {
  const double dx = b.x - a.x, dy = b.y - a.y;
  const double along =
      std::clamp(((x - a.x) * dx + (y - a.y) * dy) / std::max(1e-12, dx * dx + dy * dy), 0.0, 1.0);
  return std::hypot(x - a.x - along * dx, y - a.y - along * dy);
}

}  // namespace

bool PointClasses::on_layer(MapLayer layer, double x, double y) {
  const double reach = nuscenes::is_line_layer(layer) ? line_reach_ : 0.0;
  map_.shapes_in(layer, {x - reach, y - reach, x + reach, y + reach}, near_);
  for (const uint32_t number : near_) {
    const MapExpansion::Shape& shape = map_.shape(layer, number);
    const auto outside = map_.ring(shape, 0);
    if (nuscenes::is_line_layer(layer)) {
      for (size_t i = 0; i + 1 < outside.size(); ++i)
        if (distance_to(outside[i], outside[i + 1], x, y) <= reach) return true;
      continue;
    }
    bool inside = inside_ring(outside, x, y);
    for (uint32_t hole = 1; hole < shape.num_rings; ++hole)
      inside = inside && !inside_ring(map_.ring(shape, hole), x, y);
    if (inside) return true;
  }
  return false;
}

std::array<bool, 6> PointClasses::at(double x, double y) {
  return {on_layer(MapLayer::kDrivableArea, x, y),
          on_layer(MapLayer::kPedCrossing, x, y),
          on_layer(MapLayer::kWalkway, x, y),
          on_layer(MapLayer::kStopLine, x, y),
          on_layer(MapLayer::kCarparkArea, x, y),
          on_layer(MapLayer::kRoadDivider, x, y) || on_layer(MapLayer::kLaneDivider, x, y)};
}

}  // namespace aerie::proofs
