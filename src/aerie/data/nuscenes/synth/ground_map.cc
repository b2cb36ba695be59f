#include "aerie/data/nuscenes/synth/ground_map.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace aerie::nuscenes::synth {

GroundMap::GroundMap(const Town& town) {
  columns_ = static_cast<int>(std::ceil(town.net.width * kCellsPerMetre));
  rows_ = static_cast<int>(std::ceil(town.net.height * kCellsPerMetre));
  cells_.assign(static_cast<size_t>(columns_) * rows_, static_cast<uint8_t>(Ground::kTerrain));
  const auto add_area = [&](Ground ground, const Area& area) {
    if (area.pieces.empty()) add(ground, area.shape.exterior, area.shape.holes);
    for (const Ring& piece : area.pieces) add(ground, piece, {});
  };
  for (const Paint& paint : town.paint) add(paint.ground, paint.ring, {});
  for (const StopLine& stop : town.stop_lines) add_area(Ground::kStopLine, stop.area);
  for (const Crossing& crossing : town.crossings) add_area(Ground::kCrossing, crossing.area);
  for (const Carpark& park : town.carparks) add_area(Ground::kCarpark, park.area);
  for (const Area& walkway : town.walkways) add_area(Ground::kWalkway, walkway);
  for (const Area& drivable : town.drivable) add_area(Ground::kDrivable, drivable);
  // The topmost first: the first hit decides.
  std::stable_sort(polygons_.begin(), polygons_.end(),
                   [](const Polygon& a, const Polygon& b) { return a.ground > b.ground; });
  for (const Polygon& polygon : polygons_) fill(polygon);
  for (const Edge& edge : edges_) mark_border(edge);
  list_tiles();
}

void GroundMap::add(Ground ground, const Ring& exterior, const std::vector<Ring>& holes) {
  Polygon polygon{ground, static_cast<uint32_t>(edges_.size()), 0, 1e30, -1e30, 1e30, -1e30};
  add_ring(exterior, polygon);
  for (const Ring& hole : holes) add_ring(hole, polygon);
  polygon.end_edge = static_cast<uint32_t>(edges_.size());
  polygons_.push_back(polygon);
}

void GroundMap::add_ring(const Ring& ring, Polygon& polygon) {
  for (size_t i = 0; i < ring.size(); ++i) {
    Point2 a = ring[i], b = ring[(i + 1) % ring.size()];
    polygon.x0 = std::min(polygon.x0, a.x);
    polygon.x1 = std::max(polygon.x1, a.x);
    polygon.y0 = std::min(polygon.y0, a.y);
    polygon.y1 = std::max(polygon.y1, a.y);
    // Always upwards: polygons that share an edge compute the same crossing.
    if (a.y > b.y || (a.y == b.y && a.x > b.x)) std::swap(a, b);
    edges_.push_back({a.y, b.y, a.x, a.y == b.y ? b.x - a.x : (b.x - a.x) / (b.y - a.y)});
  }
}

bool GroundMap::contains(const Polygon& polygon, double x, double y) const {
  if (x < polygon.x0 || x > polygon.x1 || y < polygon.y0 || y > polygon.y1) return false;
  bool inside = false;
  for (uint32_t i = polygon.first_edge; i < polygon.end_edge; ++i) {
    const Edge& edge = edges_[i];
    inside ^= y >= edge.y0 && y < edge.y1 && x < edge.x0 + (y - edge.y0) * edge.slope;
  }
  return inside;
}

Ground GroundMap::decide(double x, double y) const {
  const int column = static_cast<int>(x * kCellsPerMetre) / kTileCells;
  const int row = static_cast<int>(y * kCellsPerMetre) / kTileCells;
  const size_t tile = static_cast<size_t>(row) * tile_columns_ + column;
  for (uint32_t i = tile_begin_[tile]; i < tile_begin_[tile + 1]; ++i) {
    const Polygon& polygon = polygons_[tile_polygons_[i]];
    if (contains(polygon, x, y)) return polygon.ground;
  }
  return Ground::kTerrain;
}

// Cells whose centre lies inside, where nothing higher is yet.
void GroundMap::fill(const Polygon& polygon) {
  const int first = std::max(0, static_cast<int>(std::floor(polygon.y0 * kCellsPerMetre)));
  const int last = std::min(rows_ - 1, static_cast<int>(std::floor(polygon.y1 * kCellsPerMetre)));
  std::vector<double> crossings;
  for (int row = first; row <= last; ++row) {
    const double y = (row + 0.5) / kCellsPerMetre;
    crossings.clear();
    for (uint32_t i = polygon.first_edge; i < polygon.end_edge; ++i) {
      const Edge& edge = edges_[i];
      if (y >= edge.y0 && y < edge.y1) crossings.push_back(edge.x0 + (y - edge.y0) * edge.slope);
    }
    std::sort(crossings.begin(), crossings.end());
    uint8_t* cells = cells_.data() + static_cast<size_t>(row) * columns_;
    for (size_t i = 0; i + 1 < crossings.size(); i += 2) {
      const int begin =
          std::max(0, static_cast<int>(std::ceil(crossings[i] * kCellsPerMetre - 0.5)));
      const int end =
          std::min(columns_, static_cast<int>(std::ceil(crossings[i + 1] * kCellsPerMetre - 0.5)));
      for (int column = begin; column < end; ++column)
        cells[column] = std::max(cells[column], static_cast<uint8_t>(polygon.ground));
    }
  }
}

// Every cell the edge touches, and a cell more to either side.
void GroundMap::mark_border(const Edge& edge) {
  const int first = std::max(0, static_cast<int>(std::floor(edge.y0 * kCellsPerMetre)) - 1);
  const int last = std::min(rows_ - 1, static_cast<int>(std::floor(edge.y1 * kCellsPerMetre)) + 1);
  for (int row = first; row <= last; ++row) {
    double xa = edge.x0, xb = edge.x0 + edge.slope;  // level: `slope` is its length
    if (edge.y1 > edge.y0) {
      xa = edge.x0 + (std::clamp(row / kCellsPerMetre, edge.y0, edge.y1) - edge.y0) * edge.slope;
      xb = edge.x0 +
           (std::clamp((row + 1) / kCellsPerMetre, edge.y0, edge.y1) - edge.y0) * edge.slope;
    }
    const int begin =
        std::max(0, static_cast<int>(std::floor(std::min(xa, xb) * kCellsPerMetre)) - 1);
    const int end =
        std::min(columns_ - 1, static_cast<int>(std::floor(std::max(xa, xb) * kCellsPerMetre)) + 1);
    uint8_t* cells = cells_.data() + static_cast<size_t>(row) * columns_;
    for (int column = begin; column <= end; ++column) cells[column] |= kBorder;
  }
}

void GroundMap::list_tiles() {
  tile_columns_ = columns_ / kTileCells + 1;
  tile_rows_ = rows_ / kTileCells + 1;
  const double size = kTileCells / kCellsPerMetre;
  const auto for_tiles = [&](const Polygon& polygon, const auto& visit) {
    const auto tile = [&](double value, int count) {
      return std::clamp(static_cast<int>(std::floor(value / size)), 0, count - 1);
    };
    for (int row = tile(polygon.y0, tile_rows_); row <= tile(polygon.y1, tile_rows_); ++row)
      for (int column = tile(polygon.x0, tile_columns_); column <= tile(polygon.x1, tile_columns_);
           ++column)
        visit(static_cast<size_t>(row) * tile_columns_ + column);
  };
  tile_begin_.assign(static_cast<size_t>(tile_columns_) * tile_rows_ + 1, 0);
  for (const Polygon& polygon : polygons_)
    for_tiles(polygon, [&](size_t tile) { ++tile_begin_[tile + 1]; });
  for (size_t i = 1; i < tile_begin_.size(); ++i) tile_begin_[i] += tile_begin_[i - 1];
  tile_polygons_.resize(tile_begin_.back());
  std::vector<uint32_t> next(tile_begin_.begin(), tile_begin_.end() - 1);
  for (size_t i = 0; i < polygons_.size(); ++i)
    for_tiles(polygons_[i],
              [&](size_t tile) { tile_polygons_[next[tile]++] = static_cast<uint32_t>(i); });
}

image::Image GroundMap::semantic_mask() const {
  image::Image mask(columns_, rows_, 1);
  for (int row = 0; row < rows_; ++row) {
    const uint8_t* cells = cells_.data() + static_cast<size_t>(rows_ - 1 - row) * columns_;
    uint8_t* out = mask.row(row);
    for (int column = 0; column < columns_; ++column) {
      const Ground ground = static_cast<Ground>(cells[column] & ~kBorder);
      out[column] = ground == Ground::kTerrain || ground == Ground::kCarpark ? 0 : 255;
    }
  }
  return mask;
}

}  // namespace aerie::nuscenes::synth
