// Geometry and splat.
#include <cstdio>
#include <stdexcept>

#include "aerie/kernels/splat/splat.h"
#include "aerie/models/bev/view/frustum.h"
#include "parity.h"

namespace aerie::bev::parity {
namespace {

template <typename T>
std::vector<double> wide(const T& values) {
  return std::vector<double>(values.begin(), values.end());
}

void check_shape(const Fixture& fixture, const std::string& name,
                 const std::vector<int64_t>& expected) {
  if (fixture.shape(name) != expected) throw std::runtime_error("'" + name + "' has another shape");
}

void check_profile(const Fixture& fixture, const GeometryProfile& profile, Checks& checks) {
  const std::string at = profile.name + "/";
  const FrustumAxes axes = take(frustum_axes(profile.image[0], profile.image[1], profile.feature[0],
                                             profile.feature[1], profile.dbound));
  checks.near("geometry u", at + "u", wide(axes.u), fixture.numbers(at + "u"), 1e-4);
  checks.near("geometry v", at + "v", wide(axes.v), fixture.numbers(at + "v"), 1e-4);
  checks.near("geometry d", at + "d", wide(axes.d), fixture.numbers(at + "d"), 1e-4);

  const std::vector<int64_t> shape = fixture.shape(at + "camera2lidar");
  if (shape.size() != 4) throw std::runtime_error(at + "camera2lidar is not [B,N,4,4]");
  const int64_t batch = shape[0], cameras = shape[1];
  check_shape(fixture, at + "camera2lidar", {batch, cameras, 4, 4});
  check_shape(fixture, at + "intrin", {batch, cameras, 4, 4});
  check_shape(fixture, at + "img_aug", {batch, cameras, 4, 4});
  check_shape(fixture, at + "bev_aug", {batch, 4, 4});
  const std::vector<float> frames = fixture.floats(at + "camera2lidar");
  const std::vector<float> intrinsics = fixture.floats(at + "intrin");
  const std::vector<float> image = fixture.floats(at + "img_aug");
  const std::vector<float> bev = fixture.floats(at + "bev_aug");
  std::vector<double> q, r;
  std::vector<float> points(static_cast<size_t>(batch * cameras * axes.points() * 3));
  for (int64_t i = 0; i < batch * cameras; ++i) {
    const auto matrix = [](const std::vector<float>& all, int64_t index) {
      return std::span<const float>(all).subspan(static_cast<size_t>(index) * 16).first<16>();
    };
    const CameraRays rays = take(fused_geometry(matrix(frames, i), matrix(intrinsics, i),
                                                matrix(image, i), matrix(bev, i / cameras)));
    q.insert(q.end(), rays.q.begin(), rays.q.end());
    r.insert(r.end(), rays.r.begin(), rays.r.end());
    const auto count = static_cast<size_t>(axes.points() * 3);
    frustum_points(rays, axes, std::span(points).subspan(static_cast<size_t>(i) * count, count));
  }
  checks.near("geometry Q", at + "Q", q, fixture.numbers(at + "Q"), 1e-6);
  checks.near("geometry r", at + "r", r, fixture.numbers(at + "r"), 1e-5);

  // Sampled points are named (b, camera, d, h, w); ours lie (b, camera, h, w, d).
  const std::vector<int64_t> index = fixture.integers(at + "index_bndhw");
  const auto h = static_cast<int64_t>(axes.v.size()), w = static_cast<int64_t>(axes.u.size()),
             d = static_cast<int64_t>(axes.d.size());
  std::vector<int64_t> sampled;
  for (size_t i = 0; i + 5 <= index.size(); i += 5) {
    const int64_t* at_point = index.data() + i;
    const int64_t extents[5] = {batch, cameras, d, h, w};
    for (int axis = 0; axis < 5; ++axis)
      if (at_point[axis] < 0 || at_point[axis] >= extents[axis])
        throw std::runtime_error(at + "index_bndhw names a point outside");
    sampled.push_back(
        (((at_point[0] * cameras + at_point[1]) * h + at_point[3]) * w + at_point[4]) * d +
        at_point[2]);
  }
  std::vector<double> got;
  for (int64_t point : sampled)
    for (size_t axis = 0; axis < 3; ++axis)
      got.push_back(static_cast<double>(points[static_cast<size_t>(point) * 3 + axis]));
  checks.near("geometry points", at + "point", got, fixture.numbers(at + "point"), 1e-3);

  const BevGrid grid = take(BevGrid::make(profile.bounds[0], profile.bounds[1], profile.bounds[2]));
  checks.equal("geometry n", at + "n", grid.n, profile.n);
  std::vector<int32_t> cells(points.size() / 3);
  for (const bool trunc : {true, false}) {
    const std::string how = trunc ? "trunc" : "floor";
    const CameraMatrices matrices{batch, cameras, frames, intrinsics, image, bev};
    const Status made = frustum_cells(matrices, axes, grid,
                                      trunc ? VoxelRounding::kTrunc : VoxelRounding::kFloor, cells);
    if (!made.ok()) throw std::runtime_error(made.to_string());
    std::vector<int64_t> at_samples;
    for (int64_t point : sampled) at_samples.push_back(cells[static_cast<size_t>(point)]);
    checks.equal("geometry cells", at + "cell_" + how, at_samples,
                 fixture.integers(at + "cell_" + how));
    int64_t kept = 0;
    for (int32_t cell : cells) kept += cell >= 0;
    const double got_kept[1] = {static_cast<double>(kept)};
    const double want_kept[1] = {
        static_cast<double>(trunc ? profile.kept_trunc : profile.kept_floor)};
    checks.near("geometry kept", at + "kept_" + how, got_kept, want_kept,
                1e-5 * static_cast<double>(profile.points));
  }
}

// The edges of a grid; the metadata names it ("lo -50 -50 -10, size 0.5 0.5 20, n 200 200 1").
void check_rim(const Fixture& fixture, Checks& checks) {
  BevGrid grid = take(profile("seed")).grid();
  if (fixture.has_text("rim")) {
    const std::string& text = fixture.text("rim");
    const size_t begin = text.find("lo ");
    float low[3], size[3];
    long long n[3];
    if (begin == std::string::npos ||
        std::sscanf(text.c_str() + begin, "lo %f %f %f, size %f %f %f, n %lld %lld %lld", low,
                    low + 1, low + 2, size, size + 1, size + 2, n, n + 1, n + 2) != 9)
      throw std::runtime_error("metadata 'rim' does not name a grid");
    for (size_t axis = 0; axis < 3; ++axis) {
      grid.low[axis] = low[axis];
      grid.size[axis] = size[axis];
      grid.n[axis] = n[axis];
    }
  }
  const std::vector<float> points = fixture.floats("rim/point");
  for (const bool trunc : {true, false}) {
    const std::string name = trunc ? "rim/cell_trunc" : "rim/cell_floor";
    std::vector<int64_t> got;
    for (size_t i = 0; i + 3 <= points.size(); i += 3)
      got.push_back(cell_of_point({points[i], points[i + 1], points[i + 2]}, grid,
                                  trunc ? VoxelRounding::kTrunc : VoxelRounding::kFloor));
    checks.equal("geometry rim", name, got, fixture.integers(name));
  }
}

}  // namespace

void check_geometry(const Fixture& fixture, Checks& checks) {
  for (const GeometryProfile& profile : geometry_profiles(fixture))
    check_profile(fixture, profile, checks);
  if (fixture.has("rim/point")) check_rim(fixture, checks);
}

void check_splat(const Fixture& fixture, Checks& checks) {
  for (const std::string& name : fixture.cases()) {
    const std::string at = name + "/";
    const std::vector<int64_t> cell_shape = fixture.shape(at + "cell");
    const std::vector<int64_t> grid = fixture.integers(at + "grid");
    const std::vector<int64_t> context_shape = fixture.shape(at + "context");
    if (cell_shape.size() != 5 || grid.size() != 3 || context_shape.size() != 4)
      throw std::runtime_error(name + " is not a case of a splat");
    const int64_t depths = cell_shape[2];
    kernels::SplatShape shape;
    shape.batch = cell_shape[0];
    shape.images = cell_shape[0] * cell_shape[1];
    shape.pixels = cell_shape[3] * cell_shape[4];
    shape.depths = depths;
    shape.channels = context_shape[1];
    shape.nx = grid[0];
    shape.ny = grid[1];
    shape.nz = grid[2];
    check_shape(fixture, at + "context",
                {shape.images, shape.channels, cell_shape[3], cell_shape[4]});
    check_shape(fixture, at + "depth_logits", {shape.images, depths, cell_shape[3], cell_shape[4]});
    check_shape(fixture, at + "dout", {shape.batch, shape.nz * shape.channels, shape.nx, shape.ny});
    // [B,N,D,h,w] to [B,N,h,w,D]
    const std::vector<int64_t> given = fixture.integers(at + "cell");
    std::vector<int32_t> cell(given.size());
    for (int64_t i = 0; i < shape.images; ++i)
      for (int64_t d = 0; d < depths; ++d)
        for (int64_t p = 0; p < shape.pixels; ++p) {
          const int64_t value = given[static_cast<size_t>((i * depths + d) * shape.pixels + p)];
          if (value < -1 || value >= shape.cells())
            throw std::runtime_error(at + "cell names a cell outside the grid");
          cell[static_cast<size_t>((i * shape.pixels + p) * depths + d)] =
              static_cast<int32_t>(value);
        }
    const std::vector<float> logits = fixture.floats(at + "depth_logits");
    const std::vector<float> context = fixture.floats(at + "context");
    const std::vector<float> d_pooled = fixture.floats(at + "dout");
    kernels::SplatInputs<float> in;
    in.shape = shape;
    in.cell = cell.data();
    in.depth_logits = logits.data();
    in.logits_strides = {depths * shape.pixels, shape.pixels, 1};
    in.context = context.data();
    in.context_strides = {shape.channels * shape.pixels, shape.pixels, 1};
    std::vector<float> depth(logits.size()), pooled(d_pooled.size()), d_logits(logits.size()),
        d_context(context.size());
    kernels::reference::splat_forward(in, kernels::splat_index(shape, cell.data()), depth.data(),
                                      pooled.data());
    kernels::reference::splat_backward(in, depth.data(), d_pooled.data(), d_logits.data(),
                                       d_context.data());
    checks.near("splat pooled", at + "pooled", wide(pooled), fixture.numbers(at + "pooled"), 1e-5,
                1e-5);
    checks.near("splat d_depth_logits", at + "d_depth_logits", wide(d_logits),
                fixture.numbers(at + "d_depth_logits"), 1e-5);
    checks.near("splat d_context", at + "d_context", wide(d_context),
                fixture.numbers(at + "d_context"), 1e-5);
  }
}

}  // namespace aerie::bev::parity
