#include "aerie/raster/polygon.h"

#include <algorithm>
#include <cstring>

#include "aerie/raster/segment.h"

namespace aerie::raster {

namespace {

constexpr int kFractionBits = 16;
constexpr int64_t kOneCell = int64_t{1} << kFractionBits;

bool on_canvas(const MaskView& mask, const WidePoint& p) {
  return p.x >= 0 && p.x < mask.width && p.y >= 0 && p.y < mask.height;
}

}  // namespace

// Borders are drawn at once; what is inside follows from the edges of all rings together. Where an
// edge leaves the canvas, its slope is that of the part on the canvas.
void PolygonFiller::add_ring(const MaskView& mask, std::span<const CellPoint> ring, uint8_t value) {
  if (ring.empty()) return;
  WidePoint from{ring.back().x, ring.back().y};
  for (const CellPoint& vertex : ring) {
    const WidePoint start = from, end{vertex.x, vertex.y};
    from = end;
    draw_thin_line(mask, start, end, value);
    if (start.y == end.y) continue;

    WidePoint cut_start = start, cut_end = end;
    if (!on_canvas(mask, start) || !on_canvas(mask, end)) {
      (void)cut_at_canvas(mask.width, mask.height, cut_start, cut_end);
      if (cut_start.y == cut_end.y) {  // along the border: only columns are taken from the cut
        cut_start.y = start.y;
        cut_end.y = end.y;
      }
    }
    const int64_t slope = (cut_end.x - cut_start.x) * kOneCell / (cut_end.y - cut_start.y);
    const bool down = start.y < end.y;
    const WidePoint& top = down ? start : end;
    const WidePoint& cut_top = down ? cut_start : cut_end;
    Edge edge;
    edge.first_row = top.y;
    edge.end_row = down ? end.y : start.y;
    edge.x = cut_top.x * kOneCell + (top.y - cut_top.y) * slope;
    edge.slope = slope;
    if (edge.end_row <= 0 || edge.first_row >= mask.height) continue;
    if (edge.first_row < 0) {
      edge.x -= edge.first_row * slope;
      edge.first_row = 0;
    }
    edges_.push_back(edge);
  }
}

void PolygonFiller::fill_edges(const MaskView& mask, uint8_t value) {
  std::sort(edges_.begin(), edges_.end(),
            [](const Edge& a, const Edge& b) { return a.first_row < b.first_row; });
  active_.clear();
  size_t next = 0;
  for (int64_t row = edges_.empty() ? 0 : edges_.front().first_row; row < mask.height; ++row) {
    std::erase_if(active_, [&](uint32_t i) { return edges_[i].end_row <= row; });
    for (; next < edges_.size() && edges_[next].first_row <= row; ++next)
      active_.push_back(static_cast<uint32_t>(next));
    if (active_.empty()) {
      if (next == edges_.size()) return;
      row = edges_[next].first_row - 1;
      continue;
    }
    crossings_.clear();
    for (const uint32_t i : active_) {
      crossings_.push_back(edges_[i].x);
      edges_[i].x += edges_[i].slope;
    }
    std::sort(crossings_.begin(), crossings_.end());
    uint8_t* cells = mask.row(static_cast<int>(row));
    // A closed ring crosses every row an even number of times.
    for (size_t i = 0; i + 1 < crossings_.size(); i += 2) {
      const int64_t first = std::max<int64_t>((crossings_[i] + kOneCell - 1) >> kFractionBits, 0);
      const int64_t last =
          std::min<int64_t>(crossings_[i + 1] >> kFractionBits, mask.width - int64_t{1});
      if (first <= last) std::memset(cells + first, value, static_cast<size_t>(last - first + 1));
    }
  }
}

void PolygonFiller::fill(const MaskView& mask, std::span<const std::span<const CellPoint>> rings,
                         uint8_t value) {
  if (mask.width <= 0 || mask.height <= 0) return;
  edges_.clear();
  for (const std::span<const CellPoint> ring : rings) add_ring(mask, ring, value);
  fill_edges(mask, value);
}

void PolygonFiller::fill(const MaskView& mask, std::span<const CellPoint> ring, uint8_t value) {
  fill(mask, std::span(&ring, 1), value);
}

}  // namespace aerie::raster
