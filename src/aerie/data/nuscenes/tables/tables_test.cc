// Joining tables, the index and its cache, frames.
#include <algorithm>
#include <cmath>
#include <thread>

#include <gtest/gtest.h>

#include "aerie/archive/safetensors.h"
#include "aerie/base/log.h"
#include "aerie/base/testing/fault_env.h"
#include "aerie/base/testing/mem_env.h"
#include "aerie/base/testing/paths.h"
#include "aerie/data/nuscenes/tables/frames.h"
#include "aerie/data/nuscenes/tables/nuscenes_index.h"
#include "aerie/data/nuscenes/tables/test_root.h"

namespace aerie::nuscenes {
namespace {

TEST(TokenTest, KeepsAllDigits) {
  const std::string text = "0123456789abcdefFEDCBA9876543210";
  const auto token = parse_token(text);
  ASSERT_TRUE(token.ok());
  EXPECT_EQ(to_string(*token), to_lower(text));
  for (const char* wrong :
       {"", "0123456789abcdef", "0123456789abcdeffedcba987654321g",
        "0123456789abcdeffedcba98765432100", "0123456789abcdef-edcba9876543210"})
    EXPECT_FALSE(parse_token(wrong).ok()) << wrong;
  EXPECT_LT(*parse_token(std::string(31, '0') + "9"), *parse_token("1" + std::string(31, '0')));
}

TEST(NuscenesIndexTest, JoinsTables) {
  TestRoot data;
  // Rows of a table may come in any order.
  std::reverse(data.tables.tables["sample"].begin(), data.tables.tables["sample"].end());
  std::reverse(data.tables.tables["sample_data"].begin(), data.tables.tables["sample_data"].end());
  data.write();
  const auto opened = data.open();
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  const NuscenesIndex& index = **opened;
  EXPECT_FALSE(index.from_cache());
  EXPECT_EQ(index.version(), "v1.0-mini");
  EXPECT_EQ(index.root(), data.root);
  ASSERT_EQ(index.num_scenes(), 2u);
  ASSERT_EQ(index.num_samples(), 8u);
  EXPECT_EQ(index.scene(1).name, "scene-0103");
  EXPECT_EQ(index.scene(1).location, "boston-seaport");
  EXPECT_EQ(index.scene(1).first_sample, 4u);
  EXPECT_EQ(index.find_scene("scene-0103"), 1u);
  EXPECT_EQ(index.sample(5).scene, 1u);
  EXPECT_EQ(index.sample(5).table_row, 2u);
  EXPECT_EQ(to_string(index.sample(5).token), TestTables::token(TestTables::kSample, 5));
  EXPECT_EQ(index.find_sample(index.sample(5).token), 5u);
  const CameraFrame front_left = index.camera(5, 2);
  EXPECT_EQ(front_left.filename, "samples/CAM_FRONT_LEFT/s5_c2.jpg");
  EXPECT_EQ(front_left.width, 1600);
  EXPECT_EQ(front_left.height, 900);
  EXPECT_EQ(front_left.intrinsic(0, 0), 1262.5);
  EXPECT_EQ(front_left.sensor.translation.x, 3.5);
  EXPECT_EQ(front_left.ego.translation.x, 1000.5 + 5 + 0.01 * 2);
  EXPECT_EQ(front_left.timestamp_us, 1'532'402'927'000'000 + 5 * 500'000 + 2000);
  EXPECT_FALSE(front_left.present);
  EXPECT_EQ(index.lidar(5).filename, "samples/LIDAR_TOP/s5_c6.pcd.bin");
  EXPECT_EQ(index.lidar_sensor(5).translation.x, 7.5);
  const auto boxes = index.boxes(5);
  ASSERT_EQ(boxes.size(), 3u);
  EXPECT_EQ(boxes[0].category, "human.pedestrian.adult");
  EXPECT_EQ(boxes[2].category, "animal");
  EXPECT_EQ(boxes[2].num_lidar_pts, 2);
  EXPECT_EQ(boxes[2].visibility, 3);
  EXPECT_EQ(boxes[2].centre.x, 1012.5);
  EXPECT_EQ(boxes[2].size.y, 4.5);
  uint64_t count = 0;
  for (uint32_t s = 0; s < index.num_samples(); ++s) count += index.boxes(s).size();
  EXPECT_EQ(count, index.num_boxes());
}

// Everything an index answers, as text.
std::string contents(const NuscenesIndex& index) {
  std::string out = str_cat(index.version(), " ", index.fingerprint(), "\n");
  for (uint32_t s = 0; s < index.num_samples(); ++s) {
    const SampleInfo info = index.sample(s);
    out += str_cat(to_string(info.token), " ", info.timestamp_us, " ", index.scene(info.scene).name,
                   "\n");
    for (int c = 0; c < kNumCameras; ++c) {
      const CameraFrame frame = index.camera(s, c);
      out += str_cat(frame.filename, " ", frame.present, " ", frame.ego.translation.x, " ",
                     frame.intrinsic(0, 0), "\n");
    }
    for (const Box& box : index.boxes(s))
      out += str_cat(box.category, " ", box.centre.x, " ", to_string(box.instance), "\n");
  }
  return out;
}

TEST(NuscenesIndexTest, IsMappedOnTheSecondStart) {
  TestRoot data;
  const auto first = data.open();
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  const auto second = data.open();
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE((*first)->from_cache());
  EXPECT_TRUE((*second)->from_cache());
  EXPECT_EQ(contents(**first), contents(**second));
  bool found = false;
  for (const DirEntry& entry : *Env::real().list_dir(data.cache)) {
    found |= starts_with(entry.name, "nusc_v1.0-mini_") && ends_with(entry.name, ".idx");
    EXPECT_FALSE(ends_with(entry.name, ".tmp")) << entry.name;
  }
  EXPECT_TRUE(found);
  for (const unsigned threads : {1u, 3u}) {
    data.options.threads = threads;
    data.options.use_cache = false;
    const auto again = data.open();
    ASSERT_TRUE(again.ok());
    EXPECT_FALSE((*again)->from_cache());
    EXPECT_EQ(contents(**first), contents(**again));
  }
}

TEST(NuscenesIndexTest, IsMadeAgainWhenATableChanges) {
  TestRoot data;
  const auto before = data.open();
  ASSERT_TRUE(before.ok());
  data.row("category", 0)["name"] = "\"vehicle.cat\"";  // the same size
  data.write();
  const auto after = data.open();
  ASSERT_TRUE(after.ok());
  EXPECT_FALSE((*after)->from_cache());
  EXPECT_NE((*after)->fingerprint(), (*before)->fingerprint());
  EXPECT_EQ((*after)->boxes(0)[0].category, "vehicle.cat");
  EXPECT_EQ((*before)->boxes(0)[0].category, "vehicle.car");  // its file was replaced, not changed
}

std::string index_file(const TestRoot& data) {
  const auto entries = Env::real().list_dir(data.cache);
  for (const DirEntry& entry : *entries) {
    if (ends_with(entry.name, ".idx")) return join_path(data.cache, entry.name);
  }
  return {};
}

TEST(NuscenesIndexTest, DamagedIndexIsMadeAgain) {
  TestRoot data;
  const std::string expected = contents(**data.open());
  const std::string file = index_file(data);
  const std::string good = *Env::real().read_file(file);
  for (size_t at = 0; at < good.size(); at += 331) {
    std::string bad = good;
    if (at % 2 == 0)
      bad.resize(at);
    else
      bad[at] = static_cast<char>(bad[at] ^ 0x10);
    // A later version is another matter: below.
    if (at >= 8 && at < 12) continue;
    ASSERT_TRUE(Env::real().write_file(file, bad).ok());
    const auto opened = data.open();
    ASSERT_TRUE(opened.ok()) << at << ": " << opened.status().to_string();
    ASSERT_EQ(contents(**opened), expected) << at;
  }
}

TEST(NuscenesIndexTest, IndexOfALaterVersionIsNamedAndLeftAlone) {
  TestRoot data;
  ASSERT_TRUE(data.open().ok());
  const std::string file = index_file(data);
  std::string later = *Env::real().read_file(file);
  later[8] = 9;
  ASSERT_TRUE(Env::real().write_file(file, later).ok());
  data.options.quiet = false;
  std::string said;
  set_log_console([&](LogLevel, std::string_view line) { said += line; });
  const auto opened = data.open();
  set_log_console({});
  ASSERT_TRUE(opened.ok());
  EXPECT_FALSE((*opened)->from_cache());
  EXPECT_NE(said.find("version 9; this aerie reads version 1"), std::string::npos) << said;
  EXPECT_NE(said.find(".idx"), std::string::npos) << said;
  EXPECT_EQ(*Env::real().read_file(file), later);
}

TEST(NuscenesIndexTest, WorksWithoutACacheAndSaysSo) {
  TestRoot data;
  ASSERT_TRUE(Env::real().write_file(data.cache, "a file, not a folder").ok());
  data.options.quiet = false;
  std::string said;
  set_log_console([&](LogLevel, std::string_view line) { said += line; });
  const auto opened = data.open();
  set_log_console({});
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ((*opened)->num_samples(), 8u);
  EXPECT_NE(said.find("is not kept"), std::string::npos) << said;
}

TEST(NuscenesIndexTest, FullDiskLosesNothing) {
  TestRoot data;
  const auto good = data.open();
  ASSERT_TRUE(good.ok());
  const std::string file = index_file(data);
  for (uint64_t nth = 1; nth < 12; ++nth) {
    ASSERT_TRUE(Env::real().remove_file(file).ok() || nth > 1);
    FaultEnv env(Env::real());
    env.fail_at(nth, FaultOp::kAppend, ENOSPC);
    const auto opened = NuscenesIndex::open(env, data.options);
    ASSERT_TRUE(opened.ok()) << nth << ": " << opened.status().to_string();
    EXPECT_EQ(contents(**opened), contents(**good));
    const auto next = data.open();
    ASSERT_TRUE(next.ok());
    EXPECT_EQ(contents(**next), contents(**good));
  }
}

TEST(NuscenesIndexTest, ManyStartAtOnce) {
  TestRoot data;
  std::vector<std::string> seen(4);
  std::vector<std::thread> threads;
  for (std::string& text : seen)
    threads.emplace_back([&] {
      const auto opened = data.open();
      text = opened.ok() ? contents(**opened) : opened.status().to_string();
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : seen) EXPECT_EQ(text, seen[0]);
  EXPECT_NE(seen[0].find("samples/CAM_FRONT"), std::string::npos) << seen[0];
}

TEST(NuscenesIndexTest, ReadsFromAnyFileSystem) {
  const std::unique_ptr<Env> env = new_mem_env();
  TestTables tables = TestTables::make({"scene-0061"}, 2);
  ASSERT_TRUE(tables.write(*env, "/data/v1.0-mini").ok());
  ASSERT_TRUE(tables.write_pictures(*env, "/data").ok());
  NuscenesIndex::Options options;
  options.root = "/data";
  options.cache_dir = "/cache";
  options.quiet = true;
  for (const bool from_cache : {false, true}) {
    const auto index = NuscenesIndex::open(*env, options);
    ASSERT_TRUE(index.ok()) << index.status().to_string();
    EXPECT_EQ((*index)->from_cache(), from_cache);
    EXPECT_EQ((*index)->files().num_missing, 0u);
  }
}

TEST(FramesTest, AgreesWithTheReference) {
  const auto file = archive::read_safetensors(Env::real(), test_data("/bev/matrices.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  const auto values = [&](const char* name) {
    const archive::TensorInfo* info = file->find(name);
    std::vector<double> out(info == nullptr ? 0 : info->numel());
    EXPECT_TRUE(info != nullptr && file->read(*info, out.data(), out.size() * 8).ok());
    return out;
  };
  const std::vector<double> poses = values("poses"), expected = values("camera2lidar");
  ASSERT_EQ(poses.size() / (4 * 7), expected.size() / 16);
  ASSERT_GT(poses.size(), 0u);
  for (size_t i = 0; i < expected.size() / 16; ++i) {
    Pose pose[4];
    for (size_t p = 0; p < 4; ++p) {
      const double* v = poses.data() + (i * 4 + p) * 7;
      pose[p] = {{v[0], v[1], v[2], v[3]}, {v[4], v[5], v[6]}};
    }
    const auto made =
        camera_to_reference(pose[0], pose[1], pose[2], pose[3], ReferenceFrame::kLidar, true);
    ASSERT_TRUE(made.ok());
    for (size_t k = 0; k < 16; ++k) EXPECT_NEAR(made->m[k], expected[i * 16 + k], 1e-8);
  }
}

TEST(FramesTest, FollowsTheWayOfTheVehicle) {
  TestRoot data;
  const auto index = data.open();
  ASSERT_TRUE(index.ok());
  const uint32_t sample = 5;
  const auto lidar = sample_frames(**index, sample, ReferenceFrame::kLidar, true);
  const auto ego = sample_frames(**index, sample, ReferenceFrame::kEgo, true);
  const auto still = sample_frames(**index, sample, ReferenceFrame::kEgo, false);
  ASSERT_TRUE(lidar.ok() && ego.ok() && still.ok());
  for (int c = 0; c < kNumCameras; ++c) {
    const CameraFrame camera = (*index)->camera(sample, c);
    const Vec3 point{0.5, -0.25, 12.0};
    const Vec3 world = *matrix_of(camera.ego) * (*matrix_of(camera.sensor) * point);
    for (const auto* frames : {&lidar, &ego}) {
      const Vec3 back =
          (*frames)->reference_to_global * ((*frames)->camera_to_reference[c] * point);
      EXPECT_NEAR(back.x, world.x, 1e-9);
      EXPECT_NEAR(back.y, world.y, 1e-9);
      EXPECT_NEAR(back.z, world.z, 1e-9);
    }
    // Without compensation it is the calibration alone.
    const Mat4 sensor = *matrix_of(camera.sensor);
    for (size_t k = 0; k < 16; ++k) EXPECT_EQ(still->camera_to_reference[c].m[k], sensor.m[k]);
    EXPECT_EQ(lidar->intrinsic[c].m, camera.intrinsic.m);
  }
  EXPECT_EQ(lidar->reference_to_global.m, lidar->lidar_to_global.m);
  EXPECT_EQ(ego->lidar_to_global.m, lidar->lidar_to_global.m);
}

}  // namespace
}  // namespace aerie::nuscenes
