// Any bytes as a map; what can be read is drawn, in both ways, from a place and with a turn that
// the bytes choose as well.
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "aerie/data/nuscenes/map/ground_truth.h"
#include "aerie/data/nuscenes/map/map_expansion.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace aerie;
  using namespace aerie::nuscenes;
  const auto map = MapExpansion::parse({reinterpret_cast<const char*>(data), size}, "fuzz.json");
  if (!map.ok()) return 0;
  const double x = data[size / 2] * 1.7 - 100.0, y = data[size / 3] * 1.3 - 60.0;
  const Mat4 pose = rigid(rotation_z(data[size / 4] * 0.1), {x, y, 0.0});
  for (const GtCompat compat : {GtCompat::kDevkit, GtCompat::kExact}) {
    GroundTruthOptions options;
    options.compat = compat;
    options.classes.clear();
    for (int i = 0; i < kNumMapLayers; ++i)
      if ((*map)->has(static_cast<MapLayer>(i)))
        options.classes.emplace_back(name_of(static_cast<MapLayer>(i)));
    auto maker = GroundTruthMaker::make(options);
    if (!maker.ok()) return 0;
    std::vector<uint8_t> out(maker->num_bytes());
    const Status status =
        maker->draw(**map, pose, draw_bev_augmentation({}, size, 0, data[size / 5]), out.data());
    for (const uint8_t cell : out)
      if (!status.ok() || cell > 1) __builtin_trap();
  }
  return 0;
}
