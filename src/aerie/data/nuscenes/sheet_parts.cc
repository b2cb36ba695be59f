#include "aerie/data/nuscenes/sheet_parts.h"

#include <algorithm>

#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/sample_reader.h"

namespace aerie::nuscenes {
namespace {

constexpr double kNear = 0.3;  // metres before a camera that are not drawn
constexpr double kFar = 80.0;  // around the car
constexpr image::Color kCar{230, 20, 20}, kCarEdge{0, 0, 0};

std::vector<Outline> map_outlines(const MapExpansion& map, const GroundTruthOptions& gt,
                                  const Mat4& to_reference, const Vec3& centre) {
  std::vector<Outline> out;
  const MapBounds area{centre.x - kFar, centre.y - kFar, centre.x + kFar, centre.y + kFar};
  std::vector<uint32_t> shapes;
  for (const std::string& name : gt.classes)
    for (const MapLayer layer : map_layers_of(name)) {
      map.shapes_in(layer, area, shapes);
      for (const uint32_t number : shapes) {
        const MapExpansion::Shape& shape = map.shape(layer, number);
        for (uint32_t r = 0; r < shape.num_rings; ++r) {
          const auto ring = map.ring(shape, r);
          const size_t edges =
              is_line_layer(layer) && !ring.empty() ? ring.size() - 1 : ring.size();
          for (size_t i = 0; i < edges; ++i) {
            const raster::Point& p = ring[i];
            const raster::Point& q = ring[(i + 1) % ring.size()];
            out.push_back({to_reference * Vec3{p.x, p.y, 0.0}, to_reference * Vec3{q.x, q.y, 0.0},
                           class_colour(name)});
          }
        }
      }
    }
  return out;
}

std::vector<Outline> box_outlines(const NuscenesIndex& index, uint32_t sample,
                                  const GroundTruthOptions& gt, const Mat4& to_reference) {
  std::vector<Outline> out;
  for (const Box& box : index.boxes(sample)) {
    const bool wanted = gt.task == MaskTask::kCar ? box.category == "vehicle.car"
                                                  : starts_with(box.category, "vehicle");
    const auto rotation = rotation_from(box.rotation);
    if (!wanted || !rotation.ok()) continue;
    const Mat4 to_global = rigid(*rotation, box.centre);
    const double l = box.size.y / 2, w = box.size.x / 2, h = box.size.z / 2;
    const Vec3 corners[4] = {{l, w, -h}, {l, -w, -h}, {-l, -w, -h}, {-l, w, -h}};
    for (int i = 0; i < 4; ++i)
      out.push_back({to_reference * (to_global * corners[i]),
                     to_reference * (to_global * corners[(i + 1) % 4]), class_colour("vehicle")});
  }
  return out;
}

}  // namespace

image::Color class_colour(const std::string& name) {
  if (name == "drivable_area" || name == "drivable_area*") return {166, 206, 227};
  if (name == "ped_crossing") return {251, 154, 153};
  if (name == "walkway") return {227, 26, 28};
  if (name == "stop_line") return {253, 191, 111};
  if (name == "carpark_area") return {255, 127, 0};
  if (name == "divider") return {106, 61, 154};
  if (name == "road_segment") return {31, 120, 180};
  if (name == "road_block") return {177, 89, 40};
  if (name == "lane") return {178, 223, 138};
  if (name == "road_divider") return {202, 178, 214};
  if (name == "lane_divider") return {255, 255, 153};
  return {51, 160, 44};
}

std::vector<std::string> mask_names(const ReadRules& rules) {
  switch (rules.gt.task) {
    case MaskTask::kCar:
      return {"car"};
    case MaskTask::kVehicle:
      return {"vehicle"};
    case MaskTask::kMap:
      break;
  }
  return rules.gt.classes;
}

std::pair<int, int> camera_place(int camera) {
  static constexpr std::pair<int, int> kPlaces[kNumCameras] = {{1, 0}, {2, 0}, {0, 0},
                                                               {1, 1}, {0, 1}, {2, 1}};
  return kPlaces[camera];
}

std::vector<int> cameras_of(const ReadRules& rules, uint64_t seed, uint32_t epoch, uint64_t entry) {
  if (rules.cameras_per_sample >= static_cast<int>(rules.cameras.size())) return rules.cameras;
  std::vector<int> out = draw_cameras(static_cast<int>(rules.cameras.size()),
                                      rules.cameras_per_sample, seed, epoch, entry);
  for (int& camera : out) camera = rules.cameras[static_cast<size_t>(camera)];
  return out;
}

Result<std::vector<Outline>> outlines_of(const NuscenesDataset& dataset, uint32_t sample) {
  const ReadRules& rules = dataset.rules();
  AERIE_ASSIGN_OR_RETURN(
      const SampleFrames frames,
      sample_frames(dataset.index(), sample, rules.reference, rules.motion_compensation));
  const Mat4 to_reference = rigid_inverse(frames.reference_to_global);
  return rules.gt.task == MaskTask::kMap
             ? map_outlines(*dataset.map_of(sample), rules.gt, to_reference,
                            translation_of(frames.reference_to_global))
             : box_outlines(dataset.index(), sample, rules.gt, to_reference);
}

Mat4 matrix_of(const float* values) {
  Mat4 out;
  for (size_t i = 0; i < 16; ++i) out.m[i] = static_cast<double>(values[i]);
  return out;
}

Status draw_outlines(const image::MutableImageView& panel, const std::vector<Outline>& outlines,
                     const Mat4& camera_to_reference, const Mat4& intrinsic, const Mat4& img_aug) {
  AERIE_ASSIGN_OR_RETURN(const Mat4 to_camera, inverse(camera_to_reference));
  for (const Outline& outline : outlines) {
    Vec3 a = to_camera * outline.a, b = to_camera * outline.b;
    if (a.z < kNear && b.z < kNear) continue;
    if (a.z < kNear) std::swap(a, b);
    if (b.z < kNear) {
      const double t = (a.z - kNear) / (a.z - b.z);
      b = a + t * (b - a);
    }
    const auto pixel = [&](const Vec3& p) {
      const Vec3 q = intrinsic * p;
      return img_aug * Vec3{q.x / p.z, q.y / p.z, 1.0};
    };
    const Vec3 p = pixel(a), q = pixel(b);
    image::draw_line(panel, {p.x, p.y}, {q.x, q.y}, outline.colour, 2.0);
  }
  return ok_status();
}

image::MutableImageView part_of(const image::MutableImageView& canvas, int x, int y, int width,
                                int height) {
  return {canvas.row(y) + 3 * x, width, height, 3, canvas.stride};
}

GroundPanel::GroundPanel(const image::MutableImageView& panel, const ReadRules& rules)
    : panel_(panel),
      rules_(rules),
      ego_(rules.reference == ReferenceFrame::kEgo),
      nx_(rules.gt.x.cells()),
      ny_(rules.gt.y.cells()) {}

void GroundPanel::paint(const std::function<image::Color(size_t cell)>& colour) const {
  for (int row = 0; row < panel_.height; ++row)
    for (int column = 0; column < panel_.width; ++column) {
      const image::Color ink = colour(cell_at(column, row));
      uint8_t* const pixel = panel_.row(row) + ptrdiff_t{3} * column;
      pixel[0] = ink.r;
      pixel[1] = ink.g;
      pixel[2] = ink.b;
    }
}

void GroundPanel::draw(const std::vector<Outline>& outlines, const Mat4& bev_aug,
                       image::Color ink) const {
  for (const Outline& outline : outlines) line(bev_aug * outline.a, bev_aug * outline.b, ink, 1.0);
}

void GroundPanel::draw_car(const Mat4& bev_aug) const {
  const Vec3 forward = ego_ ? Vec3{4.0, 0.0, 0.0} : Vec3{0.0, 4.0, 0.0};
  line(bev_aug * Vec3{}, bev_aug * forward, kCarEdge, 7.0);
  line(bev_aug * Vec3{}, bev_aug * forward, kCar, 3.0);
}

size_t GroundPanel::cell_at(int column, int row) const {
  const double across = (column + 0.5) / panel_.width, down = (row + 0.5) / panel_.height;
  const double x = ego_ ? 1.0 - down : across;
  const double y = ego_ ? 1.0 - across : 1.0 - down;
  const int at_x = std::clamp(static_cast<int>(x * nx_), 0, nx_ - 1);
  const int at_y = std::clamp(static_cast<int>(y * ny_), 0, ny_ - 1);
  return static_cast<size_t>(at_x) * static_cast<size_t>(ny_) + static_cast<size_t>(at_y);
}

void GroundPanel::line(const Vec3& a, const Vec3& b, const image::Color& colour,
                       double thickness) const {
  const auto point = [&](const Vec3& p) {
    const double x = (p.x - rules_.gt.x.lower) / (rules_.gt.x.upper - rules_.gt.x.lower);
    const double y = (p.y - rules_.gt.y.lower) / (rules_.gt.y.upper - rules_.gt.y.lower);
    return std::pair<double, double>{(ego_ ? 1.0 - y : x) * panel_.width,
                                     (ego_ ? 1.0 - x : 1.0 - y) * panel_.height};
  };
  const auto [u0, v0] = point(a);
  const auto [u1, v1] = point(b);
  image::draw_line(panel_, {u0, v0}, {u1, v1}, colour, thickness);
}

}  // namespace aerie::nuscenes
