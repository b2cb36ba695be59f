// One layer of a map on a canvas: what lies in a rotated rectangle around the car.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "aerie/data/nuscenes/map/map_expansion.h"
#include "aerie/raster/clip.h"
#include "aerie/raster/mask.h"
#include "aerie/raster/polygon.h"
#include "aerie/raster/sampled.h"

namespace aerie::nuscenes {

// A rectangle of the map, rotated about its centre, and the canvas that it fills. Angles are in
// degrees because the devkit's are: its rounding is ours.
struct MapPatch {
  raster::Point centre;
  double angle_deg = 0.0;
  double width = 0.0, height = 0.0;  // metres along its own x and y
  int columns = 0, rows = 0;
};

// One a thread: keeps its buffers.
class PatchDrawer {
 public:
  // Clears the canvas and draws the layer; false, and the canvas untouched, when there is nothing
  // near. `exact`: see ground_truth.h.
  bool draw(const MapExpansion& map, MapLayer layer, const MapPatch& patch, bool exact,
            const raster::MaskView& canvas);

 private:
  // From the map to the patch, centre at 0, with the devkit's operations in its order.
  struct Turn {
    double cos, sin, offset_x, offset_y;
    raster::Point centre;
    raster::Point operator()(const raster::Point& p) const;
  };
  // From the patch to cells.
  struct ToCells {
    double half_width, half_height, scale_x, scale_y;
    raster::Point operator()(const raster::Point& p) const {
      return {(p.x + half_width) * scale_x, (p.y + half_height) * scale_y};
    }
  };
  void draw_polygon(const MapExpansion& map, const MapExpansion::Shape& shape,
                    const raster::MaskView& canvas);
  void sample_polygon(const MapExpansion& map, const MapExpansion::Shape& shape,
                      const raster::MaskView& canvas);
  void draw_line(std::span<const raster::Point> line, bool exact, const raster::MaskView& canvas);
  raster::Point rounded_cut(const raster::Point& cut, const raster::Point& from,
                            const raster::Point& to) const;
  void stroke_run(const raster::MaskView& canvas);

  Turn turn_{};
  ToCells to_cells_{};
  raster::Rect rect_;
  // Corners of the patch on the map: right bottom, right top, left top.
  std::array<raster::Point, 3> corners_;
  MapBounds area_;  // of the map, around the patch
  std::vector<uint32_t> hits_;
  raster::Rings rings_;
  raster::PolygonClipper clipper_;
  raster::PolygonFiller filler_;
  raster::CentreSampler sampler_;
  std::vector<raster::CellPoint> cells_;
  std::vector<std::span<const raster::CellPoint>> outsides_, holes_;
  std::vector<raster::CellPoint> run_;  // the part of a line that is being followed
};

}  // namespace aerie::nuscenes
