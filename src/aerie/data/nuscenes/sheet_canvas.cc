#include "aerie/data/nuscenes/sheet_canvas.h"

#include <algorithm>
#include <cmath>

namespace aerie::nuscenes {
namespace {

// Five columns of seven pixels, the lowest bit on top.
using Glyph = std::array<uint8_t, 5>;

constexpr Glyph kLetters[26] = {
    {0x7E, 0x11, 0x11, 0x11, 0x7E}, {0x7F, 0x49, 0x49, 0x49, 0x36}, {0x3E, 0x41, 0x41, 0x41, 0x22},
    {0x7F, 0x41, 0x41, 0x22, 0x1C}, {0x7F, 0x49, 0x49, 0x49, 0x41}, {0x7F, 0x09, 0x09, 0x09, 0x01},
    {0x3E, 0x41, 0x49, 0x49, 0x7A}, {0x7F, 0x08, 0x08, 0x08, 0x7F}, {0x00, 0x41, 0x7F, 0x41, 0x00},
    {0x20, 0x40, 0x41, 0x3F, 0x01}, {0x7F, 0x08, 0x14, 0x22, 0x41}, {0x7F, 0x40, 0x40, 0x40, 0x40},
    {0x7F, 0x02, 0x0C, 0x02, 0x7F}, {0x7F, 0x04, 0x08, 0x10, 0x7F}, {0x3E, 0x41, 0x41, 0x41, 0x3E},
    {0x7F, 0x09, 0x09, 0x09, 0x06}, {0x3E, 0x41, 0x51, 0x21, 0x5E}, {0x7F, 0x09, 0x19, 0x29, 0x46},
    {0x46, 0x49, 0x49, 0x49, 0x31}, {0x01, 0x01, 0x7F, 0x01, 0x01}, {0x3F, 0x40, 0x40, 0x40, 0x3F},
    {0x1F, 0x20, 0x40, 0x20, 0x1F}, {0x3F, 0x40, 0x38, 0x40, 0x3F}, {0x63, 0x14, 0x08, 0x14, 0x63},
    {0x07, 0x08, 0x70, 0x08, 0x07}, {0x61, 0x51, 0x49, 0x45, 0x43}};
constexpr Glyph kDigits[10] = {{0x3E, 0x51, 0x49, 0x45, 0x3E}, {0x00, 0x42, 0x7F, 0x40, 0x00},
                               {0x42, 0x61, 0x51, 0x49, 0x46}, {0x21, 0x41, 0x45, 0x4B, 0x31},
                               {0x18, 0x14, 0x12, 0x7F, 0x10}, {0x27, 0x45, 0x45, 0x45, 0x39},
                               {0x3C, 0x4A, 0x49, 0x49, 0x30}, {0x01, 0x71, 0x09, 0x05, 0x03},
                               {0x36, 0x49, 0x49, 0x49, 0x36}, {0x06, 0x49, 0x49, 0x29, 0x1E}};

Glyph glyph_of(char c) {
  if (c >= 'a' && c <= 'z') return kLetters[c - 'a'];
  if (c >= 'A' && c <= 'Z') return kLetters[c - 'A'];
  if (c >= '0' && c <= '9') return kDigits[c - '0'];
  switch (c) {
    case '-':
      return {0x08, 0x08, 0x08, 0x08, 0x08};
    case '_':
      return {0x40, 0x40, 0x40, 0x40, 0x40};
    case '.':
      return {0x00, 0x60, 0x60, 0x00, 0x00};
    case '*':
      return {0x14, 0x08, 0x3E, 0x08, 0x14};
    default:
      return {};
  }
}

// Liang-Barsky against [0, limit]; false: nothing is left.
bool cut(double from, double step, double limit, double& first, double& last) {
  if (step == 0.0) return from >= 0.0 && from <= limit;
  double a = -from / step, b = (limit - from) / step;
  if (a > b) std::swap(a, b);
  first = std::max(first, a);
  last = std::min(last, b);
  return first <= last;
}

}  // namespace

void fill(const Panel& panel, const Colour& colour) {
  for (int y = 0; y < panel.height; ++y)
    for (int x = 0; x < panel.width; ++x) set_pixel(panel, x, y, colour);
}

void set_pixel(const Panel& panel, int x, int y, const Colour& colour) {
  if (x < 0 || y < 0 || x >= panel.width || y >= panel.height) return;
  std::copy(colour.begin(), colour.end(), panel.canvas->row(panel.y + y) + 3 * (panel.x + x));
}

void draw_line(const Panel& panel, double x0, double y0, double x1, double y1, int thickness,
               const Colour& colour) {
  double first = 0.0, last = 1.0;
  if (!cut(x0, x1 - x0, panel.width - 1, first, last) ||
      !cut(y0, y1 - y0, panel.height - 1, first, last))
    return;
  const double dx = x1 - x0, dy = y1 - y0;
  const double length = (last - first) * std::max(std::fabs(dx), std::fabs(dy));
  const int steps = std::max(1, static_cast<int>(std::ceil(length)));
  for (int i = 0; i <= steps; ++i) {
    const double t = first + (last - first) * i / steps;
    const int x = static_cast<int>(std::lround(x0 + t * dx));
    const int y = static_cast<int>(std::lround(y0 + t * dy));
    for (int v = 0; v < thickness; ++v)
      for (int u = 0; u < thickness; ++u) set_pixel(panel, x + u, y + v, colour);
  }
}

int draw_text(const Panel& panel, int x, int y, std::string_view text, int scale,
              const Colour& colour) {
  const int begin = x;
  for (const char c : text) {
    const Glyph glyph = glyph_of(c);
    for (int column = 0; column < 5; ++column)
      for (int bit = 0; bit < 7; ++bit)
        if ((glyph[static_cast<size_t>(column)] >> bit & 1) != 0)
          for (int v = 0; v < scale; ++v)
            for (int u = 0; u < scale; ++u)
              set_pixel(panel, x + column * scale + u, y + bit * scale + v, colour);
    x += 6 * scale;
  }
  return x - begin;
}

}  // namespace aerie::nuscenes
