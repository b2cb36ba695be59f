// Tables that are wrong in every way: one message with file, row and key, in bounded memory.
#include <algorithm>
#include <functional>

#include <gtest/gtest.h>

#include "aerie/base/testing/mem_env.h"
#include "aerie/data/nuscenes/tables/json_rows.h"
#include "aerie/data/nuscenes/tables/test_root.h"

namespace aerie::nuscenes {
namespace {

struct MemEnvOwner {
  std::unique_ptr<Env> memory = new_mem_env();
};
struct TestRootInMemory : private MemEnvOwner, public TestRoot {
  TestRootInMemory() : TestRoot(*memory) {}
};

testing::AssertionResult says(const std::string& text, std::initializer_list<std::string> parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos)
      return testing::AssertionFailure() << "'" << part << "' is not in: " << text;
  }
  return testing::AssertionSuccess();
}

struct BadValue {
  const char* table;
  size_t row;
  const char* key;
  const char* value;  // JSON text; null pointer: the key is missing
};

TEST(HostileTablesTest, BadValuesAreNamedWithRowAndKey) {
  const BadValue cases[] = {
      {"sample", 3, "token", "\"abc\""},
      {"sample", 3, "token", "17"},
      {"sample", 3, "timestamp", "\"now\""},
      {"sample", 3, "timestamp", "-1"},
      {"sample", 3, "timestamp", "1e300"},
      {"sample", 3, "timestamp", "99999999999999999999999"},
      {"sample", 3, "scene_token", nullptr},
      {"sample", 3, "scene_token", "null"},
      {"sample", 3, "next", "[]"},
      {"sample", 3, "prev", nullptr},
      {"scene", 1, "name", "5"},
      {"scene", 1, "nbr_samples", "-4"},
      {"scene", 1, "log_token", "\"\""},
      {"log", 1, "location", nullptr},
      {"map", 0, "log_tokens", "\"x\""},
      {"map", 0, "log_tokens", "[\"x\"]"},
      {"sensor", 2, "channel", "{}"},
      {"category", 2, "name", "[\"a\"]"},
      {"instance", 2, "category_token", "\"00\""},
      {"attribute", 0, "token", "1"},
      {"visibility", 1, "token", "1"},
      {"calibrated_sensor", 4, "translation", "[1, 2]"},
      {"calibrated_sensor", 4, "translation", "[1, 2, 3, 4]"},
      {"calibrated_sensor", 4, "translation", "[1, 2, \"3\"]"},
      {"calibrated_sensor", 4, "translation", "[1, NaN, 3]"},
      {"calibrated_sensor", 4, "rotation", "[0, 0, 0, 0]"},
      {"calibrated_sensor", 4, "rotation", "[1e308, 0, 0, 0]"},
      {"calibrated_sensor", 4, "camera_intrinsic", "[[1, 0, 0], [0, 1, 0]]"},
      {"calibrated_sensor", 4, "camera_intrinsic", "[[1, 0, 0], [0, 1, 0], [0, 0, 0]]"},
      {"calibrated_sensor", 4, "camera_intrinsic", "[[1, 0, 0], [0, 1, 0], [0, 0]]"},
      {"calibrated_sensor", 4, "camera_intrinsic", "[]"},
      {"calibrated_sensor", 4, "camera_intrinsic", "[[1e308, 0, 0], [0, 1, 0], [0, 0, 1]]"},
      {"sample_data", 18, "is_key_frame", "1"},
      {"sample_data", 18, "filename", "\"/etc/passwd\""},
      {"sample_data", 18, "filename", "\"samples/../../x.jpg\""},
      {"sample_data", 18, "filename", "\"\""},
      {"sample_data", 18, "filename", "\"a\\u0000b\""},
      {"sample_data", 18, "width", "0"},
      {"sample_data", 18, "height", "65536"},
      {"sample_data", 18, "height", "null"},
      {"sample_data", 19, "ego_pose_token", "false"},  // of a frame between key frames too
      {"ego_pose", 33, "translation", "[1e308, 0, 0]"},
      {"ego_pose", 33, "translation", "[Infinity, 0, 0]"},
      {"ego_pose", 33, "translation", "[1e400, 0, 0]"},
      {"ego_pose", 33, "rotation", "[0.0, 0, 0, -0.0]"},
      {"ego_pose", 33, "rotation", "[NaN, 0, 0, 1]"},
      {"sample_annotation", 5, "size", "[1, -2, 3]"},
      {"sample_annotation", 5, "size", "[1, 1e308, 3]"},
      {"sample_annotation", 5, "rotation", "null"},
      {"sample_annotation", 5, "num_lidar_pts", "1.5"},
      {"sample_annotation", 5, "num_radar_pts", "-1"},
      {"sample_annotation", 5, "visibility_token", "\"9\""},
      {"sample_annotation", 5, "translation", "[1, 2, nan]"},
  };
  for (const BadValue& bad : cases) {
    TestRootInMemory data;
    TestRow& row = data.row(bad.table, bad.row);
    if (bad.value == nullptr)
      row.remove(bad.key);
    else
      row[bad.key] = bad.value;
    data.write();
    EXPECT_TRUE(says(data.error(), {data.path(bad.table), str_cat("row ", bad.row, " (counted"),
                                    str_cat("key '", bad.key, "'")}))
        << (bad.value == nullptr ? "missing" : bad.value);
  }
}

TEST(HostileTablesTest, ForeignKeysResolve) {
  const struct {
    const char* table;
    size_t row;
    const char* key;
  } cases[] = {
      {"sample", 3, "scene_token"},
      {"scene", 1, "log_token"},
      {"scene", 1, "first_sample_token"},
      {"scene", 1, "last_sample_token"},
      {"instance", 2, "category_token"},
      {"calibrated_sensor", 7, "sensor_token"},
      {"sample_data", 18, "sample_token"},
      {"sample_data", 18, "ego_pose_token"},
      {"sample_data", 30, "sample_token"},
      {"sample_data", 18, "calibrated_sensor_token"},
      {"sample_annotation", 5, "sample_token"},
      {"sample_annotation", 5, "instance_token"},
      {"sample", 2, "next"},
      {"sample", 2, "prev"},
  };
  for (const auto& bad : cases) {
    TestRootInMemory data;
    data.row(bad.table, bad.row)[bad.key] = TestTables::ref(99, 99);
    data.write();
    EXPECT_TRUE(says(data.error(), {data.path(bad.table), str_cat("row ", bad.row, " (counted"),
                                    str_cat("key '", bad.key, "'"), TestTables::token(99, 99)}));
  }
}

TEST(HostileTablesTest, DuplicateTokensAreErrors) {
  for (const std::string_view table :
       {"log", "scene", "sample", "sample_data", "ego_pose", "sample_annotation", "instance",
        "category", "sensor", "calibrated_sensor", "visibility"}) {
    TestRootInMemory data;
    auto& rows = data.tables.tables[std::string(table)];
    rows.push_back(rows.back());
    data.write();
    EXPECT_TRUE(
        says(data.error(), {data.path(table), str_cat("row ", rows.size() - 1), "key 'token'"}))
        << table;
  }
  // Another token, but a second key frame of one camera.
  TestRootInMemory data;
  auto& rows = data.tables.tables["sample_data"];
  rows.push_back(rows.front());
  rows.back()["token"] = TestTables::ref(99, 1);
  data.write();
  EXPECT_TRUE(says(data.error(), {data.path("sample_data"), "CAM_FRONT", "row 0"}));
}

TEST(HostileTablesTest, ChainsOfSamplesAreWhole) {
  using Change = std::function<void(TestRoot&)>;
  const auto ref = [](int number) { return TestTables::ref(TestTables::kSample, number); };
  const struct {
    const char* what;
    Change change;
    const char* table;
    const char* key;
  } cases[] = {
      {"a circle of the whole scene",
       [&](TestRoot& d) {
         d.row("sample", 0)["prev"] = ref(3);
         d.row("sample", 3)["next"] = ref(0);
       },
       "scene", "first_sample_token"},
      {"a sample that follows itself", [&](TestRoot& d) { d.row("sample", 2)["next"] = ref(2); },
       "sample", "next"},
      {"a circle beside the chain",
       [&](TestRoot& d) {
         d.row("sample", 0)["next"] = "\"\"";
         d.row("sample", 1)["prev"] = ref(3);
         d.row("sample", 3)["next"] = ref(1);
         d.row("scene", 0)["last_sample_token"] = ref(0);
       },
       "sample", "prev"},
      {"a link into the middle", [&](TestRoot& d) { d.row("sample", 3)["next"] = ref(1); },
       "sample", "next"},
      {"a link into another scene",
       [&](TestRoot& d) {
         d.row("sample", 3)["next"] = ref(4);
         d.row("sample", 4)["prev"] = ref(3);
       },
       "sample", "next"},
      {"a chain in two pieces",
       [&](TestRoot& d) {
         d.row("sample", 1)["next"] = "\"\"";
         d.row("sample", 2)["prev"] = "\"\"";
       },
       "scene", "last_sample_token"},
      {"a first sample of another scene",
       [&](TestRoot& d) { d.row("scene", 0)["first_sample_token"] = ref(4); }, "scene",
       "first_sample_token"},
  };
  for (const auto& bad : cases) {
    TestRootInMemory data;
    bad.change(data);
    data.write();
    EXPECT_TRUE(says(data.error(), {data.path(bad.table), str_cat("key '", bad.key, "'")}))
        << bad.what;
  }
}

TEST(HostileTablesTest, WhatTheDevkitToleratesIsTolerated) {
  TestRootInMemory data;
  data.row("scene", 0)["nbr_samples"] = "17";
  data.row("sample", 0)["prev"] = "null";
  data.row("sample", 0)["unknown"] = "{\"a\": [1, {\"b\": null}], \"token\": 5}";
  data.row("sample", 1)["unknown"] = "[NaN, 123456789012345678901234567890]";
  data.row("sample", 2)["timestamp"] += ".0";
  data.row("sample_data", 18)
      .fields.insert(data.row("sample_data", 18).fields.begin(),
                     {"width", "\"the last one counts\""});
  data.row("sample_annotation", 0)["visibility_token"] = "\"\"";
  data.row("sample_annotation", 1)["visibility_token"] = "null";
  // Rows of sensors that are not ours, and frames between key frames, may point anywhere.
  data.row("sample_data", 14)["ego_pose_token"] = TestTables::ref(99, 1);
  data.row("sample_data", 1)["sample_token"] = TestTables::ref(99, 1);
  data.write();
  data.put("sample", "\xEF\xBB\xBF \r\n" + TestTables::text(data.tables.tables["sample"]) + "\n\n");
  const auto opened = data.open();
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ((*opened)->scene(0).num_samples, 4u);
  EXPECT_EQ((*opened)->camera(1, 1).width, 1600);
  EXPECT_EQ((*opened)->boxes(0)[0].visibility, 0);
}

TEST(HostileTablesTest, ForgivesUnknownKeysOnly) {
  TestRootInMemory data;
  data.row("sample", 1)["timestamp"] = "NaN";
  data.row("sample", 1)["unknown"] = "NaN";
  data.write();
  EXPECT_TRUE(says(data.error(), {data.path("sample"), "row 1", "key 'timestamp'", "NaN"}));
}

TEST(HostileTablesTest, FilesThatAreNoTables) {
  const struct {
    std::string text;
    const char* message;
  } cases[] = {
      {"", "empty"},
      {"   \n", "empty"},
      {"\xEF\xBB\xBF", "empty"},
      {"[]", "no rows"},
      {"{}", "one JSON object"},
      {"{\"token\": []}", "one JSON object"},
      {"<html>", "begins with '<'"},
      {std::string(100, '\0'), "begins with byte 0"},
      {"[", "without the closing"},
      {"[{", "row 0"},
      {"[{\"token\": \"a", "row 0"},
      {"[{}", "row 0"},
      {"[1, 2]", "row 0"},
      {"[{}, ]", "row 0"},
      {"[null]", "row 0"},
      {"[[{}]]", "row 0"},
      {"[{} {}]", "row 0"},
      {"[{\"token\": 1]}", "row 0"},
      {"[{\"a\" 1}]", "row 0"},
      {"[{a: 1}]", "row 0"},
      {"[{\"\\q\": 1}]", "row 0"},
      {"[{\"token\": \"\xFF\xFE\"}]", "row 0"},
      {"[{\"a\": " + std::string(5000, '[') + "}]", "nested"},
      {"[{\"a\": \"" + std::string(3 << 20, 'x') + "\"}]", "longer than 1 MiB"},
      {"[{\"a\": " + std::string(3 << 20, ' ') + "1}]", "longer than 1 MiB"},
  };
  for (const auto& bad : cases) {
    TestRootInMemory data;
    data.put("sample", bad.text);
    EXPECT_TRUE(says(data.error(), {data.path("sample"), bad.message})) << bad.text.substr(0, 40);
  }
  TestRootInMemory data;
  const std::string whole = *data.env.read_file(data.path("scene"));
  data.put("scene", whole + "]");
  EXPECT_TRUE(says(data.error(), {data.path("scene"), "behind the closing"}));
  // Cut anywhere.
  for (size_t size = 0; size < whole.size(); size += 13) {
    data.put("scene", whole.substr(0, size));
    EXPECT_TRUE(says(data.error(), {data.path("scene")})) << size;
  }
}

TEST(HostileTablesTest, MissingTablesAreListed) {
  TestRootInMemory data;
  ASSERT_TRUE(data.env.remove_file(data.path("map")).ok());
  ASSERT_TRUE(data.env.remove_file(data.path("visibility")).ok());
  EXPECT_TRUE(says(data.error(), {"map.json, visibility.json", "v1.0-mini"}));
}

TEST(HostileTablesTest, AMillionRowsOfJunkEndAtTheFirst) {
  TestRootInMemory data;
  std::string junk = "[";
  for (int i = 0; i < 1'000'000; ++i) junk += i == 0 ? "{\"a\":1}" : ",{\"a\":1}";
  data.put("sample_data", junk + "]");
  EXPECT_TRUE(says(data.error(), {data.path("sample_data"), "row 0", "key 'token'"}));
}

// Text in pieces of any size gives the same rows.
TEST(RowSplitterTest, BlocksDoNotMatter) {
  const std::string text =
      "\xEF\xBB\xBF [ {\"a\": \"}\\\"]\\\\\"} ,\n{},{\"b\":[{\"c\":[]}],\"d\":\"\\u007b{\"}]\n";
  const std::vector<std::string> expected = {"{\"a\": \"}\\\"]\\\\\"}", "{}",
                                             "{\"b\":[{\"c\":[]}],\"d\":\"\\u007b{\"}"};
  for (size_t piece = 1; piece <= text.size(); ++piece) {
    std::vector<std::string> rows;
    RowSplitter splitter([&](std::string_view object, uint64_t row) {
      EXPECT_EQ(row, rows.size());
      rows.emplace_back(object);
      return ok_status();
    });
    for (size_t at = 0; at < text.size(); at += piece) {
      size_t room = 0;
      char* to = splitter.room(room);
      const size_t count = std::min(piece, text.size() - at);
      ASSERT_GE(room, count);
      std::copy_n(text.data() + at, count, to);
      ASSERT_TRUE(splitter.add(count).ok());
    }
    ASSERT_TRUE(splitter.finish().ok());
    EXPECT_EQ(rows, expected) << piece;
  }
}

// A string that never ends is given up long before it is in memory.
TEST(RowSplitterTest, MemoryIsBounded) {
  RowSplitter splitter([](std::string_view, uint64_t) { return ok_status(); });
  Status status;
  uint64_t fed = 0;
  for (bool first = true; status.ok() && fed < (uint64_t{1} << 30); first = false) {
    size_t room = 0;
    char* to = splitter.room(room);
    ASSERT_LE(room, size_t{4} << 20);
    std::fill_n(to, room, 'x');
    if (first) std::copy_n("[{\"a\": \"", 8, to);
    status = splitter.add(room);
    fed += room;
  }
  EXPECT_FALSE(status.ok());
  EXPECT_LT(fed, uint64_t{8} << 20);
}

}  // namespace
}  // namespace aerie::nuscenes
