// Any numbers as corners: whole ones for the rasteriser, doubles for clipping, sampling and the
// check of validity. Cells around the canvas must stay as they were.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "aerie/raster/clip.h"
#include "aerie/raster/polygon.h"
#include "aerie/raster/sampled.h"
#include "aerie/raster/validity.h"

namespace {

constexpr uint8_t kUntouched = 9;
constexpr int kGuard = 256;

template <typename T>
std::vector<T> values_of(const uint8_t* data, size_t size) {
  std::vector<T> values(size / sizeof(T));
  if (!values.empty()) std::memcpy(values.data(), data, values.size() * sizeof(T));
  return values;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aerie::raster;
  if (size < 4 || size > 4096) return 0;
  const int width = 1 + data[0], height = 1 + data[1], kind = data[2] % 4;
  std::vector<uint8_t> cells(static_cast<size_t>(width * height + 2 * kGuard), kUntouched);
  const MaskView mask{cells.data() + kGuard, width, height};
  const size_t split = 1 + data[3] % 16;
  data += 4;
  size -= 4;
  if (kind < 2) {
    std::vector<CellPoint> points;
    if (kind == 0) {
      const auto values = values_of<int32_t>(data, size);
      for (size_t i = 0; i + 1 < values.size(); i += 2)
        points.push_back({values[i], values[i + 1]});
    } else {
      const auto values = values_of<int16_t>(data, size);
      for (size_t i = 0; i + 1 < values.size(); i += 2)
        points.push_back({values[i], values[i + 1]});
    }
    std::vector<std::span<const CellPoint>> rings;
    for (size_t i = 0; i < points.size(); i += split)
      rings.push_back(std::span(points).subspan(i, std::min(split, points.size() - i)));
    PolygonFiller().fill(mask, rings, 1);
    stroke_two_cells(mask, points, 1);
  } else {
    const auto values = values_of<double>(data, size);
    Rings rings;
    std::vector<std::span<const Point>> spans;
    for (size_t i = 0; i + 1 < values.size(); i += 2) {
      // As the reader gives them: finite and not beyond all measure.
      const auto place = [](double v) { return v == v ? std::clamp(v, -1e9, 1e9) : 0.0; };
      rings.points.push_back({place(values[i]), place(values[i + 1])});
      if (rings.points.size() % split == 0) rings.close(rings.size() > 0);
    }
    rings.close(rings.size() > 0);
    for (size_t i = 0; i < rings.size(); ++i) spans.push_back(rings.ring(i));
    (void)ValidityChecker(100'000).check(spans);
    for (size_t i = 1; i < rings.points.size(); ++i)
      stroke_centres(mask, rings.points[i - 1], rings.points[i], 1.0, 1);
    CentreSampler().fill(mask, rings, 1);
    const Rect rect{-50.0, -30.0, 50.0, 70.0};
    PolygonClipper().clip(rings, rect);
    for (const Point& p : rings.points)
      if (!(p.x >= rect.min_x && p.x <= rect.max_x && p.y >= rect.min_y && p.y <= rect.max_y))
        __builtin_trap();
  }
  for (int i = 0; i < kGuard; ++i)
    if (cells[static_cast<size_t>(i)] != kUntouched ||
        cells[cells.size() - 1 - static_cast<size_t>(i)] != kUntouched)
      __builtin_trap();
  return 0;
}
