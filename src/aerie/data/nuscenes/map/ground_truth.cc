#include "aerie/data/nuscenes/map/ground_truth.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>
#include <utility>

#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/map/map_patch.h"
#include "aerie/raster/transposed.h"

namespace aerie::nuscenes {

namespace {

constexpr int kMaxCells = 4096;  // of an axis: 16 MiB a mask

struct NamedLayers {
  std::string_view name;
  std::array<MapLayer, 2> layers;
};
constexpr NamedLayers kCombined[] = {
    {"divider", {MapLayer::kRoadDivider, MapLayer::kLaneDivider}},
    {"drivable_area*", {MapLayer::kRoadSegment, MapLayer::kLane}},
};

Result<std::vector<MapLayer>> layers_of(const std::string& name) {
  for (const NamedLayers& combined : kCombined)
    if (combined.name == name)
      return std::vector<MapLayer>(combined.layers.begin(), combined.layers.end());
  if (const auto layer = map_layer_from(name)) return std::vector<MapLayer>{*layer};
  std::string known = "divider, drivable_area*";
  for (int i = 0; i < kNumMapLayers; ++i) known += str_cat(", ", name_of(static_cast<MapLayer>(i)));
  return invalid_argument(str_cat("there is no map class '", name, "'"))
      .with_hint(str_cat("classes are ", known));
}

Status check_axis(const char* name, const GridAxis& axis) {
  const bool finite =
      std::isfinite(axis.lower) && std::isfinite(axis.upper) && std::isfinite(axis.step);
  const double cells = finite && axis.step > 0.0 ? (axis.upper - axis.lower) / axis.step : 0.0;
  if (cells >= 0.5 && cells <= kMaxCells) return ok_status();
  return invalid_argument(str_cat("the grid's ", name, " axis runs from ", axis.lower, " to ",
                                  axis.upper, " in steps of ", axis.step))
      .with_hint(str_cat("1 to ", kMaxCells, " cells, the smaller end first"));
}

// As LSS rounds corners to cells; far away ones stay far away.
int rounded_cell(double value, const GridAxis& axis) {
  const double first_centre = axis.lower + axis.step / 2.0;
  const double cell = std::nearbyint((value - first_centre + axis.step / 2.0) / axis.step);
  constexpr double kFar = 1 << 24;
  return static_cast<int>(std::clamp(cell, -kFar, kFar));
}

bool wanted(MaskTask task, std::string_view category) {
  return task == MaskTask::kCar ? category == "vehicle.car" : category.starts_with("vehicle");
}

}  // namespace

int GridAxis::cells() const {
  return static_cast<int>(std::lround((upper - lower) / step));
}

std::vector<std::string> default_map_classes() {
  return {"drivable_area", "ped_crossing", "walkway", "stop_line", "carpark_area", "divider"};
}

struct GroundTruthMaker::Impl {
  GroundTruthOptions options;
  int nx = 0, ny = 0;
  std::vector<std::vector<MapLayer>> classes;
  std::vector<uint8_t> canvas;
  PatchDrawer drawer;
  raster::PolygonFiller filler;
  raster::CentreSampler sampler;
  raster::Rings corners;

  size_t plane() const { return static_cast<size_t>(nx) * static_cast<size_t>(ny); }
  // What the augmentation does to points, without mirrors and, where labels are not to be scaled,
  // without scale.
  Mat4 augmentation_matrix(const BevAugmentation& augmentation) const {
    BevAugmentation used = augmentation;
    if (!options.scale_patch) used.scale = 1.0;
    return used.matrix_before_flips();
  }
  Result<MapPatch> patch_of(const Mat4& lidar_to_global, const BevAugmentation& augmentation) const;
  void draw_box(const std::array<Vec3, 4>& bottom);
};

Result<MapPatch> GroundTruthMaker::Impl::patch_of(const Mat4& lidar_to_global,
                                                  const BevAugmentation& augmentation) const {
  const Result<Mat4> back = inverse(augmentation_matrix(augmentation));
  if (!back.ok() || !is_finite(*back))
    return invalid_argument(
        str_cat("a bird's-eye view of scale ", augmentation.scale, " cannot be undone"));
  const Mat4 to_global = lidar_to_global * *back;
  if (!is_finite(to_global)) return data_error("the pose of the sample is not finite");
  const double scale = options.scale_patch ? augmentation.scale : 1.0;
  const Vec3 centre = to_global * Vec3{(options.x.lower + options.x.upper) / 2.0,
                                       (options.y.lower + options.y.upper) / 2.0, 0.0};
  MapPatch patch;
  patch.centre = {centre.x, centre.y};
  patch.angle_deg = std::atan2(to_global(1, 0), to_global(0, 0)) / std::numbers::pi * 180.0;
  patch.width = (options.x.upper - options.x.lower) / scale;
  patch.height = (options.y.upper - options.y.lower) / scale;
  patch.columns = nx;
  patch.rows = ny;
  return patch;
}

GroundTruthMaker::GroundTruthMaker(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GroundTruthMaker::GroundTruthMaker(GroundTruthMaker&&) noexcept = default;
GroundTruthMaker& GroundTruthMaker::operator=(GroundTruthMaker&&) noexcept = default;
GroundTruthMaker::~GroundTruthMaker() = default;

Result<GroundTruthMaker> GroundTruthMaker::make(const GroundTruthOptions& options) {
  AERIE_RETURN_IF_ERROR(check_axis("x", options.x));
  AERIE_RETURN_IF_ERROR(check_axis("y", options.y));
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  impl->nx = options.x.cells();
  impl->ny = options.y.cells();
  if (options.task == MaskTask::kMap) {
    if (options.classes.empty())
      return invalid_argument("no map classes are named").with_hint("the default has six");
    for (size_t i = 0; i < options.classes.size(); ++i) {
      const std::string& name = options.classes[i];
      if (std::find(options.classes.begin(), options.classes.begin() + static_cast<ptrdiff_t>(i),
                    name) != options.classes.begin() + static_cast<ptrdiff_t>(i))
        return invalid_argument(str_cat("the map class '", name, "' is named twice"));
      AERIE_ASSIGN_OR_RETURN(auto layers, layers_of(name));
      impl->classes.push_back(std::move(layers));
    }
  }
  impl->canvas.resize(impl->plane());
  return GroundTruthMaker(std::move(impl));
}

const GroundTruthOptions& GroundTruthMaker::options() const {
  return impl_->options;
}
int GroundTruthMaker::num_masks() const {
  return impl_->options.task == MaskTask::kMap ? static_cast<int>(impl_->classes.size()) : 1;
}
int GroundTruthMaker::nx() const {
  return impl_->nx;
}
int GroundTruthMaker::ny() const {
  return impl_->ny;
}
size_t GroundTruthMaker::num_bytes() const {
  return static_cast<size_t>(num_masks()) * impl_->plane();
}

Status GroundTruthMaker::draw(const MapExpansion& map, const Mat4& lidar_to_global,
                              const BevAugmentation& augmentation, uint8_t* out) {
  Impl& self = *impl_;
  AERIE_CHECK(self.options.task == MaskTask::kMap, "draw() is for map classes");
  AERIE_ASSIGN_OR_RETURN(const MapPatch patch, self.patch_of(lidar_to_global, augmentation));
  // Drawn as the devkit has it, a row for every y; masks have x first.
  const raster::MaskView canvas{self.canvas.data(), self.nx, self.ny};
  std::memset(out, 0, num_bytes());
  for (size_t i = 0; i < self.classes.size(); ++i, out += self.plane()) {
    for (const MapLayer layer : self.classes[i]) {
      if (!map.has(layer))
        return data_error(str_cat(map.path(), ": layer '", name_of(layer), "' is missing"))
            .with_hint(str_cat("the class '", self.options.classes[i], "' needs it"));
      // Each on a canvas of its own: holes erase within their layer alone.
      if (self.drawer.draw(map, layer, patch, self.options.compat == GtCompat::kExact, canvas))
        raster::merge_transposed(canvas, out, augmentation.flip_x, augmentation.flip_y);
    }
  }
  return ok_status();
}

void GroundTruthMaker::Impl::draw_box(const std::array<Vec3, 4>& bottom) {
  // LSS draws with x downwards, so that the array has x first.
  const raster::MaskView mask{canvas.data(), ny, nx};
  if (options.compat == GtCompat::kDevkit) {
    std::array<raster::CellPoint, 4> cells;
    for (size_t i = 0; i < bottom.size(); ++i)
      cells[i] = {rounded_cell(bottom[i].y, options.y), rounded_cell(bottom[i].x, options.x)};
    filler.fill(mask, cells, 1);
    return;
  }
  corners.clear();
  for (const Vec3& p : bottom)
    corners.points.push_back(
        {(p.y - options.y.lower) / options.y.step, (p.x - options.x.lower) / options.x.step});
  corners.close(false);
  sampler.fill(mask, corners, 1);
}

Status GroundTruthMaker::draw_boxes(std::span<const GroundBox> boxes, const Mat4& lidar_to_global,
                                    const BevAugmentation& augmentation, uint8_t* out) {
  Impl& self = *impl_;
  AERIE_CHECK(self.options.task != MaskTask::kMap, "draw_boxes() is for vehicles");
  const Mat4 from_global = self.augmentation_matrix(augmentation) * rigid_inverse(lidar_to_global);
  if (!is_finite(from_global)) return data_error("the pose of the sample is not finite");
  std::fill(self.canvas.begin(), self.canvas.end(), uint8_t{0});
  for (size_t i = 0; i < boxes.size(); ++i) {
    const GroundBox& box = boxes[i];
    if (!wanted(self.options.task, box.category)) continue;
    const Result<Mat3> turn = rotation_from(box.rotation);
    if (!turn.ok()) return turn.status().with_context(str_cat("box ", i));
    const Mat4 to_view = from_global * rigid(*turn, box.centre);
    const double half_width = box.size.x / 2.0, half_length = box.size.y / 2.0,
                 below = -box.size.z / 2.0;
    if (!is_finite(to_view) || !std::isfinite(half_width) || !std::isfinite(half_length) ||
        !std::isfinite(below))
      return data_error(str_cat("box ", i, " has values that are not finite"));
    self.draw_box({to_view * Vec3{half_length, -half_width, below},
                   to_view * Vec3{half_length, half_width, below},
                   to_view * Vec3{-half_length, half_width, below},
                   to_view * Vec3{-half_length, -half_width, below}});
  }
  raster::copy_mirrored({self.canvas.data(), self.ny, self.nx}, out, augmentation.flip_y,
                        augmentation.flip_x);
  return ok_status();
}

}  // namespace aerie::nuscenes
