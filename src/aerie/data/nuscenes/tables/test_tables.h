// Small nuScenes tables for tests, as text that a test can change before it is written: valid in
// all 13 tables, with six cameras, LIDAR_TOP and a radar, frames between key frames, boxes.
#pragma once

#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "aerie/base/env.h"
#include "aerie/base/path.h"
#include "aerie/base/strings.h"
#include "aerie/data/nuscenes/tables/nuscenes_index.h"
#include "aerie/data/nuscenes/tables/table_reader.h"

namespace aerie::nuscenes {

// Keys and values, values as JSON text.
struct TestRow {
  std::vector<std::pair<std::string, std::string>> fields;

  std::string& operator[](std::string_view key) {
    for (auto& [name, value] : fields) {
      if (name == key) return value;
    }
    return fields.emplace_back(std::string(key), "null").second;
  }
  void remove(std::string_view key) {
    std::erase_if(fields, [&](const auto& field) { return field.first == key; });
  }
};

struct TestTables {
  std::map<std::string, std::vector<TestRow>, std::less<>> tables;

  // 32 digits that say what they are the token of: kind, then number.
  static std::string token(int kind, int number) {
    char text[33];
    std::snprintf(text, sizeof(text), "%08x%024x", static_cast<unsigned>(kind),
                  static_cast<unsigned>(number));
    return text;
  }
  static std::string quoted(std::string_view text) { return str_cat("\"", text, "\""); }
  enum Kind {
    kLog = 1,
    kScene,
    kSample,
    kData,
    kSensor,
    kCalibration,
    kBox,
    kInstance,
    kCategory,
    kAttribute,
    kMap
  };
  static std::string ref(int kind, int number) { return quoted(token(kind, number)); }

  // Sample s of scene k (of `scene_names`) has the number k * samples_per_scene + s.
  static TestTables make(const std::vector<std::string>& scene_names, int samples_per_scene) {
    static constexpr std::string_view kChannels[] = {
        "CAM_FRONT",     "CAM_FRONT_RIGHT", "CAM_FRONT_LEFT", "CAM_BACK",
        "CAM_BACK_LEFT", "CAM_BACK_RIGHT",  "LIDAR_TOP",      "RADAR_FRONT"};
    static constexpr std::string_view kCategories[] = {"vehicle.car", "human.pedestrian.adult",
                                                       "vehicle.bicycle", "animal"};
    TestTables out;
    for (const std::string_view name : kTableNames) out.tables[std::string(name)];
    const int num_scenes = static_cast<int>(scene_names.size());
    for (int i = 0; i < 2; ++i)
      out.add("log", {{"token", ref(kLog, i)},
                      {"logfile", quoted("n015")},
                      {"location", quoted(i == 0 ? "singapore-onenorth" : "boston-seaport")}});
    out.add("map", {{"category", quoted("semantic_prior")},
                    {"token", ref(kMap, 0)},
                    {"filename", quoted("maps/a.png")},
                    {"log_tokens", str_cat("[", ref(kLog, 0), ", ", ref(kLog, 1), "]")}});
    for (int i = 0; i < 4; ++i) {
      static constexpr std::string_view kLevels[] = {"v0-40", "v40-60", "v60-80", "v80-100"};
      out.add("visibility", {{"token", quoted(std::to_string(i + 1))},
                             {"level", quoted(kLevels[i])},
                             {"description", quoted("")}});
      out.add("category", {{"token", ref(kCategory, i)},
                           {"name", quoted(kCategories[i])},
                           {"description", quoted("a \\\"thing\\\" {[")}});
      out.add("instance", {{"token", ref(kInstance, i)}, {"category_token", ref(kCategory, i)}});
    }
    out.add("attribute", {{"token", ref(kAttribute, 0)}, {"name", quoted("vehicle.moving")}});
    for (int c = 0; c < 8; ++c) {
      out.add("sensor", {{"token", ref(kSensor, c)},
                         {"channel", quoted(kChannels[c])},
                         {"modality", quoted(c < 6    ? "camera"
                                             : c == 6 ? "lidar"
                                                      : "radar")}});
      out.add("calibrated_sensor",
              {{"token", ref(kCalibration, c)},
               {"sensor_token", ref(kSensor, c)},
               {"translation", str_cat("[", 1.5 + c, ", ", 0.25 * c, ", 1.5]")},
               {"rotation", str_cat("[", 1.0 - 0.1 * c, ", ", 0.05 * c, ", -0.5, 0.5]")},
               {"camera_intrinsic",
                c < 6 ? str_cat("[[", 1260 + c, ".5, 0.0, 800.0], [0.0, 1260.0, 450.0], [0, 0, 1]]")
                      : std::string("[]")}});
    }
    for (int k = 0; k < num_scenes; ++k) {
      const int first = k * samples_per_scene, last = first + samples_per_scene - 1;
      out.add("scene", {{"token", ref(kScene, num_scenes - k)},
                        {"log_token", ref(kLog, k % 2)},
                        {"nbr_samples", std::to_string(samples_per_scene)},
                        {"first_sample_token", ref(kSample, first)},
                        {"last_sample_token", ref(kSample, last)},
                        {"name", quoted(scene_names[k])},
                        {"description", quoted("rain, } and ]")}});
      for (int s = first; s <= last; ++s) out.add_sample(s, num_scenes - k, s > first, s < last);
    }
    return out;
  }

  // Files of the six cameras, each holding its own name.
  Status write_pictures(Env& env, const std::string& root) {
    for (TestRow& row : tables["sample_data"]) {
      const std::string name = row["filename"].substr(1, row["filename"].size() - 2);
      if (!starts_with(name, "samples/CAM")) continue;
      AERIE_RETURN_IF_ERROR(env.create_dirs(join_path(root, parent_path(name))));
      AERIE_RETURN_IF_ERROR(env.write_file(join_path(root, name), name));
    }
    return ok_status();
  }

  static std::string text(const std::vector<TestRow>& rows) {
    std::string out = "[\n";
    for (size_t i = 0; i < rows.size(); ++i) {
      out += i == 0 ? "{" : ",\n{";
      for (size_t f = 0; f < rows[i].fields.size(); ++f) {
        const auto& [key, value] = rows[i].fields[f];
        out += str_cat(f == 0 ? "\n" : ",\n", quoted(key), ": ", value);
      }
      out += "\n}";
    }
    return out + "\n]";
  }
  // All tables into `dir`, which is made.
  Status write(Env& env, const std::string& dir) const {
    AERIE_RETURN_IF_ERROR(env.create_dirs(dir));
    for (const auto& [name, rows] : tables)
      AERIE_RETURN_IF_ERROR(env.write_file(table_path(dir, name), text(rows)));
    return ok_status();
  }

 private:
  void add(std::string_view table, std::vector<std::pair<std::string, std::string>> fields) {
    tables[std::string(table)].push_back({std::move(fields)});
  }

  void add_sample(int s, int scene, bool has_prev, bool has_next) {
    const int64_t time = 1'532'402'927'000'000 + int64_t{s} * 500'000;
    add("sample", {{"token", ref(kSample, s)},
                   {"timestamp", std::to_string(time)},
                   {"prev", has_prev ? ref(kSample, s - 1) : "\"\""},
                   {"next", has_next ? ref(kSample, s + 1) : "\"\""},
                   {"scene_token", ref(kScene, scene)}});
    for (int c = 0; c < 8; ++c) {
      for (const bool key : {true, false}) {
        const int number = (s * 8 + c) * 2 + (key ? 0 : 1);
        const std::string channel = tables["sensor"][static_cast<size_t>(c)]["channel"];
        const std::string name =
            str_cat(key ? "samples/" : "sweeps/", channel.substr(1, channel.size() - 2), "/s", s,
                    "_c", c, key ? "" : "_next", c < 6 ? ".jpg" : ".pcd.bin");
        add("sample_data", {{"token", ref(kData, number)},
                            {"sample_token", ref(kSample, s)},
                            {"ego_pose_token", ref(kData, number)},
                            {"calibrated_sensor_token", ref(kCalibration, c)},
                            {"timestamp", std::to_string(time + c * 1000)},
                            {"fileformat", quoted(c < 6 ? "jpg" : "pcd")},
                            {"is_key_frame", key ? "true" : "false"},
                            {"height", c < 6 ? "900" : "0"},
                            {"width", c < 6 ? "1600" : "0"},
                            {"filename", quoted(name)},
                            {"prev", quoted("")},
                            {"next", quoted("")}});
        const double yaw = 0.1 * s + 0.001 * c;
        add("ego_pose",
            {{"token", ref(kData, number)},
             {"timestamp", std::to_string(time + c * 1000)},
             {"rotation", str_cat("[", std::cos(yaw / 2), ", 0.0, 0.0, ", std::sin(yaw / 2), "]")},
             {"translation", str_cat("[", 1000.5 + s + 0.01 * c, ", ", 600.25 - s, ", 0.0]")}});
      }
    }
    for (int b = 0; b < s % 3 + 1; ++b)
      add("sample_annotation", {{"token", ref(kBox, s * 4 + b)},
                                {"sample_token", ref(kSample, s)},
                                {"instance_token", ref(kInstance, (s + b) % 4)},
                                {"visibility_token", quoted(std::to_string(b % 4 + 1))},
                                {"attribute_tokens", str_cat("[", ref(kAttribute, 0), "]")},
                                {"translation", str_cat("[", 1010.5 + b, ", 610.25, 1.0]")},
                                {"size", "[1.9, 4.5, 1.6]"},
                                {"rotation", "[0.7, 0.0, 0.0, 0.7]"},
                                {"prev", quoted("")},
                                {"next", quoted("")},
                                {"num_lidar_pts", std::to_string(b)},
                                {"num_radar_pts", "0"}});
  }
};

}  // namespace aerie::nuscenes
