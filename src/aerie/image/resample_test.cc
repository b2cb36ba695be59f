// Equality with Pillow itself is in nuscenes_camera_test (recorded cases); here: all loops give the
// same bits, and windows are parts of the whole.
#include "aerie/image/resample.h"

#include <cstring>

#include <gtest/gtest.h>

#include "aerie/image/png.h"
#include "aerie/image/rotate.h"
#include "aerie/image/test_pictures.h"

namespace aerie::image {
namespace {

Image resized(const Image& in, int width, int height, const Window& window, ResampleSimd simd) {
  Image out(window.width, window.height);
  resize_bicubic(in.view(), width, height, window, out.mutable_view(), simd);
  return out;
}

TEST(ResampleTest, AllLoopsGiveTheSameBits) {
  RandomStream draws(2, Purpose::kTest, 0, 0);
  for (int k = 0; k < 150; ++k) {
    const int w = static_cast<int>(draws.randint(1, 260)),
              h = static_cast<int>(draws.randint(1, 90));
    const int ow = static_cast<int>(draws.randint(1, 200)),
              oh = static_cast<int>(draws.randint(1, 90));
    Image in = test_picture(w, h, k);
    // Extremes reach the clamps of both passes.
    if (k % 3 == 0)
      for (size_t i = 0; i < in.bytes(); ++i) in.row(0)[i] = draws.next_u32() >> 31 != 0 ? 255 : 0;
    const Window all{0, 0, ow, oh};
    const Image want = resized(in, ow, oh, all, ResampleSimd::kScalar);
    for (const auto simd : {ResampleSimd::kBest, ResampleSimd::kAvx2, ResampleSimd::kAvx512}) {
      const Image got = resized(in, ow, oh, all, simd);
      ASSERT_EQ(std::memcmp(got.row(0), want.row(0), want.bytes()), 0)
          << w << " x " << h << " to " << ow << " x " << oh << " by " << static_cast<int>(simd);
    }
    Window part;
    part.x = static_cast<int>(draws.below(ow));
    part.y = static_cast<int>(draws.below(oh));
    part.width = static_cast<int>(draws.randint(1, ow - part.x));
    part.height = static_cast<int>(draws.randint(1, oh - part.y));
    const Image got = resized(in, ow, oh, part, ResampleSimd::kBest);
    for (int y = 0; y < part.height; ++y)
      ASSERT_EQ(std::memcmp(got.row(y), want.row(part.y + y) + 3 * part.x, size_t{3} * part.width),
                0);
  }
}

TEST(ResampleTest, TheSameSizeIsTheSamePicture) {
  const Image in = test_picture(33, 21, 1);
  const Image out = resized(in, 33, 21, {0, 0, 33, 21}, ResampleSimd::kBest);
  EXPECT_EQ(std::memcmp(in.row(0), out.row(0), in.bytes()), 0);
}

TEST(ResampleTest, OnlyTheRowsOfTheWindowAreNeeded) {
  BicubicResizer resizer;
  Image out(704, 256);
  resizer.begin(1600, 900, 768, 432, {32, 176, 704, 256}, out.mutable_view());
  // Row 176 has its centre at 367.7 and reaches 4.17 rows to either side.
  EXPECT_EQ(resizer.first_row(), 364);
  EXPECT_EQ(resizer.end_row(), 900);
  EXPECT_EQ(resizer.first_column(), 64);
}

TEST(RotateTest, FullTurnsAndMirrors) {
  const Image in = test_picture(31, 17, 6);
  Image padded(31, 18), out(31, 17), twice(31, 17), back(31, 18);
  std::memcpy(padded.row(0), in.row(0), in.bytes());
  rotate_nearest({padded.row(0), 31, 17, 3, 93}, false, 360.0, out.mutable_view());
  EXPECT_EQ(std::memcmp(in.row(0), out.row(0), in.bytes()), 0);
  rotate_nearest({padded.row(0), 31, 17, 3, 93}, true, 180.0, out.mutable_view());
  for (int x = 0; x < 31; ++x) EXPECT_EQ(std::memcmp(out.row(0) + 3 * x, in.row(16) + 3 * x, 3), 0);
  std::memcpy(back.row(0), out.row(0), out.bytes());
  rotate_nearest({back.row(0), 31, 17, 3, 93}, true, -180.0, twice.mutable_view());
  EXPECT_EQ(std::memcmp(in.row(0), twice.row(0), in.bytes()), 0);
}

// The same rule, pixel by pixel as it is written down.
TEST(RotateTest, EqualsThePlainRule) {
  RandomStream draws(4, Purpose::kTest, 0, 0);
  for (int k = 0; k < 60; ++k) {
    const int w = static_cast<int>(draws.randint(1, 80)),
              h = static_cast<int>(draws.randint(1, 60));
    const double degrees = k % 2 == 0 ? draws.uniform(-6, 6) : draws.uniform(1, 179);
    const Image in = test_picture(w, h + 1, k);
    Image out(w, h);
    rotate_nearest({in.row(0), w, h, 3, ptrdiff_t{3} * w}, false, degrees, out.mutable_view());
    const double a = -degrees * 3.14159265358979323846 / 180.0, c = std::cos(a), s = std::sin(a);
    int wrong = 0;
    for (int y = 0; y < h; ++y)
      for (int x = 0; x < w; ++x) {
        const double u = x + 0.5 - w / 2.0, v = y + 0.5 - h / 2.0;
        const double fx = c * u + s * v + w / 2.0, fy = -s * u + c * v + h / 2.0;
        // Fixed point may fall to the other side of a border.
        const auto near = [](double t) { return std::fabs(t - std::round(t)) < 2e-3; };
        if (near(fx) || near(fy)) continue;
        const int sx = static_cast<int>(std::floor(fx)), sy = static_cast<int>(std::floor(fy));
        const bool inside = sx >= 0 && sx < w && sy >= 0 && sy < h;
        for (int ch = 0; ch < 3; ++ch)
          wrong += out.row(y)[3 * x + ch] != (inside ? in.row(sy)[3 * sx + ch] : 0);
      }
    EXPECT_EQ(wrong, 0) << w << " x " << h << " by " << degrees;
  }
}

TEST(PngTest, ReadsWhatItWrites) {
  for (const int channels : {1, 3, 4}) {
    const Image in = test_picture(45, 23, channels, channels);
    const auto bytes = write_png(in.view());
    ASSERT_TRUE(bytes.ok());
    const auto out = read_png(*bytes);
    ASSERT_TRUE(out.ok()) << out.status().to_string();
    ASSERT_EQ(out->channels(), channels);
    EXPECT_EQ(std::memcmp(in.row(0), out->row(0), in.bytes()), 0);
    for (size_t length = 0; length < bytes->size(); length += 7)
      EXPECT_FALSE(read_png({bytes->data(), length}).ok());
    EXPECT_FALSE(read_png(*bytes, 100).ok());
    auto damaged = *bytes;
    damaged[damaged.size() / 2] ^= 0x5a;
    EXPECT_FALSE(read_png(damaged).ok());
  }
  EXPECT_FALSE(write_png(Image(3, 3, 2).view()).ok());
  EXPECT_FALSE(write_png({nullptr, 0, 3, 3, 0}).ok());
}

}  // namespace
}  // namespace aerie::image
