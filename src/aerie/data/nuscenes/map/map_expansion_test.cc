#include "aerie/data/nuscenes/map/map_expansion.h"

#include <algorithm>

#include <gtest/gtest.h>

#include "aerie/base/strings.h"
#include "aerie/base/temp_dir.h"
#include "aerie/base/testing/paths.h"
#include "aerie/data/nuscenes/map/json_scanner.h"

namespace aerie::nuscenes {
namespace {

std::string whole_map() {
  return *Env::real().read_file(test_data("/bev/map.json"));
}

std::string error_of(const std::string& json) {
  const auto map = MapExpansion::parse(json, "city.json");
  return map.ok() ? std::string("taken") : map.status().to_string();
}

// A small map; the arguments replace a part of it.
std::string map_with(
    const std::string& version = R"("1.3")",
    const std::string& nodes =
        R"({"token":"a","x":0,"y":0},{"token":"b","x":9,"y":0},{"token":"c","x":9,"y":9})",
    const std::string& polygons =
        R"({"token":"p","exterior_node_tokens":["a","b","c"],"holes":[]})",
    const std::string& lanes = R"({"token":"l","polygon_token":"p"})",
    const std::string& more = "") {
  return str_cat(R"({"version":)", version, R"(,"canvas_edge":[1,2],"node":[)", nodes,
                 R"(],"line":[],"polygon":[)", polygons, R"(],"lane":[)", lanes, "]", more, "}");
}

TEST(MapExpansionTest, ReadsEveryLayer) {
  const auto result = MapExpansion::load(Env::real(), test_data("/bev/map.json"));
  ASSERT_TRUE(result.ok()) << result.status().to_string();
  const MapExpansion& map = **result;
  EXPECT_EQ(map.version(), "1.3");
  for (int i = 0; i < kNumMapLayers; ++i) EXPECT_TRUE(map.has(static_cast<MapLayer>(i)));
  const auto& summary = map.summary();
  EXPECT_EQ(summary.num_records[static_cast<size_t>(MapLayer::kDrivableArea)], 2u);
  EXPECT_EQ(map.num_shapes(MapLayer::kDrivableArea), 3u);
  EXPECT_EQ(summary.num_left_out[static_cast<size_t>(MapLayer::kWalkway)], 2u)
      << "bow tie, hole outside";
  EXPECT_EQ(summary.num_left_out[static_cast<size_t>(MapLayer::kPedCrossing)], 1u) << "spike";
  EXPECT_EQ(summary.num_left_out[static_cast<size_t>(MapLayer::kStopLine)], 1u) << "no points";
  EXPECT_EQ(summary.num_left_out[static_cast<size_t>(MapLayer::kLaneDivider)], 1u) << "no points";
  EXPECT_GT(summary.memory_bytes, 1000u);
}

TEST(MapExpansionTest, FindsWhatLooksAtEverythingFinds) {
  const auto map = *MapExpansion::load(Env::real(), test_data("/bev/map.json"));
  std::vector<uint32_t> found, expected;
  for (int i = 0; i < 200; ++i) {
    const double x = i % 20 * 12.0 - 30.0, y = i / 20 * 25.0 - 20.0, size = 5.0 + i % 7 * 30.0;
    const MapBounds area{x, y, x + size, y + size};
    for (int k = 0; k < kNumMapLayers; ++k) {
      const auto layer = static_cast<MapLayer>(k);
      expected.clear();
      for (uint32_t s = 0; s < map->num_shapes(layer); ++s)
        if (map->shape(layer, s).bounds.overlaps(area)) expected.push_back(s);
      map->shapes_in(layer, area, found);
      ASSERT_EQ(found, expected);
    }
  }
}

TEST(MapExpansionTest, OrderOfKeysDoesNotMatter) {
  const std::string reversed =
      R"({"lane":[{"polygon_token":"p"}],"polygon":[{"holes":[{"node_tokens":["d","e","f"]},{"node_tokens":[]}],)"
      R"("exterior_node_tokens":["a","b","c","a"],"token":"\u0070"}],"line":[],"anything":{"deep":[[{"x":null}],true,-1.5e3]},)"
      R"("node":[{"y":0,"x":0,"token":"a"},{"y":0,"x":9,"token":"b"},{"y":9,"x":9,"token":"c"},)"
      R"({"y":1,"x":5,"token":"d"},{"y":1,"x":6,"token":"e"},{"y":2,"x":6,"token":"f"}],"version":"1.10"})";
  const auto map = MapExpansion::parse(reversed, "city.json");
  ASSERT_TRUE(map.ok()) << map.status().to_string();
  const auto& lane = (*map)->shape(MapLayer::kLane, 0);
  EXPECT_TRUE(lane.valid);
  ASSERT_EQ(lane.num_rings, 2u);
  EXPECT_EQ((*map)->ring(lane, 0).size(), 3u) << "the closing point is dropped";
  EXPECT_EQ((*map)->ring(lane, 1)[0].x, 5.0);
}

TEST(MapExpansionTest, NamesFileLayerRowAndKey) {
  EXPECT_EQ(error_of(map_with()), "taken");
  const auto says = [](const std::string& json, std::initializer_list<const char*> words) {
    const std::string error = error_of(json);
    EXPECT_NE(error.find("city.json"), std::string::npos) << error;
    for (const char* word : words)
      EXPECT_NE(error.find(word), std::string::npos) << error << " lacks " << word;
  };
  says(map_with(R"("1.2")"), {"1.2", "too old", "nuscenes.org"});
  says(map_with(R"("new")"), {"version 'new'"});
  says(map_with("1.3"), {"version", "a number"});
  says(R"({"node":[]})", {"version", "older"});
  says(R"({"version":"1.3","node":[],"line":[]})", {"'polygon' is missing"});
  says("[]", {"object"});
  says("", {"object"});

  const std::string b_c = R"(,{"token":"b","x":9,"y":0},{"token":"c","x":9,"y":9})";
  says(map_with(R"("1.3")", R"({"token":"a","x":NaN,"y":0})" + b_c),
       {"'node', row 0", "'x'", "nan"});
  says(map_with(R"("1.3")", R"({"token":"a","x":0,"y":1e308})" + b_c),
       {"'node', row 0", "'y'", "1e+308"});
  says(map_with(R"("1.3")", R"({"token":"a","x":0,"y":-1e999})" + b_c), {"'node', row 0", "'y'"});
  says(map_with(R"("1.3")", R"({"token":"a","x":"0","y":0})" + b_c),
       {"'node', row 0", "'x'", "a string", "a number"});
  says(map_with(R"("1.3")", R"({"token":"a","x":0})" + b_c), {"'node', row 0", "'y' is missing"});
  says(map_with(R"("1.3")", R"({"token":7,"x":0,"y":0})" + b_c), {"'node', row 0", "'token'"});
  says(map_with(R"("1.3")", R"(5)" + b_c), {"'node', row 0", "not an object"});
  const std::string good = R"({"token":"a","x":0,"y":0})" + b_c;
  says(map_with(R"("1.3")", good,
                R"({"token":"p","exterior_node_tokens":["a","b","gone"],"holes":[]})"),
       {"'polygon', row 0", "node 2", "'gone'"});
  says(map_with(R"("1.3")", good, R"({"token":"p","exterior_node_tokens":"a","holes":[]})"),
       {"'polygon', row 0", "'exterior_node_tokens'", "a list"});
  says(map_with(R"("1.3")", good, R"({"token":"p","exterior_node_tokens":["a","b","c"]})"),
       {"'polygon', row 0", "'holes'"});
  says(map_with(R"("1.3")", good,
                R"({"token":"p","exterior_node_tokens":["a","b","c"],"holes":[{"nodes":[]}]})"),
       {"'polygon', row 0, hole 0", "'node_tokens'"});
  const std::string p = R"({"token":"p","exterior_node_tokens":["a","b","c"],"holes":[]})";
  says(map_with(R"("1.3")", good, p, R"({"token":"l","polygon_token":"p"},{"polygon_token":"q"})"),
       {"'lane', row 1", "polygon", "'q'"});
  says(map_with(R"("1.3")", good, p, R"({"token":"l"})"),
       {"'lane', row 0", "'polygon_token' is missing"});
  says(map_with(R"("1.3")", good, p, R"({"polygon_token":null})"),
       {"'lane', row 0", "'polygon_token'", "null"});
  says(map_with(R"("1.3")", good, p, "", R"(,"drivable_area":[{"polygon_tokens":"p"}])"),
       {"'drivable_area', row 0", "a list"});
  says(map_with(R"("1.3")", good, p, "", R"(,"walkway":{})"),
       {"'walkway'", "an object, not a list"});
  says(map_with() + "x", {"after the map", "line 1"});
  // A row that no layer names may be wrong.
  EXPECT_EQ(error_of(map_with(R"("1.3")", good,
                              p + R"(,{"token":"q","exterior_node_tokens":["gone"],"holes":[]})")),
            "taken");
}

TEST(MapExpansionTest, IsNotFooledByDepth) {
  for (const char* open : {"[", "{\"a\":"}) {
    std::string deep = R"({"version":"1.3","connectivity":)";
    for (int i = 0; i < 500'000; ++i) deep += open;
    EXPECT_NE(error_of(deep).find("nested deeper"), std::string::npos);
  }
}

// Cut anywhere, a map is an error that says so; no cut is taken for a whole one.
TEST(MapExpansionTest, CutsAreErrors) {
  const std::string whole = whole_map();
  EXPECT_EQ(error_of(whole), "taken");
  for (size_t size = 0; size < whole.size(); size += size < 300 ? 1 : 1009)
    ASSERT_NE(error_of(whole.substr(0, size)), "taken") << size;
  ASSERT_NE(error_of(whole.substr(0, whole.size() - 1)), "taken");
  // Bytes that are something else do no harm.
  for (size_t i = 0; i < whole.size(); i += 2003) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(i * 37);
    (void)MapExpansion::parse(damaged, "city.json");
  }
}

TEST(MapExpansionTest, ManyRecordsOfOnePolygonTakeLittle) {
  std::string lanes = R"({"polygon_token":"p"})";
  for (int i = 1; i < 50'000; ++i) lanes += R"(,{"polygon_token":"p"})";
  const std::string nodes =
      R"({"token":"a","x":-9e6,"y":-9e6},{"token":"b","x":9e6,"y":-9e6},{"token":"c","x":0,"y":9e6})";
  const auto map = MapExpansion::parse(
      map_with(R"("1.3")", nodes,
               R"({"token":"p","exterior_node_tokens":["a","b","c"],"holes":[]})", lanes),
      "wide.json");
  ASSERT_TRUE(map.ok()) << map.status().to_string();
  EXPECT_EQ((*map)->num_shapes(MapLayer::kLane), 50'000u);
  EXPECT_LT((*map)->summary().memory_bytes, 10'000'000u);
  std::vector<uint32_t> found;
  (*map)->shapes_in(MapLayer::kLane, {0, 0, 1, 1}, found);
  EXPECT_EQ(found.size(), 50'000u);
}

TEST(MapExpansionTest, ReadsAnyFileName) {
  const TempDir folder;
  const std::string path = folder.file("some-other-town.json");
  ASSERT_TRUE(Env::real().write_file(path, map_with()).ok());
  const auto map = MapExpansion::load(Env::real(), path);
  ASSERT_TRUE(map.ok()) << map.status().to_string();
  EXPECT_EQ((*map)->path(), path);
  EXPECT_FALSE((*map)->has(MapLayer::kWalkway));
  EXPECT_FALSE(MapExpansion::load(Env::real(), folder.file("none.json")).ok());
}

TEST(JsonScannerTest, ReadsStringsAndNumbersAsPythonDoes) {
  JsonScanner text(R"("a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00z" 1e-400 -12.5E+1 "\q")");
  std::string_view out;
  double number = 0.0;
  ASSERT_TRUE(text.read_string(out));
  EXPECT_EQ(out, "a\"\\/\b\f\n\r\t\xC3\xA9\xF0\x9F\x98\x80z");
  ASSERT_TRUE(text.read_number(number));
  EXPECT_EQ(number, 0.0);
  ASSERT_TRUE(text.read_number(number));
  EXPECT_EQ(number, -125.0);
  EXPECT_FALSE(text.read_string(out));
  EXPECT_NE(text.error().to_string().find("escape"), std::string::npos);
  for (const char* wrong : {"-", "1.2.3", ".5", "+1", "1e", "--1", "nan"}) {
    JsonScanner scanner(wrong);
    EXPECT_FALSE(scanner.read_number(number)) << wrong;
  }
}

}  // namespace
}  // namespace aerie::nuscenes
