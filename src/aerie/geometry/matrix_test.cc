#include "aerie/geometry/matrix.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace aerie {
namespace {

void expect_near(const Mat4& a, const Mat4& b, double gap) {
  for (size_t i = 0; i < 16; ++i) EXPECT_NEAR(a.m[i], b.m[i], gap) << "entry " << i;
}

Mat4 some_pose() {
  return rigid(*rotation_from({0.9, -0.1, 0.3, 0.25}), {1200.5, -2034.25, 3.5});
}

TEST(MatrixTest, QuaternionTurnsAsItsFormulaSays) {
  // A quarter turn about z takes x to y.
  const double half = std::sqrt(0.5);
  const Vec3 v = *rotation_from({half, 0, 0, half}) * Vec3{1, 0, 0};
  EXPECT_NEAR(v.x, 0, 1e-15);
  EXPECT_NEAR(v.y, 1, 1e-15);
  // Its length does not matter, not even where its square overflows.
  const Vec3 w = *rotation_from({half * 1e200, 0, 0, half * 1e200}) * Vec3{1, 0, 0};
  EXPECT_NEAR(w.y, 1, 1e-15);
}

TEST(MatrixTest, QuaternionsWithoutALengthAreErrors) {
  EXPECT_FALSE(rotation_from({0, 0, 0, 0}).ok());
  EXPECT_FALSE(rotation_from({std::nan(""), 0, 0, 1}).ok());
  EXPECT_FALSE(rotation_from({1, std::numeric_limits<double>::infinity(), 0, 0}).ok());
}

TEST(MatrixTest, QuaternionOfARotationGivesItBack) {
  for (const Quaternion& q : {Quaternion{1, 0, 0, 0},
                              {0, 1, 0, 0},
                              {0, 0, 1, 0},
                              {0, 0, 0, 1},
                              {0.5, -0.5, 0.5, -0.5},
                              {0.1, 0.2, -0.9, 0.3},
                              {-0.3, 0.8, 0.1, 0.2}}) {
    const Mat3 r = *rotation_from(q);
    const Mat3 again = *rotation_from(quaternion_from(r));
    for (size_t i = 0; i < 9; ++i) EXPECT_NEAR(again.m[i], r.m[i], 1e-14);
    EXPECT_GE(quaternion_from(r).w, 0.0);
  }
}

TEST(MatrixTest, InversesUndo) {
  const Mat4 pose = some_pose();
  expect_near(pose * rigid_inverse(pose), Mat4::identity(), 1e-11);
  expect_near(*inverse(pose), rigid_inverse(pose), 1e-11);
  Mat4 general = pose;
  general(0, 0) *= 3;
  general(3, 1) = 0.25;
  expect_near(general * *inverse(general), Mat4::identity(), 1e-11);
  // A zero in the corner needs a pivot.
  const Mat3 swap{{0, 1, 0, 1, 0, 0, 0, 0, 2}};
  EXPECT_EQ((*inverse(swap)).m, (Mat3{{0, 1, 0, 1, 0, 0, 0, 0, 0.5}}).m);
}

TEST(MatrixTest, SingularMatricesAreErrors) {
  EXPECT_FALSE(inverse(Mat3{{1, 2, 3, 2, 4, 6, 0, 0, 1}}).ok());
  Mat4 flat;
  flat(2, 2) = 0;
  EXPECT_FALSE(inverse(flat).ok());
  flat(2, 2) = std::nan("");
  EXPECT_FALSE(inverse(flat).ok());
  EXPECT_FALSE(is_finite(flat));
}

TEST(MatrixTest, PointsAndProductsAgree) {
  const Mat4 a = some_pose(), b = rigid(rotation_z(0.7), {4, 5, 6});
  const Vec3 p{0.5, -2, 9};
  const Vec3 one_by_one = a * (b * p), at_once = (a * b) * p;
  EXPECT_NEAR(one_by_one.x, at_once.x, 1e-11);
  EXPECT_NEAR(one_by_one.y, at_once.y, 1e-11);
  EXPECT_NEAR(one_by_one.z, at_once.z, 1e-11);
}

}  // namespace
}  // namespace aerie
