// Drawing on pictures of three channels, for sheets that people look at. Coordinates are in pixels,
// x to the right and y down, pixel (0, 0) covers [0, 1) x [0, 1). What lies outside of the canvas
// is cut off; what has a coordinate that is not finite is not drawn.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "aerie/image/image.h"

namespace aerie::image {

struct Color {
  uint8_t r = 0, g = 0, b = 0;
};
struct Point {
  double x = 0.0, y = 0.0;
};

void fill(const MutableImageView& canvas, Color color);
// Opacity is 0 (nothing) to 1 (covers), here and below.
void fill_rectangle(const MutableImageView& canvas, int x, int y, int width, int height,
                    Color color, double opacity = 1.0);

// Smooth edges. A line of several points ends where it began if `closed`.
void draw_line(const MutableImageView& canvas, Point from, Point to, Color color,
               double width = 1.0, double opacity = 1.0);
void draw_polyline(const MutableImageView& canvas, std::span<const Point> points, bool closed,
                   Color color, double width = 1.0, double opacity = 1.0);

// What an odd number of borders surrounds: rings after the first one cut holes.
void fill_polygon(const MutableImageView& canvas, std::span<const std::vector<Point>> rings,
                  Color color, double opacity = 1.0);

// Letters of 5 x 7 pixels, `scale` times as large, from the upper left corner. Small letters look
// like capitals; what is not ASCII becomes a box. A newline begins the next line.
void draw_text(const MutableImageView& canvas, int x, int y, std::string_view text, Color color,
               int scale = 1);
int text_width(std::string_view text, int scale = 1);                     // of the longest line
inline constexpr int kTextHeight = 7, kLineHeight = 9, kLetterWidth = 6;  // before scaling

// A picture of one (grey) or three channels, its upper left corner at (x, y).
void paste(const MutableImageView& canvas, const ImageView& picture, int x, int y);

// Pictures side by side, `columns` in a row, in cells as large as the largest of them, `gap` pixels
// around each.
Image tile(std::span<const ImageView> pictures, int columns, int gap, Color background);

}  // namespace aerie::image
