#include "aerie/image/image.h"

#include <algorithm>

#include "aerie/base/check.h"

namespace aerie::image {

void Image::resize(int width, int height, int channels) {
  AERIE_CHECK(width >= 0 && height >= 0 && channels >= 1, "a picture of ", width, " x ", height);
  width_ = width;
  height_ = height;
  channels_ = channels;
  if (pixels_.size() < bytes()) pixels_.resize(bytes());
}

void Image::fill(uint8_t value) {
  std::fill_n(pixels_.begin(), bytes(), value);
}

}  // namespace aerie::image
