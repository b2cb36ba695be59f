#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <climits>
#include <gtest/gtest.h>

#include "aerie/base/hash.h"
#include "aerie/base/philox.h"
#include "aerie/base/testing/paths.h"
#include "aerie/raster/clip.h"
#include "aerie/raster/mask.h"
#include "aerie/raster/polygon.h"
#include "aerie/raster/sampled.h"
#include "aerie/raster/transposed.h"
#include "aerie/raster/validity.h"

namespace aerie::raster {
namespace {

struct Canvas {
  Canvas(int width, int height) : cells(static_cast<size_t>(width * height)), w(width), h(height) {}
  MaskView view() { return {cells.data(), w, h}; }
  int ones() const { return static_cast<int>(std::count(cells.begin(), cells.end(), 1)); }
  uint8_t at(int x, int y) const { return cells[static_cast<size_t>(y * w + x)]; }
  std::vector<uint8_t> cells;
  int w, h;
};

// Masks that OpenCV 4.11 drew: tests/golden/gen/raster_masks.py.
TEST(OpenCvMasksTest, EveryCellIsTheSame) {
  std::ifstream file(test_data("/raster/opencv.txt"));
  ASSERT_TRUE(file.good());
  std::string line;
  int num_fills = 0, num_strokes = 0;
  PolygonFiller filler;
  while (std::getline(file, line)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    int width, height, kind, num_calls;
    words >> width >> height >> kind >> num_calls;
    Canvas canvas(width, height);
    for (int call = 0; call < num_calls; ++call) {
      int value, num_rings;
      words >> value >> num_rings;
      std::vector<std::vector<CellPoint>> rings(static_cast<size_t>(num_rings));
      for (auto& ring : rings) {
        size_t points;
        words >> points;
        ring.resize(points);
        for (CellPoint& p : ring) words >> p.x >> p.y;
      }
      if (kind == 0) {
        const std::vector<std::span<const CellPoint>> spans(rings.begin(), rings.end());
        filler.fill(canvas.view(), spans, static_cast<uint8_t>(value));
      } else {
        stroke_two_cells(canvas.view(), rings.at(0), static_cast<uint8_t>(value));
      }
    }
    int ones;
    uint32_t sum;
    words >> ones >> sum;
    ASSERT_FALSE(words.fail()) << line;
    EXPECT_EQ(canvas.ones(), ones) << line;
    EXPECT_EQ(crc32({reinterpret_cast<const char*>(canvas.cells.data()), canvas.cells.size()}), sum)
        << line;
    ++(kind == 0 ? num_fills : num_strokes);
  }
  EXPECT_GE(num_fills, 700);
  EXPECT_GE(num_strokes, 300);
}

// Far away corners neither overflow nor take long. OpenCV itself would count the rows one by one.
TEST(PolygonFillerTest, TakesAnyCorners) {
  Canvas canvas(200, 200);
  PolygonFiller filler;
  const std::vector<int> extremes = {INT_MIN, INT_MIN + 1, -1000000000, -1,          0,      100,
                                     199,     200,         1000000000,  INT_MAX - 1, INT_MAX};
  RandomStream random(1, Purpose::kTest, 0, 0);
  const auto any = [&] { return extremes[static_cast<size_t>(random.below(extremes.size()))]; };
  for (int i = 0; i < 2000; ++i) {
    std::vector<CellPoint> ring(random.below(6));
    for (CellPoint& p : ring) p = {any(), any()};
    filler.fill(canvas.view(), ring, 1);
    stroke_two_cells(canvas.view(), ring, 1);
  }
  const std::vector<CellPoint> all = {
      {INT_MIN, INT_MIN}, {INT_MAX, INT_MIN}, {INT_MAX, INT_MAX}, {INT_MIN, INT_MAX}};
  Canvas full(200, 200);
  filler.fill(full.view(), all, 1);
  EXPECT_EQ(full.ones(), 200 * 200);
  filler.fill(MaskView{}, all, 1);  // no canvas at all
  stroke_two_cells(MaskView{}, all, 1);
}

TEST(PolygonFillerTest, FillsTheBorderToo) {
  Canvas canvas(20, 20);
  PolygonFiller filler;
  const std::vector<CellPoint> ring = {{2, 2}, {8, 2}, {8, 6}, {2, 6}};
  filler.fill(canvas.view(), ring, 1);
  EXPECT_EQ(canvas.ones(), 7 * 5);
}

double area_of(std::span<const Point> ring) {
  double twice = 0.0;
  for (size_t i = 0; i < ring.size(); ++i) {
    const Point &a = ring[i], &b = ring[(i + 1) % ring.size()];
    twice += a.x * b.y - b.x * a.y;
  }
  return std::abs(twice) / 2.0;
}

Rings rings_of(const std::vector<std::vector<Point>>& list) {
  Rings rings;
  for (size_t i = 0; i < list.size(); ++i) {
    rings.points.insert(rings.points.end(), list[i].begin(), list[i].end());
    rings.close(i > 0);
  }
  return rings;
}

TEST(PolygonClipperTest, FallsIntoParts) {
  // A comb with three teeth that reach into the rectangle from above.
  Rings comb = rings_of({{{0, 10},
                          {0, 1},
                          {1, 1},
                          {1, 8},
                          {2, 8},
                          {2, 1},
                          {3, 1},
                          {3, 8},
                          {4, 8},
                          {4, 1},
                          {5, 1},
                          {5, 10}}});
  PolygonClipper().clip(comb, {-1, 0, 6, 4});
  ASSERT_EQ(comb.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(comb.is_hole[i], 0);
    EXPECT_DOUBLE_EQ(area_of(comb.ring(i)), 3.0);
  }
}

TEST(PolygonClipperTest, HolesOpenWhereTheyReachTheSide) {
  const std::vector<std::vector<Point>> square_with_hole = {{{0, 0}, {10, 0}, {10, 10}, {0, 10}},
                                                            {{4, 4}, {6, 4}, {6, 6}, {4, 6}}};
  PolygonClipper clipper;
  Rings inside = rings_of(square_with_hole);
  clipper.clip(inside, {1, 1, 9, 9});
  ASSERT_EQ(inside.size(), 2u);
  EXPECT_EQ(inside.is_hole[0] + inside.is_hole[1], 1);

  Rings opened = rings_of(square_with_hole);
  clipper.clip(opened, {-1, -1, 5, 11});
  ASSERT_EQ(opened.size(), 1u);
  EXPECT_EQ(opened.is_hole[0], 0);
  EXPECT_DOUBLE_EQ(area_of(opened.ring(0)), 50.0 - 2.0);

  Rings within_hole = rings_of(square_with_hole);
  clipper.clip(within_hole, {4.5, 4.5, 5.5, 5.5});
  Canvas canvas(10, 10);
  CentreSampler().fill(canvas.view(), within_hole, 1);
  EXPECT_EQ(canvas.ones(), 0);

  Rings apart =
      rings_of({{{0, 0}, {10, 0}, {10, 10}, {0, 10}}, {{-1, 4}, {11, 4}, {11, 6}, {-1, 6}}});
  clipper.clip(apart, {0.5, 0, 9.5, 10});
  EXPECT_EQ(apart.size(), 2u);
}

TEST(PolygonClipperTest, WhatTouchesFromOutsideLeavesNothing) {
  PolygonClipper clipper;
  Rings beside = rings_of({{{0, 0}, {5, 0}, {5, 5}, {0, 5}}});
  clipper.clip(beside, {5, 0, 10, 5});
  EXPECT_EQ(beside.size(), 0u);
  Rings same = rings_of({{{5, 0}, {10, 0}, {10, 5}, {5, 5}}});
  clipper.clip(same, {5, 0, 10, 5});
  ASSERT_EQ(same.size(), 1u);
  EXPECT_DOUBLE_EQ(area_of(same.ring(0)), 25.0);
}

// Areas do not change when a plane is cut into tiles, whatever the rings.
TEST(PolygonClipperTest, TilesAddUp) {
  RandomStream random(2, Purpose::kTest, 0, 0);
  PolygonClipper clipper;
  for (int i = 0; i < 200; ++i) {
    std::vector<Point> star;
    const int points = static_cast<int>(random.randint(3, 20));
    for (int k = 0; k < points; ++k) {
      const double angle = 2.0 * M_PI * k / points, radius = random.uniform(5.0, 40.0);
      star.push_back({50 + radius * std::cos(angle), 50 + radius * std::sin(angle)});
    }
    const double cut_x = random.uniform(30, 70), cut_y = random.uniform(30, 70);
    double sum = 0.0;
    for (const Rect& tile : {Rect{0, 0, cut_x, cut_y}, Rect{cut_x, 0, 100, cut_y},
                             Rect{0, cut_y, cut_x, 100}, Rect{cut_x, cut_y, 100, 100}}) {
      Rings part = rings_of({star});
      clipper.clip(part, tile);
      for (size_t r = 0; r < part.size(); ++r) sum += area_of(part.ring(r));
      for (const Point& p : part.points) {
        EXPECT_GE(p.x, tile.min_x);
        EXPECT_LE(p.x, tile.max_x);
        EXPECT_GE(p.y, tile.min_y);
        EXPECT_LE(p.y, tile.max_y);
      }
    }
    EXPECT_NEAR(sum, area_of(star), 1e-9 * area_of(star));
  }
}

TEST(ClipSegmentTest, EndsOnTheBorderExactly) {
  const Rect rect{-50, -50, 50, 50};
  Point a{-80, 3}, b{70, 33};
  ASSERT_TRUE(clip_segment(rect, a, b));
  EXPECT_EQ(a.x, -50.0);
  EXPECT_EQ(b.x, 50.0);
  EXPECT_DOUBLE_EQ(a.y, 9.0);
  EXPECT_DOUBLE_EQ(b.y, 29.0);
  Point c{10, 10}, d{20, 5};
  ASSERT_TRUE(clip_segment(rect, c, d));
  EXPECT_EQ(c.x, 10.0);
  EXPECT_EQ(d.y, 5.0);
  Point e{51, 0}, f{60, 10};
  EXPECT_FALSE(clip_segment(rect, e, f));
  Point g{40, 60}, h{60, 40};  // through the corner alone
  EXPECT_FALSE(clip_segment(rect, g, h));
}

Validity validity_of(const std::vector<std::vector<Point>>& rings) {
  const std::vector<std::span<const Point>> spans(rings.begin(), rings.end());
  return ValidityChecker(1'000'000).check(spans);
}

TEST(ValidityTest, TellsPolygonsFromOthers) {
  const std::vector<Point> square = {{0, 0}, {10, 0}, {10, 10}, {0, 10}};
  const auto valid = Validity::kValid, invalid = Validity::kInvalid;
  EXPECT_EQ(validity_of({square}), valid);
  EXPECT_EQ(validity_of({{{0, 0}, {0, 10}, {10, 10}, {10, 0}}}), valid) << "clockwise";
  EXPECT_EQ(validity_of({{{0, 0}, {0, 0}, {10, 0}, {10, 10}, {0, 10}, {0, 0}}}), valid)
      << "repeated";
  EXPECT_EQ(validity_of({{{0, 0}, {10, 10}, {10, 0}, {0, 10}}}), invalid) << "bow tie";
  EXPECT_EQ(validity_of({{{0, 0}, {10, 0}, {10, 10}, {20, 10}, {10, 10}, {0, 10}}}), invalid)
      << "spike";
  EXPECT_EQ(validity_of({{{0, 0}, {10, 0}, {10, 10}, {5, 0}, {0, 10}}}), invalid)
      << "touches itself";
  EXPECT_EQ(validity_of({{{0, 0}, {10, 0}}}), invalid);
  EXPECT_EQ(validity_of({{{0, 0}, {10, 0}, {5, 0}}}), invalid) << "flat";
  EXPECT_EQ(validity_of({}), invalid);

  EXPECT_EQ(validity_of({square, {{2, 2}, {4, 2}, {4, 4}}}), valid);
  EXPECT_EQ(validity_of({square, {{12, 2}, {14, 2}, {14, 4}}}), invalid) << "outside";
  EXPECT_EQ(validity_of({square, {{8, 2}, {14, 2}, {8, 4}}}), invalid) << "crosses";
  EXPECT_EQ(validity_of({square, {{0, 5}, {4, 2}, {4, 4}}}), valid) << "touches in one point";
  EXPECT_EQ(validity_of({square, {{0, 5}, {10, 5}, {5, 7}}}), invalid) << "cuts in two";
  EXPECT_EQ(validity_of({square, {{0, 5}, {0, 7}, {5, 7}}}), invalid) << "shares an edge";
  EXPECT_EQ(validity_of({square, {{1, 1}, {9, 1}, {9, 9}, {1, 9}}, {{3, 3}, {4, 3}, {4, 4}}}),
            invalid)
      << "hole in a hole";
  EXPECT_EQ(validity_of({square, {{1, 1}, {5, 1}, {5, 5}}, {{5, 5}, {9, 5}, {9, 9}}}), valid)
      << "holes that touch";
  EXPECT_EQ(
      validity_of(
          {square, {{1, 1}, {5, 3}, {3, 5}}, {{5, 3}, {9, 1}, {9, 9}}, {{3, 5}, {9, 9}, {1, 9}}}),
      invalid)
      << "three holes in a ring";
}

TEST(ValidityTest, GivesUpInTime) {
  std::vector<Point> zigzag;  // every edge lies beside every other
  for (int i = 0; i < 20000; ++i) zigzag.push_back({i % 2 == 0 ? 0.0 : 1.0, i * 1.0});
  zigzag.push_back({-1.0, 30000.0});
  const std::vector<std::span<const Point>> rings = {zigzag};
  EXPECT_EQ(ValidityChecker(100'000).check(rings), Validity::kGivenUp);
}

TEST(CentreSamplerTest, TakesCellsByTheirCentres) {
  Canvas canvas(10, 10);
  CentreSampler().fill(canvas.view(), rings_of({{{1.4, 1.6}, {4.6, 1.6}, {4.6, 3.4}, {1.4, 3.4}}}),
                       1);
  EXPECT_EQ(canvas.ones(), 4 * 1);
  EXPECT_EQ(canvas.at(1, 2), 1);
  EXPECT_EQ(canvas.at(4, 2), 1);
  EXPECT_EQ(canvas.at(5, 2), 0);
  Canvas with_hole(20, 20);
  CentreSampler().fill(with_hole.view(),
                       rings_of({{{-1e9, -1e9}, {1e9, -1e9}, {1e9, 1e9}, {-1e9, 1e9}},
                                 {{5, 5}, {15, 5}, {15, 15}, {5, 15}}}),
                       1);
  EXPECT_EQ(with_hole.ones(), 400 - 100);
}

// Against the distance itself.
TEST(CentreSamplerTest, StrokesAreAsWideAsTheySay) {
  RandomStream random(3, Purpose::kTest, 0, 0);
  for (int i = 0; i < 300; ++i) {
    const Point a{random.uniform(-20, 60), random.uniform(-20, 60)};
    const Point b{random.uniform(-20, 60), random.uniform(-20, 60)};
    Canvas canvas(40, 40);
    stroke_centres(canvas.view(), a, b, 1.0, 1);
    for (int y = 0; y < 40; ++y) {
      for (int x = 0; x < 40; ++x) {
        const double dx = b.x - a.x, dy = b.y - a.y, px = x + 0.5 - a.x, py = y + 0.5 - a.y;
        const double t = std::clamp((px * dx + py * dy) / (dx * dx + dy * dy), 0.0, 1.0);
        const double distance = std::hypot(px - t * dx, py - t * dy);
        if (std::abs(distance - 1.0) < 1e-9) continue;
        ASSERT_EQ(canvas.at(x, y), distance < 1.0 ? 1 : 0) << x << " " << y << " " << distance;
      }
    }
  }
}

TEST(TransposedTest, EqualsThePlainLoop) {
  RandomStream random(4, Purpose::kTest, 0, 0);
  for (const auto& [nx, ny] : {std::pair{200, 200}, {1, 1}, {7, 9}, {16, 5}, {33, 64}}) {
    Canvas canvas(nx, ny);
    for (uint8_t& cell : canvas.cells) cell = static_cast<uint8_t>(random.below(2));
    for (int mirrors = 0; mirrors < 4; ++mirrors) {
      const bool mirror_x = (mirrors & 1) != 0, mirror_y = (mirrors & 2) != 0;
      std::vector<uint8_t> out(canvas.cells.size(), 0), expected(out), copied(out);
      out[0] = expected[0] = 1;  // merged, not replaced
      merge_transposed(canvas.view(), out.data(), mirror_x, mirror_y);
      copy_mirrored(canvas.view(), copied.data(), mirror_x, mirror_y);
      for (int x = 0; x < nx; ++x) {
        for (int y = 0; y < ny; ++y) {
          const int to_x = mirror_x ? nx - 1 - x : x, to_y = mirror_y ? ny - 1 - y : y;
          expected[static_cast<size_t>(to_x * ny + to_y)] |= canvas.at(x, y);
          ASSERT_EQ(copied[static_cast<size_t>(to_y * nx + to_x)], canvas.at(x, y));
        }
      }
      EXPECT_EQ(out, expected);
    }
  }
}

}  // namespace
}  // namespace aerie::raster
