// The vector map of one location: maps/expansion/<location>.json, version 1.3 of the expansion.
//
// The file is read once, front to back, into flat arrays; what no mask needs (connectivity, arc
// lines, traffic lights, ...) is passed over. A polygon that several layers name is kept once. Each
// layer has a uniform grid, so that a patch looks only at the records near it.
// Immutable after loading: any number of threads may read.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/status.h"
#include "aerie/raster/mask.h"

namespace aerie::nuscenes {

enum class MapLayer : uint8_t {
  kDrivableArea,
  kRoadSegment,
  kRoadBlock,
  kLane,
  kPedCrossing,
  kWalkway,
  kStopLine,
  kCarparkArea,
  kRoadDivider,
  kLaneDivider,
};
inline constexpr int kNumMapLayers = 10;

std::string_view name_of(MapLayer layer);  // as in the file: "drivable_area"
std::optional<MapLayer> map_layer_from(std::string_view name);
bool is_line_layer(MapLayer layer);

struct MapBounds {
  double min_x = 0.0, min_y = 0.0, max_x = 0.0, max_y = 0.0;
  void add(const raster::Point& p) {
    min_x = std::min(min_x, p.x);
    min_y = std::min(min_y, p.y);
    max_x = std::max(max_x, p.x);
    max_y = std::max(max_y, p.y);
  }
  bool overlaps(const MapBounds& other) const {
    return min_x <= other.max_x && other.min_x <= max_x && min_y <= other.max_y &&
           other.min_y <= max_y;
  }
};

class MapExpansion {
 public:
  // A polygon (the first ring is its outside, the others are holes; without the closing point) or
  // a line (one ring, open).
  struct Shape {
    uint32_t first_ring = 0;
    uint32_t num_rings = 0;
    // Without crossings, touching rings and holes in wrong places: shapely's is_valid. Not known of
    // polygons that only drivable_area has: there it does not matter.
    bool valid = true;
    MapBounds bounds;
  };
  struct Summary {
    std::array<uint32_t, kNumMapLayers> num_records{};
    // Records that are never drawn: not valid, or with too few points.
    std::array<uint32_t, kNumMapLayers> num_left_out{};
    size_t memory_bytes = 0;
  };

  // Errors name the file, the layer, the row and the key. Memory stays below a small multiple of
  // the file's size, which is limited.
  static Result<std::shared_ptr<const MapExpansion>> load(Env& env, const std::string& path);
  // The same for text in memory; `name` stands in messages.
  static Result<std::shared_ptr<const MapExpansion>> parse(std::string_view json,
                                                           const std::string& name);

  const std::string& path() const { return path_; }
  const std::string& version() const { return version_; }
  bool has(MapLayer layer) const { return layers_[index(layer)].present; }
  const Summary& summary() const { return summary_; }

  // The shapes of a layer, in the order of the file; drivable_area gives one for each polygon of
  // its records.
  uint32_t num_shapes(MapLayer layer) const {
    return static_cast<uint32_t>(layers_[index(layer)].shapes.size());
  }
  const Shape& shape(MapLayer layer, uint32_t i) const {
    return shapes_[layers_[index(layer)].shapes[i]];
  }
  std::span<const raster::Point> ring(const Shape& shape, uint32_t i) const {
    const size_t number = size_t{shape.first_ring} + i;
    return std::span(points_).subspan(ring_begin_[number],
                                      ring_begin_[number + 1] - ring_begin_[number]);
  }

  const MapBounds& ring_bounds(const Shape& shape, uint32_t i) const {
    return ring_bounds_[size_t{shape.first_ring} + i];
  }

  // The devkit leaves out what is not valid, except in drivable_area; points and dots have nothing
  // to draw anywhere.
  bool is_drawn(MapLayer layer, const Shape& shape) const {
    if (layer == MapLayer::kDrivableArea) return ring(shape, 0).size() >= 3;
    return shape.valid;
  }

  // Numbers of the layer's shapes whose bounds touch `area`, ascending. Replaces what `out` had.
  void shapes_in(MapLayer layer, const MapBounds& area, std::vector<uint32_t>& out) const;

 private:
  friend class MapBuilder;
  struct Grid {
    double min_x = 0.0, min_y = 0.0, cell = 0.0;
    int columns = 0, rows = 0;
    std::vector<uint32_t> begin;      // of each cell in `entries`; one more at the end
    std::vector<uint32_t> entries;    // numbers of shapes
    std::vector<uint32_t> sprawling;  // shapes over too many cells to be listed in each
  };
  struct Layer {
    bool present = false;
    std::vector<uint32_t> shapes;  // into shapes_
    Grid grid;
  };
  static size_t index(MapLayer layer) { return static_cast<size_t>(layer); }
  struct CellRange;
  static CellRange cells_of(const Grid& grid, const MapBounds& bounds);
  void build_grid(Layer& layer) const;
  void finish();  // grids and summary

  std::string path_, version_;
  std::vector<raster::Point> points_;
  std::vector<uint32_t> ring_begin_;  // one more at the end
  std::vector<MapBounds> ring_bounds_;
  std::vector<Shape> shapes_;
  std::array<Layer, kNumMapLayers> layers_;
  Summary summary_;
};

}  // namespace aerie::nuscenes
