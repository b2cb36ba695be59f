#include "aerie/models/bev/view/frustum.h"

#include <cmath>
#include <limits>

#include "aerie/base/strings.h"
#include "aerie/geometry/matrix.h"

namespace aerie::bev {
namespace {

// Cells are int32 and float32 must count them exactly.
constexpr double kMaxCells = 1 << 24;

Status check_bound(const Bound& bound, const char* key) {
  const auto text = [&] {
    return str_cat(key, " is [", bound.low, ", ", bound.high, ", ", bound.step, "]: ");
  };
  if (!std::isfinite(bound.low) || !std::isfinite(bound.high) || !std::isfinite(bound.step))
    return invalid_argument(str_cat(text(), "all three must be finite numbers"));
  if (bound.step <= 0.0 || bound.high <= bound.low)
    return invalid_argument(str_cat(text(), "low < high and step > 0 are needed"));
  if ((bound.high - bound.low) / bound.step > kMaxCells)
    return invalid_argument(
               str_cat(text(), "more than ", static_cast<int64_t>(kMaxCells), " steps"))
        .with_hint("make the step larger");
  return ok_status();
}

Result<Mat4> widened(std::span<const float, 16> values, const char* what) {
  Mat4 out;
  for (size_t i = 0; i < 16; ++i) {
    if (!std::isfinite(values[i])) return data_error(str_cat(what, " is not finite"));
    out.m[i] = static_cast<double>(values[i]);
  }
  return out;
}

// (u, v, 1) of the augmented picture to (u, v, 1) of the original one.
Result<Mat3> undone(const Mat4& augmentation) {
  const bool plain = augmentation(0, 2) == 0.0 && augmentation(1, 2) == 0.0 &&
                     augmentation(2, 0) == 0.0 && augmentation(2, 1) == 0.0 &&
                     augmentation(2, 2) == 1.0 && augmentation(2, 3) == 0.0;
  if (!plain)
    return data_error(
        "the image augmentation changes depth: its third row must be 0 0 1 0, its "
        "third column 0 0 1");
  Mat3 forward;
  for (int row = 0; row < 2; ++row) {
    forward(row, 0) = augmentation(row, 0);
    forward(row, 1) = augmentation(row, 1);
    forward(row, 2) = augmentation(row, 3);
  }
  return inverse(forward).with_context("image augmentation");
}

std::array<float, 3> ray(const CameraRays& rays, float u, float v) {
  std::array<float, 3> out;
  for (size_t axis = 0; axis < 3; ++axis) {
    const float* row = rays.q.data() + axis * 3;
    out[axis] = (row[0] * u + row[1] * v) + row[2];
  }
  return out;
}

bool inside(float t, float n, VoxelRounding rounding) {
  const bool above = rounding == VoxelRounding::kTrunc ? t > -1.0f : t >= 0.0f;
  return above && t < n;  // false for NaN
}

}  // namespace

Result<int64_t> num_cells(const Bound& bound, const char* key) {
  AERIE_RETURN_IF_ERROR(check_bound(bound, key));
  const double cells = std::nearbyint((bound.high - bound.low) / bound.step);
  if (cells < 1.0)
    return invalid_argument(str_cat(key, " has no cell: its step is more than twice its range"));
  return static_cast<int64_t>(cells);
}

Result<int64_t> num_depths(const Bound& bound, const char* key) {
  AERIE_RETURN_IF_ERROR(check_bound(bound, key));
  return static_cast<int64_t>(std::ceil((bound.high - bound.low) / bound.step));
}

Result<BevGrid> BevGrid::make(const Bound& x, const Bound& y, const Bound& z) {
  BevGrid grid;
  const Bound* bounds[3] = {&x, &y, &z};
  const char* keys[3] = {"xbound", "ybound", "zbound"};
  for (size_t axis = 0; axis < 3; ++axis) {
    AERIE_ASSIGN_OR_RETURN(grid.n[axis], num_cells(*bounds[axis], keys[axis]));
    grid.low[axis] = static_cast<float>(bounds[axis]->low);
    grid.size[axis] = static_cast<float>(bounds[axis]->step);
  }
  constexpr int64_t limit = std::numeric_limits<int32_t>::max();
  if (grid.n[0] > limit / grid.n[1] || grid.n[0] * grid.n[1] > limit / grid.n[2])
    return invalid_argument(str_cat("a grid of ", grid.n[0], " x ", grid.n[1], " x ", grid.n[2],
                                    " cells is too large"))
        .with_hint("make xbound, ybound or zbound coarser");
  return grid;
}

std::vector<float> linspace_float(float start, float end, int64_t count) {
  std::vector<float> out(static_cast<size_t>(count));
  if (count == 1) out[0] = start;
  if (count < 2) return out;
  const float step = (end - start) / static_cast<float>(count - 1);
  // From both ends to the middle; the vectorised kernels of torch fuse the multiply-add.
  for (int64_t i = 0; i < count; ++i)
    out[static_cast<size_t>(i)] = i < count / 2
                                      ? std::fma(step, static_cast<float>(i), start)
                                      : std::fma(-step, static_cast<float>(count - i - 1), end);
  return out;
}

Result<FrustumAxes> frustum_axes(int64_t image_height, int64_t image_width, int64_t feature_height,
                                 int64_t feature_width, const Bound& depth) {
  if (image_height < 1 || image_width < 1 || feature_height < 1 || feature_width < 1)
    return invalid_argument(str_cat("no frustum for a picture of ", image_height, " x ",
                                    image_width, " with features of ", feature_height, " x ",
                                    feature_width));
  AERIE_ASSIGN_OR_RETURN(const int64_t depths, num_depths(depth, "dbound"));
  FrustumAxes axes;
  axes.u = linspace_float(0.0f, static_cast<float>(image_width - 1), feature_width);
  axes.v = linspace_float(0.0f, static_cast<float>(image_height - 1), feature_height);
  axes.d.resize(static_cast<size_t>(depths));
  for (int64_t k = 0; k < depths; ++k)
    axes.d[static_cast<size_t>(k)] =
        static_cast<float>(depth.low + static_cast<double>(k) * depth.step);
  return axes;
}

Result<CameraRays> fused_geometry(std::span<const float, 16> camera_to_lidar,
                                  std::span<const float, 16> intrinsics,
                                  std::span<const float, 16> image_augmentation,
                                  std::span<const float, 16> bev_augmentation) {
  AERIE_ASSIGN_OR_RETURN(const Mat4 frame, widened(camera_to_lidar, "camera2lidar"));
  AERIE_ASSIGN_OR_RETURN(const Mat4 camera, widened(intrinsics, "the intrinsic matrix"));
  AERIE_ASSIGN_OR_RETURN(const Mat4 image, widened(image_augmentation, "the image augmentation"));
  AERIE_ASSIGN_OR_RETURN(const Mat4 bev, widened(bev_augmentation, "the BEV augmentation"));
  AERIE_ASSIGN_OR_RETURN(const Mat3 undo, undone(image));
  AERIE_ASSIGN_OR_RETURN(const Mat3 unproject,
                         inverse(rotation_of(camera)).with_context("intrinsic matrix"));
  const Mat3 turn = rotation_of(bev);
  const Mat3 q = turn * rotation_of(frame) * unproject * undo;
  const Vec3 r = turn * translation_of(frame) + translation_of(bev);
  CameraRays out;
  for (size_t i = 0; i < 9; ++i) out.q[i] = static_cast<float>(q.m[i]);
  out.r = {static_cast<float>(r.x), static_cast<float>(r.y), static_cast<float>(r.z)};
  return out;
}

void frustum_points(const CameraRays& rays, const FrustumAxes& axes, std::span<float> out) {
  AERIE_CHECK(static_cast<int64_t>(out.size()) == axes.points() * 3, "points need ",
              axes.points() * 3, " floats, not ", out.size());
  float* next = out.data();
  for (const float v : axes.v)
    for (const float u : axes.u) {
      const std::array<float, 3> direction = ray(rays, u, v);
      for (const float d : axes.d)
        for (size_t axis = 0; axis < 3; ++axis) *next++ = d * direction[axis] + rays.r[axis];
    }
}

int64_t cell_of_point(const std::array<float, 3>& point, const BevGrid& grid,
                      VoxelRounding rounding) {
  int64_t index[3];
  for (size_t axis = 0; axis < 3; ++axis) {
    // A division: a product with the reciprocal moves some points to the next cell.
    const float t = (point[axis] - grid.low[axis]) / grid.size[axis];
    if (!inside(t, static_cast<float>(grid.n[axis]), rounding)) return -1;
    index[axis] = static_cast<int64_t>(t);  // toward zero; floor's t are not negative
  }
  return (index[2] * grid.n[0] + index[0]) * grid.n[1] + index[1];
}

Result<std::vector<CameraRays>> batch_rays(const CameraMatrices& matrices) {
  const auto cameras = static_cast<size_t>(matrices.batch * matrices.cameras);
  AERIE_CHECK(matrices.camera_to_lidar.size() == cameras * 16 &&
                  matrices.intrinsics.size() == cameras * 16 &&
                  matrices.image_augmentation.size() == cameras * 16 &&
                  matrices.bev_augmentation.size() == static_cast<size_t>(matrices.batch) * 16,
              "matrices do not match a batch of ", matrices.batch, " with ", matrices.cameras,
              " cameras");
  std::vector<CameraRays> out;
  for (int64_t b = 0; b < matrices.batch; ++b)
    for (int64_t camera = 0; camera < matrices.cameras; ++camera) {
      const size_t at = static_cast<size_t>(b * matrices.cameras + camera) * 16;
      auto rays = fused_geometry(
          matrices.camera_to_lidar.subspan(at).first<16>(),
          matrices.intrinsics.subspan(at).first<16>(),
          matrices.image_augmentation.subspan(at).first<16>(),
          matrices.bev_augmentation.subspan(static_cast<size_t>(b) * 16).first<16>());
      if (!rays.ok())
        return rays.status().with_context(str_cat("sample ", b, " of the batch, camera ", camera));
      out.push_back(std::move(rays).value());
    }
  return out;
}

Status frustum_cells(const CameraMatrices& matrices, const FrustumAxes& axes, const BevGrid& grid,
                     VoxelRounding rounding, std::span<int32_t> out) {
  AERIE_ASSIGN_OR_RETURN(const std::vector<CameraRays> all, batch_rays(matrices));
  AERIE_CHECK(out.size() == all.size() * static_cast<size_t>(axes.points()), "cells need ",
              all.size() * static_cast<size_t>(axes.points()), " values, not ", out.size());
  if (matrices.batch > std::numeric_limits<int32_t>::max() / grid.cells())
    return invalid_argument(str_cat("a batch of ", matrices.batch, " with ", grid.cells(),
                                    " cells a sample is too large"))
        .with_hint("make the batch smaller");
  int32_t* next = out.data();
  for (size_t i = 0; i < all.size(); ++i) {
    const CameraRays& rays = all[i];
    const auto first =
        static_cast<int32_t>(static_cast<int64_t>(i) / matrices.cameras * grid.cells());
    for (const float v : axes.v)
      for (const float u : axes.u) {
        const std::array<float, 3> direction = ray(rays, u, v);
        for (const float d : axes.d) {
          std::array<float, 3> point;
          for (size_t axis = 0; axis < 3; ++axis) point[axis] = d * direction[axis] + rays.r[axis];
          const int64_t cell = cell_of_point(point, grid, rounding);
          *next++ = cell < 0 ? -1 : first + static_cast<int32_t>(cell);
        }
      }
  }
  return ok_status();
}

}  // namespace aerie::bev
