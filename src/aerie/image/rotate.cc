#include "aerie/image/rotate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "aerie/base/check.h"

namespace aerie::image {
namespace {

constexpr double kPi = 3.14159265358979323846;

// Python's round(x, 15).
double round_15(double x) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.15f", x);
  return std::strtod(text, nullptr);
}

// Python's x % 360.0.
double turns_removed(double degrees) {
  double rest = std::fmod(degrees, 360.0);
  if (rest != 0.0 && rest < 0.0) rest += 360.0;
  return rest;
}

int to_fixed(double v) {
  return static_cast<int>(std::floor(v * 65536.0 + 0.5));
}

void turn_half(const ImageView& in, bool mirror, const MutableImageView& out) {
  for (int y = 0; y < in.height; ++y) {
    const uint8_t* from = in.row(in.height - 1 - y);
    uint8_t* to = out.row(y);
    for (int x = 0; x < in.width; ++x)
      std::memcpy(to + 3 * x, from + 3 * (mirror ? x : in.width - 1 - x), 3);
  }
}

// A square by a quarter, counter-clockwise or clockwise.
void turn_quarter(const ImageView& in, bool mirror, bool clockwise, const MutableImageView& out) {
  const int last = in.width - 1;
  for (int y = 0; y <= last; ++y)
    for (int x = 0; x <= last; ++x) {
      const int from_x = clockwise ? y : last - y, from_y = clockwise ? last - x : x;
      std::memcpy(out.row(y) + 3 * x, in.row(from_y) + 3 * (mirror ? last - from_x : from_x), 3);
    }
}

// The range of x in [0, count) with 0 <= (start + x * step) >> 16 < size, as it is an interval.
struct Range {
  int first, end;
};
Range inside(int64_t start, int64_t step, int count, int size) {
  const int64_t limit = int64_t{size} << 16;  // 0 <= start + x * step < limit
  if (step == 0) return start >= 0 && start < limit ? Range{0, count} : Range{0, 0};
  const auto ceil_div = [](int64_t a, int64_t b) { return a >= 0 ? (a + b - 1) / b : -(-a / b); };
  int64_t first, end;
  if (step > 0) {
    first = ceil_div(-start, step);
    end = ceil_div(limit - start, step);
  } else {
    first = ceil_div(start - limit + 1, -step);
    end = ceil_div(start + 1, -step);
  }
  first = std::clamp<int64_t>(first, 0, count);
  end = std::clamp<int64_t>(end, first, count);
  return {static_cast<int>(first), static_cast<int>(end)};
}

}  // namespace

void copy_mirrored(const ImageView& in, bool mirror, const MutableImageView& out) {
  for (int y = 0; y < in.height; ++y) {
    const uint8_t* from = in.row(y);
    uint8_t* to = out.row(y);
    if (!mirror) {
      std::memcpy(to, from, size_t{3} * in.width);
      continue;
    }
    for (int x = 0; x < in.width; ++x) std::memcpy(to + 3 * x, from + 3 * (in.width - 1 - x), 3);
  }
}

void rotate_nearest(const ImageView& in, bool mirror, double degrees, const MutableImageView& out) {
  AERIE_CHECK(in.channels == 3 && out.channels == 3 && in.width == out.width &&
                  in.height == out.height && in.width <= kMaxRotateSize &&
                  in.height <= kMaxRotateSize && std::isfinite(degrees),
              "a rotation by ", degrees);
  const int width = in.width, height = in.height;
  const double angle = turns_removed(degrees);
  if (angle == 0.0) return copy_mirrored(in, mirror, out);
  if (angle == 180.0) return turn_half(in, mirror, out);
  if ((angle == 90.0 || angle == 270.0) && width == height)
    return turn_quarter(in, mirror, angle == 270.0, out);

  const double radians = -(angle * (kPi / 180.0));
  const double cosine = round_15(std::cos(radians)), sine = round_15(std::sin(radians));
  if (sine == 0.0)  // nearer to 0 or 180 degrees than Pillow tells apart
    return cosine > 0 ? copy_mirrored(in, mirror, out) : turn_half(in, mirror, out);
  const double centre_x = width / 2.0, centre_y = height / 2.0;
  const double shift_x = cosine * -centre_x + sine * -centre_y + centre_x;
  const double shift_y = -sine * -centre_x + cosine * -centre_y + centre_y;
  const int step_xx = to_fixed(cosine), step_xy = to_fixed(sine);
  const int step_yx = to_fixed(-sine), step_yy = to_fixed(cosine);
  int64_t start_x = to_fixed(shift_x + cosine * 0.5 + sine * 0.5);
  int64_t start_y = to_fixed(shift_y + -sine * 0.5 + cosine * 0.5);
  for (int y = 0; y < height; ++y, start_x += step_xy, start_y += step_yy) {
    uint8_t* to = out.row(y);
    const Range by_x = inside(start_x, step_xx, width, width);
    const Range by_y = inside(start_y, step_yx, width, height);
    const int first = std::max(by_x.first, by_y.first);
    const int end = std::max(first, std::min(by_x.end, by_y.end));
    std::memset(to, 0, size_t{3} * first);
    int xx = static_cast<int>(start_x + int64_t{first} * step_xx);
    int yy = static_cast<int>(start_y + int64_t{first} * step_yx);
    const auto source = [&] {
      const int x = xx >> 16;
      return in.data + (yy >> 16) * in.stride + 3 * (mirror ? width - 1 - x : x);
    };
    // Four bytes at a time; the fourth belongs to the next pixel and is overwritten by it.
    for (int x = first; x < end - 1; ++x, xx += step_xx, yy += step_yx)
      std::memcpy(to + 3 * x, source(), 4);
    if (first < end) std::memcpy(to + 3 * (end - 1), source(), 3);
    std::memset(to + 3 * end, 0, size_t{3} * (width - end));
  }
}

}  // namespace aerie::image
