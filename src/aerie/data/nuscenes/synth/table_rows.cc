#include "aerie/data/nuscenes/synth/table_rows.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "aerie/base/strings.h"

namespace aerie::nuscenes::synth {

namespace {

enum Attribute { kMoving, kStopped, kParked, kWithRider, kWithoutRider, kStanding, kWalking };
constexpr std::array<std::string_view, 8> kAttributes = {
    "vehicle.moving",      "vehicle.stopped",
    "vehicle.parked",      "cycle.with_rider",
    "cycle.without_rider", "pedestrian.standing",
    "pedestrian.moving",   "pedestrian.sitting_lying_down"};

// The attribute of an actor, -1 for things.
int attribute_of(const Actor& actor, double speed) {
  const std::string_view category = kCategories[actor.category];
  if (starts_with(category, "human.")) return kStanding;
  if (category == "vehicle.bicycle" || category == "vehicle.motorcycle") return kWithoutRider;
  if (!starts_with(category, "vehicle.")) return -1;
  if (actor.moves) return speed > 0.2 ? kMoving : kStopped;
  return actor.parked ? kParked : kStopped;
}

std::array<double, 4> yaw_quaternion(double heading) {
  return {std::cos(0.5 * heading), 0.0, 0.0, std::sin(0.5 * heading)};
}

class SceneWriter final {
 public:
  SceneWriter(const SynthOptions& options, const Scene& scene, const TokenMaker& tokens)
      : options_(options), scene_(scene), tokens_(tokens) {}

  SceneRows write() {
    write_scene();
    write_sensors();
    write_samples();
    write_data();
    write_annotations();
    out_.num_sample_data = scene_.rows().size();
    return std::move(out_);
  }

 private:
  JsonRows table(SceneTable number) { return JsonRows(out_.text[number], tokens_); }
  uint64_t row(size_t local) const {
    return static_cast<uint64_t>(scene_.number()) << 32 | static_cast<uint64_t>(local);
  }
  uint64_t row(int local) const { return row(static_cast<size_t>(local)); }
  // prev and next: empty at the ends of a chain.
  void link(JsonRows& rows, const char* key, Table kind, bool there, size_t local) {
    if (there) {
      rows.token(key, kind, row(local));
    } else {
      rows.text(key, "");
    }
  }

  void write_scene() {
    const SceneQuota& quota = scene_.quota();
    table(kSceneRows)
        .begin()
        .token("token", Table::kScene, static_cast<uint64_t>(scene_.number()))
        .token("log_token", Table::kLog, static_cast<uint64_t>(quota.log))
        .integer("nbr_samples", quota.samples)
        .token("first_sample_token", Table::kSample, row(0))
        .token("last_sample_token", Table::kSample, row(quota.samples - 1))
        .text("name", quota.name)
        .text("description", "Invented town, drawn by a program")
        .end();
  }

  void write_sensors() {
    JsonRows rows = table(kCalibratedSensorRows);
    for (int i = 0; i < kNumSensors; ++i) {
      const MountedSensor& sensor = scene_.rig()[i];
      const Vec3& t = sensor.translation;
      const Quaternion& q = sensor.rotation;
      rows.begin()
          .token("token", Table::kCalibratedSensor, row(i))
          .token("sensor_token", Table::kSensor, static_cast<uint64_t>(i))
          .numbers("translation", std::array{t.x, t.y, t.z})
          .numbers("rotation", std::array{q.w, q.x, q.y, q.z});
      std::string intrinsic = "[]";
      if (is_camera(i)) {
        intrinsic = "[";
        for (int r = 0; r < 3; ++r) {
          if (r > 0) intrinsic += ",\n";
          const Mat3& k = sensor.intrinsic;
          JsonRows::append_numbers(intrinsic, std::array{k(r, 0), k(r, 1), k(r, 2)});
        }
        intrinsic += "]";
      }
      rows.raw("camera_intrinsic", intrinsic).end();
    }
  }

  void write_samples() {
    JsonRows rows = table(kSampleRows);
    const size_t count = static_cast<size_t>(scene_.quota().samples);
    for (size_t k = 0; k < count; ++k) {
      rows.begin()
          .token("token", Table::kSample, row(k))
          .integer("timestamp", scene_.sample_time(static_cast<int>(k)));
      link(rows, "prev", Table::kSample, k > 0, k - 1);
      link(rows, "next", Table::kSample, k + 1 < count, k + 1);
      rows.token("scene_token", Table::kScene, static_cast<uint64_t>(scene_.number())).end();
    }
  }

  void write_data() {
    JsonRows data = table(kSampleDataRows), poses = table(kEgoPoseRows);
    const std::vector<DataRow>& all = scene_.rows();
    for (size_t i = 0; i < all.size(); ++i) {
      const DataRow& one = all[i];
      data.begin()
          .token("token", Table::kSampleData, row(i))
          .token("sample_token", Table::kSample, row(one.sample))
          .token("ego_pose_token", Table::kEgoPose, row(i))
          .token("calibrated_sensor_token", Table::kCalibratedSensor, row(one.sensor))
          .integer("timestamp", one.timestamp_us)
          .text("fileformat", is_camera(one.sensor) ? "jpg" : "pcd")
          .boolean("is_key_frame", one.is_key_frame)
          .integer("height", is_camera(one.sensor) ? options_.image_height : 0)
          .integer("width", is_camera(one.sensor) ? options_.image_width : 0)
          .text("filename", scene_.file_name(one));
      link(data, "prev", Table::kSampleData, i > 0 && all[i - 1].sensor == one.sensor, i - 1);
      link(data, "next", Table::kSampleData, i + 1 < all.size() && all[i + 1].sensor == one.sensor,
           i + 1);
      data.end();
      const Pose2 ego = scene_.ego(one.timestamp_us);
      poses.begin()
          .token("token", Table::kEgoPose, row(i))
          .integer("timestamp", one.timestamp_us)
          .numbers("rotation", yaw_quaternion(ego.heading))
          .numbers("translation", std::array{ego.position.x, ego.position.y, 0.0})
          .end();
    }
  }

  void write_annotations() {
    JsonRows rows = table(kAnnotationRows), instances = table(kInstanceRows);
    size_t number = 0;
    for (size_t a = 0; a < scene_.actors().size(); ++a) {
      const std::vector<int>& seen = scene_.sightings(a);
      if (seen.empty()) continue;
      const Actor& actor = scene_.actors()[a];
      instances.begin()
          .token("token", Table::kInstance, row(a))
          .token("category_token", Table::kCategory, static_cast<uint64_t>(actor.category))
          .integer("nbr_annotations", static_cast<int64_t>(seen.size()))
          .token("first_annotation_token", Table::kSampleAnnotation, row(number))
          .token("last_annotation_token", Table::kSampleAnnotation, row(number + seen.size() - 1))
          .end();
      ++out_.num_instances;
      for (size_t i = 0; i < seen.size(); ++i, ++number)
        write_annotation(rows, a, seen[i], number, i > 0, i + 1 < seen.size());
    }
    out_.num_annotations = number;
  }

  void write_annotation(JsonRows& rows, size_t a, int sample, size_t number, bool has_prev,
                        bool has_next) {
    const Actor& actor = scene_.actors()[a];
    const int64_t time = scene_.sample_time(sample);
    const Pose2 place = scene_.place(a, time);
    const double distance = std::max(2.0, length(place.position - scene_.ego(time).position));
    const int attribute = attribute_of(actor, scene_.speed(time));
    std::string attributes = "[]";
    if (attribute >= 0)
      attributes =
          str_cat("[\"", tokens_(Table::kAttribute, static_cast<uint64_t>(attribute)), "\"]");
    // Fewer points with the square of the distance; far away none at all.
    const double lidar =
        2500.0 * actor.height * std::max(actor.width, actor.length) / (distance * distance);
    const double radar = actor.length > 1.0 ? 60.0 / distance : 0.0;
    rows.begin()
        .token("token", Table::kSampleAnnotation, row(number))
        .token("sample_token", Table::kSample, row(sample))
        .token("instance_token", Table::kInstance, row(a))
        .text("visibility_token", visibility(a, time, distance))
        .raw("attribute_tokens", attributes)
        .numbers("translation", std::array{place.position.x, place.position.y, 0.5 * actor.height})
        .numbers("size", std::array{actor.width, actor.length, actor.height})
        .numbers("rotation", yaw_quaternion(place.heading));
    link(rows, "prev", Table::kSampleAnnotation, has_prev, number - 1);
    link(rows, "next", Table::kSampleAnnotation, has_next, number + 1);
    rows.integer("num_lidar_pts", distance > 70.0 ? 0 : static_cast<int64_t>(lidar))
        .integer("num_radar_pts", static_cast<int64_t>(radar))
        .end();
  }

  // "1" (hardly) to "4": how much of the line of sight to five of its points other actors leave.
  std::string_view visibility(size_t a, int64_t time, double distance) const {
    const Point2 eye = scene_.ego(time).position;
    const Pose2 place = scene_.place(a, time);
    const Actor& actor = scene_.actors()[a];
    const Point2 along{std::cos(place.heading), std::sin(place.heading)};
    int free = 0;
    for (int i = -2; i <= 2; ++i) {
      const Point2 target = place.position + 0.2 * i * actor.length * along;
      bool hidden = false;
      for (size_t b = 0; b < scene_.actors().size() && !hidden; ++b) {
        const Actor& other = scene_.actors()[b];
        if (b == a || other.height < 0.8 * actor.height) continue;
        const Point2 to = target - eye, between = scene_.place(b, time).position - eye;
        const double t = dot(between, to) / dot(to, to);
        const double radius = 0.25 * (other.width + other.length);
        hidden = t > 0.0 && t * distance < distance - radius - 0.5 * actor.width &&
                 std::abs(cross(to, between)) < radius * length(to);
      }
      if (!hidden) ++free;
    }
    static constexpr std::string_view levels[] = {"1", "1", "2", "3", "3", "4"};
    return levels[free];
  }

  const SynthOptions& options_;
  const Scene& scene_;
  const TokenMaker& tokens_;
  SceneRows out_;
};

template <typename Write>
TableFile table_file(std::string name, const TokenMaker& tokens, const Write& write) {
  TableFile file{std::move(name), "[\n"};
  JsonRows rows(file.text, tokens);
  write(rows);
  file.text += "\n]\n";
  return file;
}

}  // namespace

SceneRows scene_rows(const SynthOptions& options, const Scene& scene, const TokenMaker& tokens) {
  return SceneWriter(options, scene, tokens).write();
}

std::string mask_file_name(const TokenMaker& tokens, int location) {
  return str_cat("maps/", tokens(Table::kMap, static_cast<uint64_t>(location) | 256), ".png");
}

std::vector<TableFile> common_tables(const DatasetPlan& plan, const TokenMaker& tokens) {
  std::vector<TableFile> out;
  out.push_back(table_file("category", tokens, [&](JsonRows& rows) {
    for (size_t i = 0; i < kCategories.size(); ++i)
      rows.begin()
          .token("token", Table::kCategory, i)
          .text("name", kCategories[i])
          .text("description", "as in nuScenes")
          .integer("index", static_cast<int64_t>(i) + 1)
          .end();
  }));
  out.push_back(table_file("attribute", tokens, [&](JsonRows& rows) {
    for (size_t i = 0; i < kAttributes.size(); ++i)
      rows.begin()
          .token("token", Table::kAttribute, i)
          .text("name", kAttributes[i])
          .text("description", "as in nuScenes")
          .end();
  }));
  out.push_back(table_file("visibility", tokens, [&](JsonRows& rows) {
    // The one table whose tokens are not 32 digits, in nuScenes as well.
    static constexpr std::string_view levels[] = {"v0-40", "v40-60", "v60-80", "v80-100"};
    for (int i = 0; i < 4; ++i)
      rows.begin()
          .text("description", "share of the object that is visible")
          .text("token", std::to_string(i + 1))
          .text("level", levels[i])
          .end();
  }));
  out.push_back(table_file("sensor", tokens, [&](JsonRows& rows) {
    for (int i = 0; i < kNumSensors; ++i)
      rows.begin()
          .token("token", Table::kSensor, static_cast<uint64_t>(i))
          .text("channel", kSensorNames[i])
          .text("modality", modality(i))
          .end();
  }));
  out.push_back(table_file("log", tokens, [&](JsonRows& rows) {
    for (size_t i = 0; i < plan.log_locations.size(); ++i) {
      const int location = plan.log_locations[i];
      const std::string name = log_name(static_cast<int>(i), location);
      rows.begin()
          .token("token", Table::kLog, i)
          .text("logfile", name)
          .text("vehicle", name.substr(0, 4))
          .text("date_captured", name.substr(5, 10))
          .text("location", kLocations[location])
          .end();
    }
  }));
  out.push_back(table_file("map", tokens, [&](JsonRows& rows) {
    for (int location = 0; location < kNumLocations; ++location) {
      std::string logs = "[";
      for (size_t i = 0; i < plan.log_locations.size(); ++i) {
        if (plan.log_locations[i] != location) continue;
        logs += str_cat(logs.size() == 1 ? "\"" : ",\n\"", tokens(Table::kLog, i), "\"");
      }
      rows.begin()
          .text("category", "semantic_prior")
          .token("token", Table::kMap, static_cast<uint64_t>(location))
          .text("filename", mask_file_name(tokens, location))
          .raw("log_tokens", logs + "]")
          .end();
    }
  }));
  return out;
}

}  // namespace aerie::nuscenes::synth
