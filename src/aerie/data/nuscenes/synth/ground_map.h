// What every point of a town's ground is, exactly and quickly: a grid of 0.1 m cells says it at
// once where no border runs through the cell, and polygons decide in the others.
#pragma once

#include <cstdint>
#include <vector>

#include "aerie/data/nuscenes/synth/town.h"
#include "aerie/image/image.h"

namespace aerie::nuscenes::synth {

// Immutable; any number of threads.
class GroundMap final {
 public:
  explicit GroundMap(const Town& town);

  Ground at(double x, double y) const {
    // Negative and huge values become cells outside; the comparison comes before the conversion.
    const double column = x * kCellsPerMetre, row = y * kCellsPerMetre;
    if (!(column >= 0.0 && column < columns_ && row >= 0.0 && row < rows_)) return Ground::kTerrain;
    const uint8_t cell = cells_[static_cast<size_t>(static_cast<int>(row)) * columns_ +
                                static_cast<size_t>(static_cast<int>(column))];
    return (cell & kBorder) == 0 ? static_cast<Ground>(cell) : decide(x, y);
  }

  // The semantic mask of nuScenes: 255 on drivable surface and walkways, ten pixels a metre, north
  // up.
  image::Image semantic_mask() const;

 private:
  static constexpr double kCellsPerMetre = 10.0;
  static constexpr uint8_t kBorder = 0x80;
  static constexpr int kTileCells = 40;  // tiles of 4 m list the polygons that touch them

  // Part of a polygon's border that runs up from y0 to y1.
  struct Edge {
    double y0, y1, x0, slope;
  };
  struct Polygon {
    Ground ground;
    uint32_t first_edge, end_edge;
    double x0, x1, y0, y1;
  };

  void add(Ground ground, const Ring& exterior, const std::vector<Ring>& holes);
  void add_ring(const Ring& ring, Polygon& polygon);
  void fill(const Polygon& polygon);
  void mark_border(const Edge& edge);
  void list_tiles();
  bool contains(const Polygon& polygon, double x, double y) const;
  Ground decide(double x, double y) const;

  int columns_ = 0, rows_ = 0;
  int tile_columns_ = 0, tile_rows_ = 0;
  std::vector<uint8_t> cells_;
  std::vector<Edge> edges_;
  std::vector<Polygon> polygons_;
  std::vector<uint32_t> tile_begin_, tile_polygons_;
};

}  // namespace aerie::nuscenes::synth
