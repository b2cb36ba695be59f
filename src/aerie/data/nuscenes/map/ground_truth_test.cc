#include "aerie/data/nuscenes/map/ground_truth.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <sstream>

#include <gtest/gtest.h>

#include "aerie/archive/safetensors.h"
#include "aerie/base/testing/paths.h"
#include "aerie/data/nuscenes/map/map_patch.h"

namespace aerie::nuscenes {
namespace {

// Of the files of tests/golden/gen/map_masks.py.
template <typename T>
std::vector<T> tensor_of(const archive::TensorArchive& file, const std::string& name) {
  const archive::TensorInfo* info = file.find(name);
  AERIE_CHECK(info != nullptr, file.name(), " has no ", name);
  return *file.read_as<T>(*info);
}

// A mask from the lengths of its runs, zeros first.
std::vector<uint8_t> mask_of_runs(std::span<const uint8_t> runs, size_t size) {
  std::vector<uint8_t> mask;
  mask.reserve(size);
  uint8_t value = 0;
  for (size_t i = 0; i < runs.size(); value ^= 1) {
    size_t length = 0;
    for (int shift = 0;; shift += 7) {
      length |= size_t{runs[i] & 127u} << shift;
      if ((runs[i++] & 128u) == 0) break;
    }
    mask.insert(mask.end(), length, value);
  }
  AERIE_CHECK(mask.size() == size, "runs add up to ", mask.size(), " cells, not ", size);
  return mask;
}

std::string or_environment(const char* name, const std::string& path) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : path;
}

std::shared_ptr<const MapExpansion> load_map(const std::string& path) {
  auto map = MapExpansion::load(Env::real(), path);
  AERIE_CHECK(map.ok(), map.status().to_string());
  return *map;
}

// Against get_map_mask of the real devkit. AERIE_MAP and AERIE_MAP_MASKS name other maps and
// masks: tests/interop/devkit_masks.py.
TEST(DevkitMasksTest, AllButOneInAThousandCellsAreTheSame) {
  const bool ours = std::getenv("AERIE_MAP_MASKS") == nullptr;
  const auto map = load_map(or_environment("AERIE_MAP", test_data("/bev/map.json")));
  const auto file = archive::read_safetensors(
      Env::real(), or_environment("AERIE_MAP_MASKS", test_data("/bev/map_masks.safetensors")));
  ASSERT_TRUE(file.ok()) << file.status().to_string();
  const auto patches = tensor_of<double>(*file, "patches");
  const auto begin = tensor_of<int64_t>(*file, "begin");
  const auto runs = tensor_of<uint8_t>(*file, "runs");
  const int rows = std::stoi(file->text_metadata().at("rows"));
  const int columns = std::stoi(file->text_metadata().at("columns"));
  std::istringstream names(file->text_metadata().at("layers"));
  std::vector<MapLayer> layers;
  for (std::string name; names >> name;) layers.push_back(*map_layer_from(name));

  PatchDrawer drawer;
  std::vector<uint8_t> canvas(static_cast<size_t>(rows) * static_cast<size_t>(columns));
  std::vector<size_t> different(layers.size()), ones(layers.size());
  const size_t num_patches = patches.size() / 5;
  for (size_t i = 0; i < num_patches; ++i) {
    const double* const p = &patches[i * 5];
    const MapPatch patch{{p[0], p[1]}, p[4], p[3], p[2], columns, rows};
    for (size_t k = 0; k < layers.size(); ++k) {
      const size_t at = i * layers.size() + k;
      const auto expected =
          mask_of_runs(std::span(runs).subspan(static_cast<size_t>(begin[at]),
                                               static_cast<size_t>(begin[at + 1] - begin[at])),
                       canvas.size());
      std::fill(canvas.begin(), canvas.end(), uint8_t{0});
      drawer.draw(*map, layers[k], patch, false, {canvas.data(), columns, rows});
      for (size_t c = 0; c < canvas.size(); ++c) {
        different[k] += canvas[c] != expected[c] ? 1 : 0;
        ones[k] += expected[c];
      }
    }
  }
  size_t all = 0;
  for (size_t k = 0; k < layers.size(); ++k) {
    std::printf("%-14s %8zu cells set, %4zu differ\n", std::string(name_of(layers[k])).c_str(),
                ones[k], different[k]);
    all += different[k];
    if (ours) {
      EXPECT_EQ(different[k], 0u) << name_of(layers[k]);
    }
    EXPECT_LE(static_cast<double>(different[k]),
              1e-3 * static_cast<double>(num_patches * canvas.size()))
        << name_of(layers[k]);
  }
  const double share =
      static_cast<double>(all) / static_cast<double>(num_patches * layers.size() * canvas.size());
  std::printf("%zu patches, %zu layers: %.5f %% of cells differ\n", num_patches, layers.size(),
              100.0 * share);
  EXPECT_LE(share, 1e-3);
}

Mat4 pose_at(double x, double y, double yaw) {
  return rigid(rotation_z(yaw), {x, y, 1.8});
}

std::vector<uint8_t> drawn(const MapExpansion& map, const GroundTruthOptions& options,
                           const Mat4& pose, const BevAugmentation& augmentation) {
  auto maker = GroundTruthMaker::make(options);
  AERIE_CHECK(maker.ok(), maker.status().to_string());
  std::vector<uint8_t> out(maker->num_bytes(), 7);
  const Status status = maker->draw(map, pose, augmentation, out.data());
  AERIE_CHECK(status.ok(), status.to_string());
  return out;
}

constexpr int kN = 200;
size_t cell(size_t k, int x, int y) {
  return (k * kN + static_cast<size_t>(x)) * kN + static_cast<size_t>(y);
}

TEST(GroundTruthTest, HasXFirstAndJoinsDividers) {
  const auto map = load_map(test_data("/bev/map.json"));
  GroundTruthOptions options;
  const Mat4 pose = pose_at(80.0, 100.0, 0.7);
  const auto masks = drawn(*map, options, pose, {});
  ASSERT_EQ(masks.size(), 6u * kN * kN);
  EXPECT_EQ(std::count_if(masks.begin(), masks.end(), [](uint8_t v) { return v > 1; }), 0);
  const MapPatch patch{{80.0, 100.0}, 0.7 / M_PI * 180.0, 100.0, 100.0, kN, kN};
  std::vector<uint8_t> canvas(size_t{kN} * kN);
  const std::vector<std::vector<MapLayer>> classes = {
      {MapLayer::kDrivableArea}, {MapLayer::kPedCrossing},
      {MapLayer::kWalkway},      {MapLayer::kStopLine},
      {MapLayer::kCarparkArea},  {MapLayer::kRoadDivider, MapLayer::kLaneDivider}};
  for (size_t k = 0; k < classes.size(); ++k) {
    std::vector<uint8_t> expected(canvas.size());
    for (const MapLayer layer : classes[k]) {
      std::fill(canvas.begin(), canvas.end(), uint8_t{0});
      PatchDrawer().draw(*map, layer, patch, false, {canvas.data(), kN, kN});
      for (int x = 0; x < kN; ++x)
        for (int y = 0; y < kN; ++y)
          expected[static_cast<size_t>(x * kN + y)] |= canvas[static_cast<size_t>(y * kN + x)];
    }
    EXPECT_TRUE(std::equal(expected.begin(), expected.end(),
                           masks.begin() + static_cast<ptrdiff_t>(k) * kN * kN))
        << options.classes[k];
  }
}

TEST(GroundTruthTest, FlipsAreExact) {
  const auto map = load_map(test_data("/bev/map.json"));
  const Mat4 pose = pose_at(90.0, 110.0, -1.1);
  for (const GtCompat compat : {GtCompat::kDevkit, GtCompat::kExact}) {
    GroundTruthOptions options;
    options.compat = compat;
    BevAugmentation augmentation{1.05, 0.3, {0.4, -0.2, 0.1}, false, false};
    const auto plain = drawn(*map, options, pose, augmentation);
    for (int flips = 1; flips < 4; ++flips) {
      augmentation.flip_x = (flips & 1) != 0;
      augmentation.flip_y = (flips & 2) != 0;
      const auto flipped = drawn(*map, options, pose, augmentation);
      for (size_t k = 0; k < 6; ++k)
        for (int x = 0; x < kN; ++x)
          for (int y = 0; y < kN; ++y)
            ASSERT_EQ(flipped[cell(k, augmentation.flip_x ? kN - 1 - x : x,
                                   augmentation.flip_y ? kN - 1 - y : y)],
                      plain[cell(k, x, y)]);
    }
  }
}

// Intersection over union of the first `num_classes` masks of `a`, resampled by `to_b` (cell
// centres in metres to those of b), and b; where both grids have a cell.
double resampled_iou(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b,
                     size_t num_classes, const Mat4& to_a) {
  double both = 0.0, either = 0.0;
  for (size_t k = 0; k < num_classes; ++k) {
    for (int x = 0; x < kN; ++x) {
      for (int y = 0; y < kN; ++y) {
        const Vec3 p = to_a * Vec3{-50.0 + 0.5 * (x + 0.5), -50.0 + 0.5 * (y + 0.5), 0.0};
        const int ax = static_cast<int>(std::floor((p.x + 50.0) / 0.5));
        const int ay = static_cast<int>(std::floor((p.y + 50.0) / 0.5));
        if (ax < 0 || ax >= kN || ay < 0 || ay >= kN) continue;
        const int sum = a[cell(k, ax, ay)] + b[cell(k, x, y)];
        both += sum == 2 ? 1.0 : 0.0;
        either += sum > 0 ? 1.0 : 0.0;
      }
    }
  }
  return both / either;
}

// mask(A) is mask(identity) seen through A: rotation, shift and scale act on labels as on points.
TEST(GroundTruthTest, FollowsTheAugmentation) {
  const auto map = load_map(test_data("/bev/map.json"));
  for (const GtCompat compat : {GtCompat::kDevkit, GtCompat::kExact}) {
    for (int i = 0; i < 10; ++i) {
      GroundTruthOptions options;
      options.compat = compat;
      options.classes = {"drivable_area", "walkway", "carpark_area"};
      const Mat4 pose = pose_at(60.0 + 8.0 * i, 60.0 + 10.0 * i, 0.6 * i);
      const BevAugmentation augmentation =
          draw_bev_augmentation({}, 9, 0, static_cast<uint64_t>(i));
      const auto plain = drawn(*map, options, pose, {});
      const auto augmented = drawn(*map, options, pose, augmentation);
      const Mat4 back = *inverse(augmentation.matrix());
      const double iou = resampled_iou(plain, augmented, 3, back);
      EXPECT_GT(iou, compat == GtCompat::kExact ? 0.98 : 0.96) << i;
      // Rotation alone, as the proof has it.
      BevAugmentation turned;
      turned.rotation = augmentation.rotation;
      EXPECT_GT(
          resampled_iou(plain, drawn(*map, options, pose, turned), 3, *inverse(turned.matrix())),
          0.97)
          << i;
      // What is wrong must show.
      BevAugmentation wrong = augmentation;
      wrong.rotation = -wrong.rotation;
      EXPECT_LT(resampled_iou(plain, augmented, 3, *inverse(wrong.matrix())), iou - 0.02) << i;
      BevAugmentation unmirrored = augmentation;
      unmirrored.flip_x = !unmirrored.flip_x;
      EXPECT_LT(resampled_iou(plain, augmented, 3, *inverse(unmirrored.matrix())), iou - 0.02) << i;
    }
  }
}

TEST(GroundTruthTest, ScalesThePatchOnlyWhenTold) {
  const auto map = load_map(test_data("/bev/map.json"));
  const Mat4 pose = pose_at(90.0, 110.0, 0.2);
  BevAugmentation scaled;
  scaled.scale = 1.1;
  scaled.shift = {0.3, -0.7, 0.0};
  BevAugmentation unscaled = scaled;
  unscaled.scale = 1.0;
  GroundTruthOptions options;
  const auto with = drawn(*map, options, pose, scaled),
             without = drawn(*map, options, pose, unscaled);
  EXPECT_NE(with, without);
  options.scale_patch = false;
  EXPECT_EQ(drawn(*map, options, pose, scaled), without);
}

TEST(GroundTruthTest, HolesEraseOnlyAsTheDevkitDoes) {
  // The second walkway lies in the hole of the first; the third covers the hole before it is cut.
  const std::string nodes =
      R"({"token":"a","x":-10,"y":-10},{"token":"b","x":10,"y":-10},{"token":"c","x":10,"y":10},{"token":"d","x":-10,"y":10},
         {"token":"e","x":-5,"y":-5},{"token":"f","x":5,"y":-5},{"token":"g","x":5,"y":5},{"token":"h","x":-5,"y":5})";
  const std::string json = R"({"version":"1.3","node":[)" + nodes + R"(],"line":[],"polygon":[
      {"token":"whole","exterior_node_tokens":["a","b","c","d"],"holes":[]},
      {"token":"ring","exterior_node_tokens":["a","b","c","d"],"holes":[{"node_tokens":["e","f","g","h"]}]}],
      "walkway":[{"polygon_token":"whole"},{"polygon_token":"ring"}]})";
  const auto map = MapExpansion::parse(json, "holes");
  ASSERT_TRUE(map.ok()) << map.status().to_string();
  GroundTruthOptions options;
  options.classes = {"walkway"};
  const auto devkit = drawn(**map, options, Mat4::identity(), {});
  EXPECT_EQ(devkit[cell(0, 100, 100)], 0);
  EXPECT_EQ(devkit[cell(0, 85, 85)], 1);
  options.compat = GtCompat::kExact;
  const auto exact = drawn(**map, options, Mat4::identity(), {});
  EXPECT_EQ(exact[cell(0, 100, 100)], 1);
  EXPECT_EQ(std::count(exact.begin(), exact.end(), 1), 40 * 40);

  options.classes = {"walkway", "stop_line"};
  auto maker = GroundTruthMaker::make(options);
  std::vector<uint8_t> out(maker->num_bytes());
  const Status missing = maker->draw(**map, Mat4::identity(), {}, out.data());
  EXPECT_NE(missing.to_string().find("'stop_line' is missing"), std::string::npos);
}

TEST(GroundTruthTest, TakesOtherGrids) {
  const auto map = load_map(test_data("/bev/map.json"));
  GroundTruthOptions wide;
  wide.classes = {"drivable_area", "lane", "drivable_area*"};
  const Mat4 pose = pose_at(80.0, 90.0, 0.4);
  const auto whole = drawn(*map, wide, pose, {});
  // A part of the same grid, ahead and to the left: the same cells, up to rounding at its border.
  GroundTruthOptions part = wide;
  part.compat = wide.compat = GtCompat::kExact;
  part.x = {0.0, 20.0, 0.5};
  part.y = {-10.0, 40.0, 0.5};
  const auto exact_whole = drawn(*map, wide, pose, {});
  const auto cut = drawn(*map, part, pose, {});
  ASSERT_EQ(cut.size(), 3u * 40 * 100);
  size_t different = 0;
  for (size_t k = 0; k < 3; ++k)
    for (int x = 0; x < 40; ++x)
      for (int y = 0; y < 100; ++y)
        different += cut[(k * 40 + static_cast<size_t>(x)) * 100 + static_cast<size_t>(y)] !=
                             exact_whole[cell(k, x + 100, y + 80)]
                         ? 1
                         : 0;
  EXPECT_LE(different, 3u);
  EXPECT_NE(whole, exact_whole);
}

TEST(GroundTruthTest, RefusesWhatMakesNoSense) {
  const auto refused = [](const GroundTruthOptions& options) {
    const auto maker = GroundTruthMaker::make(options);
    return maker.ok() ? std::string("taken") : maker.status().to_string();
  };
  GroundTruthOptions options;
  options.classes = {"drivable_area", "sidewalk"};
  EXPECT_NE(refused(options).find("'sidewalk'"), std::string::npos);
  options.classes = {"lane", "lane"};
  EXPECT_NE(refused(options).find("twice"), std::string::npos);
  options.classes = {};
  EXPECT_NE(refused(options).find("no map classes"), std::string::npos);
  options = {};
  options.x = {50.0, -50.0, 0.5};
  EXPECT_NE(refused(options).find("x axis"), std::string::npos);
  options = {};
  options.y.step = 1e-9;
  EXPECT_NE(refused(options).find("y axis"), std::string::npos);
  options.y.step = std::nan("");
  EXPECT_NE(refused(options).find("y axis"), std::string::npos);

  const auto map = load_map(test_data("/bev/map.json"));
  auto maker = GroundTruthMaker::make({});
  std::vector<uint8_t> out(maker->num_bytes());
  Mat4 broken;
  broken(0, 3) = std::nan("");
  EXPECT_FALSE(maker->draw(*map, broken, {}, out.data()).ok());
  BevAugmentation flat;
  flat.scale = 0.0;
  EXPECT_FALSE(maker->draw(*map, Mat4::identity(), flat, out.data()).ok());
  Mat4 far_away;
  far_away(0, 3) = 1e300;
  EXPECT_TRUE(maker->draw(*map, far_away, {}, out.data()).ok());
  EXPECT_EQ(std::count(out.begin(), out.end(), 0), static_cast<ptrdiff_t>(out.size()));
}

struct BoxFixture {
  std::vector<GroundBox> boxes;
  Mat4 pose;
  std::vector<uint8_t> mask;
};

BoxFixture load_boxes() {
  const auto file = archive::read_safetensors(Env::real(), test_data("/bev/map_boxes.safetensors"));
  AERIE_CHECK(file.ok(), file.status().to_string());
  const auto values = tensor_of<double>(*file, "boxes"), pose = tensor_of<double>(*file, "pose");
  BoxFixture fixture;
  for (size_t i = 0; i < values.size(); i += 10) {
    const double* const v = &values[i];
    fixture.boxes.push_back(
        {"vehicle.car", {v[0], v[1], v[2]}, {v[3], v[4], v[5]}, {v[6], v[7], v[8], v[9]}});
  }
  fixture.pose =
      rigid(*rotation_from({pose[3], pose[4], pose[5], pose[6]}), {pose[0], pose[1], pose[2]});
  fixture.mask = mask_of_runs(tensor_of<uint8_t>(*file, "runs"), size_t{kN} * kN);
  return fixture;
}

std::vector<uint8_t> drawn_boxes(const GroundTruthOptions& options, const BoxFixture& fixture,
                                 const BevAugmentation& augmentation) {
  auto maker = GroundTruthMaker::make(options);
  std::vector<uint8_t> out(maker->num_bytes(), 7);
  const Status status = maker->draw_boxes(fixture.boxes, fixture.pose, augmentation, out.data());
  AERIE_CHECK(status.ok(), status.to_string());
  return out;
}

TEST(VehicleMaskTest, EqualsLiftSplatShoots) {
  const BoxFixture fixture = load_boxes();
  GroundTruthOptions options;
  options.task = MaskTask::kVehicle;
  EXPECT_GT(std::count(fixture.mask.begin(), fixture.mask.end(), 1), 1000);
  EXPECT_EQ(drawn_boxes(options, fixture, {}), fixture.mask);

  BevAugmentation mirrored;
  mirrored.flip_x = mirrored.flip_y = true;
  auto reversed = fixture.mask;
  std::reverse(reversed.begin(), reversed.end());
  EXPECT_EQ(drawn_boxes(options, fixture, mirrored), reversed);

  options.compat = GtCompat::kExact;
  const auto exact = drawn_boxes(options, fixture, {});
  const BevAugmentation augmentation{0.93, 0.5, {0.4, 0.2, 0.0}, true, false};
  EXPECT_GT(resampled_iou(exact, drawn_boxes(options, fixture, augmentation), 1,
                          *inverse(augmentation.matrix())),
            0.85);
  EXPECT_LT(std::count(exact.begin(), exact.end(), 1),
            std::count(fixture.mask.begin(), fixture.mask.end(), 1));
}

TEST(VehicleMaskTest, TakesTheCategoriesOfItsTask) {
  BoxFixture fixture = load_boxes();
  const std::vector<std::string_view> categories = {"vehicle.car", "vehicle.truck",
                                                    "human.pedestrian.adult", "vehicle.carriage",
                                                    "movable_object.barrier"};
  for (size_t i = 0; i < fixture.boxes.size(); ++i)
    fixture.boxes[i].category = categories[i % categories.size()];
  const auto of = [&](MaskTask task, auto keep) {
    BoxFixture kept = fixture;
    std::erase_if(kept.boxes, [&](const GroundBox& box) { return !keep(box.category); });
    for (GroundBox& box : kept.boxes) box.category = "vehicle.car";
    GroundTruthOptions options;
    options.task = task;
    return std::pair{drawn_boxes(options, fixture, {}), drawn_boxes(options, kept, {})};
  };
  const auto [cars, expected_cars] =
      of(MaskTask::kCar, [](std::string_view c) { return c == "vehicle.car"; });
  EXPECT_EQ(cars, expected_cars);
  const auto [vehicles, expected_vehicles] =
      of(MaskTask::kVehicle, [](std::string_view c) { return c.starts_with("vehicle"); });
  EXPECT_EQ(vehicles, expected_vehicles);
  EXPECT_NE(cars, vehicles);

  GroundTruthOptions options;
  options.task = MaskTask::kCar;
  auto maker = GroundTruthMaker::make(options);
  std::vector<uint8_t> out(maker->num_bytes());
  GroundBox wrong{"vehicle.car", {}, {1, 2, 3}, {0, 0, 0, 0}};
  EXPECT_FALSE(maker->draw_boxes(std::span(&wrong, 1), Mat4::identity(), {}, out.data()).ok());
  wrong = {"vehicle.car", {std::nan(""), 0, 0}, {1, 2, 3}, {}};
  EXPECT_FALSE(maker->draw_boxes(std::span(&wrong, 1), Mat4::identity(), {}, out.data()).ok());
  wrong = {"vehicle.car", {1e250, 0, 0}, {1, 2, 3}, {}};
  EXPECT_TRUE(maker->draw_boxes(std::span(&wrong, 1), Mat4::identity(), {}, out.data()).ok());
}

}  // namespace
}  // namespace aerie::nuscenes
