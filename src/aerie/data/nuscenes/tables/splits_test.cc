// Roots, files, splits, class-balanced sampling.
#include "aerie/data/nuscenes/tables/splits.h"

#include <algorithm>
#include <fcntl.h>
#include <map>
#include <set>
#include <sys/stat.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "aerie/base/hash.h"
#include "aerie/base/log.h"
#include "aerie/data/nuscenes/tables/cbgs.h"
#include "aerie/data/nuscenes/tables/data_root.h"
#include "aerie/data/nuscenes/tables/test_root.h"

namespace aerie::nuscenes {
namespace {

TEST(DataRootTest, FindsTheVersion) {
  TempDir dir;
  Env& env = Env::real();
  const TestTables tables = TestTables::make({"scene-0061"}, 1);
  const std::string root = dir.file("nuscenes");
  const auto find = [&](const std::string& given, const std::string& version) {
    const auto found = find_data_root(env, given, version);
    return found.ok() ? str_cat(found->root, " ", found->tables_dir, " ", found->version)
                      : found.status().to_string();
  };
  EXPECT_NE(find(root, "").find("cannot be read"), std::string::npos);
  ASSERT_TRUE(env.create_dirs(root + "/maps").ok());
  EXPECT_NE(find(root, "").find("no folder of nuScenes tables"), std::string::npos);
  ASSERT_TRUE(tables.write(env, root + "/v1.0-mini").ok());
  const std::string mini = str_cat(root, " ", root, "/v1.0-mini v1.0-mini");
  EXPECT_EQ(find(root, ""), mini);
  EXPECT_EQ(find(root + "/", ""), mini);
  EXPECT_EQ(find(root, "v1.0-mini"), mini);
  EXPECT_EQ(find(root, "mini"), mini);
  EXPECT_EQ(find(root + "/v1.0-mini", ""), mini);
  EXPECT_EQ(find(root + "/v1.0-mini/", "v1.0-mini"), mini);
  EXPECT_NE(find(root, "v1.0-test").find("there is: " + root + "/v1.0-mini"), std::string::npos);
  EXPECT_NE(find(root + "/v1.0-mini", "v1.0-test").find("is not in"), std::string::npos);
  EXPECT_NE(find(root, "../x").find("not the name"), std::string::npos);
  ASSERT_TRUE(tables.write(env, root + "/our own").ok());
  EXPECT_EQ(find(root, "our own"), str_cat(root, " ", root, "/our own our own"));
  const std::string several = find(root, "");
  EXPECT_NE(several.find("/our own, "), std::string::npos) << several;
  EXPECT_NE(several.find("/v1.0-mini"), std::string::npos) << several;
  EXPECT_EQ(find_data_root(env, root, "").status().code(), StatusCode::kInvalidArgument);
  // A root a version, also through a link.
  const std::string above = dir.file("above");
  ASSERT_TRUE(tables.write(env, above + "/trainval/v1.0-trainval").ok());
  ASSERT_EQ(::symlink(root.c_str(), (above + "/mini").c_str()), 0);
  EXPECT_EQ(find(above, "v1.0-trainval"),
            str_cat(above, "/trainval ", above, "/trainval/v1.0-trainval v1.0-trainval"));
  EXPECT_EQ(find(above, "trainval"), find(above, "v1.0-trainval"));
  EXPECT_EQ(find(above, "mini"), str_cat(above, "/mini ", above, "/mini/v1.0-mini v1.0-mini"));
}

// So that lists of files are believed: folders of tests are always young.
void make_old(const std::string& folder) {
  for (const DirEntry& entry : *Env::real().list_dir(folder)) {
    if (entry.is_dir) make_old(join_path(folder, entry.name));
  }
  const struct timespec times[2] = {{1'600'000'000, 0}, {1'600'000'000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, folder.c_str(), times, 0), 0);
}

TEST(FilesTest, MissingPicturesAreCountedAndNamed) {
  TestRoot data;
  ASSERT_TRUE(data.tables.write_pictures(Env::real(), data.root).ok());
  EXPECT_EQ((*data.open())->files().num_missing, 0u);
  make_old(data.root + "/samples");
  ASSERT_TRUE(Env::real().remove_file(data.root + "/samples/CAM_BACK/s2_c3.jpg").ok());
  const auto index = data.open();
  ASSERT_TRUE(index.ok());
  EXPECT_TRUE((*index)->from_cache());
  EXPECT_EQ((*index)->files().num_files, 48u);
  EXPECT_EQ((*index)->files().num_missing, 1u);
  EXPECT_EQ((*index)->files().examples, std::vector<std::string>{"samples/CAM_BACK/s2_c3.jpg"});
  EXPECT_FALSE((*index)->camera(2, 3).present);
  EXPECT_FALSE((*index)->is_complete(2));
  EXPECT_TRUE((*index)->is_complete(1));
  // A folder of that name is no picture.
  ASSERT_TRUE(Env::real().create_dirs(data.root + "/samples/CAM_BACK/s2_c3.jpg").ok());
  EXPECT_EQ((*data.open())->files().num_missing, 1u);
}

TEST(FilesTest, ListIsBelievedWhileFoldersStay) {
  TestRoot data;
  ASSERT_TRUE(data.tables.write_pictures(Env::real(), data.root).ok());
  make_old(data.root);
  ASSERT_TRUE(data.open().ok());
  // Taken away without a trace in its folder's time: only a list that was kept can miss it.
  ASSERT_TRUE(Env::real().remove_file(data.root + "/samples/CAM_BACK/s2_c3.jpg").ok());
  make_old(data.root);
  EXPECT_EQ((*data.open())->files().num_missing, 0u);
  ASSERT_TRUE(Env::real().write_file(data.root + "/samples/CAM_BACK/other", "").ok());
  EXPECT_EQ((*data.open())->files().num_missing, 1u);
}

TEST(FilesTest, AreFoundByNameElsewhere) {
  TestRoot data;
  Env& env = Env::real();
  ASSERT_TRUE(data.tables.write_pictures(env, data.root + "/samples/07").ok());
  // Decoys: the name in another folder, and between key frames.
  ASSERT_TRUE(env.create_dirs(data.root + "/a/thumbnails").ok());
  ASSERT_TRUE(env.create_dirs(data.root + "/a/sweeps/CAM_BACK").ok());
  ASSERT_TRUE(env.write_file(data.root + "/a/thumbnails/s2_c3.jpg", "").ok());
  ASSERT_TRUE(env.write_file(data.root + "/a/sweeps/CAM_BACK/s2_c3.jpg", "").ok());
  ASSERT_EQ(::symlink("..", (data.root + "/samples/circle").c_str()), 0);
  for (int i = 0; i < 2; ++i) {
    const auto index = data.open();
    ASSERT_TRUE(index.ok());
    EXPECT_EQ((*index)->files().num_missing, 0u);
    EXPECT_EQ((*index)->files().num_elsewhere, 48u);
    for (uint32_t s = 0; s < (*index)->num_samples(); ++s) {
      for (int c = 0; c < kNumCameras; ++c) {
        const CameraFrame frame = (*index)->camera(s, c);
        // A picture of the test holds its own name.
        const auto text = env.read_file((*index)->path(frame));
        ASSERT_TRUE(text.ok()) << text.status().to_string();
        EXPECT_EQ(*text, str_cat("samples/", kCameras[c], "/s", s, "_c", c, ".jpg"));
      }
    }
    make_old(data.root);
  }
}

TEST(FilesTest, NameAloneMustBeTheOnlyOne) {
  TestRoot data;
  Env& env = Env::real();
  ASSERT_TRUE(env.create_dirs(data.root + "/x").ok() && env.create_dirs(data.root + "/y").ok());
  ASSERT_TRUE(env.write_file(data.root + "/x/s0_c0.jpg", "").ok());
  EXPECT_EQ((*data.open())->camera(0, 0).filename, "x/s0_c0.jpg");
  ASSERT_TRUE(env.write_file(data.root + "/y/s0_c0.jpg", "").ok());
  EXPECT_FALSE((*data.open())->camera(0, 0).present);
}

TEST(SplitsTest, OfficialSplitsAreTheDevkits) {
  // SHA-256 of the sorted names, a line each; tests/golden/gen/nuscenes_splits.py, devkit 1.2.0.
  const std::map<std::string, std::pair<size_t, std::string>> expected = {
      {"train", {700, "80e7f1b38e4973cc7531ab7df4a37a86b98b5140dcaf1c7600df7db553357314"}},
      {"val", {150, "d93d05f110816360b4e7cd7f413241e3ef0de90d47adc2987becaf4a230d4359"}},
      {"test", {150, "ceb6c4a825ec001be4ca21870a299e29aed837116c7cbb9cdddcdecb38b09350"}},
      {"mini_train", {8, "5d1e1bf79cb121654747b103c83020d4f7637cdc4f602d74959b0a35cf4c4184"}},
      {"mini_val", {2, "ea8a8f3cdf6efc5e21a51581da322529afbdfe2918a8c8cf3187dde4726621a7"}},
      {"train_detect", {350, "baa79af3ccc828e35cfb6e16e999a518c704290c7291349592974f4543580fc2"}},
      {"train_track", {350, "f36fe6cd15f54ebddbcf48c0174b17379bed31014ffb8b3832e87e4887fac87c"}},
  };
  EXPECT_EQ(official_split_names().size(), expected.size());
  for (const auto& [name, value] : expected) {
    const std::vector<std::string> scenes = official_split(name);
    EXPECT_EQ(scenes.size(), value.first) << name;
    EXPECT_EQ(sha256_hex(join(scenes, "\n") + "\n"), value.second) << name;
  }
  EXPECT_TRUE(official_split("nothing").empty());
}

SplitSamples split_of(TestRoot& data, SplitOptions options) {
  data.options.find_files = options.need_files;
  options.quiet = true;
  const auto index = data.open();
  EXPECT_TRUE(index.ok()) << index.status().to_string();
  auto split = samples_of_split(Env::real(), **index, options);
  EXPECT_TRUE(split.ok()) << split.status().to_string();
  return split.ok() ? std::move(split).value() : SplitSamples{};
}

TEST(SplitsTest, TakesSamplesInOrder) {
  TestRoot data;
  // The second scene is the earlier one, and its token the smaller.
  for (size_t s = 4; s < 8; ++s) data.row("sample", s)["timestamp"] = std::to_string(1000 - s);
  data.write();
  SplitOptions options;
  options.need_files = false;
  options.split = "train";
  const SplitSamples train = split_of(data, options);
  EXPECT_EQ(train.name, "mini_train");
  EXPECT_EQ(train.num_scenes, 1u);
  EXPECT_EQ(train.num_missing_scenes, 7u);
  EXPECT_EQ(train.examples.front(), "scene-0553");
  EXPECT_EQ(train.samples, (std::vector<uint32_t>{0, 1, 2, 3}));
  options.split = "mini_val";
  EXPECT_EQ(split_of(data, options).samples, (std::vector<uint32_t>{4, 5, 6, 7}));
  options.split = "all";
  EXPECT_EQ(split_of(data, options).samples, (std::vector<uint32_t>{4, 5, 6, 7, 0, 1, 2, 3}));
  for (size_t s = 0; s < 4; ++s) data.row("sample", s)["timestamp"] = std::to_string(s);
  data.write();
  EXPECT_EQ(split_of(data, options).samples, (std::vector<uint32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  options.order = SampleOrder::kScene;
  EXPECT_EQ(split_of(data, options).samples, (std::vector<uint32_t>{4, 5, 6, 7, 0, 1, 2, 3}));
}

TEST(SplitsTest, ReadsOwnSplits) {
  TestRoot data;
  const std::string file = data.dir.file("mine.txt");
  ASSERT_TRUE(Env::real()
                  .write_file(file,
                              "\xEF\xBB\xBF# a comment\r\n\r\n  scene-0103 # and another\r\n"
                              "scene-0103\nscene-9999\nno-such\n")
                  .ok());
  SplitOptions options;
  options.need_files = false;
  options.file = file;
  SplitSamples split = split_of(data, options);
  EXPECT_EQ(split.samples, (std::vector<uint32_t>{4, 5, 6, 7}));
  EXPECT_EQ(split.num_missing_scenes, 2u);
  EXPECT_EQ(split.examples, (std::vector<std::string>{"scene-9999", "no-such"}));
  ASSERT_TRUE(Env::real().write_file(file, "scene-0103 scene-0061\n").ok());
  const std::string wrong = read_split_file(Env::real(), file).status().to_string();
  EXPECT_NE(wrong.find("mine.txt:1"), std::string::npos) << wrong;
  ASSERT_TRUE(Env::real().write_file(file, "# nothing\n").ok());
  EXPECT_FALSE(read_split_file(Env::real(), file).ok());
  EXPECT_FALSE(read_split_file(Env::real(), file + "x").ok());

  options.file.clear();
  options.split = "ours";
  const auto index = data.open();
  ASSERT_TRUE(index.ok());
  const Status unknown = samples_of_split(Env::real(), **index, options).status();
  EXPECT_EQ(unknown.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(unknown.to_string().find("mini_train"), std::string::npos);
  const std::string json = data.tables_dir() + "/splits.json";
  ASSERT_TRUE(Env::real().write_file(json, "{\"ours\": [\"scene-0061\"], \"x\": 1}").ok());
  EXPECT_EQ(split_of(data, options).samples, (std::vector<uint32_t>{0, 1, 2, 3}));
  options.split = "x";
  EXPECT_FALSE(samples_of_split(Env::real(), **index, options).ok());
  ASSERT_TRUE(Env::real().write_file(json, std::string(100000, '[')).ok());
  EXPECT_FALSE(samples_of_split(Env::real(), **index, options).ok());
}

TEST(SplitsTest, IncompleteSamplesAreLeftOutWithACount) {
  TestRoot data;
  auto& rows = data.tables.tables["sample_data"];
  rows.erase(rows.begin() + 12);  // the lidar of sample 0
  data.write();
  ASSERT_TRUE(data.tables.write_pictures(Env::real(), data.root).ok());
  ASSERT_TRUE(Env::real().remove_file(data.root + "/samples/CAM_FRONT/s2_c0.jpg").ok());
  const auto index = data.open();
  ASSERT_TRUE(index.ok());
  std::string said;
  set_log_console([&](LogLevel, std::string_view line) { said += line; });
  SplitOptions options;
  options.split = "all";
  const auto split = samples_of_split(Env::real(), **index, options);
  set_log_console({});
  ASSERT_TRUE(split.ok());
  EXPECT_EQ(split->samples, (std::vector<uint32_t>{1, 3, 4, 5, 6, 7}));
  EXPECT_EQ(split->num_incomplete, 1u);
  EXPECT_EQ(split->num_without_files, 1u);
  EXPECT_NE(said.find("samples/CAM_FRONT/s2_c0.jpg"), std::string::npos) << said;
}

TEST(SplitsTest, NothingLeftIsAnErrorThatSaysWhy) {
  TestRoot data;
  const auto index = data.open();  // no pictures at all
  ASSERT_TRUE(index.ok());
  SplitOptions options;
  options.split = "val";
  options.quiet = true;
  std::string error = samples_of_split(Env::real(), **index, options).status().to_string();
  EXPECT_NE(error.find("4 samples lack a picture"), std::string::npos) << error;
  options.split = "test";
  error = samples_of_split(Env::real(), **index, options).status().to_string();
  EXPECT_NE(error.find("150 of its 150 scenes"), std::string::npos) << error;
}

TEST(CbgsTest, BalancesClasses) {
  TestRoot data;
  // One box a sample: cars in all, a bicycle in one; a point each. The animal belongs to no class.
  auto& boxes = data.tables.tables["sample_annotation"];
  const std::vector<TestRow> old = std::move(boxes);
  boxes.clear();
  const auto add = [&](int sample, int instance, int lidar, int radar) {
    TestRow row = old[0];
    row["token"] = TestTables::ref(TestTables::kBox, static_cast<int>(boxes.size()));
    row["sample_token"] = TestTables::ref(TestTables::kSample, sample);
    row["instance_token"] = TestTables::ref(TestTables::kInstance, instance);
    row["num_lidar_pts"] = std::to_string(lidar);
    row["num_radar_pts"] = std::to_string(radar);
    boxes.push_back(row);
  };
  for (int s = 0; s < 8; ++s) add(s, 0, 1, 0);
  add(3, 0, 1, 0);  // a second car changes nothing
  add(5, 2, 0, 1);  // the bicycle, seen by radar alone
  add(6, 2, 0, 0);  // seen by nothing
  add(7, 3, 9, 9);  // an animal
  data.write();
  const auto index = data.open();
  ASSERT_TRUE(index.ok()) << index.status().to_string();
  std::vector<uint32_t> samples(8);
  for (uint32_t i = 0; i < 8; ++i) samples[i] = i;
  const auto entries = cbgs_entries(**index, samples, 7);
  ASSERT_TRUE(entries.ok());
  // n = 8 and 1, so int(8 * 0.1 / (8/9)) = 0 and int(1 * 0.1 / (1/9)) = 0: too small a set.
  EXPECT_TRUE(entries->empty());
  // Ten times the samples (a sample may stand in the list more than once): 9 draws a class.
  std::vector<uint32_t> tenfold;
  for (int i = 0; i < 10; ++i) tenfold.insert(tenfold.end(), samples.begin(), samples.end());
  const auto balanced = cbgs_entries(**index, tenfold, 7);
  ASSERT_TRUE(balanced.ok());
  ASSERT_EQ(balanced->size(), 18u);
  for (size_t i = 9; i < 18; ++i) EXPECT_EQ((*balanced)[i], 5u);
  const std::set<uint32_t> cars(balanced->begin(), balanced->begin() + 9);
  EXPECT_GT(cars.size(), 3u);
  EXPECT_EQ(*cbgs_entries(**index, tenfold, 7), *balanced);
  EXPECT_NE(*cbgs_entries(**index, tenfold, 8), *balanced);
  // Without any box there is nothing to balance.
  boxes.clear();
  data.write();
  EXPECT_FALSE(cbgs_entries(**data.open(), samples, 7).ok());
}

TEST(CbgsTest, MergesCategoriesAsTheBenchmarkDoes) {
  EXPECT_EQ(kDetectionClasses[static_cast<size_t>(detection_class("vehicle.bus.bendy"))], "bus");
  EXPECT_EQ(kDetectionClasses[static_cast<size_t>(
                detection_class("human.pedestrian.construction_worker"))],
            "pedestrian");
  for (const char* none : {"animal", "vehicle.emergency.police", "vehicle.ca", "vehicle.cars",
                           "human.pedestrian.stroller", "static_object.bicycle_rack", ""})
    EXPECT_EQ(detection_class(none), -1) << none;
}

}  // namespace
}  // namespace aerie::nuscenes
