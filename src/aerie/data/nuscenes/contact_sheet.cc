#include "aerie/data/nuscenes/contact_sheet.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/sample_reader.h"
#include "aerie/image/draw.h"

namespace aerie::nuscenes {
namespace {

constexpr int kGap = 4;
constexpr double kNear = 0.3;  // metres before a camera that are not drawn
constexpr double kFar = 80.0;  // around the car
constexpr image::Color kBackground{24, 24, 24}, kWhite{255, 255, 255}, kNobody{245, 245, 245},
    kInk{40, 40, 40}, kCar{230, 20, 20};

// As BEVFusion paints them.
image::Color colour_of(const std::string& name) {
  if (name == "drivable_area" || name == "drivable_area*") return {166, 206, 227};
  if (name == "ped_crossing") return {251, 154, 153};
  if (name == "walkway") return {227, 26, 28};
  if (name == "stop_line") return {253, 191, 111};
  if (name == "carpark_area") return {255, 127, 0};
  if (name == "divider") return {106, 61, 154};
  return {51, 160, 44};
}

struct Segment {
  Vec3 a, b;  // in the reference frame
  image::Color colour;
};

// Where a camera's picture goes: as the cameras stand around the car.
std::pair<int, int> place_of(int camera) {
  static constexpr std::pair<int, int> kPlaces[kNumCameras] = {{1, 0}, {2, 0}, {0, 0},
                                                               {1, 1}, {0, 1}, {2, 1}};
  return kPlaces[camera];
}

// Outlines of what the masks are drawn from.
std::vector<Segment> map_outlines(const MapExpansion& map, const GroundTruthOptions& gt,
                                  const Mat4& to_reference, const Vec3& centre) {
  std::vector<Segment> out;
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
                           colour_of(name)});
          }
        }
      }
    }
  return out;
}

std::vector<Segment> box_outlines(const NuscenesIndex& index, uint32_t sample,
                                  const GroundTruthOptions& gt, const Mat4& to_reference) {
  std::vector<Segment> out;
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
                     to_reference * (to_global * corners[(i + 1) % 4]), colour_of("vehicle")});
  }
  return out;
}

Mat4 matrix_of(const float* values) {
  Mat4 out;
  for (size_t i = 0; i < 16; ++i) out.m[i] = static_cast<double>(values[i]);
  return out;
}

// What was computed for the batch, and nothing else, decides where lines go.
Status draw_outlines(const image::MutableImageView& panel, const std::vector<Segment>& segments,
                     const Mat4& camera_to_reference, const Mat4& intrinsic, const Mat4& img_aug) {
  AERIE_ASSIGN_OR_RETURN(const Mat4 to_camera, inverse(camera_to_reference));
  for (const Segment& segment : segments) {
    Vec3 a = to_camera * segment.a, b = to_camera * segment.b;
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
    image::draw_line(panel, {p.x, p.y}, {q.x, q.y}, segment.colour, 2.0);
  }
  return ok_status();
}

image::MutableImageView part_of(const image::MutableImageView& canvas, int x, int y, int width,
                                int height) {
  return {canvas.row(y) + 3 * x, width, height, 3, canvas.stride};
}

struct Buffers {
  std::vector<uint8_t> img, gt;
  std::vector<float> camera2lidar, intrin, img_aug, bev_aug;
};

// Cells of the grid as a square picture, forward up.
class ViewFromAbove {
 public:
  ViewFromAbove(const image::MutableImageView& panel, const ReadRules& rules)
      : panel_(panel),
        rules_(rules),
        ego_(rules.reference == ReferenceFrame::kEgo),
        nx_(rules.gt.x.cells()),
        ny_(rules.gt.y.cells()) {}

  void draw(const std::vector<uint8_t>& gt, const std::vector<std::string>& names,
            const std::vector<Segment>& segments, const Mat4& bev_aug) {
    for (int row = 0; row < panel_.height; ++row)
      for (int column = 0; column < panel_.width; ++column) {
        const auto [x, y] = cell_at(column, row);
        image::Color colour = kNobody;
        for (size_t c = 0; c < names.size(); ++c)
          if (gt[(c * static_cast<size_t>(nx_) + static_cast<size_t>(x)) *
                     static_cast<size_t>(ny_) +
                 static_cast<size_t>(y)] != 0)
            colour = colour_of(names[c]);
        uint8_t* const pixel = panel_.row(row) + 3 * column;
        pixel[0] = colour.r;
        pixel[1] = colour.g;
        pixel[2] = colour.b;
      }
    for (const Segment& segment : segments) line(bev_aug * segment.a, bev_aug * segment.b, kInk);
    // The car: where its reference frame has its origin, and which way is forward.
    const Vec3 forward = ego_ ? Vec3{4.0, 0.0, 0.0} : Vec3{0.0, 4.0, 0.0};
    line(bev_aug * Vec3{}, bev_aug * forward, kCar, 3.0);
  }

 private:
  std::pair<int, int> cell_at(int column, int row) const {
    const double across = (column + 0.5) / panel_.width, down = (row + 0.5) / panel_.height;
    const double x = ego_ ? 1.0 - down : across;
    const double y = ego_ ? 1.0 - across : 1.0 - down;
    return {std::clamp(static_cast<int>(x * nx_), 0, nx_ - 1),
            std::clamp(static_cast<int>(y * ny_), 0, ny_ - 1)};
  }
  void line(const Vec3& a, const Vec3& b, const image::Color& colour,
            double thickness = 1.0) const {
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

  const image::MutableImageView panel_;
  const ReadRules& rules_;
  const bool ego_;
  const int nx_, ny_;
};

}  // namespace

Result<image::Image> contact_sheet(const NuscenesDataset& dataset, uint64_t entry, uint32_t epoch,
                                   uint64_t seed) {
  const ReadRules& rules = dataset.rules();
  const uint32_t sample = dataset.sample_of(entry);
  AERIE_ASSIGN_OR_RETURN(const auto reader, SampleReader::make(dataset));
  const auto count = static_cast<size_t>(rules.cameras_per_sample);
  Buffers buffers;
  buffers.img.resize(count * 3 * static_cast<size_t>(rules.height()) *
                     static_cast<size_t>(rules.width()));
  buffers.gt.resize(reader->gt().num_bytes());
  for (auto* matrices : {&buffers.camera2lidar, &buffers.intrin, &buffers.img_aug})
    matrices->resize(count * 16);
  buffers.bev_aug.resize(16);
  SampleFigures figures;
  const SampleRows rows{buffers.img.data(),     buffers.camera2lidar.data(), buffers.intrin.data(),
                        buffers.img_aug.data(), buffers.bev_aug.data(),      buffers.gt.data()};
  if (const Status status = reader->read(entry, epoch, seed, rows, figures); !status.ok())
    return status.with_context(dataset.name_of(sample));
  AERIE_ASSIGN_OR_RETURN(
      const SampleFrames frames,
      sample_frames(dataset.index(), sample, rules.reference, rules.motion_compensation));
  const Mat4 to_reference = rigid_inverse(frames.reference_to_global);
  const bool map = rules.gt.task == MaskTask::kMap;
  const std::vector<Segment> segments =
      map ? map_outlines(*dataset.map_of(sample), rules.gt, to_reference,
                         translation_of(frames.reference_to_global))
          : box_outlines(dataset.index(), sample, rules.gt, to_reference);

  const int width = rules.width(), height = rules.height();
  const int side = 2 * height + kGap;
  constexpr int kLegend = 24;
  image::Image canvas(3 * (width + kGap) + side, side + kLegend);
  const image::MutableImageView all = canvas.mutable_view();
  image::fill(all, kBackground);
  const bool drawn = rules.cameras_per_sample < static_cast<int>(rules.cameras.size());
  const std::vector<int> chosen = drawn ? draw_cameras(static_cast<int>(rules.cameras.size()),
                                                       rules.cameras_per_sample, seed, epoch, entry)
                                        : std::vector<int>();
  for (size_t n = 0; n < count; ++n) {
    const int camera = rules.cameras[drawn ? static_cast<size_t>(chosen[n]) : n];
    const auto [column, row] = place_of(camera);
    const int x = column * (width + kGap), y = row * (height + kGap);
    const image::ImageView picture{
        buffers.img.data() + n * 3 * static_cast<size_t>(height) * static_cast<size_t>(width),
        width, height, 3, ptrdiff_t{3} * width};
    image::paste(all, picture, x, y);
    const image::MutableImageView panel = part_of(all, x, y, width, height);
    AERIE_RETURN_IF_ERROR(draw_outlines(
        panel, segments, matrix_of(buffers.camera2lidar.data() + 16 * n),
        matrix_of(buffers.intrin.data() + 16 * n), matrix_of(buffers.img_aug.data() + 16 * n)));
    image::draw_text(panel, 6, 6, kCameras[static_cast<size_t>(camera)], kWhite, 2);
  }
  std::vector<std::string> names = rules.gt.classes;
  if (!map) names = {rules.gt.task == MaskTask::kCar ? "car" : "vehicle"};
  const image::MutableImageView above = part_of(all, 3 * (width + kGap), 0, side, side);
  ViewFromAbove(above, rules).draw(buffers.gt, names, segments, matrix_of(buffers.bev_aug.data()));
  int x = 6;
  const int y = side + 6;
  const auto say = [&](const std::string& text) {
    image::draw_text(all, x, y, text, kWhite, 2);
    x += image::text_width(text, 2) + 16;
  };
  say(dataset.name_of(sample));
  for (const std::string& name : names) {
    image::fill_rectangle(all, x, y, 14, 14, colour_of(name));
    x += 20;
    say(name);
  }
  return canvas;
}

}  // namespace aerie::nuscenes
