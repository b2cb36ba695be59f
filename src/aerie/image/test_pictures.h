// Pictures for tests.
#pragma once

#include <cmath>

#include "aerie/base/philox.h"
#include "aerie/image/image.h"

namespace aerie::image {

// Waves, edges and noise of its own for each number.
inline Image test_picture(int width, int height, uint64_t number, int channels = 3) {
  Image picture(width, height, channels);
  RandomStream draws(number, Purpose::kTest, 0, 0);
  const double fx = draws.uniform(0.01, 0.3), fy = draws.uniform(0.01, 0.3);
  const int edge_x = static_cast<int>(draws.below(width)),
            edge_y = static_cast<int>(draws.below(height));
  for (int y = 0; y < height; ++y)
    for (int x = 0; x < width; ++x)
      for (int c = 0; c < channels; ++c) {
        const double wave = 100 + 70 * std::sin(fx * x + fy * y * (c + 1));
        const int edge = x > edge_x ? (y > edge_y ? 60 : -60) : 0;
        const int noise = static_cast<int>(draws.next_u32() >> 28);
        const int value = static_cast<int>(wave) + edge * (c == 1 ? -1 : 1) + noise;
        picture.row(y)[x * channels + c] = static_cast<uint8_t>(value < 0     ? 0
                                                                : value > 255 ? 255
                                                                              : value);
      }
  return picture;
}

}  // namespace aerie::image
