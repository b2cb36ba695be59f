#include "aerie/data/nuscenes/synth/synth_nuscenes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "aerie/base/hash.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/data/nuscenes/synth/dataset_plan.h"
#include "aerie/data/nuscenes/synth/ground_map.h"
#include "aerie/data/nuscenes/synth/route.h"
#include "aerie/data/nuscenes/synth/scene.h"
#include "aerie/data/nuscenes/synth/table_rows.h"
#include "aerie/data/nuscenes/synth/town.h"
#include "aerie/image/jpeg.h"

namespace aerie::nuscenes {
namespace {

using Json = nlohmann::json;

SynthOptions small_options(const std::string& out) {
  SynthOptions options;
  options.out = out;
  options.scenes = 2;
  options.samples_per_scene = 3;
  options.image_width = 160;
  options.image_height = 90;
  options.quiet = true;
  return options;
}

// Every file below the folder with a hash of its bytes.
std::map<std::string, uint64_t> contents(const std::string& folder, const std::string& below = "") {
  std::map<std::string, uint64_t> out;
  for (const DirEntry& entry : Env::real().list_dir(join_path(folder, below)).value()) {
    const std::string name = join_path(below, entry.name);
    if (entry.is_dir) {
      out.merge(contents(folder, name));
    } else {
      out[name] = xxhash64(Env::real().read_file(join_path(folder, name)).value());
    }
  }
  return out;
}

class Tables final {
 public:
  Tables(const std::string& root, const std::string& version) {
    for (const char* name :
         {"category", "attribute", "visibility", "instance", "sensor", "calibrated_sensor",
          "ego_pose", "log", "scene", "sample", "sample_data", "sample_annotation", "map"}) {
      const std::string path = join_path(join_path(root, version), str_cat(name, ".json"));
      add(name, Env::real().read_file(path).value());
    }
  }
  Tables() = default;
  void add(const std::string& name, const std::string& text) {
    rows_[name] = Json::parse(text);
    for (const Json& row : rows_[name]) {
      const bool is_new = by_token_[name].emplace(row["token"].get<std::string>(), &row).second;
      EXPECT_TRUE(is_new) << name;
    }
  }
  const Json& rows(const std::string& table) const { return rows_.at(table); }
  const Json* find(const std::string& table, const std::string& token) const {
    const auto& tokens = by_token_.at(table);
    const auto found = tokens.find(token);
    return found == tokens.end() ? nullptr : found->second;
  }
  // Length of the chain from `first`; -1 when a prev does not lead back.
  int chain(const std::string& table, const std::string& first) const {
    int count = 0;
    std::string previous, token = first;
    while (!token.empty()) {
      const Json* row = find(table, token);
      if (row == nullptr || (*row)["prev"] != previous) return -1;
      previous = token;
      token = (*row)["next"].get<std::string>();
      ++count;
    }
    return count;
  }

 private:
  std::map<std::string, Json> rows_;
  std::map<std::string, std::map<std::string, const Json*>> by_token_;
};

void expect_sound(const Tables& tables) {
  const std::map<std::string, std::string> references = {
      {"scene_token", "scene"},
      {"log_token", "log"},
      {"sample_token", "sample"},
      {"ego_pose_token", "ego_pose"},
      {"calibrated_sensor_token", "calibrated_sensor"},
      {"sensor_token", "sensor"},
      {"instance_token", "instance"},
      {"visibility_token", "visibility"},
      {"category_token", "category"},
      {"first_sample_token", "sample"},
      {"last_sample_token", "sample"},
      {"first_annotation_token", "sample_annotation"},
      {"last_annotation_token", "sample_annotation"}};
  for (const char* name : {"instance", "calibrated_sensor", "scene", "sample", "sample_data",
                           "sample_annotation", "map"})
    for (const Json& row : tables.rows(name))
      for (const auto& [key, value] : row.items()) {
        const auto resolves = [&, kind = name](const std::string& table, const Json& token) {
          EXPECT_NE(tables.find(table, token.get<std::string>()), nullptr) << kind << " " << token;
        };
        if (const auto to = references.find(key); to != references.end())
          resolves(to->second, value);
        if (key == "log_tokens" || key == "attribute_tokens")
          for (const Json& token : value)
            resolves(key == "log_tokens" ? "log" : "attribute", token);
      }
  for (const Json& scene : tables.rows("scene"))
    EXPECT_EQ(tables.chain("sample", scene["first_sample_token"]), scene["nbr_samples"].get<int>());
  size_t chained = 0;
  for (const Json& instance : tables.rows("instance")) {
    const int length = tables.chain("sample_annotation", instance["first_annotation_token"]);
    EXPECT_EQ(length, instance["nbr_annotations"].get<int>());
    chained += static_cast<size_t>(length);
  }
  EXPECT_EQ(chained, tables.rows("sample_annotation").size());
}

TEST(SynthNuscenesTest, TablesAreSoundAndFilesAreThere) {
  TempDir dir;
  const SynthOptions options = small_options(dir.file("root"));
  const auto report = make_nuscenes(options);
  ASSERT_TRUE(report.ok()) << report.status().to_string();
  EXPECT_EQ(report->scenes, 2u);
  EXPECT_EQ(report->samples, 6u);
  EXPECT_EQ(report->pictures, 36u);
  const Tables tables(options.out, "v1.0-mini");
  expect_sound(tables);
  EXPECT_EQ(tables.rows("scene")[0]["name"], "scene-0061");  // mini_train
  EXPECT_EQ(tables.rows("scene")[1]["name"], "scene-0103");  // mini_val
  EXPECT_EQ(tables.rows("sensor").size(), 12u);
  EXPECT_EQ(tables.rows("map").size(), 4u);
  EXPECT_EQ(tables.rows("sample_data").size(), report->sample_data);
  size_t key_frames = 0;
  std::map<std::string, int64_t> lidar_times;  // by sample
  for (const Json& row : tables.rows("sample_data")) {
    key_frames += row["is_key_frame"].get<bool>();
    EXPECT_TRUE(Env::real().exists(join_path(options.out, row["filename"].get<std::string>())));
    if (row["is_key_frame"] && starts_with(row["filename"].get<std::string>(), "samples/LIDAR_TOP"))
      lidar_times[row["sample_token"]] = row["timestamp"];
  }
  EXPECT_EQ(key_frames, 6u * 12u);
  EXPECT_LT(key_frames, tables.rows("sample_data").size());  // there are sweeps too
  for (const Json& row : tables.rows("sample_data")) {
    if (!starts_with(row["filename"].get<std::string>(), "samples/CAM")) continue;
    const int64_t off =
        std::llabs(row["timestamp"].get<int64_t>() - lidar_times[row["sample_token"]]);
    EXPECT_GE(off, 25000);
    EXPECT_LE(off, 50000);
    EXPECT_EQ(row["width"], 160);
    const std::string bytes =
        Env::real().read_file(join_path(options.out, row["filename"].get<std::string>())).value();
    image::JpegReader reader;
    const auto info = reader.open({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    ASSERT_TRUE(info.ok());
    EXPECT_EQ(info->width, 160);
    EXPECT_EQ(info->height, 90);
  }
}

TEST(SynthNuscenesTest, FilesDependOnTheOptionsAlone) {
  TempDir dir;
  SynthOptions options = small_options(dir.file("one"));
  options.samples_per_scene = 1;
  options.num_workers = 1;
  ASSERT_TRUE(make_nuscenes(options).ok());
  const auto one = contents(options.out);
  options.out = dir.file("three");
  options.num_workers = 3;
  ASSERT_TRUE(make_nuscenes(options).ok());
  EXPECT_EQ(contents(options.out), one);
  // Nothing but the folder.
  EXPECT_EQ(Env::real().list_dir(dir.path())->size(), 2u);
  options.seed = 2;
  options.out = dir.file("other");
  ASSERT_TRUE(make_nuscenes(options).ok());
  const auto other = contents(options.out);
  EXPECT_NE(other, one);
  EXPECT_NE(other.at("maps/expansion/boston-seaport.json"),
            one.at("maps/expansion/boston-seaport.json"));
}

TEST(SynthNuscenesTest, ReplacesNothingItDidNotMake) {
  TempDir dir;
  SynthOptions options = small_options(dir.file("root"));
  options.pictures = false;
  options.scenes = options.samples_per_scene = 1;
  ASSERT_TRUE(make_nuscenes(options).ok());
  const auto again = make_nuscenes(options);
  ASSERT_TRUE(again.ok());
  EXPECT_TRUE(again->reused);
  options.seed = 9;
  EXPECT_EQ(make_nuscenes(options).status().code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(Env::real().write_file(join_path(options.out, "notes.txt"), "mine").ok());
  options.force = true;
  EXPECT_TRUE(make_nuscenes(options).ok());
  EXPECT_TRUE(Env::real().exists(join_path(options.out, "notes.txt")));
  // A folder of somebody else, also with --force.
  options.out = dir.file("theirs");
  ASSERT_TRUE(Env::real().create_dirs(options.out).ok());
  ASSERT_TRUE(Env::real().write_file(join_path(options.out, "synth.json"), "[1, 2]").ok());
  EXPECT_EQ(make_nuscenes(options).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Env::real().list_dir(options.out)->size(), 1u);
}

TEST(SynthNuscenesTest, WrongOptionsAreNamed) {
  const auto message = [](auto change) {
    SynthOptions options = small_options("unused");
    change(options);
    const auto made = make_nuscenes(options);
    EXPECT_EQ(made.status().code(), StatusCode::kInvalidArgument);
    return made.status().to_string();
  };
  EXPECT_NE(message([](SynthOptions& o) { o.scenes = 11; }).find("has 10"), std::string::npos);
  EXPECT_NE(message([](SynthOptions& o) { o.version = "v2"; }).find("v1.0-mini"),
            std::string::npos);
  EXPECT_NE(message([](SynthOptions& o) { o.image_width = 200; }).find("16:9"), std::string::npos);
  EXPECT_NE(message([](SynthOptions& o) { o.out = ""; }).find("--out"), std::string::npos);
  EXPECT_FALSE(Env::real().exists("unused"));
}

TEST(SynthNuscenesTest, TablesOnlyHasThePublishedCounts) {
  SynthOptions options;
  options.size = SynthSize::kTablesOnly;
  const auto plan = synth::plan_dataset(options);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->scenes.size(), 850u);
  EXPECT_EQ(plan->log_locations.size(), 68u);
  int64_t samples = 0, actors = 0, annotations = 0, data = plan->extra_sweeps;
  for (const synth::SceneQuota& scene : plan->scenes) {
    samples += scene.samples;
    actors += scene.actors;
    annotations += scene.annotations;
    for (const int sweeps : plan->sweeps) data += int64_t{scene.samples} * (sweeps + 1);
  }
  EXPECT_EQ(samples, 34149);
  EXPECT_EQ(actors, 64386);
  EXPECT_EQ(annotations, 1166187);
  EXPECT_EQ(data, 2631083);
  const synth::MapCounts& counts = synth::published_counts(1);
  const synth::Town town = synth::make_town({.seed = 3,
                                             .location = 1,
                                             .width = synth::published_canvas(1).x,
                                             .height = synth::published_canvas(1).y,
                                             .counts = counts});
  EXPECT_EQ(town.drivable_records, 426);
  EXPECT_EQ(town.segments.size(), 167u);
  EXPECT_EQ(town.walkways.size(), 498u);
  EXPECT_EQ(town.carparks.size(), 0u);
  EXPECT_EQ(town.lane_dividers.size(), 220u);
  // Islands stay clear of the curbs: a hole that touches its border is no valid polygon.
  int holes = 0;
  for (const synth::Area& area : town.drivable)
    for (const synth::Ring& hole : area.shape.holes)
      for (const synth::Point2& corner : hole) {
        ++holes;
        const synth::Ring& ring = area.shape.exterior;
        for (size_t i = 0; i < ring.size(); ++i)
          for (double t = 0.0; t < 1.0; t += 0.1)
            EXPECT_GT(synth::length(corner - mix(ring[i], ring[(i + 1) % ring.size()], t)), 0.2);
      }
  EXPECT_GT(holes, 30);
  for (const synth::StopLine& stop : town.stop_lines) {
    EXPECT_LT(stop.crossing, counts.crossings);
    EXPECT_LT(stop.light, counts.lights);
    EXPECT_LT(stop.block, counts.blocks);
  }
}

TEST(SynthNuscenesTest, RowsOfTablesOnlyAreSound) {
  SynthOptions options;
  options.size = SynthSize::kTablesOnly;
  options.scenes = 1;
  const auto plan = synth::plan_dataset(options);
  ASSERT_TRUE(plan.ok());
  const synth::TokenMaker tokens(options.seed);
  const synth::Scene scene(options, *plan, synth::make_town({.seed = 3, .location = 0}), 0);
  const synth::SceneRows rows = synth::scene_rows(options, scene, tokens);
  Tables tables;
  for (const synth::TableFile& file : synth::common_tables(*plan, tokens))
    tables.add(file.name, file.text);
  for (int table = 0; table < synth::kNumSceneTables; ++table)
    tables.add(std::string(synth::kSceneTableNames[table]), str_cat("[", rows.text[table], "]"));
  expect_sound(tables);
  EXPECT_EQ(tables.rows("sample").size(), 40u);
  EXPECT_EQ(tables.rows("sample_data").size(), static_cast<size_t>(40 * 77 + plan->extra_sweeps));
  EXPECT_EQ(tables.rows("instance").size(), static_cast<size_t>(plan->scenes[0].actors));
  EXPECT_EQ(tables.rows("sample_annotation").size(),
            static_cast<size_t>(plan->scenes[0].annotations));
}

TEST(SynthNuscenesTest, GroundMapIsTheTopmostPolygon) {
  const synth::Town town = synth::make_town({.seed = 5, .location = 2});
  const synth::GroundMap map(town);
  const auto inside = [](const synth::Ring& ring, double x, double y) {
    bool in = false;
    for (size_t i = 0, j = ring.size() - 1; i < ring.size(); j = i++)
      if ((ring[i].y > y) != (ring[j].y > y) &&
          x < (ring[j].x - ring[i].x) * (y - ring[i].y) / (ring[j].y - ring[i].y) + ring[i].x)
        in = !in;
    return in;
  };
  const auto covers = [&](const synth::Shape& shape, double x, double y) {
    bool in = inside(shape.exterior, x, y);
    for (const synth::Ring& hole : shape.holes) in = in && !inside(hole, x, y);
    return in;
  };
  std::set<synth::Ground> seen;
  size_t different = 0;
  for (int i = 0; i < 2500; ++i) {
    const double x = 60.0 + std::fmod(i * 0.7548776662, 1.0) * 280.0;
    const double y = 60.0 + std::fmod(i * 0.5698402910, 1.0) * 240.0;
    synth::Ground expected = synth::Ground::kTerrain;
    const auto offer = [&](const synth::Shape& shape, synth::Ground ground) {
      if (ground > expected && covers(shape, x, y)) expected = ground;
    };
    for (const auto& area : town.drivable) offer(area.shape, synth::Ground::kDrivable);
    for (const auto& area : town.walkways) offer(area.shape, synth::Ground::kWalkway);
    for (const auto& park : town.carparks) offer(park.area.shape, synth::Ground::kCarpark);
    for (const auto& crossing : town.crossings)
      offer(crossing.area.shape, synth::Ground::kCrossing);
    for (const auto& stop : town.stop_lines) offer(stop.area.shape, synth::Ground::kStopLine);
    for (const auto& paint : town.paint) offer({paint.ring, {}}, paint.ground);
    seen.insert(expected);
    // Points on a border may fall either way.
    if (map.at(x, y) != expected) ++different;
  }
  EXPECT_EQ(seen.size(), static_cast<size_t>(synth::kNumGrounds));
  EXPECT_LE(different, 2u);
  EXPECT_EQ(map.at(-1.0, 5.0), synth::Ground::kTerrain);
  EXPECT_EQ(map.at(1e300, std::nan("")), synth::Ground::kTerrain);
}

TEST(SynthNuscenesTest, DrivesWithinItsSpeedsAndStaysOnTheRoad) {
  const synth::Town town = synth::make_town({.seed = 7, .location = 0});
  const synth::GroundMap map(town);
  double slowest = 100.0, fastest = 0.0;
  int on_road = 0, points = 0;
  for (uint64_t scene = 0; scene < 6; ++scene) {
    const synth::Route route(town.net, 7, scene, 400.0);
    const synth::Motion motion(route, 7, scene, -1.0, 20.0, 70.0);
    for (double t = 0.0; t < 19.0; t += 0.5) {
      slowest = std::min(slowest, motion.speed(t));
      fastest = std::max(fastest, motion.speed(t));
      const synth::Point2 at = route.at(motion.metres(t)).position;
      const synth::Ground ground = map.at(at.x, at.y);
      on_road += ground != synth::Ground::kTerrain && ground != synth::Ground::kWalkway;
      ++points;
    }
  }
  EXPECT_GE(slowest, 0.0);
  EXPECT_LT(slowest, 1.0);
  EXPECT_GT(fastest, 8.0);
  EXPECT_LE(fastest, 12.0);
  EXPECT_GT(on_road, points * 19 / 20);
}

}  // namespace
}  // namespace aerie::nuscenes
