#include "aerie/geometry/matrix.h"

#include <cmath>
#include <utility>

namespace aerie {

namespace {

template <size_t kSide>
std::array<double, kSide * kSide> multiply(const std::array<double, kSide * kSide>& a,
                                           const std::array<double, kSide * kSide>& b) {
  std::array<double, kSide * kSide> out{};
  for (size_t i = 0; i < kSide; ++i) {
    for (size_t j = 0; j < kSide; ++j) {
      double sum = 0.0;
      for (size_t k = 0; k < kSide; ++k) sum += a[i * kSide + k] * b[k * kSide + j];
      out[i * kSide + j] = sum;
    }
  }
  return out;
}

// In place; false: singular.
template <size_t kSide>
bool invert(std::array<double, kSide * kSide>& a) {
  std::array<double, kSide * kSide> out{};
  for (size_t i = 0; i < kSide; ++i) out[i * kSide + i] = 1.0;
  for (size_t column = 0; column < kSide; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < kSide; ++row) {
      if (std::abs(a[row * kSide + column]) > std::abs(a[pivot * kSide + column])) pivot = row;
    }
    const double head = a[pivot * kSide + column];
    if (!std::isfinite(head) || head == 0.0) return false;
    for (size_t j = 0; j < kSide; ++j) {
      std::swap(a[pivot * kSide + j], a[column * kSide + j]);
      std::swap(out[pivot * kSide + j], out[column * kSide + j]);
    }
    for (size_t j = 0; j < kSide; ++j) {
      a[column * kSide + j] /= head;
      out[column * kSide + j] /= head;
    }
    for (size_t row = 0; row < kSide; ++row) {
      const double factor = a[row * kSide + column];
      if (row == column || factor == 0.0) continue;
      for (size_t j = 0; j < kSide; ++j) {
        a[row * kSide + j] -= factor * a[column * kSide + j];
        out[row * kSide + j] -= factor * out[column * kSide + j];
      }
    }
  }
  a = out;
  for (double value : a) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

}  // namespace

Mat3 operator*(const Mat3& a, const Mat3& b) {
  return {multiply<3>(a.m, b.m)};
}

Mat4 operator*(const Mat4& a, const Mat4& b) {
  return {multiply<4>(a.m, b.m)};
}

Vec3 operator*(const Mat3& a, const Vec3& v) {
  return {a(0, 0) * v.x + a(0, 1) * v.y + a(0, 2) * v.z,
          a(1, 0) * v.x + a(1, 1) * v.y + a(1, 2) * v.z,
          a(2, 0) * v.x + a(2, 1) * v.y + a(2, 2) * v.z};
}

Vec3 operator*(const Mat4& a, const Vec3& v) {
  return {a(0, 0) * v.x + a(0, 1) * v.y + a(0, 2) * v.z + a(0, 3),
          a(1, 0) * v.x + a(1, 1) * v.y + a(1, 2) * v.z + a(1, 3),
          a(2, 0) * v.x + a(2, 1) * v.y + a(2, 2) * v.z + a(2, 3)};
}

Vec3 operator+(const Vec3& a, const Vec3& b) {
  return {a.x + b.x, a.y + b.y, a.z + b.z};
}

Vec3 operator-(const Vec3& a, const Vec3& b) {
  return {a.x - b.x, a.y - b.y, a.z - b.z};
}

Vec3 operator*(double s, const Vec3& v) {
  return {s * v.x, s * v.y, s * v.z};
}

Result<Mat3> rotation_from(const Quaternion& q) {
  // Scaled by the largest part first: squares of very large or small ones would not be finite.
  const double largest =
      std::fmax(std::fmax(std::abs(q.w), std::abs(q.x)), std::fmax(std::abs(q.y), std::abs(q.z)));
  if (!std::isfinite(q.w) || !std::isfinite(q.x) || !std::isfinite(q.y) || !std::isfinite(q.z) ||
      largest == 0.0)
    return data_error("a rotation is not a quaternion with a length");
  Quaternion u{q.w / largest, q.x / largest, q.y / largest, q.z / largest};
  const double norm = std::sqrt(u.w * u.w + u.x * u.x + u.y * u.y + u.z * u.z);
  u = {u.w / norm, u.x / norm, u.y / norm, u.z / norm};
  return Mat3{
      {1 - 2 * (u.y * u.y + u.z * u.z), 2 * (u.x * u.y - u.w * u.z), 2 * (u.x * u.z + u.w * u.y),
       2 * (u.x * u.y + u.w * u.z), 1 - 2 * (u.x * u.x + u.z * u.z), 2 * (u.y * u.z - u.w * u.x),
       2 * (u.x * u.z - u.w * u.y), 2 * (u.y * u.z + u.w * u.x), 1 - 2 * (u.x * u.x + u.y * u.y)}};
}

Quaternion quaternion_from(const Mat3& r) {
  // Of the four ways to compute it, the one that divides by the largest part.
  const double ww = 1 + r(0, 0) + r(1, 1) + r(2, 2);
  const double xx = 1 + r(0, 0) - r(1, 1) - r(2, 2);
  const double yy = 1 - r(0, 0) + r(1, 1) - r(2, 2);
  const double zz = 1 - r(0, 0) - r(1, 1) + r(2, 2);
  Quaternion q;
  if (ww >= xx && ww >= yy && ww >= zz) {
    const double d = 2 * std::sqrt(ww);
    q = {d / 4, (r(2, 1) - r(1, 2)) / d, (r(0, 2) - r(2, 0)) / d, (r(1, 0) - r(0, 1)) / d};
  } else if (xx >= yy && xx >= zz) {
    const double d = 2 * std::sqrt(xx);
    q = {(r(2, 1) - r(1, 2)) / d, d / 4, (r(0, 1) + r(1, 0)) / d, (r(0, 2) + r(2, 0)) / d};
  } else if (yy >= zz) {
    const double d = 2 * std::sqrt(yy);
    q = {(r(0, 2) - r(2, 0)) / d, (r(0, 1) + r(1, 0)) / d, d / 4, (r(1, 2) + r(2, 1)) / d};
  } else {
    const double d = 2 * std::sqrt(zz);
    q = {(r(1, 0) - r(0, 1)) / d, (r(0, 2) + r(2, 0)) / d, (r(1, 2) + r(2, 1)) / d, d / 4};
  }
  if (q.w < 0) q = {-q.w, -q.x, -q.y, -q.z};
  return q;
}

Mat3 rotation_z(double radians) {
  const double c = std::cos(radians), s = std::sin(radians);
  return {{c, -s, 0, s, c, 0, 0, 0, 1}};
}

Mat4 rigid(const Mat3& r, const Vec3& t) {
  return {{r(0, 0), r(0, 1), r(0, 2), t.x, r(1, 0), r(1, 1), r(1, 2), t.y, r(2, 0), r(2, 1),
           r(2, 2), t.z, 0, 0, 0, 1}};
}

Mat4 with_rotation(const Mat3& block) {
  return rigid(block, {});
}

Mat3 rotation_of(const Mat4& a) {
  return {{a(0, 0), a(0, 1), a(0, 2), a(1, 0), a(1, 1), a(1, 2), a(2, 0), a(2, 1), a(2, 2)}};
}

Vec3 translation_of(const Mat4& a) {
  return {a(0, 3), a(1, 3), a(2, 3)};
}

Result<Mat3> inverse(const Mat3& a) {
  Mat3 out = a;
  if (!invert<3>(out.m)) return data_error("a 3x3 matrix has no inverse");
  return out;
}

Result<Mat4> inverse(const Mat4& a) {
  Mat4 out = a;
  if (!invert<4>(out.m)) return data_error("a 4x4 matrix has no inverse");
  return out;
}

Mat4 rigid_inverse(const Mat4& a) {
  const Mat3 r = rotation_of(a);
  const Mat3 back{
      {r(0, 0), r(1, 0), r(2, 0), r(0, 1), r(1, 1), r(2, 1), r(0, 2), r(1, 2), r(2, 2)}};
  const Vec3 t = back * translation_of(a);
  return rigid(back, {-t.x, -t.y, -t.z});
}

bool is_finite(const Mat4& a) {
  for (double value : a.m) {
    if (!std::isfinite(value)) return false;
  }
  return true;
}

void to_floats(const Mat4& a, std::span<float, 16> out) {
  for (size_t i = 0; i < 16; ++i) out[i] = static_cast<float>(a.m[i]);
}

}  // namespace aerie
