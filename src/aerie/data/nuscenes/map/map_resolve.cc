// The second half of MapBuilder: tokens become rows, rings become coordinates.
#include <span>
#include <utility>

#include "aerie/base/hash.h"
#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/map/map_builder.h"

namespace aerie::nuscenes {

Status too_many(std::string_view what) {
  return data_error(str_cat("more than 2^32 ", what));
}

std::string shortened(std::string_view token) {
  constexpr size_t kEnough = 60;
  return token.size() <= kEnough ? std::string(token) : str_cat(token.substr(0, kEnough), "...");
}

std::string RowName::text() const {
  std::string words = str_cat("layer '", layer, "', row ", row);
  if (hole != kNoHole) words += str_cat(", hole ", hole);
  return words;
}

TokenRows::TokenRows(const std::vector<std::string_view>& tokens) : tokens_(tokens) {
  size_t size = 16;
  while (size < tokens.size() * 2) size *= 2;
  slots_.assign(size, kNone);
  for (uint32_t row = 0; row < tokens.size(); ++row) {
    size_t slot = xxhash64(tokens[row]) & (size - 1);
    while (slots_[slot] != kNone && tokens_[slots_[slot]] != tokens[row])
      slot = (slot + 1) & (size - 1);
    slots_[slot] = row;
  }
}

uint32_t TokenRows::find(std::string_view token) const {
  const size_t mask = slots_.size() - 1;
  for (size_t slot = xxhash64(token) & mask;; slot = (slot + 1) & mask)
    if (slots_[slot] == kNone || tokens_[slots_[slot]] == token) return slots_[slot];
}

Status MapBuilder::resolve_layer(MapLayer layer, const TokenRows& nodes,
                                 const TokenRows& outlines) {
  const Records& records = records_[static_cast<size_t>(layer)];
  MapExpansion::Layer& out = map_->layers_[static_cast<size_t>(layer)];
  const bool is_line = is_line_layer(layer);
  std::vector<uint32_t>& known = is_line ? line_shape_ : polygon_shape_;
  out.shapes.reserve(records.shapes.size());
  for (size_t i = 0; i < records.shapes.size(); ++i) {
    const uint32_t row = outlines.find(records.shapes[i]);
    if (row == TokenRows::kNone)
      return data_error(str_cat(RowName{name_of(layer), records.row[i]}.text(), ": no ",
                                is_line ? "line" : "polygon", " has the token '",
                                shortened(records.shapes[i]), "'"));
    if (known[row] == TokenRows::kNone) {
      known[row] = static_cast<uint32_t>(map_->shapes_.size());
      AERIE_RETURN_IF_ERROR(resolve_shape(is_line ? lines_ : polygons_, row, is_line, nodes));
    }
    MapExpansion::Shape& shape = map_->shapes_[known[row]];
    if (layer != MapLayer::kDrivableArea && checked_[known[row]] == 0) {
      checked_[known[row]] = 1;
      if (!is_line) AERIE_RETURN_IF_ERROR(check_validity(shape, {"polygon", row}));
    }
    out.shapes.push_back(known[row]);
  }
  map_->summary_.num_records[static_cast<size_t>(layer)] = records.num_rows;
  return ok_status();
}

Status MapBuilder::resolve_shape(const Outlines& outlines, uint32_t row, bool is_line,
                                 const TokenRows& nodes) {
  MapExpansion::Shape shape;
  shape.first_ring = static_cast<uint32_t>(map_->ring_begin_.size() - 1);
  std::vector<raster::Point>& points = map_->points_;
  for (uint32_t ring = outlines.ring_begin[row]; ring < outlines.ring_begin[row + 1]; ++ring) {
    const size_t begin = points.size();
    for (uint32_t i = outlines.node_begin[ring]; i < outlines.node_begin[ring + 1]; ++i) {
      const uint32_t node = nodes.find(outlines.nodes[i]);
      if (node == TokenRows::kNone)
        return data_error(
            str_cat(RowName{is_line ? "line" : "polygon", row}.text(), ", ",
                    is_line || ring == outlines.ring_begin[row] ? "node " : "a hole's node ",
                    i - outlines.node_begin[ring], ": no node has the token '",
                    shortened(outlines.nodes[i]), "'"));
      points.push_back(node_points_[node]);
    }
    if (!is_line && points.size() > begin + 1 && points[begin].x == points.back().x &&
        points[begin].y == points.back().y)
      points.pop_back();  // given closed
    // Empty holes do not count; an empty outside leaves nothing to draw.
    if (points.size() == begin && ring != outlines.ring_begin[row]) continue;
    MapBounds bounds;
    if (points.size() > begin)
      bounds = {points[begin].x, points[begin].y, points[begin].x, points[begin].y};
    for (size_t i = begin; i < points.size(); ++i) bounds.add(points[i]);
    if (shape.num_rings == 0) shape.bounds = bounds;  // holes lie inside, or the shape is not valid
    map_->ring_begin_.push_back(static_cast<uint32_t>(points.size()));
    map_->ring_bounds_.push_back(bounds);
    ++shape.num_rings;
  }
  if (points.size() > UINT32_MAX) return too_many("points");
  // Without enough points there is nothing to draw; what else is wrong is found later.
  const size_t num_first =
      map_->ring_begin_[shape.first_ring + 1] - map_->ring_begin_[shape.first_ring];
  shape.valid = num_first >= (is_line ? 2u : 3u);
  map_->shapes_.push_back(shape);
  checked_.push_back(shape.valid ? 0 : 1);
  return ok_status();
}

Status MapBuilder::check_validity(MapExpansion::Shape& shape, const RowName& where) {
  std::vector<std::span<const raster::Point>> rings;
  for (uint32_t i = 0; i < shape.num_rings; ++i) rings.push_back(map_->ring(shape, i));
  switch (validity_.check(rings)) {
    case raster::Validity::kValid:
      return ok_status();
    case raster::Validity::kInvalid:
      shape.valid = false;
      return ok_status();
    case raster::Validity::kGivenUp:
      break;
  }
  return data_error(str_cat(where.text(),
                            ": too many edges lie over each other to tell whether it is a "
                            "polygon"))
      .with_hint("no real map is like this one: fetch it again");
}

}  // namespace aerie::nuscenes
