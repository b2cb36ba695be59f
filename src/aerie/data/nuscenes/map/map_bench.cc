// Masks of the six classes, a sample an iteration, one thread, with the augmentation of training.
// AERIE_MAP names the map: bench/peers/stand_in_map.py makes ones with the real record counts.
#include <cstdlib>
#include <vector>

#include <benchmark/benchmark.h>

#include "aerie/base/check.h"
#include "aerie/base/philox.h"
#include "aerie/data/nuscenes/map/ground_truth.h"

namespace aerie::nuscenes {
namespace {

std::shared_ptr<const MapExpansion> the_map() {
  const char* const path = std::getenv("AERIE_MAP");
  AERIE_CHECK(path != nullptr, "set AERIE_MAP to the path of a map");
  static const auto map = MapExpansion::load(Env::real(), path);
  AERIE_CHECK(map.ok(), map.status().to_string());
  return *map;
}

void BM_Masks(benchmark::State& state) {
  const auto map = the_map();
  GroundTruthOptions options;
  options.compat = state.range(0) == 0 ? GtCompat::kDevkit : GtCompat::kExact;
  auto maker = *GroundTruthMaker::make(options);
  std::vector<uint8_t> out(maker.num_bytes());
  // At corners of lanes, where cars are.
  std::vector<raster::Point> places;
  for (uint32_t i = 0; i < map->num_shapes(MapLayer::kLane); ++i)
    places.push_back(map->ring(map->shape(MapLayer::kLane, i), 0)[0]);
  AERIE_CHECK(!places.empty(), "the map has no lanes");
  RandomStream random(1, Purpose::kTest, 0, 0);
  uint64_t entry = 0;
  for (auto _ : state) {
    const raster::Point& place = places[random.below(places.size())];
    const Mat4 pose = rigid(rotation_z(random.uniform(-3.14, 3.14)), {place.x, place.y, 0.0});
    const Status status =
        maker.draw(*map, pose, draw_bev_augmentation({}, 1, 0, entry++), out.data());
    AERIE_CHECK(status.ok(), status.to_string());
    benchmark::DoNotOptimize(out.data());
  }
}
BENCHMARK(BM_Masks)->Arg(0)->Arg(1)->ArgName("exact")->Unit(benchmark::kMillisecond);

void BM_LoadMap(benchmark::State& state) {
  the_map();
  for (auto _ : state) {
    const auto map = MapExpansion::load(Env::real(), std::getenv("AERIE_MAP"));
    AERIE_CHECK(map.ok(), map.status().to_string());
    benchmark::DoNotOptimize(map);
  }
}
BENCHMARK(BM_LoadMap)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace aerie::nuscenes

BENCHMARK_MAIN();
