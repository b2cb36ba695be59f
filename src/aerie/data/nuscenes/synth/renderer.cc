#include "aerie/data/nuscenes/synth/renderer.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "aerie/base/philox.h"
#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/synth/point_files.h"
#include "aerie/data/nuscenes/synth/streams.h"
#include "aerie/data/nuscenes/synth/texture.h"

namespace aerie::nuscenes::synth {

namespace {

constexpr double kFarthest = 220.0;  // metres; the ground beyond is haze
constexpr double kHazeLength = 130.0;
constexpr Colour kHaze{188.0f, 196.0f, 204.0f};
constexpr int kRays = 4;
constexpr std::array<std::array<double, 2>, kRays> kRayOffsets = {
    {{0.25, 0.25}, {0.75, 0.25}, {0.25, 0.75}, {0.75, 0.75}}};

// Directions are linear in the pixel: direction(u, v) = u * right + v * down + origin.
struct Directions {
  Vec3 right, down, origin;
  // Written out: it is asked for six million times a picture.
  Vec3 at(double u, double v) const {
    return {u * right.x + (v * down.x + origin.x), u * right.y + (v * down.y + origin.y),
            u * right.z + (v * down.z + origin.z)};
  }
  // Whether a whole pixel looks up.
  bool is_above_horizon(int u, int v) const {
    const double corner = u * right.z + (v * down.z + origin.z);
    return corner + std::min(0.0, right.z) + std::min(0.0, down.z) > 0.0;
  }
};

// A box in its own frame: |x| <= half length, |y| <= half width, 0 <= z <= height.
struct Box {
  Vec3 half;  // z: the whole height
  Vec3 eye;
  Directions directions;
  int u0, u1, v0, v1;  // pixels it may cover, the last one exclusive
  Colour colour;
  bool is_vehicle;
};

struct Hit {
  double depth = 1e30;
  const Box* box = nullptr;
  int axis = 0;
  Vec3 point;  // in the box's frame
};

Mat3 transposed(const Mat3& a) {
  return {{a.m[0], a.m[3], a.m[6], a.m[1], a.m[4], a.m[7], a.m[2], a.m[5], a.m[8]}};
}

// Where the ray enters the box; false when it misses or comes from inside.
bool enter(const Box& box, double u, double v, double nearer_than, Hit* hit) {
  const Vec3 d = box.directions.at(u, v);
  double enter = 0.0, leave = nearer_than;
  int axis = -1;
  for (int i = 0; i < 3; ++i) {
    const double low = i == 2 ? 0.0 : -box.half[i], high = box.half[i];
    const double inverse = 1.0 / d[i];  // infinite is fine
    double a = (low - box.eye[i]) * inverse, b = (high - box.eye[i]) * inverse;
    if (a > b) std::swap(a, b);
    if (a > enter) {
      enter = a;
      axis = i;
    }
    if (b < leave) leave = b;
  }
  if (axis < 0 || enter >= leave) return false;
  hit->depth = enter;
  hit->box = &box;
  hit->axis = axis;
  hit->point = box.eye + enter * d;
  return true;
}

Colour shade_box(const Hit& hit) {
  const Box& box = *hit.box;
  const float light = hit.axis == 2 ? 1.05f : hit.axis == 1 ? 0.80f : 0.62f;
  Colour colour = light * box.colour;
  if (!box.is_vehicle || hit.axis == 2) return colour;
  const double height = hit.point.z / box.half.z;
  const double along =
      std::abs(hit.axis == 0 ? hit.point.y / box.half.y : hit.point.x / box.half.x);
  if (height > 0.55 && height < 0.88 && along < 0.86) colour = light * Colour{44, 52, 60};
  if (height < 0.22 && along > 0.5 && along < 0.8 && hit.axis == 1) colour = {22, 22, 24};
  return colour;
}

class Painter final {
 public:
  Painter(const SynthOptions& options, const Scene& scene, const DataRow& row,
          const GroundMap& ground, image::Image& out)
      : scene_(scene),
        row_(row),
        ground_(ground),
        out_(out),
        texture_(options.seed, scene.quota().location) {
    const Mat4 pose = sensor_to_global(scene, row);
    const Mat3 back = rotation_of(pose) * inverse(scene.rig()[row.sensor].intrinsic).value();
    eye_ = translation_of(pose);
    directions_ = columns_of(back);
    focal_ = scene.rig()[row.sensor].intrinsic(0, 0);
    RandomStream random(
        options.seed, Purpose::kSynth, kPictureStream,
        static_cast<uint64_t>(row.timestamp_us) * kNumSensors + static_cast<uint64_t>(row.sensor));
    const double exposure = random.uniform(0.80, 1.20);
    for (float& gain : gain_) gain = static_cast<float>(exposure * random.uniform(0.96, 1.04));
    noise_seed_ = random.next_u32();
    collect_boxes(pose, back);
  }

  void paint() {
    for (int v = 0; v < out_.height(); ++v) {
      active_.clear();
      for (const Box& box : boxes_)
        if (v >= box.v0 && v < box.v1) active_.push_back(&box);
      uint8_t* pixels = out_.row(v);
      for (int u = 0; u < out_.width(); ++u) {
        const Colour colour = pixel(u, v);
        const float grain = texture_.grain(noise_seed_, u, v);
        const float values[3] = {colour.r, colour.g, colour.b};
        for (int c = 0; c < 3; ++c)
          *pixels++ =
              static_cast<uint8_t>(std::clamp(values[c] * gain_[c] + grain + 0.5f, 0.0f, 255.0f));
      }
    }
  }

 private:
  static Directions columns_of(const Mat3& m) {
    return {{m(0, 0), m(1, 0), m(2, 0)}, {m(0, 1), m(1, 1), m(2, 1)}, {m(0, 2), m(1, 2), m(2, 2)}};
  }

  void collect_boxes(const Mat4& pose, const Mat3& back) {
    const Mat4 to_camera = rigid_inverse(pose);
    const Mat3& lens = scene_.rig()[row_.sensor].intrinsic;
    for (size_t a = 0; a < scene_.actors().size(); ++a) {
      const Actor& actor = scene_.actors()[a];
      const Pose2 place = scene_.place(a, row_.timestamp_us);
      const Mat3 turn = rotation_z(place.heading);
      const Vec3 centre{place.position.x, place.position.y, 0.0};
      Box box;
      box.half = {0.5 * actor.length, 0.5 * actor.width, actor.height};
      // Pixels of the eight corners; a box that reaches behind the camera may cover anything.
      double u0 = 1e9, u1 = -1e9, v0 = 1e9, v1 = -1e9, depth = 0.0;
      bool behind = false;
      for (int corner = 0; corner < 8; ++corner) {
        const Vec3 local{corner & 1 ? box.half.x : -box.half.x,
                         corner & 2 ? box.half.y : -box.half.y, corner & 4 ? box.half.z : 0.0};
        const Vec3 p = to_camera * (centre + turn * local);
        depth = std::max(depth, p.z);
        if (p.z < 0.2) {
          behind = true;
          continue;
        }
        const double u = lens(0, 0) * p.x / p.z + lens(0, 2),
                     v = lens(1, 1) * p.y / p.z + lens(1, 2);
        u0 = std::min(u0, u);
        u1 = std::max(u1, u);
        v0 = std::min(v0, v);
        v1 = std::max(v1, v);
      }
      if (depth < 0.2 || depth > kFarthest) continue;
      const auto limit = [&](double value, int size) {
        return static_cast<int>(std::clamp(value, 0.0, static_cast<double>(size)));
      };
      box.u0 = behind ? 0 : limit(std::floor(u0), out_.width());
      box.u1 = behind ? out_.width() : limit(std::ceil(u1), out_.width());
      box.v0 = behind ? 0 : limit(std::floor(v0), out_.height());
      box.v1 = behind ? out_.height() : limit(std::ceil(v1), out_.height());
      if (box.u0 >= box.u1 || box.v0 >= box.v1) continue;
      const Mat3 to_box = transposed(turn);
      box.eye = to_box * (eye_ - centre);
      box.directions = columns_of(to_box * back);
      box.colour = {static_cast<float>(actor.colour >> 16),
                    static_cast<float>(actor.colour >> 8 & 255),
                    static_cast<float>(actor.colour & 255)};
      box.is_vehicle = starts_with(kCategories[actor.category], "vehicle.") && actor.length > 2.5;
      boxes_.push_back(box);
    }
  }

  Colour hazy(const Colour& colour, double depth) const {
    const float clear = static_cast<float>(std::exp(-depth / kHazeLength));
    return clear * colour + (1.0f - clear) * kHaze;
  }

  Colour sky(const Vec3& d) const {
    const double height = d.z / std::sqrt(d.x * d.x + d.y * d.y + d.z * d.z);
    const float up = static_cast<float>(std::clamp(height * 2.2, 0.0, 1.0));
    return (1.0f - up) * kHaze + up * Colour{104.0f, 142.0f, 196.0f};
  }

  Colour pixel(int u, int v) {
    const bool maybe_box = std::any_of(active_.begin(), active_.end(),
                                       [&](const Box* box) { return u >= box->u0 && u < box->u1; });
    if (!maybe_box && directions_.is_above_horizon(u, v))
      return sky(directions_.at(u + 0.5, v + 0.5));
    Colour sum{0, 0, 0};
    Ground last = Ground::kTerrain;
    Colour last_colour{0, 0, 0};
    bool has_last = false;
    for (const auto& offset : kRayOffsets) {
      const double x = u + offset[0], y = v + offset[1];
      const Vec3 d = directions_.at(x, y);
      const double depth = d.z < 0.0 ? -eye_.z / d.z : 1e30;
      Hit hit;
      hit.depth = depth;
      if (maybe_box)
        for (const Box* box : active_)
          if (u >= box->u0 && u < box->u1) enter(*box, x, y, hit.depth, &hit);
      if (hit.box != nullptr) {
        sum = sum + hazy(shade_box(hit), hit.depth);
        continue;
      }
      if (depth > kFarthest) {
        sum = sum + (d.z < 0.0 ? kHaze : sky(d));
        continue;
      }
      const double east = eye_.x + depth * d.x, north = eye_.y + depth * d.y;
      const Ground ground = ground_.at(east, north);
      // The texture changes little within a pixel: neighbours on the same ground share it.
      if (!has_last || ground != last) {
        last = ground;
        has_last = true;
        const double footprint = depth * depth / (focal_ * eye_.z);
        last_colour = hazy(texture_.at(ground, east, north, footprint), depth);
      }
      sum = sum + last_colour;
    }
    return (1.0f / kRays) * sum;
  }

  const Scene& scene_;
  const DataRow& row_;
  const GroundMap& ground_;
  image::Image& out_;
  const Texture texture_;
  Vec3 eye_;
  Directions directions_;
  double focal_ = 1.0;
  float gain_[3] = {1, 1, 1};
  uint32_t noise_seed_ = 0;
  std::vector<Box> boxes_;
  std::vector<const Box*> active_;
};

}  // namespace

void render_picture(const SynthOptions& options, const Scene& scene, const DataRow& row,
                    const GroundMap& ground, image::Image& out) {
  out.resize(options.image_width, options.image_height, 3);
  Painter(options, scene, row, ground, out).paint();
}

}  // namespace aerie::nuscenes::synth
