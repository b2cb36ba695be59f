#include "aerie/data/nuscenes/map/map_expansion.h"

#include <algorithm>
#include <cmath>

#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/map/map_builder.h"

namespace aerie::nuscenes {

namespace {

constexpr std::array<std::string_view, kNumMapLayers> kLayerNames = {
    "drivable_area", "road_segment", "road_block",   "lane",         "ped_crossing",
    "walkway",       "stop_line",    "carpark_area", "road_divider", "lane_divider"};

// The largest real map has some 60 MB; reading takes a few times the size of the file.
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 30;
constexpr double kCellMetres = 50.0;
// Bounds of the grid's memory whatever the coordinates: cells, and cells that list one shape.
constexpr double kMaxCellsOfAxis = 1024.0;
constexpr int64_t kMaxCellsOfShape = 32;

}  // namespace

std::string_view name_of(MapLayer layer) {
  return kLayerNames[static_cast<size_t>(layer)];
}

std::optional<MapLayer> map_layer_from(std::string_view name) {
  const auto found = std::find(kLayerNames.begin(), kLayerNames.end(), name);
  if (found == kLayerNames.end()) return std::nullopt;
  return static_cast<MapLayer>(found - kLayerNames.begin());
}

bool is_line_layer(MapLayer layer) {
  return layer == MapLayer::kRoadDivider || layer == MapLayer::kLaneDivider;
}

Result<std::shared_ptr<const MapExpansion>> MapExpansion::load(Env& env, const std::string& path) {
  AERIE_ASSIGN_OR_RETURN(const FileStat stat, env.stat(path));
  if (stat.size > kMaxFileBytes)
    return data_error(str_cat(path, " has ", stat.size, " bytes: no map is as large as this"));
  AERIE_ASSIGN_OR_RETURN(const MappedFile file, env.map_file(path));
  file.advise(MappedFile::Advice::kSequential);
  return MapBuilder(file.text(), path).build();
}

Result<std::shared_ptr<const MapExpansion>> MapExpansion::parse(std::string_view json,
                                                                const std::string& name) {
  if (json.size() > kMaxFileBytes)
    return data_error(str_cat(name, " has ", json.size(), " bytes: no map is as large as this"));
  return MapBuilder(json, name).build();
}

struct MapExpansion::CellRange {
  int first_column, last_column, first_row, last_row;
  int64_t count() const {
    return (int64_t{last_column} - first_column + 1) * (int64_t{last_row} - first_row + 1);
  }
};

MapExpansion::CellRange MapExpansion::cells_of(const Grid& grid, const MapBounds& bounds) {
  const auto cell = [&](double value, double min, int count) {
    return static_cast<int>(std::clamp((value - min) / grid.cell, 0.0, count - 1.0));
  };
  return {cell(bounds.min_x, grid.min_x, grid.columns),
          cell(bounds.max_x, grid.min_x, grid.columns), cell(bounds.min_y, grid.min_y, grid.rows),
          cell(bounds.max_y, grid.min_y, grid.rows)};
}

void MapExpansion::build_grid(Layer& layer) const {
  Grid& grid = layer.grid;
  if (layer.shapes.empty()) return;
  MapBounds all = shapes_[layer.shapes[0]].bounds;
  for (const uint32_t i : layer.shapes) {
    all.add({shapes_[i].bounds.min_x, shapes_[i].bounds.min_y});
    all.add({shapes_[i].bounds.max_x, shapes_[i].bounds.max_y});
  }
  const double width = all.max_x - all.min_x, height = all.max_y - all.min_y;
  grid.min_x = all.min_x;
  grid.min_y = all.min_y;
  grid.cell = std::max(kCellMetres, std::max(width, height) / kMaxCellsOfAxis);
  grid.columns = static_cast<int>(width / grid.cell) + 1;
  grid.rows = static_cast<int>(height / grid.cell) + 1;

  const auto for_cells = [&](const auto& visit) {
    for (uint32_t i = 0; i < layer.shapes.size(); ++i) {
      const CellRange range = cells_of(grid, shapes_[layer.shapes[i]].bounds);
      if (range.count() > kMaxCellsOfShape) continue;
      for (int row = range.first_row; row <= range.last_row; ++row)
        for (int column = range.first_column; column <= range.last_column; ++column)
          visit(static_cast<size_t>(row) * static_cast<size_t>(grid.columns) +
                    static_cast<size_t>(column),
                i);
    }
  };
  grid.begin.assign(static_cast<size_t>(grid.columns) * static_cast<size_t>(grid.rows) + 1, 0);
  for_cells([&](size_t cell, uint32_t) { ++grid.begin[cell + 1]; });
  for (size_t i = 1; i < grid.begin.size(); ++i) grid.begin[i] += grid.begin[i - 1];
  grid.entries.resize(grid.begin.back());
  std::vector<uint32_t> next(grid.begin.begin(), grid.begin.end() - 1);
  for_cells([&](size_t cell, uint32_t i) { grid.entries[next[cell]++] = i; });
  for (uint32_t i = 0; i < layer.shapes.size(); ++i)
    if (cells_of(grid, shapes_[layer.shapes[i]].bounds).count() > kMaxCellsOfShape)
      grid.sprawling.push_back(i);
}

void MapExpansion::finish() {
  points_.shrink_to_fit();
  size_t bytes = points_.size() * sizeof(raster::Point) + ring_begin_.size() * sizeof(uint32_t) +
                 ring_bounds_.size() * sizeof(MapBounds) + shapes_.size() * sizeof(Shape);
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    build_grid(layer);
    for (const uint32_t shape : layer.shapes)
      if (!is_drawn(static_cast<MapLayer>(i), shapes_[shape])) ++summary_.num_left_out[i];
    bytes += (layer.shapes.size() + layer.grid.begin.size() + layer.grid.entries.size() +
              layer.grid.sprawling.size()) *
             sizeof(uint32_t);
  }
  summary_.memory_bytes = bytes;
}

void MapExpansion::shapes_in(MapLayer layer, const MapBounds& area,
                             std::vector<uint32_t>& out) const {
  out.clear();
  const Layer& chosen = layers_[index(layer)];
  const Grid& grid = chosen.grid;
  if (chosen.shapes.empty()) return;
  const auto add = [&](uint32_t i) {
    if (shapes_[chosen.shapes[i]].bounds.overlaps(area)) out.push_back(i);
  };
  for (const uint32_t i : grid.sprawling) add(i);
  const CellRange range = cells_of(grid, area);
  for (int row = range.first_row; row <= range.last_row; ++row) {
    for (int column = range.first_column; column <= range.last_column; ++column) {
      const size_t cell = static_cast<size_t>(row) * static_cast<size_t>(grid.columns) +
                          static_cast<size_t>(column);
      for (uint32_t i = grid.begin[cell]; i < grid.begin[cell + 1]; ++i) add(grid.entries[i]);
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
}

}  // namespace aerie::nuscenes
