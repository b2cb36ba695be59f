// Borders of the map, projected into rendered pictures, land where the picture changes.
#include <algorithm>
#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/base/env.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/data/nuscenes/map/map_expansion.h"
#include "aerie/data/nuscenes/synth/synth_nuscenes.h"
#include "aerie/data/nuscenes/tables/frames.h"
#include "aerie/data/nuscenes/tables/nuscenes_index.h"
#include "aerie/geometry/matrix.h"
#include "aerie/image/jpeg.h"
#include "proof_world.h"

namespace aerie::proofs {
namespace {

using nuscenes::CameraFrame;
using nuscenes::MapExpansion;
using nuscenes::MapLayer;

constexpr int kReach = 8;  // pixels to either side of where the border should be

struct Pixel {
  double u, v, depth;
};

class View final {
 public:
  View(const nuscenes::NuscenesIndex& index, uint32_t sample, int camera)
      : frame_(index.camera(sample, camera)) {
    const std::string bytes = Env::real().read_file(index.path(frame_)).value();
    image::JpegReader reader;
    EXPECT_TRUE(reader.open({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}).ok());
    EXPECT_TRUE(reader.read_rows(0, frame_.height, 1, picture_).ok());
    to_camera_ = rigid_inverse(nuscenes::matrix_of(frame_.ego).value() *
                               nuscenes::matrix_of(frame_.sensor).value());
    // Nothing is said about what boxes may hide: their corners, with a margin.
    for (const nuscenes::Box& box : index.boxes(sample)) hide(box);
  }

  Pixel project(double x, double y, const Mat3& lens) const {
    const Vec3 p = lens * (to_camera_ * Vec3{x, y, 0.0});
    return {p.x / p.z, p.y / p.z, p.z};
  }
  const Mat3& lens() const { return frame_.intrinsic; }

  bool is_open(const Pixel& p) const {
    constexpr double margin = kReach + 6;
    if (p.depth < 2.0 || p.u < margin || p.u > frame_.width - margin || p.v < margin ||
        p.v > frame_.height - margin)
      return false;
    return std::none_of(hidden_.begin(), hidden_.end(), [&](const auto& area) {
      return p.u > area[0] && p.u < area[1] && p.v > area[2] && p.v < area[3];
    });
  }

  // Brightness beside a border through `p` along (du, dv), averaged over nine pixels along it.
  std::vector<double> profile(const Pixel& p, double du, double dv) const {
    std::vector<double> out;
    for (int across = -kReach; across <= kReach; ++across) {
      double sum = 0.0;
      for (int along = -4; along <= 4; ++along)
        sum += bright(p.u + along * du - across * dv, p.v + along * dv + across * du);
      out.push_back(sum / 9.0);
    }
    return out;
  }

 private:
  void hide(const nuscenes::Box& box) {
    const Mat3 turn = rotation_from(box.rotation).value();
    std::array<double, 4> area{1e9, -1e9, 1e9, -1e9};
    bool in_front = false;
    for (int corner = 0; corner < 8; ++corner) {
      const Vec3 local{(corner & 1 ? 0.5 : -0.5) * box.size.y,
                       (corner & 2 ? 0.5 : -0.5) * box.size.x,
                       (corner & 4 ? 0.5 : -0.5) * box.size.z};
      Vec3 p = to_camera_ * (box.centre + turn * local);
      in_front = in_front || p.z > 0.1;
      p = frame_.intrinsic * Vec3{p.x, p.y, std::max(p.z, 0.1)};
      area = {std::min(area[0], p.x / p.z), std::max(area[1], p.x / p.z),
              std::min(area[2], p.y / p.z), std::max(area[3], p.y / p.z)};
    }
    // Boxes move a little between the lidar's time and the camera's.
    if (in_front) hidden_.push_back({area[0] - 60, area[1] + 60, area[2] - 40, area[3] + 40});
  }

  // Pixel i covers [i, i + 1): its value belongs to i + 0.5.
  double bright(double u, double v) const {
    const double x = u - 0.5, y = v - 0.5;
    const int i = static_cast<int>(std::floor(x)), j = static_cast<int>(std::floor(y));
    const auto grey = [&](int column, int row) {
      const uint8_t* p = picture_.row(row) + 3 * column;
      return 0.3 * p[0] + 0.6 * p[1] + 0.1 * p[2];
    };
    const double s = x - i, t = y - j;
    return (1 - t) * ((1 - s) * grey(i, j) + s * grey(i + 1, j)) +
           t * ((1 - s) * grey(i, j + 1) + s * grey(i + 1, j + 1));
  }

  CameraFrame frame_;
  image::Image picture_;
  Mat4 to_camera_;
  std::vector<std::array<double, 4>> hidden_;
};

struct Offsets {
  double sum = 0.0;
  int count = 0;
  double mean() const { return sum / std::max(1, count); }
};

// How far from the projected side a-b of a polygon the picture changes most, near both corners and
// between them.
void measure(const View& view, const Mat3& lens, const raster::Point& a, const raster::Point& b,
             Offsets& offsets) {
  const double length = std::hypot(b.x - a.x, b.y - a.y);
  const auto on_side = [&](double metres) {
    return view.project(a.x + (b.x - a.x) * metres / length, a.y + (b.y - a.y) * metres / length,
                        lens);
  };
  for (double at = 0.2; at < length - 0.2; at += 0.3) {
    const Pixel p = on_side(at), before = on_side(at - 0.1), after = on_side(at + 0.1);
    if (!view.is_open(p) || before.depth < 1.0 || p.depth > 12.0) continue;
    const double du = after.u - before.u, dv = after.v - before.v, pixels = std::hypot(du, dv);
    if (pixels < 6.0) continue;
    const std::vector<double> profile = view.profile(p, du / pixels, dv / pixels);
    const auto [low, high] = std::minmax_element(profile.begin(), profile.end());
    if (*high - *low < 40.0) continue;  // between two stripes, or under a divider
    double most = 0.0;
    int where = 0;
    for (int i = 1; i + 1 < static_cast<int>(profile.size()); ++i) {
      const double change = std::abs(profile[i + 1] - profile[i - 1]);
      if (change > most) {
        most = change;
        where = i - kReach;
      }
    }
    offsets.sum += std::abs(where);
    ++offsets.count;
  }
}

TEST(PictureProofsTest, BordersOfTheMapLieOnRenderedEdges) {
  TempDir dir;
  nuscenes::SynthOptions options;
  options.out = dir.file("root");
  options.scenes = 2;
  options.samples_per_scene = 1;
  options.seed = 11;
  options.quiet = true;
  ASSERT_TRUE(nuscenes::make_nuscenes(options).ok());
  const auto index =
      nuscenes::NuscenesIndex::open(
          Env::real(),
          {.root = options.out, .version = "", .cache_dir = "", .use_cache = false, .quiet = true})
          .value();
  Offsets right, wrong_lens;
  for (uint32_t sample = 0; sample < index->num_samples(); ++sample) {
    const auto map =
        MapExpansion::load(Env::real(),
                           join_path(options.out, str_cat("maps/expansion/",
                                                          index->scene(sample).location, ".json")))
            .value();
    const Vec3 ego = index->lidar_ego(sample).translation;
    const nuscenes::MapBounds around{ego.x - 30, ego.y - 30, ego.x + 30, ego.y + 30};
    std::vector<uint32_t> near;
    for (int camera = 0; camera < nuscenes::kNumCameras; ++camera) {
      const View view(*index, sample, camera);
      Mat3 shifted = view.lens();
      shifted(0, 2) += 5.0;
      shifted(1, 2) += 5.0;
      // White on grey: what no other layer covers.
      for (const MapLayer layer : {MapLayer::kStopLine, MapLayer::kPedCrossing}) {
        map->shapes_in(layer, around, near);
        for (const uint32_t number : near) {
          const auto ring = map->ring(map->shape(layer, number), 0);
          for (size_t i = 0; i < ring.size(); ++i) {
            measure(view, view.lens(), ring[i], ring[(i + 1) % ring.size()], right);
            measure(view, shifted, ring[i], ring[(i + 1) % ring.size()], wrong_lens);
          }
        }
      }
    }
  }
  EXPECT_GT(right.count, 20);
  EXPECT_LT(right.mean(), 1.5) << right.count;
  EXPECT_GT(wrong_lens.mean(), 3.0);  // five pixels off must show
  RecordProperty("mean_px", std::to_string(right.mean()));
}

}  // namespace
}  // namespace aerie::proofs
