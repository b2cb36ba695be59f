#include "aerie/image/draw.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace aerie::image {
namespace {

constexpr Color kWhite{255, 255, 255};

Image canvas(int width, int height) {
  Image out(width, height);
  out.fill(0);
  return out;
}
int red(const Image& picture, int x, int y) {
  return picture.row(y)[3 * x];
}
int64_t total(const Image& picture) {
  int64_t sum = 0;
  for (size_t i = 0; i < picture.bytes(); ++i) sum += picture.row(0)[i];
  return sum;
}

TEST(DrawTest, LinesLieWhereTheyShould) {
  Image out = canvas(20, 10);
  draw_line(out.mutable_view(), {2.0, 3.5}, {12.0, 3.5}, kWhite);
  for (int x = 3; x < 11; ++x) {
    EXPECT_EQ(red(out, x, 3), 255);
    EXPECT_EQ(red(out, x, 2), 0);
    EXPECT_EQ(red(out, x, 4), 0);
  }
  EXPECT_EQ(red(out, 14, 3), 0);
  Image half = canvas(20, 10);
  draw_line(half.mutable_view(), {5.5, 1.0}, {5.5, 9.0}, kWhite, 1.0, 0.5);
  EXPECT_EQ(red(half, 5, 5), 128);
  // A slanted line has the area of its length.
  Image slanted = canvas(100, 100);
  draw_line(slanted.mutable_view(), {10, 10}, {90, 70}, kWhite, 2.0);
  EXPECT_NEAR(static_cast<double>(total(slanted)) / 765.0, 200.0, 4.0);
}

TEST(DrawTest, PolygonsHaveTheirArea) {
  Image out = canvas(60, 60);
  const std::vector<std::vector<Point>> rings = {
      {{10.25, 10}, {50.25, 10}, {50.25, 50}, {10.25, 50}},
      {{20, 20}, {30, 20}, {30, 40}, {20, 40}}};
  fill_polygon(out.mutable_view(), rings, kWhite);
  EXPECT_NEAR(static_cast<double>(total(out)) / 765.0, 1600 - 200, 2.0);
  EXPECT_EQ(red(out, 25, 30), 0);
  EXPECT_EQ(red(out, 40, 30), 255);
  EXPECT_EQ(red(out, 10, 30), 191);  // three quarters
}

TEST(DrawTest, NothingOutsideIsTouched) {
  const double inf = std::numeric_limits<double>::infinity();
  Image out = canvas(30, 20);
  MutableImageView part = out.mutable_view();
  part.data += ptrdiff_t{5} * part.stride + 15;
  part.width = 10;
  part.height = 8;
  const auto paint = [&](Point a, Point b, Point c) {
    draw_line(part, a, b, kWhite, 3.0);
    const std::vector<Point> ring{a, b, c};
    draw_polyline(part, ring, true, kWhite);
    fill_polygon(part, std::vector<std::vector<Point>>{ring}, kWhite);
  };
  paint({-1e300, -5}, {1e300, 30}, {4, 1e308});
  paint({-1e9, 3}, {1e9, 4}, {0, -1e9});
  paint({inf, 0}, {3, 3}, {5, 5});
  paint({std::nan(""), 0}, {3, 3}, {5, 5});
  paint({-1.7e308, -1.7e308}, {1.7e308, 1.7e308}, {1, 2});
  fill_rectangle(part, -5, -5, 1 << 30, 1 << 30, kWhite);
  draw_text(part, -3, -2, "Outside \xff 9", kWhite, 3);
  const Image other = canvas(30, 20);
  for (const int at : {-4, 4, 100, -100}) paste(part, other.view(), at, at);
  for (int y = 0; y < 20; ++y)
    for (int x = 0; x < 30; ++x) {
      const bool inside = x >= 5 && x < 15 && y >= 5 && y < 13;
      ASSERT_TRUE(inside || red(out, x, y) == 0) << x << " " << y;
    }
}

TEST(DrawTest, TextAndTiles) {
  EXPECT_EQ(text_width("ab\nabc"), 17);
  EXPECT_EQ(text_width("", 2), 0);
  Image small = canvas(6, 8), capital = canvas(6, 8);
  draw_text(small.mutable_view(), 0, 0, "t", kWhite);
  draw_text(capital.mutable_view(), 0, 0, "T", kWhite);
  EXPECT_EQ(total(small), total(capital));
  EXPECT_EQ(total(small), 11 * 765);
  const Image grey(4, 3, 1);
  const ImageView views[] = {small.view(), grey.view(), small.view()};
  const Image sheet = tile(views, 2, 1, {9, 9, 9});
  EXPECT_EQ(sheet.width(), 15);
  EXPECT_EQ(sheet.height(), 19);
  EXPECT_EQ(red(sheet, 0, 0), 9);
  EXPECT_EQ(red(sheet, 1, 1), 255);
  EXPECT_EQ(red(sheet, 1, 10), 255);
  EXPECT_EQ(red(sheet, 14, 18), 9);
}

}  // namespace
}  // namespace aerie::image
