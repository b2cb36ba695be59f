// A small nuScenes folder for tests of the feed: tables, pictures of 160 x 90 with something in
// them, two maps.
#pragma once

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "aerie/base/env.h"
#include "aerie/base/path.h"
#include "aerie/base/philox.h"
#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/data/nuscenes/nuscenes_assembler.h"
#include "aerie/data/nuscenes/nuscenes_dataset.h"
#include "aerie/data/nuscenes/tables/test_tables.h"
#include "aerie/image/image.h"
#include "aerie/image/jpeg.h"

namespace aerie::nuscenes {

class TestRoot {
 public:
  // Two scenes of mini_train and one of mini_val, `samples` each.
  explicit TestRoot(int samples = 4) {
    TestTables tables = TestTables::make({"scene-0061", "scene-0553", "scene-0103"}, samples);
    uint64_t number = 0;
    for (TestRow& row : tables.tables["sample_data"]) {
      if (row["width"] == "0") continue;
      row["width"] = "160";
      row["height"] = "90";
      const std::string name = row["filename"].substr(1, row["filename"].size() - 2);
      if (row["is_key_frame"] == "true") write_picture(name, ++number);
    }
    // Forward, a little downwards, as a camera of 160 pixels sees it.
    for (TestRow& row : tables.tables["calibrated_sensor"])
      if (row["camera_intrinsic"] != "[]")
        row["camera_intrinsic"] = "[[126.0, 0.0, 80.0], [0.0, 126.0, 45.0], [0, 0, 1]]";
    EXPECT_TRUE(tables.write(Env::real(), path("v1.0-mini")).ok());
    EXPECT_TRUE(Env::real().create_dirs(path("maps/expansion")).ok());
    for (const char* location : {"singapore-onenorth", "boston-seaport"})
      write(str_cat("maps/expansion/", location, ".json"), map_json());
  }

  std::string path(std::string_view name) const { return join_path(dir_.file("root"), name); }
  std::string file(std::string_view name) const { return dir_.file(name); }
  void write(const std::string& name, std::string_view bytes) const {
    ASSERT_TRUE(Env::real().create_dirs(parent_path(path(name))).ok());
    ASSERT_TRUE(Env::real().write_file(path(name), bytes).ok());
  }
  void write_picture(const std::string& name, uint64_t number) const {
    write(name, jpeg_bytes(picture(160, 90, number)));
  }
  // "samples/CAM_BACK/s3_c3.jpg"
  static std::string picture_name(int sample, int camera) {
    return str_cat("samples/", kCameras[static_cast<size_t>(camera)], "/s", sample, "_c", camera,
                   ".jpg");
  }

  static image::Image picture(int width, int height, uint64_t number) {
    image::Image out(width, height);
    RandomStream random(number, Purpose::kTest, 0, 0);
    const int shade = static_cast<int>(random.below(128));
    for (int y = 0; y < height; ++y)
      for (int x = 0; x < width * 3; ++x)
        out.row(y)[x] =
            static_cast<uint8_t>(shade + x / 8 + y / 2 + static_cast<int>(random.next_u32() >> 28));
    return out;
  }
  static std::string jpeg_bytes(const image::Image& picture,
                                const image::JpegWriteOptions& options = {}) {
    const auto bytes = image::write_jpeg(picture.view(), options);
    EXPECT_TRUE(bytes.ok());
    return std::string(bytes->begin(), bytes->end());
  }

  // Squares and lines around where the samples are.
  static std::string map_json() {
    std::string nodes, polygons, lines, text;
    int next = 0;
    const auto node = [&](double x, double y) {
      nodes += str_cat(nodes.empty() ? "" : ",", "{\"token\":\"n", next, "\",\"x\":", x,
                       ",\"y\":", y, "}");
      return str_cat("\"n", next++, "\"");
    };
    const auto square = [&](const char* token, double x, double y, double w, double h) {
      polygons += str_cat(polygons.empty() ? "" : ",", "{\"token\":\"", token,
                          "\",\"exterior_node_tokens\":[", node(x, y), ",", node(x + w, y), ",",
                          node(x + w, y + h), ",", node(x, y + h), "],\"holes\":[]}");
    };
    square("p0", 980, 560, 60, 50);
    square("p1", 1000, 590, 8, 4);
    square("p2", 970, 610, 80, 3);
    square("p3", 1010, 580, 4, 2);
    square("p4", 1020, 600, 10, 6);
    lines += str_cat("{\"token\":\"l0\",\"node_tokens\":[", node(975, 585), ",", node(1045, 592),
                     "]},{\"token\":\"l1\",\"node_tokens\":[", node(1000, 560), ",",
                     node(1004, 612), "]}");
    text = str_cat("{\"version\":\"1.3\",\"canvas_edge\":[2000.0,2000.0],\"node\":[", nodes,
                   "],\"polygon\":[", polygons, "],\"line\":[", lines, "]");
    const auto layer = [&](const char* name, const char* key, const char* token) {
      text += str_cat(",\"", name, "\":[{\"token\":\"", name, "0\",\"", key, "\":", token, "}]");
    };
    layer("drivable_area", "polygon_tokens", "[\"p0\"]");
    layer("road_segment", "polygon_token", "\"p0\"");
    layer("road_block", "polygon_token", "\"p0\"");
    layer("lane", "polygon_token", "\"p0\"");
    layer("ped_crossing", "polygon_token", "\"p1\"");
    layer("walkway", "polygon_token", "\"p2\"");
    layer("stop_line", "polygon_token", "\"p3\"");
    layer("carpark_area", "polygon_token", "\"p4\"");
    layer("road_divider", "line_token", "\"l0\"");
    layer("lane_divider", "line_token", "\"l1\"");
    return text + ",\"traffic_light\":[]}";
  }

  DataConfig config(DataRole role = DataRole::kTrain) const {
    DataConfig out = default_config(Profile::kSeed, role);
    out.root = dir_.file("root");
    out.cache_dir = dir_.file("cache");
    out.image.size = {32, 88};
    out.image.resize_lim = {0.5, 0.7};
    out.gt.xbound = out.gt.ybound = {-50.0, 50.0, 2.0};
    out.batch_size = 2;
    out.num_workers = 0;
    out.drop_last = false;
    out.max_bad_fraction = 1.0;
    return out;
  }
  static std::shared_ptr<const NuscenesDataset> open(const DataConfig& config, Env* env = nullptr) {
    NuscenesDataset::Options options;
    options.quiet = true;
    options.seed = 5;
    options.threads = 1;
    options.env = env;
    auto dataset = NuscenesDataset::open(config, options);
    EXPECT_TRUE(dataset.ok()) << dataset.status().to_string();
    return dataset.ok() ? *dataset : nullptr;
  }
  static data::LoaderOptions loader_options() {
    data::LoaderOptions options;
    options.seed = 11;
    options.quiet = true;
    options.check_machine = false;
    return options;
  }
  static std::unique_ptr<data::Loader> loader(const DataConfig& config, int64_t workers,
                                              int64_t prefetch = 2) {
    DataConfig own = config;
    own.num_workers = workers;
    if (workers > 0) own.prefetch_factor = prefetch;
    auto made = make_nuscenes_loader(open(own), {}, loader_options());
    EXPECT_TRUE(made.ok()) << made.status().to_string();
    return std::move(made).value();
  }
  // Of the next batch, over the ends of epochs; 1: an error.
  static uint64_t next_hash(data::Loader& loader) {
    while (true) {
      const Result<const data::Batch*> batch = loader.next();
      if (!batch.ok()) return 1;
      if (*batch == nullptr) {
        if (!loader.start_epoch(int64_t{loader.cursor().epoch} + 1).ok()) return 1;
        continue;
      }
      const uint64_t hash = (*batch)->content_hash();
      loader.release(*batch);
      return hash;
    }
  }
  static std::vector<uint64_t> hashes(data::Loader& loader, size_t count) {
    std::vector<uint64_t> out;
    while (out.size() < count) out.push_back(next_hash(loader));
    return out;
  }

 private:
  TempDir dir_;
};

}  // namespace aerie::nuscenes
