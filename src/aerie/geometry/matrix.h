// Small dense matrices and rotations in double: coordinates of the world are kilometres, so frames
// are composed in double and rounded once at the end.
#pragma once

#include <array>
#include <span>

#include "aerie/base/status.h"

namespace aerie {

struct Vec3 {
  double x = 0.0, y = 0.0, z = 0.0;
  double operator[](int i) const { return i == 0 ? x : i == 1 ? y : z; }
};

// Unit quaternion (w, x, y, z): a rotation.
struct Quaternion {
  double w = 1.0, x = 0.0, y = 0.0, z = 0.0;
};

// Row-major.
struct Mat3 {
  std::array<double, 9> m{1, 0, 0, 0, 1, 0, 0, 0, 1};
  double& operator()(int row, int column) { return m[row * 3 + column]; }
  double operator()(int row, int column) const { return m[row * 3 + column]; }
  static Mat3 identity() { return {}; }
};

struct Mat4 {
  std::array<double, 16> m{1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1};
  double& operator()(int row, int column) { return m[row * 4 + column]; }
  double operator()(int row, int column) const { return m[row * 4 + column]; }
  static Mat4 identity() { return {}; }
};

Mat3 operator*(const Mat3& a, const Mat3& b);
Vec3 operator*(const Mat3& a, const Vec3& v);
Mat4 operator*(const Mat4& a, const Mat4& b);
// The point v, that is (v, 1).
Vec3 operator*(const Mat4& a, const Vec3& v);
Vec3 operator+(const Vec3& a, const Vec3& b);
Vec3 operator-(const Vec3& a, const Vec3& b);
Vec3 operator*(double s, const Vec3& v);

// Normalised first; a quaternion without a length, or not finite, is an error.
Result<Mat3> rotation_from(const Quaternion& q);
// Of a proper rotation matrix, w >= 0.
Quaternion quaternion_from(const Mat3& rotation);
Mat3 rotation_z(double radians);

// [rotation, translation; 0 0 0 1].
Mat4 rigid(const Mat3& rotation, const Vec3& translation);
Mat4 with_rotation(const Mat3& block);  // no translation
Mat3 rotation_of(const Mat4& a);        // the upper left block
Vec3 translation_of(const Mat4& a);

// Of any invertible matrix, by Gauss-Jordan with partial pivoting. A singular one is an error.
Result<Mat3> inverse(const Mat3& a);
Result<Mat4> inverse(const Mat4& a);
// Of a rotation and translation: exact up to rounding, cannot fail.
Mat4 rigid_inverse(const Mat4& a);

bool is_finite(const Mat4& a);
// The values in float, row-major, as batches carry them.
void to_floats(const Mat4& a, std::span<float, 16> out);

}  // namespace aerie
