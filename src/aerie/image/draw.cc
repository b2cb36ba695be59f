#include "aerie/image/draw.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "aerie/base/check.h"

namespace aerie::image {
namespace {

void blend(uint8_t* pixel, Color color, double share) {
  const auto mix = [share](uint8_t old, uint8_t to) {
    return static_cast<uint8_t>(std::lround(old + (to - old) * share));
  };
  pixel[0] = mix(pixel[0], color.r);
  pixel[1] = mix(pixel[1], color.g);
  pixel[2] = mix(pixel[2], color.b);
}

bool finite(Point p) {
  return std::isfinite(p.x) && std::isfinite(p.y);
}

// The part of a line inside [x0, x1] x [y0, y1]; false when there is none (Liang and Barsky).
bool clip(Point& a, Point& b, double x0, double y0, double x1, double y1) {
  const double dx = b.x - a.x, dy = b.y - a.y;
  if (!std::isfinite(dx) || !std::isfinite(dy)) return false;
  double first = 0.0, last = 1.0;
  const double steps[4] = {-dx, dx, -dy, dy};
  const double room[4] = {a.x - x0, x1 - a.x, a.y - y0, y1 - a.y};
  for (int side = 0; side < 4; ++side) {
    if (steps[side] == 0.0) {
      if (room[side] < 0.0) return false;
    } else if (steps[side] < 0.0) {
      first = std::max(first, room[side] / steps[side]);
    } else {
      last = std::min(last, room[side] / steps[side]);
    }
  }
  if (first > last) return false;
  b = {a.x + last * dx, a.y + last * dy};
  a = {a.x + first * dx, a.y + first * dy};
  return true;
}

// Of the pixel that begins at `pixel`, the share within [low, high].
double covered(int pixel, double low, double high) {
  return std::clamp(std::min(pixel + 1.0, high) - std::max<double>(pixel, low), 0.0, 1.0);
}

void check(const MutableImageView& canvas) {
  AERIE_CHECK(canvas.channels == 3, "drawing on ", canvas.channels, " channels");
}

}  // namespace

void fill(const MutableImageView& canvas, Color color) {
  fill_rectangle(canvas, 0, 0, canvas.width, canvas.height, color);
}

void fill_rectangle(const MutableImageView& canvas, int x, int y, int width, int height,
                    Color color, double opacity) {
  check(canvas);
  const int left = std::max(0, x),
            right = static_cast<int>(std::min<int64_t>(canvas.width, int64_t{x} + width));
  const int top = std::max(0, y),
            bottom = static_cast<int>(std::min<int64_t>(canvas.height, int64_t{y} + height));
  for (int row = top; row < bottom; ++row)
    for (int column = left; column < right; ++column)
      blend(canvas.row(row) + ptrdiff_t{3} * column, color, opacity);
}

void draw_line(const MutableImageView& canvas, Point from, Point to, Color color, double width,
               double opacity) {
  check(canvas);
  if (!finite(from) || !finite(to) || !(width > 0.0)) return;
  const double margin = width + 2.0;
  if (!clip(from, to, -margin, -margin, canvas.width + margin, canvas.height + margin)) return;
  // Along the axis on which it is longer, a column of pixels at each step.
  const bool steep = std::fabs(to.y - from.y) > std::fabs(to.x - from.x);
  if (steep) {
    std::swap(from.x, from.y);
    std::swap(to.x, to.y);
  }
  if (from.x > to.x) std::swap(from, to);
  const int along = steep ? canvas.height : canvas.width;
  const int across = steep ? canvas.width : canvas.height;
  const double length = to.x - from.x;
  const double slope = length > 0.0 ? (to.y - from.y) / length : 0.0;
  const double half = width / 2.0 * std::sqrt(1.0 + slope * slope);
  const double begin = from.x - 0.5 * std::min(width, 1.0), end = to.x + 0.5 * std::min(width, 1.0);
  const int first = std::max(0, static_cast<int>(std::floor(begin)));
  const int last = std::min(along - 1, static_cast<int>(std::floor(end)));
  for (int step = first; step <= last; ++step) {
    const double share = opacity * covered(step, begin, end);
    const double centre = from.y + (std::clamp(step + 0.5, from.x, to.x) - from.x) * slope;
    const int low = std::max(0, static_cast<int>(std::floor(centre - half)));
    const int high = std::min(across - 1, static_cast<int>(std::floor(centre + half)));
    for (int at = low; at <= high; ++at) {
      const int x = steep ? at : step, y = steep ? step : at;
      blend(canvas.row(y) + ptrdiff_t{3} * x, color,
            share * covered(at, centre - half, centre + half));
    }
  }
}

void draw_polyline(const MutableImageView& canvas, std::span<const Point> points, bool closed,
                   Color color, double width, double opacity) {
  for (size_t i = 0; i + 1 < points.size(); ++i)
    draw_line(canvas, points[i], points[i + 1], color, width, opacity);
  if (closed && points.size() > 2)
    draw_line(canvas, points.back(), points.front(), color, width, opacity);
}

void fill_polygon(const MutableImageView& canvas, std::span<const std::vector<Point>> rings,
                  Color color, double opacity) {
  check(canvas);
  double top = canvas.height, bottom = 0.0;
  for (const auto& ring : rings)
    for (const Point& p : ring) {
      if (!finite(p)) return;
      top = std::min(top, p.y);
      bottom = std::max(bottom, p.y);
    }
  const int first = std::max(0, static_cast<int>(std::floor(std::max(top, 0.0))));
  const int last = static_cast<int>(std::min<double>(canvas.height, std::ceil(bottom)));
  std::vector<double> borders;
  for (int y = first; y < last; ++y) {
    const double middle = y + 0.5;
    borders.clear();
    for (const auto& ring : rings)
      for (size_t i = 0; i < ring.size(); ++i) {
        const Point a = ring[i], b = ring[(i + 1) % ring.size()];
        if ((a.y <= middle) == (b.y <= middle)) continue;
        const double share = (middle - a.y) / (b.y - a.y);
        borders.push_back(a.x * (1.0 - share) + b.x * share);
      }
    std::sort(borders.begin(), borders.end());
    for (size_t i = 0; i + 1 < borders.size(); i += 2) {
      const double low = std::clamp<double>(borders[i], 0.0, canvas.width);
      const double high = std::clamp<double>(borders[i + 1], 0.0, canvas.width);
      const int end = std::min(canvas.width, static_cast<int>(std::ceil(high)));
      for (int x = static_cast<int>(low); x < end; ++x)
        blend(canvas.row(y) + ptrdiff_t{3} * x, color, opacity * covered(x, low, high));
    }
  }
}

void paste(const MutableImageView& canvas, const ImageView& picture, int x, int y) {
  check(canvas);
  AERIE_CHECK(picture.channels == 1 || picture.channels == 3, picture.channels, " channels");
  const int left = std::max(0, -x), right = std::min(picture.width, canvas.width - x);
  for (int row = std::max(0, -y); row < picture.height && row + y < canvas.height; ++row) {
    if (right <= left) return;
    const uint8_t* from = picture.row(row);
    uint8_t* to = canvas.row(row + y) + ptrdiff_t{3} * (x + left);
    if (picture.channels == 3) {
      std::memcpy(to, from + ptrdiff_t{3} * left, size_t{3} * (right - left));
    } else {
      for (int column = left; column < right; ++column, to += 3) std::memset(to, from[column], 3);
    }
  }
}

Image tile(std::span<const ImageView> pictures, int columns, int gap, Color background) {
  AERIE_CHECK(columns > 0 && gap >= 0, columns, " columns, gap ", gap);
  int width = 0, height = 0;
  for (const ImageView& picture : pictures) {
    width = std::max(width, picture.width);
    height = std::max(height, picture.height);
  }
  const int count = static_cast<int>(pictures.size());
  const int rows = (count + columns - 1) / columns;
  Image sheet(std::min(columns, count) * (width + gap) + gap, rows * (height + gap) + gap);
  fill(sheet.mutable_view(), background);
  for (int i = 0; i < count; ++i)
    paste(sheet.mutable_view(), pictures[i], gap + i % columns * (width + gap),
          gap + i / columns * (height + gap));
  return sheet;
}

}  // namespace aerie::image
