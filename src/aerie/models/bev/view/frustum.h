// From feature pixels and depths to cells of the bird's-eye grid.
//
// Every feature pixel of every camera has one ray, every ray D depths: the points of the frustum.
// What cameras and both augmentations do to a point is one matrix per camera, composed in float64
// and rounded once; the points themselves are float32, computed in a fixed order without fused
// multiply-adds, so that a point lies in the same cell on every machine.
//
//   ray  = (Q0 u + Q1 v) + Q2          Q = A R inv(K) P, columns Q0..Q2
//   x'   = d ray + r                   r = A t + a
//   t    = (x' - low) / size           per axis; kept where -1 < t < n (trunc), 0 <= t < n (floor)
//   cell = ((b nz + iz) nx + ix) ny + iy, or -1
//
// R, t: camera to reference frame; K: intrinsics; P: undoes the image augmentation; A, a: the
// augmentation of the bird's-eye view. Nothing here keeps state: any thread may call it.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "aerie/base/status.h"

namespace aerie::bev {

// [low, high, step], as configurations write ranges.
struct Bound {
  double low = 0.0, high = 0.0, step = 1.0;
  bool operator==(const Bound&) const = default;
};

// How a coordinate becomes a cell. kTrunc is what published weights were trained with: it keeps
// (-1, 0) as cell 0, so a rim one cell wide stays, and with one height cell all points up to one
// cell below it.
enum class VoxelRounding { kTrunc, kFloor };

// The number of cells, (high - low) / step rounded; an error names `key`.
Result<int64_t> num_cells(const Bound& bound, const char* key);
// The number of depths low, low + step, ... below high (numpy.arange).
Result<int64_t> num_depths(const Bound& bound, const char* key);

// The grid in float32, as points are compared with it. All three axes are x, y, z.
struct BevGrid {
  std::array<float, 3> low{};
  std::array<float, 3> size{};
  std::array<int64_t, 3> n{};

  int64_t cells() const { return n[0] * n[1] * n[2]; }  // of one sample
  static Result<BevGrid> make(const Bound& x, const Bound& y, const Bound& z);
};

struct FrustumAxes {
  std::vector<float> u;  // of feature columns, in input pixels
  std::vector<float> v;  // of feature rows
  std::vector<float> d;  // m

  int64_t points() const { return static_cast<int64_t>(u.size() * v.size() * d.size()); }
};

// torch.linspace(start, end, count) of float32 as torch's CPU kernels for AVX2 and AVX-512 compute
// it, to the bit and on any machine.
std::vector<float> linspace_float(float start, float end, int64_t count);

// u and v run from 0 to the last pixel over the actual size of the feature map (one column or row:
// 0), which for ragged inputs is not the input's size divided by the stride.
Result<FrustumAxes> frustum_axes(int64_t image_height, int64_t image_width, int64_t feature_height,
                                 int64_t feature_width, const Bound& depth);

// Q (row-major) and r of one camera.
struct CameraRays {
  std::array<float, 9> q{};
  std::array<float, 3> r{};
};

// From the 4x4 float32 matrices of a batch (row-major). The image augmentation may touch rows and
// columns 0, 1 and column 3 of them alone: depth must stay what it is. Matrices that cannot be
// inverted or are not finite are errors.
Result<CameraRays> fused_geometry(std::span<const float, 16> camera_to_lidar,
                                  std::span<const float, 16> intrinsics,
                                  std::span<const float, 16> image_augmentation,
                                  std::span<const float, 16> bev_augmentation);

// Points of one camera, [h][w][d][3].
void frustum_points(const CameraRays& rays, const FrustumAxes& axes, std::span<float> out);

// The cell of a point inside its sample, or -1. Infinite, NaN and huge coordinates are outside.
int64_t cell_of_point(const std::array<float, 3>& point, const BevGrid& grid,
                      VoxelRounding rounding);

// Matrices of a batch: B*N of each but the last, of which there are B.
struct CameraMatrices {
  int64_t batch = 0;
  int64_t cameras = 0;
  std::span<const float> camera_to_lidar;
  std::span<const float> intrinsics;
  std::span<const float> image_augmentation;
  std::span<const float> bev_augmentation;
};

// Of all cameras of a batch, sample by sample. A camera whose matrices are refused is named.
Result<std::vector<CameraRays>> batch_rays(const CameraMatrices& matrices);

// Cells of all points of a batch, [b][camera][h][w][d], -1 where a point is outside.
Status frustum_cells(const CameraMatrices& matrices, const FrustumAxes& axes, const BevGrid& grid,
                     VoxelRounding rounding, std::span<int32_t> out);

}  // namespace aerie::bev
