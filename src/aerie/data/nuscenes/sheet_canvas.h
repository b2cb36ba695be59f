// Lines, text and filled cells on a picture. Internal to the contact sheet.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "aerie/image/image.h"

namespace aerie::nuscenes {

using Colour = std::array<uint8_t, 3>;

// A rectangle of a picture; nothing is drawn outside of it.
struct Panel {
  image::Image* canvas = nullptr;
  int x = 0, y = 0, width = 0, height = 0;
};

void fill(const Panel& panel, const Colour& colour);
void set_pixel(const Panel& panel, int x, int y, const Colour& colour);
// Between points in the panel's pixels, cut at its border; any finite values.
void draw_line(const Panel& panel, double x0, double y0, double x1, double y1, int thickness,
               const Colour& colour);
// Capital letters, digits and "_-.*", 6 x 8 pixels times `scale`; the width it took.
int draw_text(const Panel& panel, int x, int y, std::string_view text, int scale,
              const Colour& colour);

}  // namespace aerie::nuscenes
