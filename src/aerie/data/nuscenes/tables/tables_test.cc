// Reading and joining tables; the index.
#include <cmath>

#include <gtest/gtest.h>

#include "aerie/archive/safetensors.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/data/nuscenes/tables/frames.h"
#include "aerie/data/nuscenes/tables/nuscenes_index.h"
#include "aerie/data/nuscenes/tables/test_tables.h"

namespace aerie::nuscenes {
namespace {

struct Root {
  TempDir dir;
  std::string root = dir.file("data"), cache = dir.file("cache");
  TestTables tables = TestTables::make({"scene-0061", "scene-0103"}, 4);

  Root() { write(); }
  void write() { ASSERT_TRUE(tables.write(Env::real(), root + "/v1.0-mini").ok()); }
  Result<std::shared_ptr<const NuscenesIndex>> open() {
    NuscenesIndex::Options options;
    options.root = root;
    options.cache_dir = cache;
    options.quiet = true;
    return NuscenesIndex::open(Env::real(), options);
  }
};

TEST(NuscenesIndexTest, JoinsTables) {
  Root data;
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
  EXPECT_EQ(index.sample(5).scene, 1u);
  EXPECT_EQ(to_string(index.sample(5).token), TestTables::token(TestTables::kSample, 5));
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
  ASSERT_EQ(poses.size(), 8u * 4 * 7);
  ASSERT_EQ(expected.size(), 8u * 16);
  for (size_t i = 0; i < 8; ++i) {
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

}  // namespace
}  // namespace aerie::nuscenes
